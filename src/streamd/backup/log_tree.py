"""Hashes of the tree over the log, read from the archive.

Roots of subtrees of 256 leaves and more are in the segments' parts of the tree, smaller ones are
computed from entries. Anyone who can write to the store can change both: only the signed head to
which a path leads proves it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from typing import Generic, TypeVar

import trio

from streamd.backup.archived_objects import ArchivedObjects
from streamd.objectstore.catalog import Catalog, StoredSegment
from streamd.objectstore.errors import ObjectMissing
from streamd.objectstore.segments import read_entries
from streamd.objectstore.tree_frames import TILE_LEVEL, TreeFrame, leaf_of
from streamd.process.threads import RunBlocking
from streamd.proofs.tree import (
    HASH_BYTES,
    Place,
    Range,
    consistency,
    inclusion,
    node_hash,
    path_of,
    perfect,
)
from streamd.streams.model import LogTree

# How many bytes of frames, and of hashes of leaves, stay in memory.
_CACHE_BYTES = 8 * 1024 * 1024
# About what a value costs besides.
_VALUE_BYTES = 1024
# How often segments are listed again while some of them are merged.
_MAX_LISTS = 5

V = TypeVar("V")


class StoredTree:
    """The tree over one group's archived log. Calls raise `ColdError`, one works at a time."""

    def __init__(
        self,
        objects: ArchivedObjects,
        run_blocking: RunBlocking,
        *,
        cache_bytes: int = _CACHE_BYTES,
    ) -> None:
        self._objects = objects
        self._run_blocking = run_blocking
        self._catalog: Catalog | None = None
        self._frames: _Cache[TreeFrame | None] = _Cache(cache_bytes)
        self._leaves: _Cache[bytes] = _Cache(cache_bytes)
        self._one_at_a_time = trio.Lock()

    async def inclusion(self, index: int, tree: LogTree, last_index: int) -> list[bytes]:
        """The path from the leaf of entry `index` to the root of `tree`, whose last leaf is entry
        `last_index`. Raises `ValueError` if it has no such leaf."""
        size = tree.size_at(last_index)
        return await self.path(inclusion(index - tree.first_index, size), tree, last_index)

    async def consistency(self, old: int, tree: LogTree, last_index: int) -> list[bytes]:
        """The path that proves that `tree` begins with the tree of its first `old` leaves. Raises
        `ValueError` if it has fewer, or `old` is 0."""
        return await self.path(consistency(old, tree.size_at(last_index)), tree, last_index)

    async def path(self, ranges: Sequence[Range], tree: LogTree, last_index: int) -> list[bytes]:
        """The roots of these subtrees of `tree`, whose last leaf is entry `last_index`."""
        whole = Range(0, tree.size_at(last_index))
        known = dict(zip(perfect(whole), tree.nodes, strict=True))
        for place in [place for within in ranges for place in perfect(within)]:
            if place not in known:
                known[place] = await self.node(tree.first_index, place)
        return path_of(ranges, known.__getitem__)

    async def node(self, first_index: int, place: Place) -> bytes:
        """The root of a perfect subtree, all of whose leaves are archived, of the tree that begins
        with entry `first_index`."""
        async with self._one_at_a_time:
            for _ in range(_MAX_LISTS):
                try:
                    return await self._node(first_index, place)
                except ObjectMissing:
                    self._catalog = None  # merged since it was listed
            return await self._node(first_index, place)

    async def _node(self, first_index: int, place: Place) -> bytes:
        last = first_index + ((place.number + 1) << place.level) - 1
        removed = await self._removed(first_index, place, last)
        if removed is not None:
            return removed
        if place.level == 0:
            return await self._leaf(first_index + place.number)
        if place.level >= TILE_LEVEL:
            frame = await self._frame(await self._segment(last))
            is_there = frame is not None and frame.first_index == first_index
            tile = frame.tile(place) if frame is not None and is_there else None
            if tile is not None:
                return tile
        left = await self._node(first_index, Place(place.level - 1, 2 * place.number))
        right = await self._node(first_index, Place(place.level - 1, 2 * place.number + 1))
        return node_hash(left, right)

    async def _removed(self, first_index: int, place: Place, last: int) -> bytes | None:
        """The root of a subtree whose last leaf is older than all segments, if the oldest one
        begins with it: paths from entries that retention has left need it."""
        if self._catalog is None:
            self._catalog = await self._objects.log()
        oldest = next(iter(self._catalog.segments), None)
        if oldest is None or last >= oldest.parsed.first_index:
            return None
        frame = await self._frame(oldest)
        if frame is None or frame.first_index != first_index:
            return None
        before = perfect(Range(0, frame.begin - first_index))
        return dict(zip(before, frame.nodes, strict=True)).get(place)

    async def _leaf(self, index: int) -> bytes:
        segment = await self._segment(index)
        if segment.name in self._leaves:
            leaves = self._leaves.get(segment.name)
        else:
            content = await self._objects.segment(segment)
            leaves = await self._run_blocking(_leaves_of, content)
            self._leaves.put(segment.name, leaves, len(leaves))
        at = (index - segment.parsed.first_index) * HASH_BYTES
        return leaves[at : at + HASH_BYTES]

    async def _frame(self, segment: StoredSegment) -> TreeFrame | None:
        if segment.name in self._frames:
            return self._frames.get(segment.name)
        frame = await self._objects.tree_frame(segment)
        self._frames.put(segment.name, frame, 0 if frame is None else len(frame.tiles))
        return frame

    async def _segment(self, index: int) -> StoredSegment:
        """The segment with an entry. Raises `ObjectMissing`."""
        found = None if self._catalog is None else _with_entry(self._catalog, index)
        if found is None:
            self._catalog = await self._objects.log()
            found = _with_entry(self._catalog, index)
        if found is None:
            raise ObjectMissing(f"no log segment has entry {index}")
        return found


class _Cache(Generic[V]):
    """The values that were used last, up to some bytes; the newest one whatever its size."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._size = 0
        self._values: OrderedDict[str, tuple[V, int]] = OrderedDict()

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def get(self, name: str) -> V:
        """A value that is there."""
        self._values.move_to_end(name)
        return self._values[name][0]

    def put(self, name: str, value: V, size: int) -> None:
        """Add a value of so many bytes, which is not there yet."""
        size += _VALUE_BYTES
        self._values[name] = value, size
        self._size += size
        while self._size > self._max_bytes and len(self._values) > 1:
            self._size -= self._values.popitem(last=False)[1][1]


def _with_entry(catalog: Catalog, index: int) -> StoredSegment | None:
    """A segment that has an entry. One before it may reach further than its successors."""
    at = bisect_right(catalog.segments, index, key=lambda one: one.parsed.first_index)
    for one in reversed(catalog.segments[:at]):
        if one.parsed.last_index >= index:
            return one
    return None


def _leaves_of(content: bytes) -> bytes:
    """The hashes of the leaves of a segment's entries, end to end."""
    return b"".join(leaf_of(entry) for entry, _ in read_entries(content))
