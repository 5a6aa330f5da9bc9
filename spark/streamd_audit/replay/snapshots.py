"""Uploads of snapshots, and whether one may be published (docs/snapshots-design.md)."""

from __future__ import annotations

from typing import NamedTuple

from streamd_audit.commands import BOUNDARY, NOTHING, PublishSnapshot, Verified
from streamd_audit.replay.ids import Ids, Numbered
from streamd_audit.replay.model import Stream, Upload
from streamd_audit.replay.results import (
    NOT_FOUND,
    OFFSET_BEYOND_TAIL,
    OFFSET_GONE,
    OFFSET_INVALID,
    SNAPSHOT_DIFFERS,
    STALE,
    UPLOAD_LOST,
)


class Part(NamedTuple):
    """A part of a snapshot's body that was stored: its number and its first byte in the body."""

    blob: Numbered
    number: int
    byte: int


class Uploads:
    """The uploads of a scope that are under way."""

    def __init__(self, ids: Ids) -> None:
        self._ids = ids
        self._held: list[Upload] = []

    def add(self, upload: Upload) -> None:
        """Take one that was begun, or that was under way before the log begins."""
        self._held.append(upload)

    def remove(self, upload: Upload) -> None:
        self._held.remove(upload)

    def find(self, number: int) -> Upload | None:
        """The upload with an id."""
        found = next((one for one in self._held if one.id == number), None)
        if found is None:
            unnamed = (one for one in self._held if one.id is None)
            found = next((one for one in unnamed if self._ids.match(one, number)), None)
        return found

    def take(self, number: int) -> Upload | None:
        """The upload with an id, which is no longer under way; 0 stands for none."""
        found = self.find(number) if number else None
        if found is not None:
            self.remove(found)
        return found


def unpublishable(
    ids: Ids, stream: Stream, at: tuple[int, int], found: Verified | None
) -> str | None:
    """The result that refuses a snapshot at `at`, or None if it may be published."""
    snapshot = stream.snapshot
    if snapshot is not None:
        if at[0] < snapshot.record:
            return OFFSET_GONE
        if at == snapshot[:2]:
            return SNAPSHOT_DIFFERS
    if at[0] > stream.records:
        return OFFSET_BEYOND_TAIL
    if at[0] == stream.records:
        return None if at[1] == stream.size else OFFSET_INVALID
    if found is None or found.verdict == NOTHING:
        return STALE
    if not ids.match(stream, found.stream_id):
        return STALE
    return None if found.verdict == BOUNDARY else OFFSET_INVALID


def incomplete(
    stream: Stream, command: PublishSnapshot, upload: Upload | None, size: int
) -> str | None:
    """The result that refuses a body of which the command itself brings `size` bytes, or None if it
    is the stream's, and whole."""
    if not command.upload_id:
        return None if size == command.size else UPLOAD_LOST
    if upload is None or upload.size != command.size:
        return UPLOAD_LOST
    return None if upload.stream is stream else NOT_FOUND
