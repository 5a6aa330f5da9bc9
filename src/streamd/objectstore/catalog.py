"""The contents of one group's archive, known from the names of its objects.

A state can be restored as of any entry that segments reach without a gap from a base: a checkpoint,
or the empty state before entry 1. Segments may overlap: a deposed leader may have written some that
no later one continues. Overlapping segments hold the same entries, because only committed entries
are archived.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Generic, NamedTuple, TypeVar

from streamd.objectstore.names import (
    EndName,
    ManifestName,
    ObjectName,
    PieceName,
    SegmentName,
)
from streamd.objectstore.objects import ObjectInfo

N = TypeVar("N", bound=ObjectName)


class Stored(NamedTuple, Generic[N]):
    """An object of the archive; `name` is the one below the cluster's folder, `size` is in bytes,
    `modified_ms` is when it was written, by the store's own clock."""

    name: str
    parsed: N
    size: int
    modified_ms: int


StoredSegment = Stored[SegmentName]
StoredManifest = Stored[ManifestName]
StoredEnd = Stored[EndName]


class Range(NamedTuple):
    """Every state from the one as of entry `first` to the one as of `last` can be restored."""

    first: int
    last: int


class Catalog:
    """The archive of one group, each kind in the order of the log."""

    def __init__(self, group_id: int, objects: Iterable[ObjectInfo], folder: str = "") -> None:
        """`objects` have names that begin with the cluster's `folder`; those that do not belong to
        the archive are ignored."""
        objects = [info._replace(name=info.name.removeprefix(folder)) for info in objects]
        # When the last of them was written, in milliseconds since the epoch by the store's clock.
        self.newest_ms = max((info.modified_ms for info in objects), default=0)
        self.segments = _of_kind(SegmentName, group_id, objects)
        self.manifests = _of_kind(ManifestName, group_id, objects)
        self.pieces = _of_kind(PieceName, group_id, objects)
        # Pointers to former ends of the archive; segments must reach the newest.
        self.ends = _of_kind(EndName, group_id, objects)
        self.segments.sort(key=lambda one: (one.parsed.first_index, one.parsed.last_index))
        self.manifests.sort(key=lambda one: (one.parsed.log_index, one.parsed.snapshot_id))
        self.ends.sort(key=lambda one: one.parsed.log_index)

    def names(self) -> set[str]:
        """The names of all objects that hold entries or rows."""
        return {one.name for kind in (self.segments, self.manifests, self.pieces) for one in kind}

    @property
    def end_index(self) -> int:
        """The entry that the archive must reach; 0 if no pointer says so, as in an archive that
        only builds before 0.1.0 wrote."""
        return self.ends[-1].parsed.log_index if self.ends else 0

    @property
    def last_index(self) -> int:
        """The last entry that any object here mentions."""
        segments = (one.parsed.last_index for one in self.segments)
        checkpoints = (one.parsed.log_index for one in self.manifests)
        return max(self.end_index, *segments, *checkpoints, 0)

    @property
    def begins_at_nothing(self) -> bool:
        """Whether the log is complete from its first entry, so that no checkpoint is needed."""
        return bool(self.segments) and self.segments[0].parsed.first_index == 1

    def bases(self) -> list[int]:
        """The entries, in order, as of which a restore can begin; 0 is the empty state."""
        return sorted(
            {
                *([0] if self.begins_at_nothing else []),
                *(one.parsed.log_index for one in self.manifests),
            }
        )

    def path(self, after: int, until: int | None = None) -> list[StoredSegment]:
        """Segments that continue from entry `after`, as far as they go or to entry `until`.

        Each begins where the previous one ends, or earlier.
        """
        chosen: list[StoredSegment] = []
        best: StoredSegment | None = None
        at = after
        for segment in self.segments:
            if best is not None and segment.parsed.first_index > at + 1:
                chosen.append(best)
                at, best = best.parsed.last_index, None
            if segment.parsed.first_index > at + 1 or (until is not None and at >= until):
                break
            if segment.parsed.last_index > (best.parsed.last_index if best is not None else at):
                best = segment
        if best is not None and (until is None or at < until):
            chosen.append(best)
        return chosen

    def reach(self, after: int) -> int:
        """The last entry that segments reach from entry `after`."""
        path = self.path(after)
        return path[-1].parsed.last_index if path else after

    def ranges(self) -> list[Range]:
        """What can be restored, in order; between two ranges is a gap."""
        found: list[Range] = []
        for base in self.bases():
            if not found or base > found[-1].last:
                found.append(Range(base, self.reach(base)))
        return found

    @property
    def is_without_gap(self) -> bool:
        """Whether the first base reaches all segments, up to the last one, and the end that the
        pointer names."""
        last = max((one.parsed.last_index for one in self.segments), default=self.end_index)
        last = max(last, self.end_index)
        ranges = self.ranges()
        return not last or (len(ranges) == 1 and ranges[0].last >= last)

    def gaps(self) -> list[tuple[int, int]]:
        """The first and the last entry of each missing range, in order: between two ranges, and
        from the last one to the end of the archive."""
        ranges = self.ranges()
        found = [(one.last + 1, following.first) for one, following in pairwise(ranges)]
        if ranges and ranges[-1].last < self.end_index:
            found.append((ranges[-1].last + 1, self.end_index))
        return found


def _of_kind(kind: type[N], group_id: int, objects: Iterable[ObjectInfo]) -> list[Stored[N]]:
    return [
        Stored(name, parsed, size, modified_ms)
        for name, size, modified_ms in objects
        if (parsed := kind.parse(name)) is not None and parsed.group_id == group_id
    ]
