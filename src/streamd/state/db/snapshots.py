"""Snapshots of a stream of state: read to begin with, and published when the log gets long."""

from __future__ import annotations

import anyio.to_thread

from streamd.client import AsyncStream, Snapshot, SnapshotNotFound
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

    Returns its offset, or None if the stream is shorter. **The server then trims the stream**: what
    the snapshot replaces cannot be read any longer. `StreamDB` begins with the snapshot; readers
    that know only messages, such as `@durable-streams/state`, get 410 until they do the same.
    The whole stream is read, and its state held in memory. Any process may do this, at any time.

    Raises `ForeignSnapshot`, and `StreamdError` of the client.
    """
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
    if summary.events - before <= longer_than:
        return None
    data = await anyio.to_thread.run_sync(summary.snapshot, offset)
    await stream.snapshot.publish(offset, data, content_type=JSON)
    return offset
