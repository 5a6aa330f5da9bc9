"""The Merkle tree of RFC 9162 section 2.1, with SHA-256.

The hash of a leaf is SHA-256(0x00, leaf), that of a node SHA-256(0x01, left, right). A tree of
`size` leaves is made of perfect subtrees, one for each binary digit of `size` that is 1, the
largest first. Their roots are all that is needed to add leaves and to compute the tree's root, so a
tree of a billion leaves is kept in 30 hashes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from typing import NamedTuple

HASH_BYTES = 32
EMPTY_ROOT = sha256(b"").digest()
# What the hash of every node begins with.
_NODE = sha256(b"\x01")


def leaf_hash(leaf: bytes) -> bytes:
    """The hash of a leaf."""
    return sha256(b"\x00" + leaf).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash of a node with two children."""
    return sha256(b"\x01" + left + right).digest()


class Place(NamedTuple):
    """Where a perfect subtree is: over the leaves from `number << level` on, `1 << level` many."""

    level: int
    number: int


class Range(NamedTuple):
    """The leaves from number `begin` to number `end`, which is exclusive."""

    begin: int
    end: int


class GrowingTree:
    """A tree to which leaves are added.

    `nodes` are the roots of its perfect subtrees, the largest first.
    """

    def __init__(self, size: int = 0, nodes: Sequence[bytes] = ()) -> None:
        """Raises `ValueError` for nodes that a tree of that size does not have."""
        if len(nodes) != size.bit_count() or any(len(node) != HASH_BYTES for node in nodes):
            raise ValueError(f"a tree of {size} leaves has {size.bit_count()} nodes")
        self.size = size
        self.nodes = list(nodes)

    def add(self, hashed: bytes) -> list[bytes]:
        """Add the leaf with that hash; returns the hashes of the perfect subtrees that it
        completes, beginning at level 1."""
        completed = []
        size = self.size
        while size & 1:
            hashed = node_hash(self.nodes.pop(), hashed)
            completed.append(hashed)
            size >>= 1
        self.nodes.append(hashed)
        self.size += 1
        return completed

    def root(self) -> bytes:
        """The root of the tree."""
        return folded(self.nodes)


def folded(nodes: Sequence[bytes]) -> bytes:
    """The root of a tree with perfect subtrees of these roots, the largest first."""
    if not nodes:
        return EMPTY_ROOT
    *others, root = nodes
    for node in reversed(others):
        root = node_hash(node, root)
    return root


def root_of(hashes: Iterable[bytes]) -> bytes:
    """The root of a tree, from the hashes of all its leaves."""
    level = list(hashes)
    if not level:
        return EMPTY_ROOT
    # As `node_hash` for each pair, in three quarters of the time: there are as many as commands.
    begun = _NODE.copy
    while len(level) > 1:
        above = []
        for left, right in zip(level[::2], level[1::2], strict=False):
            node = begun()
            node.update(left + right)
            above.append(node.digest())
        if len(level) & 1:
            above.append(level[-1])
        level = above
    return level[0]


def perfect(within: Range) -> Iterator[Place]:
    """The perfect subtrees that make up a range which a path of a tree names, from left to
    right."""
    begin, end = within
    while begin < end:
        level = (end - begin).bit_length() - 1
        yield Place(level, begin >> level)
        begin += 1 << level


def inclusion(number: int, size: int) -> list[Range]:
    """The subtrees whose roots prove leaf `number` in a tree of `size` leaves, from the leaf to
    the root (RFC 9162 section 2.1.3.1). Raises `ValueError` if there is no such leaf."""
    if not 0 <= number < size:
        raise ValueError(f"a tree of {size} leaves has no leaf {number}")
    path = []
    begin, end = 0, size
    while end - begin > 1:
        middle = begin + _split(end - begin)
        if number < middle:
            path.append(Range(middle, end))
            end = middle
        else:
            path.append(Range(begin, middle))
            begin = middle
    return path[::-1]


def consistency(old: int, size: int) -> list[Range]:
    """The subtrees whose roots prove that a tree of `size` leaves begins with the tree of its
    first `old` leaves (RFC 9162 section 2.1.4.1). Raises `ValueError` if `old` is greater, or 0.
    """
    if not 0 < old <= size:
        raise ValueError(f"a tree of {size} leaves has no earlier tree of {old} leaves")
    path = []
    begin, end, is_whole = 0, size, True
    while old < end:
        middle = begin + _split(end - begin)
        if old <= middle:
            path.append(Range(middle, end))
            end = middle
        else:
            path.append(Range(begin, middle))
            begin, is_whole = middle, False
    if not is_whole:
        path.append(Range(begin, end))
    return path[::-1]


def path_of(ranges: Iterable[Range], node: Callable[[Place], bytes]) -> list[bytes]:
    """The roots of a path's subtrees; `node` returns the root of a perfect one."""
    return [folded([node(place) for place in perfect(within)]) for within in ranges]


def root_above(hashed: bytes, number: int, size: int, path: Sequence[bytes]) -> bytes:
    """The root of a tree of `size` leaves to which the path of leaf `number` leads."""
    for within, other in zip(inclusion(number, size), path, strict=True):
        is_left = within.end <= number
        hashed = node_hash(other, hashed) if is_left else node_hash(hashed, other)
    return hashed


def _split(size: int) -> int:
    """How many leaves are left of the root: the largest power of two smaller than `size`."""
    return 1 << ((size - 1).bit_length() - 1)
