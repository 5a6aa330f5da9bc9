"""Whether segments, put together, have the tree that they name, and its roots at places asked for.

A segment names the tree before its first entry; tasks compute the subtrees of its entries, and one
place joins them. A tree that begins in a segment that retention has removed is taken from the first
one that is left: a signed head of a later place proves it, because it has no other root.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from itertools import groupby
from operator import attrgetter

import msgspec
from msgspec.structs import astuple, replace

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
    """What the segment of entries `first` to `last` has of the tree that begins with entry
    `first_index` of the log: the roots of the perfect subtrees `before` leaf `begin`, and its own
    leaves from there on.

    Of a segment that names no tree `first_index` is 0.
    """

    group: int
    first: int
    last: int
    object: str
    first_index: int = 0
    begin: int = 0
    before: list[bytes] = []
    runs: list[Run] = []

    @property
    def root_before(self) -> bytes | None:
        """The root of the tree before leaf `begin`; None if that has none."""
        subtrees = placed(self.begin, self.before)
        return root_of(subtrees) if subtrees else None


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
        self._part = Part(named.group, named.first, named.last, name)
        self._problem: str | None = None
        self._grown: _Grown | None = None
        try:
            self._grown = None if tree is None else _Grown(self._part, tree, places)
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
    """The subtrees of a segment's entries. Raises `Damaged` if the segment does not have the entry
    with which its part of the tree begins, or names nodes that no tree has."""

    def __init__(self, part: Part, tree: Tree, places: Collection[int]) -> None:
        if not part.first <= tree.begin <= part.last:
            raise Damaged(CONTRADICTION, f"its part of the tree begins with entry {tree.begin}")
        begin = tree.begin - tree.first_index
        whole = placed(begin, tree.nodes) if 0 < tree.first_index <= tree.begin else None
        if whole is None:
            raise Damaged(CONTRADICTION, f"no tree has {len(tree.nodes)} nodes before {tree.begin}")
        self._whole, self._tree, self._places = whole, tree, places
        self._part = replace(
            part, first_index=tree.first_index, begin=begin, before=tree.nodes, runs=[]
        )
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
                place = Place(part.group, 0, part.first, part.object, None)
                broken.append((place, problem))

    for one in follow(whole(), places):
        yield one, _OTHER_TREE if one.root is None else None
    yield from broken


def follow(parts: Iterable[Part], places: Collection[int]) -> Iterator[Place]:
    """The root at each entry in `places`, and at the end of each tree; and each segment whose tree
    is not that of those before it, or that has entries in no tree.

    Parts come in the order of groups and entries. Of overlapping ones runs end where the later one
    begins or the earlier one ends.
    """
    for group, some in groupby(parts, key=attrgetter("group")):
        of_group = _Followed(group, places)
        for part in some:
            yield from of_group.add(part)
        yield from of_group.end_tree()


class _Followed:
    """The trees of one group's log, as far as its segments were followed."""

    def __init__(self, group: int, places: Collection[int]) -> None:
        self._group = group
        self._places = places
        self._first_index = self._size = self._read = 0
        self._tree: list[Subtree] = []
        self._roots: dict[int, bytes] = {}
        # The last entry in any segment, and the segment without a tree that reaches furthest.
        self._last = 0
        self._bare: Part | None = None
        self._newest: Place | None = None

    @property
    def _end(self) -> int:
        """The last entry in the tree; 0 without one."""
        return self._first_index + self._size - 1 if self._first_index else 0

    def add(self, part: Part) -> Iterator[Place]:
        if not part.first_index:
            if part.last > self._last:
                self._bare = part
        elif part.first_index == self._first_index:
            yield from self._continue(part)
        else:
            yield from self._begin(part)
        self._last = max(self._last, part.last)

    def _continue(self, part: Part) -> Iterator[Place]:
        begin = part.first_index + part.begin
        if begin > self._end + 1:
            # Entries are missing, which the log tells of, or are there and in no tree.
            if self._last > self._end or part.first < begin:
                yield self._odd(self._bare or part)
            self._take(part)
        elif part.begin == self._size and [one.root for one in self._tree] != part.before:
            yield self._odd(part)
            # From there on it may be a tree again: one fault is told once.
            self._take(part)
        elif self._roots.get(part.begin, part.root_before) != part.root_before:
            yield self._odd(part)
        yield from self._join(part)

    def _begin(self, part: Part) -> Iterator[Place]:
        """Begin with a tree where the archive begins, or continues after a gap; or with a new one,
        which has no leaves yet."""
        begin = part.first_index + part.begin
        if part.begin and not part.first == begin > self._last + 1:
            yield self._odd(part)
            if part.last <= self._last:
                return
        yield from self.end_tree()
        self._read = 0
        self._take(part)
        yield from self._join(part)

    def _take(self, part: Part) -> None:
        """Go on with a part's tree as it says itself."""
        self._first_index, self._size = part.first_index, part.begin
        self._tree = placed(part.begin, part.before) or []
        self._bare = None

    def _join(self, part: Part) -> Iterator[Place]:
        for run in part.runs:
            if run.end <= self._size:
                continue
            self._tree = joined([*self._tree, *run.subtrees])
            self._read, self._size = self._read + run.end - self._size, run.end
            root = root_of(self._tree)
            self._newest = Place(
                self._group, self._first_index, self._size, part.object, root, self._read
            )
            if self._end in self._places:
                self._roots[self._size] = root
                yield self._newest
        if self._bare is not None and self._bare.last <= self._end:
            self._bare = None

    def end_tree(self) -> Iterator[Place]:
        """The root at the end of the tree, and a segment after it that is in no tree."""
        if self._newest is not None:
            yield self._newest
        if self._first_index and self._bare is not None:
            yield self._odd(self._bare)
        self._newest, self._roots, self._bare = None, {}, None

    def _odd(self, part: Part) -> Place:
        return Place(self._group, self._first_index, self._size, part.object, None)
