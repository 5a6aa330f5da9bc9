"""The queue of an audit trail, and the task that writes it."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

import msgspec
import structlog
import trio

from streamd.audit_trail.refusals import Kind, RefusalLimit
from streamd.audit_trail.sinks import FileSink, Sink, SinkFailed
from streamd.config.settings import Config, ConfigError
from streamd.process.metrics import Metrics
from streamd.process.threads import in_thread

# Entries that wait to be written. Acts are refused beyond it, refusals no longer recorded; a begun
# act's outcome always finds room.
MAX_WAITING = 1024
_MAX_AT_ONCE = 256
# Between two tries while entries cannot be written; a new act is a try by itself.
_RETRY_S = 1.0
# How long an act waits for its first entry, its answer for the second, and the node's end for all.
ASK_TIMEOUT_S = 10.0
_DONE_TIMEOUT_S = 2.0
_END_TIMEOUT_S = 3.0

log = structlog.get_logger("streamd.audit")
_NOTES: ContextVar[dict[str, object] | None] = ContextVar("notes", default=None)


def entry(
    event: str, values: Mapping[str, object], *, node_id: int, entry_id: str, at_ms: int
) -> bytes:
    """The stored form of an entry: a JSON object in one line."""
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    return msgspec.json.encode(
        {
            "time": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "node": node_id,
            "id": entry_id,
            "event": event,
            **values,
        }
    )


class AuditUnavailable(Exception):
    """An act cannot be recorded, and must not happen."""


class _Waiting:
    """An entry that is not stored yet. One of an act waits for the disk; one that was `asked` for
    is abandoned if it cannot be stored at once."""

    __slots__ = ("data", "is_act", "is_asked", "is_stored", "settled")

    def __init__(self, data: bytes, *, is_act: bool, is_asked: bool) -> None:
        self.data = data
        self.is_act = is_act
        self.is_asked = is_asked
        self.is_stored = False
        self.settled = trio.Event()


class AuditTrail:
    """Records what others tell it, in order, in `sink`.

    Each entry has the time, this `node_id`, and an id: the node's, the time of its start, and a
    number. An entry may be stored twice, with the same id, when it was not certain that it was
    stored. `clock_ms` is wall time.
    """

    def __init__(
        self, sink: Sink, metrics: Metrics, *, node_id: int, clock_ms: Callable[[], int]
    ) -> None:
        self._sink = sink
        self._node_id = node_id
        self._clock_ms = clock_ms
        self._ids = (f"{node_id}-{clock_ms():x}-{number}" for number in count(1))
        self._limit = RefusalLimit()
        self._waiting: list[_Waiting] = []
        self._news = trio.Event()
        self._try_now = trio.Event()
        self._wants_reopening = False
        self._why_failing: str | None = None
        self._recorded = 0
        self._lost = 0
        metrics.gauge(
            "audit_failing",
            "1 if the audit trail cannot be written, so that administration is refused, else 0.",
            lambda: self._why_failing is not None,
        )
        metrics.counter_by(
            "outcome",
            "audit_entries",
            "Audit entries by outcome: stored, or lost because the queue was full.",
            lambda: {"stored": self._recorded, "lost": self._lost},
        )

    # -- what is recorded ---------------------------------------------------------------------

    def tell(self, event: str, **values: object) -> None:
        """Record an event of the node itself."""
        self._add_if_room(event, values, is_act=True)

    def tls_loaded(self, files: Sequence[str], error: str | None) -> None:
        """Record that TLS files were loaded again, or could not be. A callback for `TlsFiles`."""
        self.tell("tls-loaded", files=files, error=error)

    def refused(self, kind: Kind, values: Mapping[str, object]) -> None:
        """Record a refusal, or count it if there are many of its kind. Never waits."""
        if self._limit.admits(kind, trio.current_time()):
            self._add_if_room("refused", values)

    async def asked(self, values: Mapping[str, object]) -> str:
        """Record that an act begins, durably. Returns the id of the entry, for `done`.

        Raises `AuditUnavailable`: then the act must not begin.
        """
        if len(self._waiting) >= MAX_WAITING:
            raise AuditUnavailable(
                self._why_failing or "too many entries are waiting to be written"
            )
        entry_id, waiting = self._add("asked", values, is_act=True, is_asked=True)
        self._try_now.set()
        with trio.move_on_after(ASK_TIMEOUT_S):
            await waiting.settled.wait()
        if not waiting.is_stored:
            self._abandon(waiting)
            raise AuditUnavailable(self._why_failing or "the entry was not written in time")
        return entry_id

    async def done(self, asked_id: str, values: Mapping[str, object]) -> None:
        """Record the outcome of an act, and wait for a moment until that is durable. It is stored
        later if it cannot be now."""
        _, waiting = self._add("done", {"of": asked_id, **values}, is_act=True)
        with trio.move_on_after(_DONE_TIMEOUT_S):
            await waiting.settled.wait()

    def reopen(self) -> None:
        """Write to the file that has the name now (logrotate)."""
        self._wants_reopening = True
        self._news.set()

    # -- the queue ----------------------------------------------------------------------------

    def _add_if_room(
        self, event: str, values: Mapping[str, object], *, is_act: bool = False
    ) -> None:
        """Queue an entry whose caller cannot wait; drop it if the queue is full."""
        if len(self._waiting) < MAX_WAITING:
            self._add(event, values, is_act=is_act)
        else:
            self._lost += 1

    def _add(
        self,
        event: str,
        values: Mapping[str, object],
        *,
        is_act: bool = False,
        is_asked: bool = False,
    ) -> tuple[str, _Waiting]:
        entry_id = next(self._ids)
        data = entry(
            event, values, node_id=self._node_id, entry_id=entry_id, at_ms=self._clock_ms()
        )
        waiting = _Waiting(data, is_act=is_act, is_asked=is_asked)
        self._waiting.append(waiting)
        self._news.set()
        return entry_id, waiting

    def _abandon(self, waiting: _Waiting) -> None:
        """Do not store an entry whose act does not happen, if that is still possible."""
        if waiting in self._waiting:
            self._waiting.remove(waiting)
        waiting.settled.set()

    def _count_the_rest(self) -> None:
        """At the end of a window: an entry for each kind of refusals that got none."""
        for kind, more in self._limit.end():
            seen = {
                "who": kind.who,
                "from": kind.client,
                "status": kind.status,
                "code": kind.code,
            }
            self._add_if_room("more-refused", {**seen, "count": more})

    # -- the task -----------------------------------------------------------------------------

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Inside, the sink is open. Raises `ConfigError`."""
        try:
            await self._sink.open()
        except SinkFailed as error:
            raise ConfigError(f"log.audit: {error}") from None
        try:
            yield
        finally:
            with trio.CancelScope(shield=True):
                await self._sink.close()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Inside, entries are written. The last one says that the node stops, and of what error."""
        error: str | None = None
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._run)
                yield
                nursery.cancel_scope.cancel()
        except Exception as raised:
            error = type(raised).__name__
            raise
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(_END_TIMEOUT_S):
                await self._end(error)

    async def _run(self) -> None:
        while True:
            if not self._waiting:
                with trio.move_on_at(self._limit.ends):
                    await self._news.wait()
            self._news = trio.Event()
            if self._wants_reopening:
                await self._reopen()
            if trio.current_time() >= self._limit.ends:
                self._count_the_rest()
            self._try_now = trio.Event()
            if self._waiting and not await self._write():
                with trio.move_on_after(_RETRY_S):
                    await self._try_now.wait()

    async def _end(self, error: str | None) -> None:
        self._count_the_rest()
        self.tell("stopped", error=error)
        try:
            while self._waiting and await self._write():
                pass
        finally:
            if self._waiting:
                log.error("the audit trail's last entries are lost", entries=len(self._waiting))

    async def _write(self) -> bool:
        """Store what has waited longest. Returns whether that worked."""
        batch = self._waiting[:_MAX_AT_ONCE]
        durable = any(each.is_act for each in batch)
        try:
            await self._sink.write([each.data for each in batch], durable=durable)
        except SinkFailed as error:
            if self._why_failing is None:
                log.error("the audit trail cannot be written", error=str(error))
            self._why_failing = str(error)
            for each in batch:
                if each.is_asked:
                    self._abandon(each)
            return False
        if self._why_failing is not None:
            log.info("the audit trail is written again")
            self._why_failing = None
        self._recorded += len(batch)
        stored = set(batch)
        self._waiting = [each for each in self._waiting if each not in stored]
        for each in batch:
            each.is_stored = True
            each.settled.set()
        return True

    async def _reopen(self) -> None:
        self._wants_reopening = False
        try:
            await self._sink.reopen()
        except SinkFailed as error:
            log.error("the audit trail's file cannot be opened again", error=str(error))


def collect() -> dict[str, object]:
    """What handlers note from now on, in this task and those that it starts."""
    notes: dict[str, object] = {}
    _NOTES.set(notes)
    return notes


def note(**values: object) -> None:
    """Add to the entry of the present act, if acts are recorded. Values are JSON, and no secrets:
    never a token or a request's body."""
    notes = _NOTES.get()
    if notes is not None:
        notes.update(values)


def record(config: Config, event: str, **values: object) -> None:
    """Record an act in the configured file, durably, before it happens. A stream needs a node that
    runs, and gets no entry.

    Raises `ConfigError` if the file cannot be written: then the act must not happen. Blocks.
    """
    if config.log.audit is not None and config.log.audit_stream is None:
        trio.run(_record, Path(config.log.audit), config.server.node_id, event, values)


async def _record(file: Path, node_id: int, event: str, values: dict[str, object]) -> None:
    now_ms = time.time_ns() // 1_000_000
    sink = FileSink(file, in_thread)
    try:
        await sink.open()
        try:
            entry_id = f"{node_id}-{now_ms:x}-1"
            made = entry(event, values, node_id=node_id, entry_id=entry_id, at_ms=now_ms)
            await sink.write([made], durable=True)
        finally:
            await sink.close()
    except SinkFailed as error:
        raise ConfigError(f"log.audit: {error}") from None
