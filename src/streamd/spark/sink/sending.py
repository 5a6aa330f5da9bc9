"""Sends requests of rows: several at once, but those for one stream one after the other."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from threading import Condition, Thread
from typing import NamedTuple

from streamd.client import Client, ProducerFenced, Refused, StreamClosed, Unavailable
from streamd.protocol.headers import CONTENT_TYPE, PRODUCER_EPOCH, PRODUCER_ID, PRODUCER_SEQ
from streamd.spark.sink.errors import Fenced, NotWritten
from streamd.spark.sink.plan import Part
from streamd.spark.sink.targets import Target

# How many bytes may wait to be sent; a single request may be larger.
MOST_WAITING_BYTES = 16 * 1024 * 1024


class _Request(NamedTuple):
    target: Target
    seq: int
    body: bytes
    rows: int


class Sender:
    """Sends the requests of a part, each stream's in order. Used in a `with`."""

    def __init__(self, client: Client, part: Part, *, parallel: int, skip_closed: bool) -> None:
        self._client = client
        self._part = part
        self._skip_closed = skip_closed
        self._changed = Condition()
        # The requests of each stream; the one being sent stays the first until it is done.
        self._lanes: dict[str, deque[_Request]] = {}
        self._ready: deque[str] = deque()
        self._next_seq: dict[str, int] = {}
        self._waiting_bytes = 0
        self._over = False
        self._failure: BaseException | None = None
        self.skipped = 0
        self._threads = [Thread(target=self._work) for _ in range(parallel)]

    def __enter__(self) -> Sender:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        with self._changed:
            self._over = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def send(self, target: Target, records: Sequence[bytes]) -> None:
        """Append records in one request, once there is room. Raises the failure of any
        request so far: `Fenced`, `NotWritten`, `StreamdError`."""
        body = target.body(records)
        seq = self._next_seq.get(target.name, 0)
        self._next_seq[target.name] = seq + 1
        with self._changed:
            self._changed.wait_for(lambda: self._failure or self._has_room(len(body)))
            self._raise_failure()
            self._waiting_bytes += len(body)
            lane = self._lanes.setdefault(target.name, deque())
            lane.append(_Request(target, seq, body, len(records)))
            if len(lane) == 1:
                self._ready.append(target.name)
                self._changed.notify_all()

    def finish(self) -> None:
        """Wait until everything is appended. Raises as `send` does."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure or not self._lanes)
            self._raise_failure()

    def _has_room(self, size: int) -> bool:
        return not self._lanes or self._waiting_bytes + size <= MOST_WAITING_BYTES

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _work(self) -> None:
        while (request := self._next()) is not None:
            try:
                self._append(request)
            except BaseException as failure:
                with self._changed:
                    self._failure = self._failure or failure
                    self._changed.notify_all()
                return
            self._done(request)

    def _next(self) -> _Request | None:
        with self._changed:
            self._changed.wait_for(lambda: self._over or self._failure or self._ready)
            if self._over or self._failure:
                return None
            return self._lanes[self._ready.popleft()][0]

    def _done(self, request: _Request) -> None:
        name = request.target.name
        with self._changed:
            self._waiting_bytes -= len(request.body)
            lane = self._lanes[name]
            lane.popleft()
            if lane:
                self._ready.append(name)
            else:
                del self._lanes[name]
            self._changed.notify_all()

    def _append(self, request: _Request) -> None:
        target = request.target
        headers: dict[str, str] = {
            CONTENT_TYPE: target.content_type,
            PRODUCER_ID: self._part.producer_id,
            PRODUCER_EPOCH: str(self._part.epoch),
            PRODUCER_SEQ: str(request.seq),
        }
        try:
            self._client.request("POST", target.path, headers=headers, body=request.body)
        except Unavailable:
            raise
        except ProducerFenced as fenced:
            raise Fenced(
                f"stream {target.name}: a later batch of sink {self._part.sink_id} than "
                f"{self._part.epoch} has begun: this task belongs to an ended batch"
            ) from fenced
        except Refused as refusal:
            if not (self._skip_closed and isinstance(refusal, StreamClosed)):
                raise NotWritten(f"stream {target.name}: {refusal}") from refusal
            with self._changed:
                self.skipped += request.rows
