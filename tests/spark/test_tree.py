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
