"""Snapshots of a stream of state: read to begin with, and published when the log gets long."""

from __future__ import annotations

import anyio.to_thread

from streamd.client import AsyncStream, OffsetGone, Snapshot, SnapshotNotFound
from streamd.client.connecting import MAX_ANSWER_BYTES
from streamd.state.events import StateError
from streamd.state.summary import Summary
from streamd.streams.content import JSON, is_json

_START = "-1"


class ForeignSnapshot(StateError):
    """The stream's snapshot is not one of state."""


async def read_snapshot(stream: AsyncStream) -> Snapshot:
    """The latest snapshot, a JSON array. Raises `ForeignSnapshot`, `SnapshotNotFound`."""
    snapshot = await stream.snapshot.read()
    if not is_json(snapshot.content_type) or snapshot.data.strip()[:1] != b"[":
        raise ForeignSnapshot(f"the snapshot of {stream.name} is not an array of State Events")
    return snapshot


async def compact(stream: AsyncStream, *, longer_than: int = 100_000) -> str | None:
    """Publish a snapshot of all entities if that replaces more than `longer_than` messages.

    Returns its offset, or None if the stream is shorter or another process was faster. **The server
    then trims the stream**: what the snapshot replaces cannot be read any longer. `StreamDB` begins
    with the snapshot; readers that know only messages, such as `@durable-streams/state`, get 410
    until they do the same. The whole stream is read, and its state held in memory. Any process may
    do this, at any time.

    Raises `ForeignSnapshot`, `StateError` if the snapshot would be too large to be read, and
    `StreamdError` of the client.
    """
    try:
        summary, offset, news = await _summarized(stream)
        if news <= longer_than:
            return None
        data = await anyio.to_thread.run_sync(summary.snapshot, offset)
        if len(data) > MAX_ANSWER_BYTES:
            raise StateError(
                f"the state of {stream.name} has {len(data)} bytes of JSON, and a client reads"
                f" snapshots of up to {MAX_ANSWER_BYTES} bytes"
            )
        await stream.snapshot.publish(offset, data, content_type=JSON)
    except OffsetGone:
        return None  # There is a later snapshot by now.
    return offset


async def _summarized(stream: AsyncStream) -> tuple[Summary, str, int]:
    """The state at the stream's end, its offset, and the number of messages since the snapshot."""
    summary, offset = Summary(), _START
    try:
        snapshot = await read_snapshot(stream)
    except SnapshotNotFound:
        pass
    else:
        offset = snapshot.offset
        if await anyio.to_thread.run_sync(summary.apply, snapshot.data):
            raise ForeignSnapshot(f"the snapshot of {stream.name} is not of State Events alone")
    before = summary.events
    async with stream.read(offset) as chunks:
        async for chunk in chunks:
            if not chunk.empty:
                await anyio.to_thread.run_sync(summary.apply, chunk.data)
            offset = chunk.next_offset
    return summary, offset, summary.events - before
