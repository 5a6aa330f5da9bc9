"""Whether segments, put together, have the tree that they name, and its roots at places asked for.

A segment names the tree before its first entry; tasks compute the subtrees of its entries, and one
place joins them. A tree that begins in a segment that retention has removed is taken from the first
one that is left: a signed head of a later place proves it, because it has no other root.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

import msgspec

from streamd_audit.errors import CONTRADICTION, Damaged
from streamd_audit.segments import Entry, Tree
from streamd_audit.tree import Subtree, joined, leaf_of, placed, push, root_of

# The level of the lowest subtrees whose roots a segment keeps.
_TILE_LEVEL = 8


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
    entries up to those of `object`.

    Without a root that object names another tree, or none, where `size` leaves precede it.
    """

    group: int
    first_index: int
    size: int
    object: str
    root: bytes | None


encode = msgspec.msgpack.Encoder().encode
decode_part = msgspec.msgpack.Decoder(Part).decode
decode_place = msgspec.msgpack.Decoder(Place).decode


def part_of(
    group: int, name: str, tree: Tree, entries: Iterable[Entry], places: Collection[int]
) -> Part:
    """The part of the segment `name`, which names `tree`. A run ends at each entry in `places`.

    `entries` are those from `tree.begin` on. Raises `Damaged` if the segment names nodes that no
    tree has, or roots that its entries do not have.
    """
    begin = tree.begin - tree.first_index
    whole = placed(begin, tree.nodes) if 0 < tree.first_index <= tree.begin else None
    if whole is None:
        raise Damaged(CONTRADICTION, f"no tree has {len(tree.nodes)} nodes before {tree.begin}")
    part = Part(group, tree.first_index, begin, name, tree.nodes, [])
    run: list[Subtree] = []
    tiles: list[bytes] = []
    end = begin
    for entry in entries:
        leaf = Subtree(0, entry.index - tree.first_index, leaf_of(entry))
        push(run, leaf)
        tiles += (one.root for one in push(whole, leaf) if one.level >= _TILE_LEVEL)
        end = leaf.number + 1
        if entry.index in places:
            part.runs.append(Run(end, run))
            run = []
    if run:
        part.runs.append(Run(end, run))
    if b"".join(tiles) != tree.tiles:
        raise Damaged(CONTRADICTION, "a segment names roots of subtrees that its entries lack")
    return part


def follow(parts: Iterable[Part], places: Collection[int]) -> Iterator[Place]:
    """The root at each entry in `places`, and at the end of each tree; and each segment whose tree
    is not that of those before it.

    Parts come in the order of groups and entries. Of overlapping ones runs end where the later one
    begins or the earlier one ends.
    """
    tree: list[Subtree] = []
    group = first_index = size = 0
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
            first_index, size, last = part.first_index, part.begin, None
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
            size = run.end
            last = Place(group, first_index, size, part.object, root_of(tree))
            if first_index + size - 1 in places:
                yield last
    if last is not None:
        yield last
