"""Records that are in the cold store: read there, with what is likely to be read next."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from itertools import dropwhile

import structlog
import trio

from streamd.cold.errors import ColdError, ColdRefused, ObjectCorrupt, ObjectMissing
from streamd.cold.packs import SliceRef
from streamd.streams.chunks import Chunk
from streamd.streams.reading import LocatedSlice
from streamd.tier.reads import AHEAD_BYTES, READ_BYTES, ColdReads

log = structlog.get_logger("streamd.cold")

# How many ranges are read ahead of their readers at once; more are not, the readers come anyway.
_AHEAD_AT_ONCE = 4
# Of so many stream ids it is remembered where they were read last.
_REMEMBERED = 1_000


class ColdRecords:
    """Reads the slices that the state refers to.

    A reader who goes on where one ended before is taken for one who will go on, and the next
    range is read while this one is being sent. `run` must be running for that.
    """

    def __init__(self, reads: ColdReads | None) -> None:
        """Without `reads` there is no cold store, and all that is wanted of it an error."""
        self._reads = reads
        self._nursery: trio.Nursery | None = None
        self._ahead = 0
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
        chunks = await self._load(slices, READ_BYTES)
        if self._goes_on(slices[0].stream_id, chunks):
            self._read_ahead(slices[len(chunks) :])
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

    def _goes_on(self, stream_id: int, chunks: Sequence[Chunk]) -> bool:
        """Whether these chunks lie behind what was read before, or it was the beginning."""
        start, end = chunks[0].start_record, chunks[-1].end_record
        before = self._last.pop(stream_id, None)
        self._last[stream_id] = (start, end)
        if len(self._last) > _REMEMBERED:
            self._last.popitem(last=False)
        return start == 0 or (before is not None and before[0] < start <= before[1])

    def _read_ahead(self, slices: Sequence[LocatedSlice]) -> None:
        reads = self._reads
        if reads is None or self._nursery is None or self._ahead >= _AHEAD_AT_ONCE:
            return
        missing = list(dropwhile(lambda each: reads.expects(each.pack, ref_of(each)), slices))
        if missing:
            self._ahead += 1
            self._nursery.start_soon(self._load_ahead, missing)

    async def _load_ahead(self, slices: Sequence[LocatedSlice]) -> None:
        try:
            await self._load(slices, AHEAD_BYTES)
        except ColdError:
            pass  # The reader who wants it will be told.
        finally:
            self._ahead -= 1


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
