"""Merges small segments of the archive into a few large ones.

A cluster with a little traffic archives a segment a second, so that little is ever at risk. A week
of that would be half a million objects, which take long to list and to fetch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import structlog

from streamd.backup.checkpoints import ArchiveTarget
from streamd.objectstore.catalog import Catalog, StoredSegment
from streamd.objectstore.errors import ColdUnavailable, ObjectCorrupt
from streamd.objectstore.segments import (
    SegmentWriter,
    read_entries,
    read_segment_head,
    tree_of_segment,
)
from streamd.objectstore.tree_frames import TreeRecorder
from streamd.streams.model import LogTree
from streamd.tiering.tier import LeaderTerm

log = structlog.get_logger("streamd.objectstore")

# From which size a segment is left alone, and how much goes into one, in bytes as stored.
LARGE_BYTES = 4 * 1024 * 1024
MERGED_BYTES = 8 * 1024 * 1024
# How many segments make merging worthwhile.
MIN_SEGMENTS = 16
ROUND_S = 900.0


class Merger:
    """Merges segments; runs on the leader."""

    def __init__(self, target: ArchiveTarget) -> None:
        self._target = target

    async def make_round(self, lead: LeaderTerm) -> float:
        """Merge everything that can be merged. Raises `ColdError`.

        The parts are deleted once the merged segment, which has all their entries, exists. A reader
        that listed the parts before, and finds them missing, lists again.
        """
        async with self._target.removing:
            catalog = await self._target.objects.catalog()
            for run in runs(catalog):
                await self._merge(run, catalog)
        return ROUND_S

    async def _merge(self, run: Sequence[StoredSegment], catalog: Catalog) -> None:
        target, objects = self._target, self._target.objects
        merged: SegmentWriter | None = None
        async for content in objects.segments(run):
            merged = await target.run_blocking(_add, merged, content, target.cluster_id())
        assert merged is not None
        segment = await target.run_blocking(merged.finish)
        await self._check_all_there(run)
        await target.cold.put_verified(objects.folder + segment.name, segment.content)
        first, last = run[0].parsed.first_index, merged.last.index
        parts = [
            part.name
            for part in catalog.segments
            if first <= part.parsed.first_index <= part.parsed.last_index <= last
            and part.name != segment.name
        ]
        await target.delete(parts)
        log.info("segments of the archive were merged", segments=len(parts), first=first, last=last)

    async def _check_all_there(self, run: Sequence[StoredSegment]) -> None:
        """Check the parts: a leader deposed long ago must not bring back what its successor
        removed. States that need it would look restorable, though their packs may be gone."""
        left = (await self._target.objects.catalog()).names()
        if any(segment.name not in left for segment in run):
            raise ColdUnavailable("segments that were merged were removed meanwhile")


def runs(catalog: Catalog) -> Iterator[Sequence[StoredSegment]]:
    """Consecutive segments that are worth merging."""
    for restorable in catalog.ranges():
        run: list[StoredSegment] = []
        size = 0
        for segment in catalog.path(restorable.first):
            if segment.size >= LARGE_BYTES or size + segment.size > MERGED_BYTES:
                if len(run) >= MIN_SEGMENTS:
                    yield run
                run, size = [], 0
            if segment.size < LARGE_BYTES:
                run.append(segment)
                size += segment.size
        if len(run) >= MIN_SEGMENTS:
            yield run


def _add(merged: SegmentWriter | None, content: bytes, cluster_id: str) -> SegmentWriter:
    """Add the entries of a segment that the earlier ones lack. Raises `ObjectCorrupt`.

    The merged segment has the tree over the log of the last one. If that does not continue the tree
    of those before it, the merged segment's part of it begins there.
    """
    head = read_segment_head(content)
    if merged is None:
        merged = SegmentWriter(head.group_id, head.previous, cluster_id)
    frame, recorder = tree_of_segment(content), None
    first_new = max(head.first_index, merged.last.index + 1)
    for entry, position in read_entries(content):
        if frame is not None and entry.index == frame.begin:
            recorder = TreeRecorder(frame.tree, entry.index)
            if entry.index >= first_new:
                _continue_tree(merged, recorder.tree)
        elif entry.index == first_new:
            _continue_tree(merged, None if recorder is None else recorder.tree)
        if entry.index >= first_new:
            merged.add(entry)
        elif recorder is not None:
            recorder.add(entry)
        if position.index == merged.last.index and position != merged.last:
            raise ObjectCorrupt(f"two log segments disagree about entry {position.index}")
    return merged


def _continue_tree(merged: SegmentWriter, tree: LogTree | None) -> None:
    if merged.tree != tree:
        merged.begin_tree(tree)
