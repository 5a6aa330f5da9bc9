"""The archive's objects of a cluster, fetched whole and verified, a bounded number at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TypeVar

import trio

from streamd.objectstore.catalog import (
    Catalog,
    StoredEnd,
    StoredManifest,
    StoredSegment,
)
from streamd.objectstore.checkpoints import Manifest, read_manifest, read_piece
from streamd.objectstore.ends import ArchiveEnd, read_end
from streamd.objectstore.errors import ColdError, ObjectCorrupt
from streamd.objectstore.names import (
    CHECKPOINTS,
    ENDS,
    LOG,
    PIECES,
    check_digest,
    cluster_folder,
    cluster_of,
    group_folder,
)
from streamd.objectstore.objects import MAX_OBJECT_BYTES, ObjectInfo
from streamd.objectstore.segments import (
    HEAD_BYTES,
    SegmentHead,
    cluster_of_segment,
    frames_bytes,
    read_segment_head,
    tree_of_segment,
)
from streamd.objectstore.tree_frames import TreeFrame
from streamd.process.threads import RunBlocking
from streamd.tiering.async_store import AsyncObjectStore

# How many objects are fetched at once, and how far ahead of their use.
_AHEAD = 4
_AHEAD_BYTES = 32 * 1024 * 1024
# How much of a segment's end is read first for its part of the tree; most are smaller.
_TAIL_BYTES = 16 * 1024
# How often names are listed again while some of them disappear.
_MAX_LISTS = 5

T = TypeVar("T")


async def list_all(cold: AsyncObjectStore, prefix: str) -> list[ObjectInfo]:
    """All objects whose names begin with `prefix`. Raises `ColdError`."""
    found: list[ObjectInfo] = []
    while page := await cold.page(prefix, after=found[-1].name if found else ""):
        found += page
    return found


async def list_clusters(cold: AsyncObjectStore) -> list[str]:
    """The ids of the clusters that have a folder. Raises `ColdError`."""
    found: list[str] = []
    after = ""
    while page := await cold.page("", after=after, limit=1):
        first = page[0].name
        cluster_id = cluster_of(first)
        if cluster_id is not None:
            found.append(cluster_id)
        # The first name after a folder: "0" follows the slash.
        after = first.partition("/")[0] + "0" if "/" in first else first
    return found


class ArchivedObjects:
    """The objects of one group of one cluster. Calls raise `ColdError`."""

    def __init__(
        self, cold: AsyncObjectStore, cluster_id: str, run_blocking: RunBlocking, group_id: int = 0
    ) -> None:
        self._cold = cold
        self._run_blocking = run_blocking
        self.cluster_id = cluster_id
        self.folder = cluster_folder(cluster_id)
        self.group_id = group_id

    async def catalog(self) -> Catalog:
        """The archive's present contents.

        When a cluster merges segments during the listing, only the list may lack them: the parts
        are gone, and the merged segment's name was passed before it existed. Then the list is made
        again.
        """
        found = await self._list()
        for _ in range(_MAX_LISTS):
            if found.is_without_gap:
                break
            before, found = found, await self._list()
            if before.names() <= found.names():
                break
        return found

    async def _list(self) -> Catalog:
        listed: list[ObjectInfo] = []
        # The ends first: an end is written after the entries that it names. So whatever a running
        # cluster archives meanwhile, the listing has every entry that its ends name.
        for kind in (ENDS, LOG, PIECES, CHECKPOINTS):
            listed += await list_all(self._cold, self.folder + group_folder(kind, self.group_id))
        return Catalog(self.group_id, listed, self.folder)

    async def ends(self) -> Catalog:
        """The pointers to the archive's end and nothing else: a small list."""
        folder = self.folder + group_folder(ENDS, self.group_id)
        return Catalog(self.group_id, await list_all(self._cold, folder), self.folder)

    async def log(self) -> Catalog:
        """The segments and nothing else."""
        folder = self.folder + group_folder(LOG, self.group_id)
        return Catalog(self.group_id, await list_all(self._cold, folder), self.folder)

    async def end(self, stored: StoredEnd) -> ArchiveEnd:
        end, named = read_end(await self.whole(stored.name, stored.size)), stored.parsed
        position = end.position
        said = (end.cluster_id, end.group_id, position.index, position.term, position.chain)
        if said != (self.cluster_id, named.group_id, named.log_index, named.term, named.chain):
            raise ObjectCorrupt(
                f"{stored.name} does not match its content, which is the end of "
                f"another archive: {said}"
            )
        return end

    async def whole(self, name: str, size: int) -> bytes:
        """An object with the digest that is in its name."""
        return await self._read(name, size, partial(_whole, name))

    async def manifest(self, stored: StoredManifest) -> Manifest:
        """A manifest, checked against its name. Raises `ObjectCorrupt`, `ColdError`."""
        manifest = read_manifest(await self.whole(stored.name, stored.size))
        of, named = manifest.of, stored.parsed
        said = (of.cluster_id, of.group_id, of.index, of.snapshot_id)
        if said != (self.cluster_id, named.group_id, named.log_index, named.snapshot_id):
            raise ObjectCorrupt(
                f"{stored.name} does not match its content, the manifest of another "
                f"checkpoint: {said}"
            )
        if not manifest.pieces:
            raise ObjectCorrupt(f"{stored.name} is a manifest that names no pieces")
        return manifest

    async def rows(self, manifest: Manifest, number: int) -> bytes:
        """The rows in a piece of a checkpoint."""
        name, size = manifest.piece_name(number), manifest.pieces[number].size
        return await self._read(name, size, partial(read_piece, manifest, number))

    async def _read(self, name: str, size: int, check: Callable[[bytes], bytes]) -> bytes:
        """The content of an object. Wrong bytes are requested once more, because they may have been
        damaged on the way."""
        try:
            return await self._run_blocking(check, await self._get(name, size))
        except ObjectCorrupt:
            return await self._run_blocking(check, await self._get(name, size))

    async def _get(self, name: str, size: int) -> bytes:
        if size > MAX_OBJECT_BYTES:
            raise ObjectCorrupt(f"{name} has {size} bytes, which exceeds the limit for one object")
        return await self._cold.get(self.folder + name, 0, size)

    async def head(self, stored: StoredSegment) -> SegmentHead:
        content = await self._cold.get(self.folder + stored.name, 0, min(HEAD_BYTES, stored.size))
        return _named_head(stored, content)

    async def segment(self, stored: StoredSegment) -> bytes:
        """A whole segment, with the entries that its name says."""
        return await self._read(
            stored.name, stored.size, partial(_segment, stored, self.cluster_id)
        )

    async def tree_frame(self, stored: StoredSegment) -> TreeFrame | None:
        """A segment's part of the tree over the log, read from the segment's end; None if it has
        none. Only a signed head proves it."""
        content, wanted = b"", min(_TAIL_BYTES, stored.size)
        while len(content) < wanted:
            at = stored.size - wanted
            content = await self._cold.get(self.folder + stored.name, at, wanted)
            wanted = min(frames_bytes(content), stored.size)
        return tree_of_segment(content)

    async def segments(self, wanted: Sequence[StoredSegment]) -> AsyncIterator[bytes]:
        """Whole segments in the order given; the next ones are fetched while one is used."""
        for some in _by_fours(wanted):
            fetched: dict[str, bytes] = {}

            async def fetch(one: StoredSegment, into: dict[str, bytes] = fetched) -> None:
                into[one.name] = await self.segment(one)

            await for_each(some, fetch)
            for one in some:
                yield fetched.pop(one.name)


