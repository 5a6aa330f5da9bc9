"""Whether a follower says that it keeps up with its leader."""

from __future__ import annotations

from streamd.raft.keeping_up import KeepingUp

PATIENCE = 4


def ticks(keeping_up: KeepingUp, applied_index: int, count: int) -> list[bool]:
    said = []
    for _ in range(count):
        keeping_up.tick(applied_index)
        said.append(keeping_up.value)
    return said


def test_without_a_word_from_a_leader_nobody_is_known_to_keep_up() -> None:
    assert ticks(KeepingUp(PATIENCE), 100, 10) == [False] * 10


def test_who_has_applied_what_the_leader_had_keeps_up() -> None:
    keeping_up = KeepingUp(PATIENCE)
    keeping_up.heard(10)
    assert ticks(keeping_up, 10, 3) == [False, True, True]


def test_being_an_election_timeout_late_is_not_keeping_up() -> None:
    keeping_up = KeepingUp(PATIENCE)
    keeping_up.heard(10)
    ticks(keeping_up, 10, 2)
    keeping_up.heard(20)
    assert ticks(keeping_up, 10, 1 + PATIENCE) == [True] * PATIENCE + [False]
    assert ticks(keeping_up, 20, 1) == [True]


def test_under_load_there_is_always_more_to_apply_and_that_is_no_fault() -> None:
    keeping_up = KeepingUp(PATIENCE)
    for last_index in range(10, 1000, 10):
        keeping_up.heard(last_index)
        keeping_up.tick(last_index - 10)
    assert keeping_up.value


def test_a_slow_follower_of_a_growing_log_does_not_keep_up() -> None:
    keeping_up = KeepingUp(PATIENCE)
    said = []
    for tick in range(100):
        keeping_up.heard(100 * tick)
        said += ticks(keeping_up, tick, 1)
    assert not any(said)
