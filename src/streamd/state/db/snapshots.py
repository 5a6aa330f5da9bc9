"""Snapshots of a stream of state: what a reader begins with."""

from __future__ import annotations

import re

import anyio.to_thread

from streamd.client import AsyncStream, Snapshot, StreamInfo
from streamd.state.events import StateError
from streamd.state.summary import Summary
from streamd.streams.content import is_json

_INCARNATION = re.compile(r'"([^":]+):')


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
