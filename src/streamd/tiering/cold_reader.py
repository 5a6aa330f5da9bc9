"""Records that are in the cold store: read there, with what is likely to be read next."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import dropwhile

import structlog
import trio

from streamd.objectstore.errors import ColdError, ColdRefused, ObjectCorrupt, ObjectMissing
from streamd.objectstore.packs import SliceRef
from streamd.streams.chunks import Chunk
from streamd.streams.reading import LocatedSlice
from streamd.tiering.slice_cache import AHEAD_BYTES, READ_BYTES, SliceCache, first_range

log = structlog.get_logger("streamd.objectstore")

# How much is on its way ahead of its readers at once; more is not, the readers come anyway.
_AHEAD_AT_ONCE_BYTES = 4 * AHEAD_BYTES
# Of so many stream ids it is remembered where they were read last.
_REMEMBERED = 1_000


class ColdReader:
    """Reads the slices that the state refers to.

    A reader who goes on where one ended before is taken for one who will go on, and the next
    range is read while this one is being sent. `run` must be running for that.
    """

    def __init__(self, reads: SliceCache | None) -> None:
        """Without `reads` there is no cold store, and all that is wanted of it an error."""
        self._reads = reads
        self._nursery: trio.Nursery | None = None
        self._ahead_bytes = 0
        # By stream id, the records between which it was read last.
        self._last: OrderedDict[int, tuple[int, int]] = OrderedDict()
        # For metrics: reads that met objects which are not what they should be.
        self.damaged = 0
        # Those that the log has told of; readers come again and again.
        self._damaged: set[str] = set()

    async def run(self) -> None:
        """Read ahead until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None

    async def chunks(self, slices: Sequence[LocatedSlice]) -> list[Chunk]:
        """The chunk of the first slice, and of as many more as one request brings.

        Raises a `ColdError`: `ObjectMissing` and `ObjectCorrupt` mean damage.
        """
        if self._goes_on(slices[0]):
            self._read_ahead(slices)
        chunks = await self._load(slices, READ_BYTES)
        self._last[slices[0].stream_id] = (chunks[0].start_record, chunks[-1].end_record)
        self._last.move_to_end(slices[0].stream_id)
        if len(self._last) > _REMEMBERED:
            self._last.popitem(last=False)
        return chunks

    async def _load(self, slices: Sequence[LocatedSlice], max_bytes: int) -> list[Chunk]:
        if self._reads is None:
            raise ColdRefused('cold.backend is "none", but records are in a cold store')
        pack = slices[0].pack
        refs = [ref_of(each) for each in slices if each.pack == pack]
        try:
            return await self._reads.chunks(pack, refs, max_bytes)
        except (ObjectMissing, ObjectCorrupt) as error:
            self.damaged += 1
            if pack not in self._damaged and len(self._damaged) < _REMEMBERED:
                self._damaged.add(pack)
                log.error("records in the cold store are damaged", object=pack, error=str(error))
            raise

    def _goes_on(self, first: LocatedSlice) -> bool:
        """Whether a slice lies behind what was read before, or it is the beginning."""
        start, before = first.row.start_record, self._last.get(first.stream_id)
        return start == 0 or (before is not None and before[0] < start <= before[1])

    def _read_ahead(self, slices: Sequence[LocatedSlice]) -> None:
        """Read what of these is neither at hand nor on its way, beyond what the reader of the first
        asks for itself, and while it does."""
        reads = self._reads
        if reads is None or self._nursery is None:
            return

        def is_expected(each: LocatedSlice) -> bool:
            return reads.expects(each.pack, ref_of(each))

        own = 1 if is_expected(slices[0]) else _range_size(slices, READ_BYTES)
        missing = list(dropwhile(is_expected, slices[own:]))
        while missing and self._ahead_bytes < _AHEAD_AT_ONCE_BYTES:
            count = _range_size(missing, AHEAD_BYTES)
            size = sum(each.row.length for each in missing[:count])
            self._ahead_bytes += size
            self._nursery.start_soon(self._load_ahead, missing[:count], size)
            missing = list(dropwhile(is_expected, missing[count:]))

    async def _load_ahead(self, slices: Sequence[LocatedSlice], size: int) -> None:
        try:
            await self._load(slices, AHEAD_BYTES)
        except ColdError:
            pass  # The reader who wants it will be told.
        finally:
            self._ahead_bytes -= size


def _range_size(slices: Sequence[LocatedSlice], max_bytes: int) -> int:
    """How many of the slices one request brings."""
    refs = [ref_of(each) for each in slices if each.pack == slices[0].pack]
    return sum(1 for _ in first_range(refs, max_bytes))


def ref_of(located: LocatedSlice) -> SliceRef:
    """How the slice is found in its pack."""
    row = located.row
    return SliceRef(
        located.stream_id,
        row.start_record,
        row.start_byte,
        located.end_record,
        row.end_byte,
        row.offset,
        row.length,
        row.crc,
        row.digest,
    )
