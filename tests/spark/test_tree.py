"""The audit's hash tree is the server's, however the log is divided among tasks."""

from __future__ import annotations

from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.proofs import leaves
from streamd.proofs.tree import GrowingTree
from streamd.raft.messages import EntryKind
from streamd.streams.codec import Batch, encode_batch
from streamd.streams.commands import Append, Delete
from streamd_audit import tree
from streamd_audit.errors import Damaged
from streamd_audit.log_trees import Part, Run, follow
from streamd_audit.segments import Entry
from streamd_audit.tree import Subtree


@given(st.integers(1, 300), st.randoms(use_true_random=False))
def test_parts_join_to_the_whole_tree(size: int, random: Random) -> None:
    hashes = [random.randbytes(32) for _ in range(size)]
    grown = GrowingTree()
    for hashed in hashes:
        grown.add(hashed)
    cuts = sorted({0, size, *(random.randrange(size + 1) for _ in range(4))})
    parts = [tree.LeafRun(begin, hashes[begin:end]).subtrees for begin, end in pairwise(cuts)]
    for part, (begin, end) in zip(parts, pairwise(cuts), strict=True):
        leaves_in = (Subtree(0, number, hashes[number]) for number in range(begin, end))
        assert part == tree.joined(leaves_in)
    whole = tree.joined(one for part in parts for one in part)
    assert [one.root for one in whole] == grown.nodes
    assert tree.root_of(whole) == grown.root()
    assert tree.placed(size, grown.nodes) == whole


def test_a_tree_of_another_size_has_other_subtrees() -> None:
    assert tree.placed(3, [bytes(32)]) is None
    assert tree.placed(0, []) == []


def _part(first: int, last: int, begin: int, first_index: int) -> Part:
    """The part of a segment whose entries from `begin` on are in the tree that begins there or
    before; the hash of an entry's leaf is its index."""
    before = GrowingTree()
    for index in range(first_index, begin):
        before.add(index.to_bytes(32))
    leaves = [
        Subtree(0, index - first_index, index.to_bytes(32)) for index in range(begin, last + 1)
    ]
    # A run for each, so that segments may overlap anywhere.
    runs = [Run(leaf.number + 1, [leaf]) for leaf in leaves]
    size, nodes = begin - first_index, before.nodes
    return Part(0, first, last, f"{first}-{last}", first_index, size, nodes, runs)


def _bare(first: int, last: int) -> Part:
    return Part(0, first, last, f"{first}-{last}")


@pytest.mark.parametrize(
    ("parts", "odd"),
    [
        ([_part(1, 5, 1, 1), _part(6, 9, 6, 1)], []),
        ([_part(6, 9, 6, 1), _part(10, 12, 10, 1)], []),  # retention has removed what was before
        ([_bare(1, 5), _part(6, 9, 6, 6)], []),  # a release without trees wrote that
        ([_part(1, 9, 6, 6), _part(10, 12, 10, 6)], []),  # they are merged
        ([_part(1, 5, 1, 1), _part(8, 9, 8, 8)], []),  # the archive continues after a gap
        ([_part(1, 5, 1, 1), _part(8, 9, 8, 1)], []),  # a segment is missing, as the log tells
        ([_part(1, 5, 1, 1), _part(4, 9, 4, 1)], []),  # two leaders
        ([_part(1, 9, 1, 1), _part(3, 5, 3, 1), _part(10, 12, 10, 1)], []),  # they are merged
        ([_part(1, 5, 1, 1), _bare(6, 7), _part(6, 9, 6, 1)], []),  # one of an earlier release
        ([_bare(1, 5), _part(6, 9, 6, 1)], ["6-9"]),
        ([_part(1, 5, 3, 1), _part(6, 9, 6, 1)], ["1-5"]),
        ([_part(1, 5, 1, 1), _bare(6, 9)], ["6-9"]),
        ([_part(1, 5, 1, 1), _bare(6, 9), _part(10, 12, 10, 1)], ["6-9"]),
        ([_part(1, 5, 1, 1), _bare(4, 9), _part(10, 12, 10, 1)], ["4-9"]),
        ([_part(1, 5, 1, 1), _part(6, 9, 8, 1)], ["6-9"]),
        ([_part(1, 5, 1, 1), _part(6, 9, 6, 2), _part(10, 12, 10, 2)], ["6-9"]),
        ([_part(1, 9, 1, 1), _part(3, 5, 3, 2), _part(10, 12, 10, 1)], ["3-5"]),
    ],
)
def test_each_entry_is_in_the_tree_of_those_before_it(parts: list[Part], odd: list[str]) -> None:
    places = range(1, 13)
    assert [one.object for one in follow(parts, places) if one.root is None] == odd


@pytest.mark.parametrize("commands", [0, 1, 2, 15, 16, 70])
def test_a_leaf_is_the_one_of_the_server(commands: int) -> None:
    appends = [
        Append(b"b\0s", "text/plain", b"x" * number, [number]) if number % 3 else Delete(b"b\0s")
        for number in range(commands)
    ]
    payload = encode_batch(Batch(1_700_000_000_000, [*appends]))
    for kind in EntryKind:
        has_commands = kind == EntryKind.COMMANDS
        expected = leaves.entry_hash(7, 3, kind, payload, has_commands=has_commands)
        assert tree.leaf_of(_entry(kind, payload)) == expected


def test_an_entry_without_commands_where_some_should_be_is_damaged() -> None:
    with pytest.raises(Damaged):
        tree.leaf_of(_entry(EntryKind.COMMANDS, b"\x91\x01"))


def _entry(kind: int, payload: bytes) -> Entry:
    return Entry(7, 3, kind, 0, True, 0, 0, memoryview(payload))
