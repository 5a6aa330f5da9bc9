"""The checker itself is checked: each bug planted here breaks a promise, and is found.

A bug is a small change to the core, in place only while random schedules run against it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from streamd.raft import core, elections, following, leadership, roles
from streamd.raft.elections import Candidacy
from streamd.raft.invariants import InvariantBroken
from streamd.raft.leadership import Leadership
from streamd.raft.log import Log
from streamd.raft.membership import Verdict
from streamd.raft.messages import AppendRequest, HardState, Heartbeat, VoteReply, VoteRequest
from streamd.raft.reads import ReadQueue, Round
from streamd.raft.replication import Replication
from streamd.raft.state import State
from tests.raft.simulation import run_seed
from tests.raft.test_scripts import SCRIPTS, played

MAX_SEEDS = 400
STEPS = 4000

Plant = Callable[[pytest.MonkeyPatch], None]
BUGS: list[Plant] = []


def bug(plant: Plant) -> Plant:
    BUGS.append(plant)
    return plant


@pytest.mark.parametrize("plant", BUGS, ids=lambda plant: plant.__name__)
def test_planted_bug_is_found(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    with pytest.raises(InvariantBroken) as found:
        run_seeds()
    print(f"{plant.__name__}: {found.value}")


def run_seeds() -> None:
    for seed in range(MAX_SEEDS):
        run_seed(seed, STEPS)


@bug
def replies_leave_before_the_write(patch: pytest.MonkeyPatch) -> None:
    real = core.Core.ready

    def ready(self: core.Core) -> core.Ready | None:
        taken = real(self)
        if taken is not None:
            taken.messages += taken.messages_after_store
            taken.messages_after_store = []
        return taken

    patch.setattr(core.Core, "ready", ready)


@bug
def leader_counts_what_it_has_not_stored(patch: pytest.MonkeyPatch) -> None:
    real = Replication.match_index

    def match_index(self: Replication, member: int) -> int:
        state = self._state
        return state.log.last_index if member == state.node_id else real(self, member)

    patch.setattr(Replication, "match_index", match_index)


@bug
def late_completion_vouches_for_replaced_entries(patch: pytest.MonkeyPatch) -> None:
    real = Log.truncate

    def truncate(self: Log, from_index: int) -> None:
        writes = self._writes
        real(self, from_index)
        self._writes = writes

    patch.setattr(Log, "truncate", truncate)


@bug
def votes_for_anyone_whatever_their_log(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Log, "is_up_to_date", lambda *_: True)


@bug
def vote_is_forgotten(patch: pytest.MonkeyPatch) -> None:
    real = elections.answer_vote

    def answer_vote(state: State, request: VoteRequest) -> bool:
        granted = real(state, request)
        state.hard_state = HardState(state.term)
        return granted

    patch.setattr(roles, "answer_vote", answer_vote)


@bug
def vote_is_kept_in_memory_only(patch: pytest.MonkeyPatch) -> None:
    def answer_vote(state: State, request: VoteRequest) -> bool:
        free = state.hard_state.vote in (0, request.sender)
        granted = free and state.log.is_up_to_date(request.last_index, request.last_term)
        reply = VoteReply(state.node_id, request.sender, state.term, granted)
        state.messages.append(reply)
        if granted:
            state.hard_state = HardState(state.term, request.sender)
        return granted

    patch.setattr(roles, "answer_vote", answer_vote)


@bug
def one_vote_is_enough(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Candidacy, "verdict", lambda _: Verdict.WON)


@bug
def conflicting_suffix_stays(patch: pytest.MonkeyPatch) -> None:
    real = Log.has

    def has(self: Log, index: int, term: int) -> bool:
        return index <= self.last_index if index > self.commit_index else real(self, index, term)

    patch.setattr(Log, "has", has)


@bug
def late_append_cuts_the_log(patch: pytest.MonkeyPatch) -> None:
    real = following._take_over

    def take_over(state: State, entries: list[Any]) -> None:
        if entries and state.log.commit_index < entries[0].index <= state.log.last_index:
            state.log.truncate(entries[0].index)
        real(state, entries)

    patch.setattr(following, "_take_over", take_over)


@bug
def follower_commits_beyond_what_it_was_sent(patch: pytest.MonkeyPatch) -> None:
    def follow_append(state: State, request: AppendRequest) -> None:
        real(state, request)
        state.log.commit_to(min(request.commit_index, state.log.last_index))

    real = following.follow_append
    patch.setattr(roles, "follow_append", follow_append)


@bug
def heartbeat_commits_beyond_the_match(patch: pytest.MonkeyPatch) -> None:
    def follow_heartbeat(state: State, heartbeat: Heartbeat) -> None:
        state.log.commit_to(min(heartbeat.commit_index, state.log.last_index))

    def heartbeat(self: Replication, round_number: int) -> None:
        state = self._state
        for member in self.progress:
            state.messages.append(
                Heartbeat(state.node_id, member, state.term, state.log.commit_index, round_number)
            )

    patch.setattr(Replication, "heartbeat", heartbeat)
    patch.setattr(roles, "follow_heartbeat", follow_heartbeat)


@bug
def half_is_a_majority(patch: pytest.MonkeyPatch) -> None:
    def quorum_value(configuration: Any, value_of: Callable[[int], int]) -> int:
        return sorted(map(value_of, configuration.voters))[len(configuration.voters) // 2]

    patch.setattr(leadership, "quorum_value", quorum_value)


@bug
def reads_do_not_ask_anyone(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leadership, "_answered_round", lambda self, _: self._reads.round)


@bug
def reads_do_not_wait_for_the_own_term(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leadership, "has_committed_in_term", True)


@bug
def read_rounds_are_not_told_apart(patch: pytest.MonkeyPatch) -> None:
    real = ReadQueue.confirmed

    def confirmed(self: ReadQueue, round_number: int) -> list[Round]:
        return real(self, self.round if round_number else 0)

    patch.setattr(ReadQueue, "confirmed", confirmed)


def old_term_commits_by_counting(patch: pytest.MonkeyPatch) -> None:
    real = Leadership._commit

    def commit(self: Leadership) -> None:
        own, self._own_from_index = self._own_from_index, 0
        real(self)
        self._own_from_index = own

    patch.setattr(Leadership, "_commit", commit)


def test_what_random_schedules_hardly_ever_meet_a_script_shows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old_term_commits_by_counting(monkeypatch)
    text = next(path for path in SCRIPTS if path.stem == "old_term_not_counted").read_text()
    assert played(text) != text
