"""The tree has the roots, paths and proofs of RFC 9162.

What it computes piece by piece is compared with the RFC's recursive definitions, written out here,
and with its algorithms of verification.
"""

from __future__ import annotations

from hashlib import sha256
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.proofs import tree
from streamd.proofs.tree import GrowingTree, Place, Range

SIZES = range(1, 70)


def leaves(size: int) -> list[bytes]:
    return [b"leaf %d" % number for number in range(size)]


def rfc_root(of: list[bytes]) -> bytes:
    """MTH of RFC 9162 section 2.1.1."""
    if not of:
        return sha256(b"").digest()
    if len(of) == 1:
        return sha256(b"\x00" + of[0]).digest()
    split = rfc_split(len(of))
    return sha256(b"\x01" + rfc_root(of[:split]) + rfc_root(of[split:])).digest()


def rfc_split(size: int) -> int:
    split = 1
    while split * 2 < size:
        split *= 2
    return split


def rfc_path(number: int, of: list[bytes]) -> list[bytes]:
    """PATH of section 2.1.3.1."""
    if len(of) == 1:
        return []
    split = rfc_split(len(of))
    if number < split:
        return [*rfc_path(number, of[:split]), rfc_root(of[split:])]
    return [*rfc_path(number - split, of[split:]), rfc_root(of[:split])]


def rfc_subproof(old: int, of: list[bytes], *, whole: bool) -> list[bytes]:
    """SUBPROOF of section 2.1.4.1."""
    if old == len(of):
        return [] if whole else [rfc_root(of)]
    split = rfc_split(len(of))
    if old <= split:
        return [*rfc_subproof(old, of[:split], whole=whole), rfc_root(of[split:])]
    return [*rfc_subproof(old - split, of[split:], whole=False), rfc_root(of[:split])]


def grown(size: int) -> tuple[GrowingTree, dict[Place, bytes]]:
    """A tree, and the roots of all perfect subtrees that it had."""
    growing, places = GrowingTree(), {}
    for number, leaf in enumerate(leaves(size)):
        hashed = tree.leaf_hash(leaf)
        places[Place(0, number)] = hashed
        for level, node in enumerate(growing.add(hashed), 1):
            places[Place(level, number >> level)] = node
    return growing, places


@pytest.mark.parametrize("size", SIZES)
def test_a_tree_that_grows_has_the_root_of_its_leaves(size: int) -> None:
    growing, _ = grown(size)
    assert growing.root() == rfc_root(leaves(size))
    assert tree.root_of(map(tree.leaf_hash, leaves(size))) == growing.root()


def test_an_empty_tree_has_the_hash_of_nothing_as_its_root() -> None:
    assert GrowingTree().root() == tree.root_of([]) == rfc_root([])


@pytest.mark.parametrize("size", SIZES)
def test_a_tree_is_continued_from_its_nodes(size: int) -> None:
    growing, _ = grown(size)
    continued = GrowingTree(growing.size, growing.nodes)
    continued.add(tree.leaf_hash(b"one more"))
    assert continued.root() == rfc_root([*leaves(size), b"one more"])


@pytest.mark.parametrize("nodes", [[], [b""], [bytes(31)], [bytes(32), bytes(32)]])
def test_nodes_that_no_tree_of_the_size_has_are_refused(nodes: list[bytes]) -> None:
    with pytest.raises(ValueError, match="nodes"):
        GrowingTree(4, nodes)


@pytest.mark.parametrize("size", SIZES)
def test_paths_are_those_of_the_rfc(size: int) -> None:
    _, places = grown(size)
    for number in range(size):
        path = tree.path_of(tree.inclusion(number, size), places.__getitem__)
        assert path == rfc_path(number, leaves(size))
        hashed = places[Place(0, number)]
        assert tree.root_above(hashed, number, size, path) == rfc_root(leaves(size))
    for old in range(1, size + 1):
        path = tree.path_of(tree.consistency(old, size), places.__getitem__)
        assert path == rfc_subproof(old, leaves(size), whole=True)


@pytest.mark.parametrize("size", [0, 1, 7])
def test_a_leaf_or_tree_that_does_not_exist_has_no_path(size: int) -> None:
    for number in (-1, size):
        with pytest.raises(ValueError, match="no leaf"):
            tree.inclusion(number, size)
    for old in (0, size + 1):
        with pytest.raises(ValueError, match="no earlier tree"):
            tree.consistency(old, size)


@given(st.integers(1, 2**40), st.data())
def test_a_path_names_few_subtrees_that_cover_the_rest(size: int, data: st.DataObject) -> None:
    number = data.draw(st.integers(0, size - 1))
    path = tree.inclusion(number, size)
    assert len(path) <= size.bit_length()
    covered = sorted([*path, Range(number, number + 1)])
    assert covered[0].begin == 0
    assert covered[-1].end == size
    assert all(one.end == following.begin for one, following in pairwise(covered))
    for within in path:
        places = list(tree.perfect(within))
        assert sum(1 << place.level for place in places) == within.end - within.begin
        assert places[0].number << places[0].level == within.begin
