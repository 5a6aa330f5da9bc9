"""The checker of the simulations finds logs that Raft rules out."""

from __future__ import annotations

from random import Random

import pytest

from streamd.raft.core import Settings
from streamd.raft.messages import Entry, EntryKind, HardState
from tests.raft.cluster import SimulatedDisk, SimulatedNode
from tests.raft.invariants import Checker, InvariantBroken


def node_with(node_id: int, *entries: Entry) -> SimulatedNode:
    disk = SimulatedDisk()
    disk.write(HardState(3), list(entries))
    return SimulatedNode(node_id, disk, Settings(), Random(node_id))


def test_two_entries_of_one_index_and_term_are_the_same() -> None:
    one = node_with(1, Entry(1, 1, EntryKind.COMMANDS, b"a"))
    other = node_with(2, Entry(1, 1, EntryKind.COMMANDS, b"b"))
    checker = Checker({1: one.disk, 2: other.disk})
    checker.after_event(one.core)
    with pytest.raises(InvariantBroken, match="logs differ at index 1, term 1"):
        checker.after_event(other.core)


def test_terms_never_decrease_along_a_log() -> None:
    node = node_with(
        1, Entry(1, 2, EntryKind.COMMANDS, b"a"), Entry(2, 1, EntryKind.COMMANDS, b"b")
    )
    with pytest.raises(InvariantBroken, match="at index 2, after an entry of term 2"):
        Checker({1: node.disk}).after_event(node.core)
