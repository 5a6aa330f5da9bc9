"""The leader's flusher: bytes that are old enough, or many enough, go to the cold store in packs.

A crash between two steps costs nothing but an object to which nothing refers: the next round
begins where the cold store's records end according to the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec
import structlog
import trio

from streamd.config.settings import ColdConfig
from streamd.group.group import Group
from streamd.objectstore.objects import MAX_OBJECT_BYTES
from streamd.objectstore.packs import PackWriter
from streamd.process.threads import RunBlocking
from streamd.storage.state_store import StateStore
from streamd.streams import keys
from streamd.streams.chunks import Chunk, gathered
from streamd.streams.commands import FlushCold, NewSlice, Result
from streamd.streams.model import Blob, Stream
from streamd.streams.offsets import Position
from streamd.streams.queries.reading import read_stored
from streamd.streams.tables import KeyValue
from streamd.tiering.async_store import AsyncObjectStore
from streamd.tiering.tier import LeaderTerm

log = structlog.get_logger("streamd.objectstore")

# About how much of a stream goes into one slice: what a reader gets at once, and what is verified
# as a whole.
SLICE_BYTES = 1024 * 1024
# How many slices one command may hold, so that it blocks the loop for only some milliseconds.
MAX_SLICES = 1_000
_LOOK_EVERY_S = 0.5
# The footer and the end of a pack with as many slices take less than what is left here.
_PACK_MAX_BYTES = MAX_OBJECT_BYTES - 1024 * 1024
# The most that the length of a record, or of an append, takes besides its bytes; and the most that
# a slice takes besides these: its head, two positions, and the lengths of two lists and the bytes.
_MAX_LENGTH_BYTES = 5
_MAX_HEAD_BYTES = 64
# About how much of the log entry a slice takes.
_COMMAND_BYTES = 160

_STREAM_DECODER = msgspec.msgpack.Decoder(Stream)
_BLOB_DECODER = msgspec.msgpack.Decoder(Blob)


class Stuck(NamedTuple):
    """An owner whose next records, at `at`, fit into no object; `left_bytes` stay hot because of
    it."""

    stream_id: int
    at: Position
    left_bytes: int


class Gathered(NamedTuple):
    """A pack to put, and its description for the log. `is_full` means that there may be more.

    `stuck` are owners that were skipped.
    """

    name: str
    content: bytes
    slices: list[NewSlice]
    is_full: bool
    stuck: dict[bytes, Stuck]


class Flusher:
    """Moves hot bytes to the cold store, oldest first, a pack at a time."""

    def __init__(
        self,
        group: Group,
        store: StateStore,
        cold: AsyncObjectStore,
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
        # The last owner found to be the oldest, and since when, on Trio's clock.
        self._oldest_ms: int | None = None
        self._oldest_at = 0.0
        self._asked = 0
        # Found on the way, and not read again each time. Each is as large as an object, so no more
        # of them exist than fit below the hot limit.
        self._stuck: dict[bytes, Stuck] = {}
        # For operators: how often everything hot was flushed on request; what this node has
        # flushed, and when last, in log time.
        self.passes = 0
        self.packs = 0
        self.bytes = 0
        self.flushed_ms: int | None = None

    def ask(self) -> int:
        """Flush everything that is hot now, however young. It is done when `passes` has reached the
        number returned."""
        self._asked += 1
        return self._asked

    @property
    def stuck_bytes(self) -> int:
        """How many hot bytes can never be flushed, as far as this node has found them."""
        return sum(stuck.left_bytes for stuck in self._stuck.values())

    async def round(self, lead: LeaderTerm) -> float:
        """Flush a pack if one is due. Raises a `ColdError`, `Unavailable`, `OutcomeUnknown`."""
        asked = self._asked
        until_ms = await self._due_until_ms(asked)
        if until_ms is None:
            return min(_LOOK_EVERY_S, self._flush_after_ms / 4000)
        # Rows that our own flush has changed must be in the store before they are read again.
        await self._group.reads.stored()
        with lead.pack() as number:
            found = await self._run_blocking(
                gather_pack,
                self._store,
                until_ms,
                self._pack_bytes,
                lead.term,
                number,
                self._stuck,
                self._group.group_id,
            )
            self._pass_over(found)
            if not found.slices:
                self.passes = asked
                return _LOOK_EVERY_S
            is_taken = await self._put(lead.term, number, found)
        if is_taken and not found.is_full:
            self.passes = asked
        return 0.0

    async def _due_until_ms(self, asked: int) -> int | None:
        """Bytes that have been hot since this log time or earlier are due; None if there are
        none."""
        header = self._group.state.header
        if not header.hot_bytes:
            self.passes = asked
            return None
        now_ms = self._group.now_ms()
        if asked > self.passes or header.hot_bytes - self.stuck_bytes >= self._pack_bytes:
            return now_ms
        oldest = await self._run_blocking(_oldest_ms, self._store, self._stuck)
        if oldest is None:
            return None
        if now_ms - oldest >= self._flush_after_ms:
            # Not what was written just now: a busy stream would be cut into small slices.
            return now_ms - self._flush_after_ms // 2
        # Log time stands still after a clock that was ahead is corrected, for as long as it was.
        if oldest != self._oldest_ms:
            self._oldest_ms, self._oldest_at = oldest, trio.current_time()
        has_waited_ms = (trio.current_time() - self._oldest_at) * 1000
        return oldest if has_waited_ms >= self._flush_after_ms else None

    def _pass_over(self, found: Gathered) -> None:
        """Remember what cannot be flushed, and report it once."""
        for owner, stuck in found.stuck.items():
            before = self._stuck.get(owner)
            if before is None or before.at != stuck.at:
                log.error(
                    "a record exceeds the limit for one object; its stream's "
                    "bytes stay on the local disk",
                    stream=stuck.stream_id,
                    record=stuck.at.record,
                    bytes=stuck.left_bytes,
                )
        # A search that ended early has not seen them all.
        self._stuck = {**self._stuck, **found.stuck} if found.is_full else found.stuck

    async def _put(self, term: int, number: int, found: Gathered) -> bool:
        """Put a pack and make the log refer to it; False if another node leads by now."""
        name = f"{self._folder()}/{found.name}"
        await self._cold.put_verified(name, found.content)
        size = len(found.content)
        command = FlushCold(term, number, name, size, found.slices)
        outcome = await self._group.writes.propose(command, len(found.slices) * _COMMAND_BYTES)
        if outcome.result is Result.STALE:
            log.info("a pack was flushed too late: leadership has changed", pack=name)
            return False
        self.packs += 1
        self.bytes += size
        self.flushed_ms = self._group.now_ms()
        return True


def _oldest_ms(store: StateStore, stuck: Mapping[bytes, Stuck]) -> int | None:
    """The time since which the oldest flushable bytes have been hot. Blocks."""
    rows = store.scan(keys.HOT, keys.end_of(keys.HOT), limit=len(stuck) + 1)
    found = (keys.parse_hot(key) for key, _ in rows)
    return next((hot_ms for hot_ms, owner in found if owner not in stuck), None)


def gather_pack(
    store: KeyValue,
    until_ms: int,
    pack_bytes: int,
    term: int,
    number: int,
    known: Mapping[bytes, Stuck] = MappingProxyType({}),
    group_id: int = 0,
) -> Gathered:
    """A pack of stored bytes that have been hot since `until_ms` or before, oldest first. Blocks.

    A chunk that does not fit into a pack of `pack_bytes` gets a pack of its own, if an object can
    hold it. Owners `known` to be stuck are skipped without being read.
    """
    writer = PackWriter(group_id, term, number)
    slices: list[NewSlice] = []
    stuck: dict[bytes, Stuck] = {}
    is_full = False
    for hot in _hot_owners(store, until_ms):
        before = known.get(hot.owner)
        if before is not None and (before.stream_id, before.at) == (hot.stream_id, hot.at):
            stuck[hot.owner] = hot.stuck_at(hot.at)
            continue
        for chunk in _chunks(store, hot):
            if slices and not _fits(writer, chunk, pack_bytes):
                is_full = True
                break
            # In a pack a wrong chunk would be permanent damage.
            assert sum(chunk.lengths) == chunk.size
            ref = writer.add(hot.stream_id, chunk)
            if writer.size > _PACK_MAX_BYTES:
                writer = PackWriter(group_id, term, number)
                stuck[hot.owner] = hot.stuck_at(Position(chunk.start_record, chunk.start_byte))
                break
            slices.append(NewSlice.of(hot.owner, ref))
            is_full = writer.size >= pack_bytes or len(slices) >= MAX_SLICES
            if is_full:
                break
        if is_full:
            break
    pack = writer.finish()
    return Gathered(pack.name, pack.content, slices, is_full, stuck)


def _fits(writer: PackWriter, chunk: Chunk, pack_bytes: int) -> bool:
    """Whether a chunk may join others: small ones always, so that packs come near their size."""
    lengths = len(chunk.lengths) + len(chunk.appends)
    size = chunk.size + _MAX_LENGTH_BYTES * lengths + _MAX_HEAD_BYTES
    return chunk.size < pack_bytes and writer.size + size <= _PACK_MAX_BYTES


class _Hot(NamedTuple):
    """A stream, or a blob, whose `size` bytes are hot from `at` on."""

    owner: bytes
    stream_id: int
    at: Position
    size: int

    def stuck_at(self, at: Position) -> Stuck:
        return Stuck(self.stream_id, at, self.size - at.byte)


def _hot_owners(store: KeyValue, until_ms: int) -> Iterator[_Hot]:
    """Owners that have had hot bytes since `until_ms` or before, oldest first."""
    start, stop = keys.HOT, keys.hot_key(until_ms + 1, b"")
    while rows := store.scan(start, stop, limit=MAX_SLICES):
        for key, _ in rows:
            _, owner = keys.parse_hot(key)
            hot = _hot_owner(store, owner)
            if hot is not None:
                yield hot
        start = rows[-1][0] + b"\0"


def _hot_owner(store: KeyValue, owner: bytes) -> _Hot | None:
    blob_key = keys.blob_in_owner(owner)
    if blob_key is not None:
        raw = store.get(keys.BLOB + blob_key)
        if raw is None:
            return None
        blob = _BLOB_DECODER.decode(raw)
        return _Hot(owner, int.from_bytes(blob_key, "big"), blob.cold, blob.size)
    raw = store.get(keys.STREAM + owner)
    if raw is None:
        return None
    stream = _STREAM_DECODER.decode(raw)
    return _Hot(owner, stream.stream_id, stream.cold, stream.size)


def _chunks(store: KeyValue, hot: _Hot) -> Iterator[Chunk]:
    """The hot records of a stream or blob, a slice's worth at a time."""
    if keys.blob_in_owner(hot.owner) is not None:
        return _parts(store, hot)
    return _records(store, hot)


