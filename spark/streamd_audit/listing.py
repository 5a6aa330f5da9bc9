"""What the listing of a cluster's folder shows by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import NamedTuple

from streamd_audit.directories import Listed, Odd
from streamd_audit.findings import INFO, Finding, finding
from streamd_audit.names import (
    EndName,
    HeadName,
    PackName,
    PieceName,
    SegmentName,
    is_impossible,
    parse,
    split,
)
from streamd_audit.store import Store

# How many objects are remembered by name; further ones are only counted.
_NAMED = 1000
_POINTERS = 10_000


class Held(NamedTuple):
    """Consecutive entries of a group that names of segments say, both ends included."""

    group: int
    first: int
    last: int


class Overlap(NamedTuple):
    """A segment, and those of its entries that segments listed earlier have as well."""

    group: int
    first: int
    last: int
    object: str


@dataclass
class Listing:
    """How many objects there are, and their `size` in bytes; also by folder.

    `unknown` have names that no streamd gives, `odd` are other things than objects. `checkpoints`
    are the places that have pieces: (group, index, checkpoint's id), with one piece of each. `ends`
    are the names of pointers to the archive's end, `heads` those of signed heads; `overlaps` are
    segments with entries that others have; `held` are the entries that names of segments say,
    `first_segments` and `last_segments` the names of those with the first and the last of them, and
    `packs` how many there are, by group.
    """

    objects: Counter[str] = field(default_factory=Counter)
    sizes: Counter[str] = field(default_factory=Counter)
    unknown: list[Listed] = field(default_factory=list)
    odd: list[Odd] = field(default_factory=list)
    checkpoints: dict[tuple[int, int, int], Listed] = field(default_factory=dict)
    ends: list[str] = field(default_factory=list)
    heads: list[str] = field(default_factory=list)
    overlaps: list[Overlap] = field(default_factory=list)
    held: list[Held] = field(default_factory=list)
    first_segments: dict[int, str] = field(default_factory=dict)
    last_segments: dict[int, str] = field(default_factory=dict)
    packs: Counter[int] = field(default_factory=Counter)

    @property
    def size(self) -> int:
        return sum(self.sizes.values())

    @property
    def count(self) -> int:
        return sum(self.objects.values())

    @property
    def first_entries(self) -> dict[int, int]:
        """The first entry of each group that a name says."""
        return {one.group: one.first for one in reversed(self.held)}

    @property
    def last_entries(self) -> dict[int, int]:
        """The last entry of each group that a name says."""
        return {one.group: one.last for one in self.held}

    def note_segment(self, named: SegmentName, name: str) -> None:
        """Take the next segment, in the order of names."""
        before = self.held[-1] if self.held else None
        if before is None or before.group != named.group or before.last + 1 < named.first:
            self.held.append(Held(named.group, named.first, named.last))
            self.first_segments.setdefault(named.group, name)
            self.last_segments[named.group] = name
            return
        if named.first <= before.last and len(self.overlaps) < _POINTERS:
            end = min(named.last, before.last)
            self.overlaps.append(Overlap(named.group, named.first, end, name))
        if named.last > before.last:
            self.last_segments[named.group] = name
        self.held[-1] = before._replace(last=max(before.last, named.last))

    def holds(self, group: int, index: int) -> bool:
        """Whether a name says that a segment has an entry."""
        return any(one.group == group and one.first <= index <= one.last for one in self.held)


def look_through(store: Store, cluster: str) -> Listing:
    """List a cluster's folder to its end. Raises `StoreFailed` when that fails."""
    found = Listing(odd=[*islice(store.odd(f"{cluster}/"), _NAMED)])
    for page in store.list(f"{cluster}/"):
        for one in page:
            below = split(one.name)[1]
            folder = below.partition("/")[0]
            found.objects[folder] += 1
            found.sizes[folder] += one.size
            named = parse(below)
            if named is None and len(found.unknown) < _NAMED:
                found.unknown.append(one)
            elif isinstance(named, PieceName):
                found.checkpoints.setdefault((named.group, named.index, named.snapshot_id), one)
            elif isinstance(named, PackName):
                found.packs[named.group] += 1
            elif isinstance(named, EndName) and len(found.ends) < _POINTERS:
                found.ends.append(one.name)
            elif isinstance(named, HeadName) and len(found.heads) < _POINTERS:
                found.heads.append(one.name)
            elif isinstance(named, SegmentName):
                found.note_segment(named, one.name)
    return found


def listing_findings(
    listing: Listing,
    cluster: str,
    states: Sequence[tuple[int, int, int]],
    is_young: Callable[[int], bool],
) -> list[Finding]:
    """Unknown objects, other things than objects, packs without a state, and pieces of no state;
    `states` are the existing ones, `is_young` says of a group whether its first one may still be
    to come. Pieces of a state newer than all of them are still being written."""
    found = [_not_known(one, cluster) for one in listing.unknown]
    for odd in listing.odd:
        kind = "object_unknown" if odd.is_hidden else "object_odd"
        found.append(finding(kind, cluster=cluster, object=odd.name, found=odd.what))
    newest = {group: index for group, index, _ in sorted(states)}
    for group, count in listing.packs.items():
        if group not in newest:
            missing = finding(
                "states_missing",
                cluster=cluster,
                group=group,
                expected=f"a state with {count} packs",
                found="none",
            )
            if is_young(group):
                told = "none yet: the log has just begun"
                missing = replace(missing, severity=INFO, found=told)
            found.append(missing)
    for place, one in listing.checkpoints.items():
        if place not in states and place[1] <= newest.get(place[0], -1):
            found.append(
                finding(
                    "piece_orphan",
                    cluster=cluster,
                    group=place[0],
                    index=place[1],
                    object=one.name,
                    found="pieces of a state that no manifest makes whole",
                )
            )
    return found


def _not_known(one: Listed, cluster: str) -> Finding:
    if is_impossible(split(one.name)[1]):
        # A restore might take it for the newest.
        told = "a name with a number beyond 63 bits"
        return finding("object_odd", cluster=cluster, object=one.name, found=told)
    return finding("object_unknown", cluster=cluster, object=one.name, found=f"{one.size} bytes")
