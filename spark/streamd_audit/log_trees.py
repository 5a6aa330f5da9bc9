"""Whether segments, put together, have the tree that they name, and its roots at places asked for.

A segment names the tree before its first entry; tasks compute the subtrees of its entries, and one
place joins them. A tree that begins in a segment that retention has removed is taken from the first
one that is left: a signed head of a later place proves it, because it has no other root.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import msgspec
from msgspec.structs import astuple

from streamd_audit.errors import CONTRADICTION, Damaged
from streamd_audit.framing import Buffer
from streamd_audit.names import SegmentName
from streamd_audit.segments import Entry, Tree, read_tree
from streamd_audit.tree import LeafRun, Subtree, joined, leaf_of, placed, push, root_of

# The level of the lowest subtrees whose roots a segment keeps.
_TILE_LEVEL = 8
_OTHER_TREE = "it names another tree than the entries before it have, or none"


class Run(msgspec.Struct, array_like=True):
    """The subtrees of consecutive leaves; `end` is the number of the leaf after them."""

    end: int
    subtrees: list[Subtree]


class Part(msgspec.Struct, array_like=True):
    """What a segment has of the tree that begins with entry `first_index` of the log: the roots of
    the perfect subtrees `before` leaf `begin`, and its own leaves from there on.

    Of a segment that names no tree `first_index` is 0, and `begin` its first entry.
    """

    group: int
    first_index: int
    begin: int
    object: str
    before: list[bytes]
    runs: list[Run]


class Place(msgspec.Struct, array_like=True, frozen=True):
    """The tree that begins with entry `first_index` had `root` when it had `size` leaves, by the
    entries up to those of `object`; `read` of those leaves are entries of the archive.

    Without a root that object names another tree, or none, where `size` leaves precede it.
    """

    group: int
    first_index: int
    size: int
    object: str
    root: bytes | None
    read: int = 0


class SegmentPart(msgspec.Struct, array_like=True, frozen=True):
    """A segment's part of the tree, and what is wrong with it."""

    part: Part
    problem: str | None


encode = msgspec.msgpack.Encoder().encode
decode_part = msgspec.msgpack.Decoder(SegmentPart).decode
decode_judged = msgspec.msgpack.Decoder(tuple[Place, str | None]).decode


class PartMaker:
    """Makes the part of a whole segment of its entries, which it gets as they are read."""

    def __init__(
        self, name: str, named: SegmentName, content: Buffer, places: Collection[int]
    ) -> None:
        """A run ends at each entry in `places`. Raises `Damaged` if the segment's part of the tree
        cannot be read."""
        tree = read_tree(content)
        self._part = Part(named.group, 0, named.first, name, [], [])
        self._problem: str | None = None
        self._grown: _Grown | None = None
        try:
            self._grown = None if tree is None else _Grown(self._part.group, name, tree, places)
        except Damaged as damaged:
            self._problem = damaged.detail

    def add(self, entry: Entry) -> None:
        """Take the next entry."""
        if self._grown is not None:
            try:
                self._grown.add(entry)
            except Damaged as damaged:
                self._fail(damaged)

    def finish(self, damaged: Damaged | None) -> SegmentPart:
        """The part; `damaged` is what is wrong after the last entry that could be read."""
        if self._grown is not None:
            try:
                if damaged is not None:
                    raise damaged
                self._part = self._grown.finish()
            except Damaged as problem:
                self._fail(problem)
        return SegmentPart(self._part, self._problem)

    def _fail(self, damaged: Damaged) -> None:
        self._grown, self._problem = None, damaged.detail


class _Grown:
    """The subtrees of a segment's entries. Raises `Damaged` if the segment names nodes that no tree
    has."""

    def __init__(self, group: int, name: str, tree: Tree, places: Collection[int]) -> None:
        begin = tree.begin - tree.first_index
        whole = placed(begin, tree.nodes) if 0 < tree.first_index <= tree.begin else None
        if whole is None:
            raise Damaged(CONTRADICTION, f"no tree has {len(tree.nodes)} nodes before {tree.begin}")
        self._whole, self._tree, self._places = whole, tree, places
        self._part = Part(group, tree.first_index, begin, name, tree.nodes, [])
        self._end = begin
        self._leaves: list[bytes] = []
        self._tiles: list[Subtree] = []

    def add(self, entry: Entry) -> None:
        """Take the next entry. Raises `Damaged` if it has no leaf."""
        index = entry.index
        if index >= self._tree.begin:
            self._leaves.append(leaf_of(entry))
            if index in self._places:
                self._end_run()

    def finish(self) -> Part:
        """Raises `Damaged` if the segment names roots that its entries do not have."""
        if self._leaves:
            self._end_run()
        # In the order in which the last of their leaves complete them.
        tiles = sorted(self._tiles, key=lambda one: ((one.number + 1) << one.level, one.level))
        if b"".join(one.root for one in tiles) != self._tree.tiles:
            raise Damaged(CONTRADICTION, "a segment names roots of subtrees that its entries lack")
        return self._part

    def _end_run(self) -> None:
        run = LeafRun(self._end, self._leaves, _TILE_LEVEL)
        self._end, self._leaves = self._end + len(self._leaves), []
        self._part.runs.append(Run(self._end, run.subtrees))
        self._tiles += run.large
        for subtree in run.subtrees:
            parents = push(self._whole, subtree)
            self._tiles += (one for one in parents if one.level >= _TILE_LEVEL)


def judged(
    parts: Iterable[SegmentPart], places: Collection[int]
) -> Iterator[tuple[Place, str | None]]:
    """What `follow` makes of the parts of segments, and what is wrong at a place."""
    broken: list[tuple[Place, str | None]] = []

    def whole() -> Iterator[Part]:
        for part, problem in map(astuple, parts):
            if problem is None:
                yield part
            else:
                place = Place(part.group, part.first_index, part.begin, part.object, None)
                broken.append((place, problem))

    for one in follow(whole(), places):
        yield one, _OTHER_TREE if one.root is None else None
    yield from broken


def follow(parts: Iterable[Part], places: Collection[int]) -> Iterator[Place]:
    """The root at each entry in `places`, and at the end of each tree; and each segment whose tree
    is not that of those before it.

    Parts come in the order of groups and entries. Of overlapping ones runs end where the later one
    begins or the earlier one ends.
    """
    tree: list[Subtree] = []
    group = first_index = size = read = 0
    last: Place | None = None
    for part in parts:
        if part.group != group:
            if last is not None:
                yield last
            group, first_index, size, tree, last = part.group, 0, 0, [], None
        if not part.first_index:
            if first_index and part.begin >= first_index + size:
                yield Place(group, first_index, size, part.object, None)
            continue
        if part.first_index != first_index:
            # A new tree begins, where the archive has a gap; or this is the first part that is
            # left.
            if last is not None:
                yield last
            first_index, size, read, last = part.first_index, part.begin, 0, None
            tree = placed(part.begin, part.before) or []
        elif part.begin > size:
            # Entries are missing, which the log tells of.
            size, tree = part.begin, placed(part.begin, part.before) or []
        elif part.begin == size and [one.root for one in tree] != part.before:
            yield Place(group, first_index, size, part.object, None)
            # From there on it may be a tree again: one fault is told once.
            tree = placed(part.begin, part.before) or []
        for run in part.runs:
            if run.end <= size:
                continue
            tree = joined([*tree, *run.subtrees])
            read, size = read + run.end - size, run.end
            last = Place(group, first_index, size, part.object, root_of(tree), read)
            if first_index + size - 1 in places:
                yield last
    if last is not None:
        yield last
