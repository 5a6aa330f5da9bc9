"""Snapshots of a stream of state: what a reader begins with, and what is published for others
when the log gets long."""

from __future__ import annotations

import logging
import random
import re
from collections.abc import Callable

import anyio
import anyio.to_thread

from streamd.client import (
    AlreadyExists,
    AsyncStream,
    OffsetGone,
    Snapshot,
    SnapshotNotFound,
    StreamdError,
    StreamInfo,
)
from streamd.client.connecting import MAX_ANSWER_BYTES
from streamd.client.names import BadName, parse_name
from streamd.state.consumer import Plan
from streamd.state.events import StateError
from streamd.state.summary import Summary
from streamd.streams.content import JSON, InvalidJson, is_json

_INCARNATION = re.compile(r'"([^":]+):')
_START = "-1"
# What the state may grow to on the way to a snapshot, which has MAX_ANSWER_BYTES.
_MAX_STATE_BYTES = 4 * MAX_ANSWER_BYTES
_log = logging.getLogger("streamd.state")


class ForeignSnapshot(StateError):
    """The stream's snapshot is not one of state."""


async def read_snapshot(stream: AsyncStream, at: str | None = None) -> Snapshot:
    """The latest snapshot, or the one at an offset: a JSON array.

    Raises `ForeignSnapshot`, `SnapshotNotFound`.
    """
    snapshot = await stream.snapshot.read(at)
    if not is_json(snapshot.content_type) or snapshot.data.strip()[:1] != b"[":
        raise ForeignSnapshot(f"the snapshot of {stream.name} is not an array of State Events")
    return snapshot


async def summary_of(stream: AsyncStream, snapshot: Snapshot) -> Summary:
    """The entities of a snapshot. Raises `ForeignSnapshot`."""
    summary = Summary()
    try:
        malformed = await anyio.to_thread.run_sync(summary.apply, snapshot.data)
    except ValueError as error:
        raise ForeignSnapshot(f"the snapshot of {stream.name} is not JSON: {error}") from error
    if malformed:
        raise ForeignSnapshot(f"the snapshot of {stream.name} is not of State Events alone")
    return summary


def incarnation_of(info: StreamInfo) -> str:
    """Which of the streams that had this name it is; empty if the server does not tell."""
    found = _INCARNATION.match(info.etag or "")
    return found[1] if found else ""


async def compact(stream: AsyncStream, *, longer_than: int = 100_000) -> str | None:
    """Publish a snapshot of all entities if that replaces more than `longer_than` messages.

    Returns its offset, or None if the stream is shorter or another process was faster. **The server
    then trims the stream**: what the snapshot replaces cannot be read any longer. `StreamDB` begins
    with the snapshot; readers that know only messages, such as `@durable-streams/state`, get 410
    until they do the same. The stream is read from its last snapshot on, and its state held in
    memory. A snapshot is published only after it was decoded again to the same state. Any number of
    processes may do this, at any time.

    Raises `ForeignSnapshot`, also if another state was published for the same offset, `StateError`
    if the snapshot would be too large to be read, and `StreamdError` of the client.
    """
    before = await stream.head()
    try:
        summary, offset, news = await _summarized(stream)
        if news <= longer_than:
            return None
        data = await anyio.to_thread.run_sync(_checked_snapshot, stream.name, summary, offset)
        now = await stream.head()
        if incarnation_of(now) != incarnation_of(before):
            return None  # Another stream has the name, whose messages this does not replace.
        if now.snapshot_offset != before.snapshot_offset:
            return None  # Another process did the same work meanwhile.
        await stream.snapshot.publish(offset, data, content_type=JSON)
    except OffsetGone:
        return None  # There is a later snapshot by now.
    except AlreadyExists:
        await _check_other(stream, offset, summary)
        return None
    return offset


async def _summarized(stream: AsyncStream) -> tuple[Summary, str, int]:
    """The state at the stream's end, its offset, and the number of messages since the snapshot."""
    try:
        snapshot = await read_snapshot(stream)
    except SnapshotNotFound:
        summary, offset = Summary(), _START
    else:
        summary, offset = await summary_of(stream, snapshot), snapshot.offset
    before = summary.events
    async with stream.read(offset) as chunks:
        async for chunk in chunks:
            if not chunk.empty:
                await anyio.to_thread.run_sync(summary.apply, chunk.data)
                _check_size(stream.name, summary.size, _MAX_STATE_BYTES)
            offset = chunk.next_offset
    return summary, offset, summary.events - before


def _check_size(name: str, size: int, limit: int) -> None:
    if size > limit:
        raise StateError(
            f"the state of {name} has {size} bytes of JSON, and a client reads snapshots of up to"
            f" {MAX_ANSWER_BYTES} bytes"
        )


def _checked_snapshot(name: str, summary: Summary, offset: str) -> bytes:
    """The snapshot, which is the only trace of what it replaces: so it is read back first."""
    data = summary.snapshot(offset)
    _check_size(name, len(data), MAX_ANSWER_BYTES)
    found = Summary()
    if found.apply(data) or not found.equals(summary):
        raise StateError(f"a snapshot of {name} does not decode to its state; it is not published")
    return data


async def _check_other(stream: AsyncStream, offset: str, summary: Summary) -> None:
    """Another process published other bytes for this offset: hold it to the same state."""
    try:
        snapshot = await read_snapshot(stream, offset)
    except SnapshotNotFound:
        return  # A later snapshot has replaced it.
    if not (await summary_of(stream, snapshot)).equals(summary):
        raise ForeignSnapshot(f"the snapshot of {stream.name} at {offset} is of another state")


class Compactor:
    """Publishes snapshots while a `StreamDB` follows the stream.

    Each of its replicas lets the log get longer than `every_events` by a share that it draws, up
    to twice as long. So one is first, and the others find its snapshot when their turn comes. If
    two begin together, both do the work and one snapshot stays.
    """

    def __init__(
        self,
        stream: AsyncStream,
        every_events: int,
        draw: Callable[[float, float], float] = random.uniform,
    ) -> None:
        if every_events < 1:
            raise ValueError("compact_every_events is at least 1")
        name = parse_name(stream.name)
        name.bucketed_path()  # Only streams in buckets have snapshots.
        if not name.is_in_bucket:
            raise BadName(f"{stream.name} has no snapshots: no bucket has such a name")
        self._stream = stream
        self._every_events = every_events
        self._draw = draw
        self._due = anyio.Event()
        self._restart()

    def _restart(self) -> None:
        self._events = 0
        self._limit = self._draw(self._every_events, 2 * self._every_events)

    def saw(self, plan: Plan) -> None:
        """Count the messages of a batch."""
        if plan.restarts:
            self._restart()
            return
        self._events += plan.events
        if self._events >= self._limit:
            self._due.set()

    @property
    def is_due(self) -> bool:
        """Whether the log is long enough."""
        return self._due.is_set()

    async def run(self, ready: anyio.Event) -> None:
        """Publish a snapshot each time that one is due. A failure is logged, and ends nothing."""
        await ready.wait()
        known: str | None = None
        while True:
            await self._due.wait()
            self._due = anyio.Event()
            self._restart()
            try:
                info = await self._stream.head()
                if info.snapshot_offset == known:
                    await compact(self._stream, longer_than=self._every_events)
                    info = await self._stream.head()
                known = info.snapshot_offset
            except (StreamdError, StateError, InvalidJson) as failure:
                _log.warning("%s: no snapshot was published: %s", self._stream.name, failure)