def _whole(name: str, content: bytes) -> bytes:
    check_digest(name, content)
    return content


def _segment(stored: StoredSegment, cluster_id: str, content: bytes) -> bytes:
    _named_head(stored, _whole(stored.name, content))
    named = cluster_of_segment(content)
    if named not in (None, cluster_id):
        raise ObjectCorrupt(f"{stored.name} is a log segment of another cluster, {named}")
    return content


def _named_head(stored: StoredSegment, content: bytes) -> SegmentHead:
    """A segment's head, which must agree with its name, by which it was chosen."""
    head, named = read_segment_head(content), stored.parsed
    said = (head.group_id, head.first_index, head.last.index)
    if said != (named.group_id, named.first_index, named.last_index):
        raise ObjectCorrupt(f"{stored.name} does not match its content, the log segment of {said}")
    return head


async def for_each(items: Iterable[T], work: Callable[[T], Awaitable[None]]) -> None:
    """Do some work on all items, a few at a time. Raises the first `ColdError`."""
    limiter = trio.CapacityLimiter(_AHEAD)

    async def do(item: T) -> None:
        async with limiter:
            await work(item)

    failure: ColdError | None = None
    try:
        async with trio.open_nursery() as nursery:
            for item in items:
                nursery.start_soon(do, item)
    except* ColdError as errors:
        failure = next(_leaves(errors))
    if failure is not None:
        raise failure


def _leaves(errors: BaseExceptionGroup[ColdError]) -> Iterator[ColdError]:
    for error in errors.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


def _by_fours(wanted: Iterable[StoredSegment]) -> Iterable[list[StoredSegment]]:
    """Few enough segments at a time for their bytes to be in memory."""
    some: list[StoredSegment] = []
    for one in wanted:
        size = sum(other.size for other in some) + one.size
        if some and (len(some) == _AHEAD or size > _AHEAD_BYTES):
            yield some
            some = []
        some.append(one)
    if some:
        yield some
