"""The reader of the cold store: slices of packs, a range at a time, cached while there is room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import dropwhile

import structlog
import trio

from streamd.objectstore.errors import (
    ColdError,
    ColdRefused,
    ColdUnavailable,
    ObjectCorrupt,
    ObjectMissing,
)
from streamd.streams.chunks import Chunk
from streamd.streams.queries.reading import LocatedSlice
from streamd.tiering.async_store import AsyncObjectStore

log = structlog.get_logger("streamd.objectstore")

# How much one request reads, to the end of a slice: for a waiting reader, and ahead of a sequential
# one. Each request has its price, so larger ones are cheaper.
READ_BYTES = 4 * 1024 * 1024
AHEAD_BYTES = 2 * READ_BYTES
# The most that is requested ahead of all readers at once. Beyond it readers wait for themselves.
_MAX_AHEAD_BYTES = 4 * AHEAD_BYTES
# For this many stream ids the reader remembers where they were last read.
_REMEMBERED = 1_000

_Key = tuple[str, int]


class ColdReader:
    """Reads the slices that the state refers to: few requests, bounded memory, never wrong bytes.

    One task at a time reads a range of a pack; others wait for it. `cache_bytes` bounds the chunks
    that are kept. A request that continues where the last one of its stream ended counts as
    sequential: while its chunks are sent, the next range is read ahead. `run` must be running for
    that.
    """

    def __init__(self, cold: AsyncObjectStore | None, *, cache_bytes: int = 0) -> None:
        """If `cold` is None there is no cold store; every read raises `ColdRefused`."""
        self._cold = None if cold is None else cold.for_readers()
        self._cache_bytes = cache_bytes
        self._cached: OrderedDict[_Key, Chunk] = OrderedDict()
        self._under_way: dict[_Key, trio.Event] = {}
        self._nursery: trio.Nursery | None = None
        self._ahead_bytes = 0
        # By stream id, the records between which it was last read.
        self._last: OrderedDict[int, tuple[int, int]] = OrderedDict()
        # Packs whose damage has been logged; clients retry.
        self._logged: set[str] = set()
        self.cached_bytes = 0
        # For metrics: slices found in memory and slices read; reads that found damaged objects.
        self.hits = 0
        self.misses = 0
        self.damaged = 0

    async def run(self) -> None:
        """Read ahead until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    async def chunks(self, slices: Sequence[LocatedSlice]) -> list[Chunk]:
        """The chunks of the first slice and of the following ones that one request reads. Ask again
        for the rest.

        Raises `ColdUnavailable`, also when reading takes longer than the store's time limit, and
        `ColdRefused`; `ObjectMissing` and `ObjectCorrupt` mean damage.
        """
        cold = self._cold
        if cold is None:
            raise ColdRefused('cold.backend is "none", but records are in a cold store')
        if self._is_sequential(slices[0]):
            self._read_ahead(cold, slices)
        wanted = list(_one_request(slices, READ_BYTES))
        with _in_time(cold, wanted[0].pack):
            while not (found := self._from_cache(wanted)):
                under_way = self._under_way.get(wanted[0].key)
                if under_way is None:
                    found = await self._load(cold, wanted)
                    break
                await under_way.wait()
        stream_id = wanted[0].ref.stream_id
        self._last[stream_id] = (found[0].start_record, found[-1].end_record)
        self._last.move_to_end(stream_id)
        if len(self._last) > _REMEMBERED:
            self._last.popitem(last=False)
        return found

    def expects(self, each: LocatedSlice) -> bool:
        """Whether a slice is in memory or being read."""
        return each.key in self._cached or each.key in self._under_way

    @property
    def under_way(self) -> int:
        """How many slices are being read."""
        return len(self._under_way)

    def forget(self, pack: str) -> None:
        """Drop the cached slices of a deleted pack."""
        for key in [key for key in self._cached if key[0] == pack]:
            self.cached_bytes -= self._cached.pop(key).size

    # -- reading ------------------------------------------------------------------------------

    def _from_cache(self, wanted: Sequence[LocatedSlice]) -> list[Chunk]:
        found: list[Chunk] = []
        for each in wanted:
            chunk = self._cached.get(each.key)
            if chunk is None:
                break
            self._cached.move_to_end(each.key)
            found.append(chunk)
        self.hits += len(found)
        return found

    async def _load(self, cold: AsyncObjectStore, wanted: Sequence[LocatedSlice]) -> list[Chunk]:
        arrived = trio.Event()
        expected = [each.key for each in wanted if each.key not in self._under_way]
        self._under_way.update(dict.fromkeys(expected, arrived))
        try:
            chunks = await cold.slices(wanted[0].pack, [each.ref for each in wanted])
        except (ObjectMissing, ObjectCorrupt) as error:
            self._note_damage(wanted[0].pack, error)
            raise
        finally:
            # Also after an error or a cancellation: then the waiting tasks read for themselves.
            for key in expected:
                del self._under_way[key]
            arrived.set()
        self.misses += len(chunks)
        for each, chunk in zip(wanted, chunks, strict=True):
            self._keep(each.key, chunk)
        return chunks

    def _keep(self, key: _Key, chunk: Chunk) -> None:
        if chunk.size > self._cache_bytes:
            return
        old = self._cached.pop(key, None)
        self.cached_bytes += chunk.size - (old.size if old is not None else 0)
        self._cached[key] = chunk
        while self.cached_bytes > self._cache_bytes:
            _, evicted = self._cached.popitem(last=False)
            self.cached_bytes -= evicted.size

    def _note_damage(self, pack: str, error: ColdError) -> None:
        self.damaged += 1
        if pack not in self._logged and len(self._logged) < _REMEMBERED:
            self._logged.add(pack)
            log.error("records in the cold store are damaged", object=pack, error=str(error))

    # -- reading ahead ------------------------------------------------------------------------

    def _is_sequential(self, first: LocatedSlice) -> bool:
        """Whether a slice follows the one last read of its stream, or is its first."""
        start, last = first.ref.start_record, self._last.get(first.ref.stream_id)
        return start == 0 or (last is not None and last[0] < start <= last[1])

    def _read_ahead(self, cold: AsyncObjectStore, slices: Sequence[LocatedSlice]) -> None:
        """Read what the request for the first of these slices will not return."""
        if self._nursery is None:
            return
        own = 1 if self.expects(slices[0]) else len(list(_one_request(slices, READ_BYTES)))
        missing = list(dropwhile(self.expects, slices[own:]))
        while missing and self._ahead_bytes < _MAX_AHEAD_BYTES:
            ahead = list(_one_request(missing, AHEAD_BYTES))
            size = sum(each.ref.length for each in ahead)
            self._ahead_bytes += size
            self._nursery.start_soon(self._load_ahead, cold, ahead, size)
            missing = list(dropwhile(self.expects, missing[len(ahead) :]))

    async def _load_ahead(
        self, cold: AsyncObjectStore, slices: Sequence[LocatedSlice], size: int
    ) -> None:
        try:
            with _in_time(cold, slices[0].pack):
                # A reader may have been quicker.
                if not self.expects(slices[0]):
                    await self._load(cold, slices)
        except ColdError:
            pass  # The reader that wants these slices gets the error.
        finally:
            self._ahead_bytes -= size


@contextmanager
def _in_time(cold: AsyncObjectStore, pack: str) -> Iterator[None]:
    """Inside, a pack is read. Raises `ColdUnavailable` if that exceeds the store's time limit."""
    begun_at = trio.current_time()
    with trio.move_on_after(cold.timeout_s) as scope:
        yield
    if scope.cancelled_caught:
        late = ColdUnavailable(f"{pack} in {cold.place}: not read within {cold.timeout_s:g} s")
        cold.health.failed(begun_at, late)
        raise late


def _one_request(slices: Sequence[LocatedSlice], max_bytes: int) -> Iterator[LocatedSlice]:
    """The slices that one request reads: those that lie end to end with the first in its pack, up
    to the one that reaches `max_bytes`."""
    pack, end, size = slices[0].pack, slices[0].ref.offset, 0
    for each in slices:
        if (each.pack, each.ref.offset) != (pack, end) or size >= max_bytes:
            return
        yield each
        end = each.ref.offset + each.ref.length
        size += each.ref.length
