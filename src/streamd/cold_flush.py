"""The leader's flusher: bytes that are old enough, or many enough, go to the cold store in packs.

Whatever breaks off between two steps costs nothing but an object to which nobody refers: the next
round begins where the state says that the cold store's records end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec
import structlog
import trio

from streamd.blocking import RunBlocking
from streamd.cold.objects import MAX_OBJECT_BYTES
from streamd.cold.packs import PackWriter
from streamd.cold_store import Cold
from streamd.cold_tier import Lead
from streamd.config import ColdConfig
from streamd.group import Group
from streamd.storage.state_store import StateStore
from streamd.streams import keys
from streamd.streams.chunks import Chunk, gathered
from streamd.streams.commands import FlushCold, NewSlice, Result
from streamd.streams.model import Blob, Stream
from streamd.streams.offsets import Position
from streamd.streams.reading import read_stored
from streamd.streams.tables import KeyValue

log = structlog.get_logger("streamd.cold")

GROUP_ID = 0
# Of a stream as much as this, about, goes into one slice: what a reader gets at once, and what is
# checked as a whole.
SLICE_BYTES = 1024 * 1024
# How many slices one command brings, so that it holds up the loop for some milliseconds only.
MAX_SLICES = 1_000
_LOOK_EVERY_S = 0.5
# Lengths of records and the footer take some of an object's room as well.
_PACK_MAX_BYTES = MAX_OBJECT_BYTES - 4 * 1024 * 1024
# What a slice takes of the log entry, about.
_COMMAND_BYTES = 160

_STREAM_DECODER = msgspec.msgpack.Decoder(Stream)
_BLOB_DECODER = msgspec.msgpack.Decoder(Blob)


class Gathered(NamedTuple):
    """A pack to be put, and what the log is to be told of it. `is_full` when there may be more."""

    name: str
    content: bytes
    slices: list[NewSlice]
    is_full: bool


class Flusher:
    """Moves what is hot to the cold store, oldest first, a pack at a time."""

    def __init__(
        self,
        group: Group,
        store: StateStore,
        cold: Cold,
        config: ColdConfig,
        folder: Callable[[], str],
        *,
        run_blocking: RunBlocking,
    ) -> None:
        self._group = group
        self._store = store
        self._cold = cold
        self._pack_bytes = config.pack_bytes
        self._flush_after_ms = config.flush_after_ms
        self._folder = folder
        self._run_blocking = run_blocking
        # What was found to be the oldest, and since when, on Trio's clock.
        self._oldest_ms: int | None = None
        self._oldest_at = 0.0
        self._asked = 0
        # For operators: how often all that was hot was flushed because somebody asked for it;
        # what was flushed by this node, and when last, in log time.
        self.passes = 0
        self.packs = 0
        self.bytes = 0
        self.flushed_ms: int | None = None

    def ask(self) -> int:
        """Have all flushed that is hot now, however young; that is done when `passes` has reached
        the number returned."""
        self._asked += 1
        return self._asked

    async def round(self, lead: Lead) -> float:
        """Flush a pack if one is due. Raises a `ColdError`, `Unavailable`, `OutcomeUnknown`."""
        asked = self._asked
        until_ms = await self._due_until_ms(asked)
        if until_ms is None:
            return min(_LOOK_EVERY_S, self._flush_after_ms / 4000)
        # Rows that a flush of ours has changed must be in the store before they are read again.
        await self._group.stored()
        with lead.pack() as number:
            found = await self._run_blocking(
                gather_pack, self._store, until_ms, self._pack_bytes, lead.term, number
            )
            if not found.slices:
                self.passes = asked
                return _LOOK_EVERY_S
            is_taken = await self._put(lead.term, number, found)
        if is_taken and not found.is_full:
            self.passes = asked
        return 0.0

    async def _due_until_ms(self, asked: int) -> int | None:
        """What is hot since this log time or before is to be flushed; None while nothing is."""
        header = self._group.state.header
        if not header.hot_bytes:
            self.passes = asked
            return None
        now_ms = self._group.now_ms()
        if asked > self.passes or header.hot_bytes >= self._pack_bytes:
            return now_ms
        oldest = await self._run_blocking(_oldest_ms, self._store)
        if oldest is None:
            return None
        if now_ms - oldest >= self._flush_after_ms:
            # Not what was written just now: a busy stream would be cut into small slices.
            return now_ms - self._flush_after_ms // 2
        # Log time stands still for as long as a clock was ahead that is put right.
        if oldest != self._oldest_ms:
            self._oldest_ms, self._oldest_at = oldest, trio.current_time()
        has_waited_ms = (trio.current_time() - self._oldest_at) * 1000
        return oldest if has_waited_ms >= self._flush_after_ms else None

    async def _put(self, term: int, number: int, found: Gathered) -> bool:
        """Put a pack and have the log refer to it; False when another leads by now."""
        name = f"{self._folder()}/{found.name}"
        await self._cold.put_verified(name, found.content)
        size = len(found.content)
        command = FlushCold(term, number, name, size, found.slices)
        outcome = await self._group.propose(command, len(found.slices) * _COMMAND_BYTES)
        if outcome.result is Result.STALE:
            log.info("a pack came too late: the lead has changed", pack=name)
            return False
        self.packs += 1
        self.bytes += size
        self.flushed_ms = self._group.now_ms()
        return True


def _oldest_ms(store: StateStore) -> int | None:
    """Since when something has been hot at most. Blocks."""
    rows = store.scan(keys.HOT, bytes([keys.HOT[0] + 1]), limit=1)
    return keys.hot_in(rows[0][0])[0] if rows else None


def gather_pack(
    store: KeyValue, until_ms: int, pack_bytes: int, term: int, number: int
) -> Gathered:
    """A pack of what is stored and hot since `until_ms` or before, oldest first. Blocks."""
    writer = PackWriter(GROUP_ID, term, number)
    slices: list[NewSlice] = []
    is_full = False
    for owner, stream_id, chunk in _hot_chunks(store, until_ms):
        if slices and writer.size + chunk.size > _PACK_MAX_BYTES:
            is_full = True
            break
        ref = writer.add(stream_id, chunk)
        slices.append(
            NewSlice(
                owner,
                stream_id,
                ref.start_record,
                ref.start_byte,
                ref.end_record,
                ref.end_byte,
                ref.offset,
                ref.length,
                ref.crc,
                ref.digest,
            )
        )
        is_full = writer.size >= pack_bytes or len(slices) >= MAX_SLICES
        if is_full:
            break
    pack = writer.finish()
    return Gathered(pack.name, pack.content, slices, is_full)


def _hot_chunks(store: KeyValue, until_ms: int) -> Iterator[tuple[bytes, int, Chunk]]:
    """What is hot, a slice's worth at a time: owner, stream or blob id, records."""
    hot = store.scan(keys.HOT, keys.hot_key(until_ms + 1, b""), limit=MAX_SLICES)
    for key, _ in hot:
        _, owner = keys.hot_in(key)
        blob_key = keys.blob_in_owner(owner)
        if blob_key is not None:
            raw = store.get(keys.BLOB + blob_key)
            if raw is not None:
                blob_id = int.from_bytes(blob_key, "big")
                yield from _parts(store, owner, blob_id, _BLOB_DECODER.decode(raw).cold)
            continue
        raw = store.get(keys.STREAM + owner)
        if raw is not None:
            yield from _records(store, owner, _STREAM_DECODER.decode(raw))


def _records(store: KeyValue, owner: bytes, stream: Stream) -> Iterator[tuple[bytes, int, Chunk]]:
    at = stream.cold
    while chunks := read_stored(store, stream.stream_id, at.record, max_bytes=SLICE_BYTES):
        chunk = gathered(chunks, at.record, chunks[-1].end_record)
        if chunk is None or chunk.start_byte != at.byte:
            log.error("a stream's records are not where they should be", stream=stream.stream_id)
            return
        yield owner, stream.stream_id, chunk
        at = Position(chunk.end_record, chunk.end_byte)


def _parts(
    store: KeyValue, owner: bytes, blob_id: int, at: Position
) -> Iterator[tuple[bytes, int, Chunk]]:
    """A blob's parts, each a record."""
    stop = keys.id_range(keys.BLOB_PART, blob_id)[1]
    while rows := store.scan(
        keys.part_key(blob_id, at.record), stop, limit=MAX_SLICES, max_bytes=SLICE_BYTES
    ):
        parts = [value for _, value in rows]
        chunk = Chunk(at.record, at.byte, [len(part) for part in parts], [], b"".join(parts))
        yield owner, blob_id, chunk
        at = Position(chunk.end_record, chunk.end_byte)
