"""Slices of packs for readers: ranges at a time, kept for the next reader while there is room."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

import trio

from streamd.objectstore.errors import ColdUnavailable
from streamd.objectstore.packs import SliceRef
from streamd.streams.chunks import Chunk
from streamd.tiering.async_store import AsyncObjectStore

# What a request asks for, to the end of a slice: for a reader that waits, and ahead of one that
# goes on. A request has its price, and whoever reads much is spared some of them.
READ_BYTES = 4 * 1024 * 1024
AHEAD_BYTES = 2 * READ_BYTES

_Key = tuple[str, int]


class SliceCache:
    """Reads slices, each pack's range by one task at a time; memory is bounded by `cache_bytes`."""

    def __init__(self, cold: AsyncObjectStore, *, cache_bytes: int) -> None:
        self._cold = cold.for_readers()
        self._cache_bytes = cache_bytes
        self._cached: OrderedDict[_Key, Chunk] = OrderedDict()
        self._under_way: dict[_Key, trio.Event] = {}
        self.size = 0
        # For metrics, in slices.
        self.hits = 0
        self.misses = 0

    async def chunks(
        self, pack: str, refs: Sequence[SliceRef], max_bytes: int = READ_BYTES
    ) -> list[Chunk]:
        """The chunks of slices that follow one another in a pack: the first, and with it as many
        more as one request for `max_bytes` brings. Ask again behind them for the rest.

        Raises `ColdUnavailable`, also when all of it takes longer than the store's time limit,
        `ColdRefused`, `ObjectMissing`, `ObjectCorrupt`; never returns bytes that are not those that
        were put in.
        """
        begun_at, timeout_s = trio.current_time(), self._cold.timeout_s
        with trio.move_on_after(timeout_s):
            return await self._chunks(pack, refs, max_bytes)
        error = ColdUnavailable(f"{pack} in {self._cold.place}: not read within {timeout_s:g} s")
        self._cold.health.gave_up(begun_at, error)
        raise error

    async def _chunks(self, pack: str, refs: Sequence[SliceRef], max_bytes: int) -> list[Chunk]:
        wanted = list(first_range(refs, max_bytes))
        first = (pack, wanted[0].offset)
        while True:
            found = self._from_cache(pack, wanted)
            if found:
                return found
            if first not in self._under_way:
                return await self._load(pack, wanted)
            await self._under_way[first].wait()

    @property
    def under_way(self) -> int:
        """How many slices are on their way."""
        return len(self._under_way)

    def expects(self, pack: str, ref: SliceRef) -> bool:
        """Whether a slice is at hand, or on its way."""
        key = (pack, ref.offset)
        return key in self._cached or key in self._under_way

    def forget(self, pack: str) -> None:
        """Let go of a pack that is no more."""
        for key in [key for key in self._cached if key[0] == pack]:
            self.size -= self._cached.pop(key).size

    def _from_cache(self, pack: str, wanted: Sequence[SliceRef]) -> list[Chunk]:
        found: list[Chunk] = []
        for ref in wanted:
            chunk = self._cached.get((pack, ref.offset))
            if chunk is None:
                break
            self._cached.move_to_end((pack, ref.offset))
            found.append(chunk)
        self.hits += len(found)
        return found

    async def _load(self, pack: str, wanted: Sequence[SliceRef]) -> list[Chunk]:
        arrived = trio.Event()
        expected = [key for ref in wanted if (key := (pack, ref.offset)) not in self._under_way]
        self._under_way.update(dict.fromkeys(expected, arrived))
        try:
            chunks = await self._cold.slices(pack, wanted)
        finally:
            # Also when it failed or was cancelled: whoever waited asks for itself then.
            for key in expected:
                del self._under_way[key]
            arrived.set()
        self.misses += len(chunks)
        for ref, chunk in zip(wanted, chunks, strict=True):
            self._keep((pack, ref.offset), chunk)
        return chunks

    def _keep(self, key: _Key, chunk: Chunk) -> None:
        if chunk.size > self._cache_bytes:
            return
        old = self._cached.pop(key, None)
        self.size += chunk.size - (old.size if old is not None else 0)
        self._cached[key] = chunk
        while self.size > self._cache_bytes:
            _, dropped = self._cached.popitem(last=False)
            self.size -= dropped.size


def first_range(refs: Sequence[SliceRef], max_bytes: int) -> Iterator[SliceRef]:
    """The slices that one request reads: those end to end with the first, up to the one that
    reaches `max_bytes`."""
    end, size = refs[0].offset, 0
    for ref in refs:
        if ref.offset != end or size >= max_bytes:
            return
        yield ref
        end = ref.offset + ref.length
        size += ref.length
