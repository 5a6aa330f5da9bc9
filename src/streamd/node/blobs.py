"""Reads and uploads the bytes of snapshots."""

from __future__ import annotations

import trio
from msgspec.structs import replace

from streamd.group.group import Group
from streamd.node.position_lookup import PositionLookup
from streamd.process.threads import RunBlocking
from streamd.storage.state_store import StateStore
from streamd.streams.commands import BeginUpload, Outcome, PublishSnapshot, Result, StorePart
from streamd.streams.model import VerifiedPosition
from streamd.streams.offsets import Position
from streamd.streams.queries.reading import find_part
from streamd.streams.state import State
from streamd.tiering.cold_reader import ColdReader

# While others write, an upload pauses this many times as long as a part took. Without pauses the
# disk and the loop would do little else.
_REST = 8.0
_MAX_REST_S = 1.0


class BlobGone(Exception):
    """A part of a blob is missing: the blob was removed, or the whole state replaced."""


class Blobs:
    """Reads blobs a part at a time, wherever they are kept."""

    def __init__(
        self, state: State, store: StateStore, cold: ColdReader, run_blocking: RunBlocking
    ) -> None:
        self._state = state
        self._store = store
        self._cold = cold
        self._run_blocking = run_blocking

    async def part(self, blob_id: int, number: int) -> bytes:
        """A part's bytes. Raises `BlobGone`, but never for a pinned blob unless the node installs
        another's state meanwhile. Raises a `ColdError` if the part is only in the cold store and
        cannot be read there."""
        waiting = self._state.parts.find(blob_id, number)
        if waiting is not None:
            return waiting
        stored, cold = await self._run_blocking(find_part, self._store, blob_id, number)
        if stored is not None:
            return stored
        if not cold:
            raise BlobGone(f"part {number} of blob {blob_id}")
        chunk = (await self._cold.chunks(cold))[0]
        return chunk.cut(number, number + 1).data


class UploadRefused(Exception):
    """The snapshot cannot be published, or its upload cannot continue; `outcome` says why."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.result.value)
        self.outcome = outcome


class Upload:
    """A snapshot's body on its way into the log, one part at a time.

    Bytes that fit into one part travel in the publishing command itself. `close` must follow
    whatever happens. All methods raise `Unavailable`, `OutcomeUnknown` and, if the offset is in old
    records, a `ColdError`.
    """

    def __init__(self, group: Group, lookup: PositionLookup, key: bytes, at: Position) -> None:
        self._group = group
        self._lookup = lookup
        self._key = key
        self._at = at
        self._upload_id = 0
        self._parts = 0
        self._only_compare = False

    async def add(self, data: bytes) -> None:
        """Store the next part. Raises `UploadRefused`."""
        if not self._upload_id and not self._only_compare:
            await self._begin()
        if self._only_compare:
            return
        await self._group.writes.have_room()
        part = StorePart(self._upload_id, self._parts, data)
        started, taken = trio.current_time(), self._group.writes.taken
        outcome = await self._group.writes.propose(part, len(data))
        if outcome.result is not Result.UPLOADING:
            raise UploadRefused(outcome)
        self._parts += 1
        if self._group.writes.taken - taken > 1:
            await trio.sleep(min(_MAX_REST_S, _REST * (trio.current_time() - started)))

    async def publish(self, content_type: str, size: int, digest: bytes, last: bytes) -> Outcome:
        """Make the upload the stream's snapshot; `last` is the rest of its bytes."""
        if self._upload_id and last:
            await self.add(last)
        if self._upload_id or self._only_compare:
            last = b""
        command = PublishSnapshot(
            self._key, self._at, content_type, size, digest, self._upload_id, last
        )
        outcome = await self._lookup.propose(
            lambda finding: replace(command, finding=finding), self._find, len(last)
        )
        self._upload_id = 0
        return outcome

    async def _find(self) -> VerifiedPosition:
        return await self._lookup.boundary(self._key, self._at)

    def close(self) -> None:
        """Remove from the log what was not published."""
        if self._upload_id:
            self._group.writes.abandon_upload(self._upload_id)
            self._upload_id = 0

    async def _begin(self) -> None:
        outcome = await self._lookup.propose(
            lambda finding: BeginUpload(self._key, self._at, finding), self._find
        )
        if outcome.result is Result.UPLOADING:
            self._upload_id = outcome.upload_id
        elif outcome.result is Result.SNAPSHOT_DIFFERS:
            # There is one at this offset: its digest will tell whether it is the same.
            self._only_compare = True
        else:
            raise UploadRefused(outcome)