def _records(store: KeyValue, hot: _Hot) -> Iterator[Chunk]:
    at = hot.at
    while chunks := read_stored(store, hot.stream_id, at.record, max_bytes=SLICE_BYTES):
        # The record read last may be large: it is better off alone.
        if len(chunks) > 1 and sum(chunk.size for chunk in chunks) > 2 * SLICE_BYTES:
            chunks.pop()
        chunk = gathered(chunks, at.record, chunks[-1].end_record)
        if chunk is None or chunk.start_byte != at.byte:
            log.error("a stream's records are not at their expected place", stream=hot.stream_id)
            return
        yield chunk
        at = Position(chunk.end_record, chunk.end_byte)


def _parts(store: KeyValue, hot: _Hot) -> Iterator[Chunk]:
    """A blob's parts, each a record."""
    at, stop = hot.at, keys.id_range(keys.BLOB_PART, hot.stream_id)[1]
    while rows := store.scan(
        keys.part_key(hot.stream_id, at.record), stop, limit=MAX_SLICES, max_bytes=SLICE_BYTES
    ):
        parts = [value for _, value in rows]
        chunk = Chunk(at.record, at.byte, [len(part) for part in parts], [], b"".join(parts))
        yield chunk
        at = Position(chunk.end_record, chunk.end_byte)
