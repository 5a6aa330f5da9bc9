"""The blocking producer: threads send what the caller appends."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from threading import Condition, Thread
from types import TracebackType
from typing import TYPE_CHECKING, Any

from streamd.client.core.producing import Batch, ProducerFlows
from streamd.client.core.streams import Data
from streamd.client.errors import StreamdError, Unsendable
from streamd.client.limits import time_left_s, too_late
from streamd.client.values import Appended

if TYPE_CHECKING:
    from streamd.client.driving import Driver


class Producer:
    """Appends to one stream in order, each append exactly once over any failure.

    A context manager: it begins with `with`, flushes at the end of the block, and abandons what was
    not sent if the block raises. An error ends it: every call from then on raises that error, and
    appends that no `flush` has confirmed may be stored or not. `ProducerFenced` says that another
    producer has taken the id over.

    >>> from streamd.client import Client
    >>> client = Client("http://127.0.0.1:4437")
    >>> stream = client.stream("help/log")
    >>> info = stream.create("text/plain")
    >>> with stream.producer("log-writer") as producer:
    ...     for number in range(3):
    ...         producer.append(f"line {number}. ")
    >>> [chunk.data for chunk in stream.read()]
    [b'line 0. line 1. line 2. ']
    >>> client.close()
    """

    def __init__(self, driver: Driver, flows: ProducerFlows, max_in_flight: int) -> None:
        self._driver = driver
        self._flows = flows
        self._changed = Condition()
        self._process = os.getpid()
        self._over = False
        self._bug: BaseException | None = None
        self._threads = [
            Thread(target=self._work, name="streamd-producer", daemon=True)
            for _ in range(max_in_flight)
        ]

    def __enter__(self) -> Producer:
        self._process = os.getpid()
        self._driver.run(self._flows.begin())
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._check_process()
        try:
            if error is None:
                self.flush()
        finally:
            # Threads that still retry, after a failure, end by themselves.
            with self._changed:
                self._over = True
                self._flows.end()
                self._changed.notify_all()
        if error is None:
            for thread in self._threads:
                thread.join()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.producer_id} of {self._flows.stream.name.written}>"

    @property
    def producer_id(self) -> str:
        """The id that the server knows it by."""
        return self._flows.producer_id

    @property
    def epoch(self) -> int:
        """Its start's number, which may grow until the first flush."""
        return self._flows.epoch

    def append(self, data: Data, *, close: bool = False) -> None:
        """Accept bytes or text for sending, and close the stream after it if `close`.

        Waits while `max_queued_bytes` are not acknowledged. Raises what ended the producer, and
        `ValueError`.
        """
        self._check_process()
        with self._changed:
            self._wait_for_room()
            self._tell(self._flows.add(data, close, time.monotonic()))

    def append_json(self, *values: Any, close: bool = False) -> None:
        """Accept values as messages of a JSON stream, as `append` does."""
        self._check_process()
        with self._changed:
            self._wait_for_room()
            self._tell(self._flows.add_json(values, close, time.monotonic()))

    def flush(self) -> Appended | None:
        """Wait until all that was accepted is stored. Returns where the stream ended then.

        None if nothing was appended. Raises what ended the producer.
        """
        self._check_process()
        with self._changed:
            mark = self._flows.flush()
            self._changed.notify_all()
            self._wait_for(lambda: self._flows.is_settled(mark))
            self._check()
            return self._flows.last

    def close_stream(self) -> Appended:
        """Close the stream after all that was accepted, and wait for that, as `flush` does."""
        self._check_process()
        with self._changed:
            self._tell(self._flows.add_close(time.monotonic()))
        last = self.flush()
        assert last is not None, "the close was acknowledged"
        return last

    def _check_process(self) -> None:
        """Before the lock, which a thread of the parent may have held."""
        if self._process != os.getpid():
            raise ValueError("a producer is used in the process that began it, not in a fork of it")

    def _wait_for_room(self) -> None:
        if not self._flows.has_room:
            self._wait_for(lambda: self._flows.has_room)
        self._check()

    def _wait_for(self, is_so: Callable[[], bool]) -> None:
        """Wait with the lock, which the wait gives back meanwhile. Raises `TimeoutError`."""
        if not self._changed.wait_for(lambda: is_so() or self._bug, time_left_s()):
            raise too_late()

    def _check(self) -> None:
        if self._bug is not None:
            raise self._bug
        self._flows.check()

    def _tell(self, is_due: bool) -> None:
        if is_due:
            self._changed.notify_all()

    def _work(self) -> None:
        while (batch := self._next()) is not None:
            try:
                answer = self._driver.run(self._flows.send(batch))
            except (StreamdError, Unsendable) as failure:
                with self._changed:
                    self._flows.failure = self._flows.failure or failure
                    self._changed.notify_all()
            except BaseException as bug:
                with self._changed:
                    self._bug = bug
                    self._changed.notify_all()
                raise
            else:
                with self._changed:
                    self._flows.settle(batch, answer)
                    self._changed.notify_all()

    def _next(self) -> Batch | None:
        """The next batch that is due; None at the end."""
        with self._changed:
            while not self._over:
                now = time.monotonic()
                if (batch := self._flows.take(now)) is not None:
                    return batch
                due = self._flows.due_at(now)
                self._changed.wait(None if due is None else max(due - now, 0.0))
        return None
