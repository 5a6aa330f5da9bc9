"""The log: what is in memory, what is read back, what a late completion confirms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.raft.interface import RaftViolation
from streamd.raft.log import MAX_TERM_RUNS, Log
from streamd.raft.messages import Entry, EntryKind, HardState
from tests.raft.cluster import SimulatedDisk

UNLIMITED = 1 << 30


def entries(first: int, *terms: int) -> list[Entry]:
    return [
        Entry(index, term, EntryKind.COMMANDS, b"%d/%d" % (index, term))
        for index, term in enumerate(terms, first)
    ]


def disk_with(*terms: int) -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.write(HardState(max(terms, default=0)), entries(1, *terms))
    return disk


class CountingDisk(SimulatedDisk):
    """Counts how often entries or terms are read back."""

    reads = 0

    def term(self, index: int) -> int:
        self.reads += 1
        return super().term(index)

    def entries(self, lo: int, hi: int, max_bytes: int) -> list[Entry]:
        self.reads += 1
        return super().entries(lo, hi, max_bytes)


def store(log: Log, disk: SimulatedDisk) -> None:
    disk.write(None, log.begin_store())
    log.end_store()


def test_terms_come_from_memory_or_disk_alike() -> None:
    log = Log(disk_with(1, 1, 3), 0)
    log.append(entries(4, 3, 5, 5))
    assert [log.term(index) for index in range(7)] == [0, 1, 1, 3, 3, 5, 5]
    assert log.last_index == 6
    assert log.last_term == 5


def test_an_entry_is_handed_out_once_to_be_stored() -> None:
    log = Log(disk_with(1), 1)
    log.append(entries(2, 1))
    assert [e.index for e in log.begin_store()] == [2]
    log.append(entries(3, 1))
    assert [e.index for e in log.begin_store()] == [3]
    assert log.begin_store() == []


def test_an_entry_is_applied_from_memory_without_being_read_back() -> None:
    disk = CountingDisk()
    log = Log(disk, 0)
    for index in range(1, 50):
        [entry] = entries(index, 1)
        log.append([entry])
        store(log, disk)
        log.commit_to(index)
        [taken] = log.take_committed(UNLIMITED)
        assert taken is entry
    assert disk.reads == 0


def test_memory_keeps_no_entry_that_is_stored_and_applied() -> None:
    disk = disk_with()
    log = Log(disk, 0)
    for index in range(1, 50):
        log.append(entries(index, 1))
        store(log, disk)
        log.commit_to(index)
        log.take_committed(UNLIMITED)
    assert log._recent == []
    assert len(log._run_starts) == 2
    assert not log._writes


def test_committed_entries_are_applied_once_the_nodes_own_disk_has_them() -> None:
    disk = disk_with(1)
    log = Log(disk, 1)
    log.append(entries(2, 1, 1))
    log.commit_to(3)
    assert log.take_committed(UNLIMITED) == []
    store(log, disk)
    assert [e.index for e in log.take_committed(UNLIMITED)] == [2, 3]
    assert log.take_committed(UNLIMITED) == []


def test_committed_entries_come_in_pieces_across_disk_and_memory() -> None:
    disk = disk_with(1, 1, 1)
    log = Log(disk, 0)
    log.append(entries(4, 1, 1))
    store(log, disk)
    log.commit_to(5)
    taken = []
    while piece := log.take_committed(max_bytes=6):
        assert len(piece) <= 2
        taken += piece
    assert [e.index for e in taken] == [1, 2, 3, 4, 5]


def test_a_late_completion_confirms_only_entries_that_were_not_replaced() -> None:
    log = Log(disk_with(1), 1)
    log.append(entries(2, 1, 1, 1))
    log.begin_store()
    log.truncate(4)
    log.append(entries(4, 2))
    log.begin_store()
    log.end_store()
    assert log.stable_index == 3
    log.end_store()
    assert log.stable_index == 4


def test_truncation_below_the_stored_entries_lowers_the_stored_index() -> None:
    disk = disk_with(1, 1, 2, 2)
    log = Log(disk, 1)
    log.truncate(3)
    assert (log.stable_index, log.last_index, log.last_term) == (2, 2, 1)
    log.append(entries(3, 5))
    assert [log.term(index) for index in range(4)] == [0, 1, 1, 5]
    assert [e.index for e in log.begin_store()] == [3]


def test_a_committed_entry_is_never_removed() -> None:
    log = Log(disk_with(1, 1), 1)
    with pytest.raises(RaftViolation, match="committed"):
        log.truncate(1)
    assert log.last_index == 2


def test_a_commit_beyond_the_log_is_refused() -> None:
    log = Log(disk_with(1, 1), 1)
    with pytest.raises(RaftViolation, match="ends at 2"):
        log.commit_to(3)


def test_many_terms_are_remembered_only_in_part_and_still_known() -> None:
    disk = disk_with()
    log = Log(disk, 0)
    terms = list(range(1, 3 * MAX_TERM_RUNS))
    for index, term in enumerate(terms, 1):
        log.append(entries(index, term))
    assert [log.term(index) for index in range(1, len(terms) + 1)] == terms
    log.commit_to(len(terms))
    store(log, disk)
    log.take_committed(UNLIMITED)
    assert len(log._run_starts) == MAX_TERM_RUNS
    assert [log.term(index) for index in range(1, len(terms) + 1)] == terms


def test_terms_older_than_the_log_are_unknown() -> None:
    disk = disk_with(1, 2, 3, 4)
    log = Log(disk, 4)
    disk.compact(3)
    assert [log.term(index) for index in range(5)] == [0, 0, 0, 3, 4]
    assert not log.has(2, 2)


def test_after_a_reset_the_log_continues_after_the_raft_snapshot() -> None:
    disk = disk_with(1, 1)
    log = Log(disk, 1)
    log.append(entries(3, 1, 1))
    disk.reset(9, 5)
    log.reset(9, 5)
    assert (log.first_index, log.last_index, log.last_term) == (10, 9, 5)
    assert log.stable_index == log.commit_index == log.handed_index == 9
    assert log.begin_store() == []
    log.append(entries(10, 6))
    assert [entry.index for entry in log.begin_store()] == [10]
    assert [log.term(index) for index in (8, 9, 10)] == [0, 5, 6]


def test_a_log_that_is_being_written_cannot_be_reset() -> None:
    disk = disk_with(1)
    log = Log(disk, 1)
    log.append(entries(2, 1))
    log.begin_store()
    disk.reset(9, 5)
    with pytest.raises(AssertionError, match="being written"):
        log.reset(9, 5)


def test_a_log_is_up_to_date_by_last_term_then_length() -> None:
    log = Log(disk_with(1, 2, 2), 0)
    assert log.is_up_to_date(3, 2)
    assert log.is_up_to_date(1, 3)
    assert not log.is_up_to_date(2, 2)
    assert not log.is_up_to_date(9, 1)


@given(
    st.lists(st.integers(1, 6), max_size=12).map(sorted),
    st.integers(0, 14),
    st.integers(0, 7),
    st.integers(0, 5),
    st.integers(0, 5),
)
def test_the_hint_is_the_last_entry_of_no_later_term(
    terms: list[int], index: int, term: int, in_memory: int, compacted: int
) -> None:
    on_disk = terms[: max(0, len(terms) - in_memory)]
    disk = disk_with(*on_disk)
    applied = min(compacted, len(on_disk))
    log = Log(disk, applied)
    log.append(entries(len(on_disk) + 1, *terms[len(on_disk) :]))
    if applied:
        disk.compact(applied)
    found, found_term = log.last_not_after_term(index, term)
    candidates = [i for i, t in enumerate(terms, 1) if i <= index and t <= term]
    assert found == max([applied, *candidates])
    assert found_term == ([0, *terms][found])
