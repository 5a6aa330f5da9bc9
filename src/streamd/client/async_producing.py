"""The asynchronous producer: tasks send what the caller appends."""

from __future__ import annotations

import math
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any

import anyio

from streamd.client.core.producing import Batch, ProducerFlows
from streamd.client.core.streams import Data
from streamd.client.errors import StreamdError, Unsendable
from streamd.client.values import Appended

if TYPE_CHECKING:
    from streamd.client.async_driving import AsyncDriver


class AsyncProducer:
    """Appends to one stream in order, each append exactly once over any failure.

    A context manager: it begins with `with`, flushes at the end of the block, and abandons what was
    not sent if the block raises. An error ends it: every call from then on raises that error, and
    appends that no `flush` has confirmed may be stored or not. `ProducerFenced` says that another
    producer has taken the id over.
    """

    def __init__(self, driver: AsyncDriver, flows: ProducerFlows, max_in_flight: int) -> None:
        self._driver = driver
        self._flows = flows
        # Set when something may be due, and when something was acknowledged; then replaced.
        self._work = anyio.Event()
        self._progress = anyio.Event()

    async def __aenter__(self) -> AsyncProducer:
        await self._driver.run(self._flows.begin())
        self._tasks = anyio.create_task_group()
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._run)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        failure = error
        if error is None:
            try:
                await self.flush()
            except BaseException as raised:
                failure = raised
        self._flows.end()
        self._progress.set()
        self._tasks.cancel_scope.cancel()
        if isinstance(failure, anyio.get_cancelled_exc_class()):
            # It may be the group's own: a task of it has failed.
            return await self._tasks.__aexit__(type(failure), failure, failure.__traceback__)
        await self._tasks.__aexit__(None, None, None)
        if error is None and failure is not None:
            raise failure
        return None

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

    async def append(self, data: Data, *, close: bool = False) -> None:
        """Accept bytes or text for sending, and close the stream after it if `close`.

        Waits while `max_queued_bytes` are not acknowledged. Raises what ended the producer, and
        `ValueError`.
        """
        if not self._flows.has_room:
            await self._wait_for_room()
        self._tell(self._flows.add(data, close, time.monotonic()))

    async def append_json(self, *values: Any, close: bool = False) -> None:
        """Accept values as messages of a JSON stream, as `append` does."""
        if not self._flows.has_room:
            await self._wait_for_room()
        self._tell(self._flows.add_json(values, close, time.monotonic()))

    async def flush(self) -> Appended | None:
        """Wait until all that was accepted is stored. Returns where the stream ended then.

        None if nothing was appended. Raises what ended the producer.
        """
        mark = self._flows.flush()
        self._tell(True)
        while not self._flows.is_settled(mark):
            await self._progress.wait()
        self._flows.check()
        return self._flows.last

    async def close_stream(self) -> Appended:
        """Close the stream after all that was accepted, and wait for that, as `flush` does."""
        self._tell(self._flows.add_close(time.monotonic()))
        last = await self.flush()
        assert last is not None, "the close was acknowledged"
        return last

    async def _wait_for_room(self) -> None:
        while not self._flows.has_room:
            await self._progress.wait()

    def _tell(self, is_due: bool) -> None:
        if is_due:
            self._work.set()

    async def _run(self) -> None:
        """Begin to send each batch when it is due."""
        while True:
            self._work = anyio.Event()
            now = time.monotonic()
            while (batch := self._flows.take(now)) is not None:
                self._tasks.start_soon(self._send, batch)
            due = self._flows.due_at(now)
            with anyio.move_on_after(math.inf if due is None else max(due - now, 0.0)):
                await self._work.wait()

    async def _send(self, batch: Batch) -> None:
        try:
            answer = await self._driver.run(self._flows.send(batch))
        except (StreamdError, Unsendable) as failure:
            self._flows.failure = self._flows.failure or failure
        else:
            self._flows.settle(batch, answer)
        self._work.set()
        self._progress.set()
        self._progress = anyio.Event()
