"""Deliberate mistakes, each one a small change to the core or to the order of its writes.

Those marked `bug` break a promise that random schedules check. Those marked `bug_for_scripts`
need a schedule that hardly ever comes about by chance, or cost time rather than data: a script
shows them.
"""

# mypy: disable-error-code="attr-defined"
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from streamd.raft import core, elections, following, leadership, roles
from streamd.raft.core import Core
from streamd.raft.elections import Candidacy
from streamd.raft.leadership import Leadership
from streamd.raft.log import Log
from streamd.raft.membership import ConfigurationHistory, Verdict
from streamd.raft.messages import (
    AppendRequest,
    Configuration,
    HardState,
    Heartbeat,
    HeartbeatReply,
    ReadReply,
    TimeoutNow,
    VoteReply,
    VoteRequest,
)
from streamd.raft.reads import ForwardedReads, ReadQueue, Round
from streamd.raft.replication import Replication
from streamd.raft.roles import Roles
from streamd.raft.state import State
from streamd.raft.vote_eligibility import VoteEligibility
from streamd.raft.writes import Writes
from tests.raft.cluster import RaftSnapshot, SimulatedNode

Plant = Callable[[pytest.MonkeyPatch], None]
FOR_RANDOM: list[Plant] = []
FOR_SCRIPTS: list[Plant] = []


def bug(plant: Plant) -> Plant:
    FOR_RANDOM.append(plant)
    return plant


def bug_for_scripts(plant: Plant) -> Plant:
    FOR_SCRIPTS.append(plant)
    return plant


# -- storing, voting, replicating, reading ----------------------------------------------------


@bug
def replies_leave_before_the_write(patch: pytest.MonkeyPatch) -> None:
    real = core.Core.ready

    def ready(self: core.Core, *, announce: bool = True) -> core.Ready | None:
        taken = real(self, announce=announce)
        if taken is not None:
            taken.messages += taken.messages_after_store
            taken.messages_after_store = []
        return taken

    patch.setattr(core.Core, "ready", ready)


@bug
def leader_counts_entries_that_it_has_not_stored(patch: pytest.MonkeyPatch) -> None:
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
    patch.setattr(Leadership, "_answered_round", lambda self, _: self.reads.round)


@bug
def reads_do_not_wait_for_the_own_term(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leadership, "has_committed_in_term", True)


@bug
def read_rounds_are_not_distinguished(patch: pytest.MonkeyPatch) -> None:
    real = ReadQueue.confirmed

    def confirmed(self: ReadQueue, round_number: int) -> list[Round]:
        return real(self, self.round if round_number else 0)

    patch.setattr(ReadQueue, "confirmed", confirmed)


@bug_for_scripts
def old_term_commits_by_counting(patch: pytest.MonkeyPatch) -> None:
    real = Leadership._commit

    def commit(self: Leadership) -> None:
        own, self._own_from_index = self._own_from_index, 0
        real(self)
        self._own_from_index = own

    patch.setattr(Leadership, "_commit", commit)


@bug
def entries_are_stored_before_their_term(patch: pytest.MonkeyPatch) -> None:
    real = SimulatedNode.complete_one

    def write_one(self: SimulatedNode) -> core.Ready:
        ready = self.writes[self.written]
        self.written += 1
        self.disk.write(None, ready.entries)
        return ready

    def complete_one(self: SimulatedNode) -> core.Ready:
        self.disk.write(self.writes[0].hard_state, [])
        return real(self)

    patch.setattr(SimulatedNode, "write_one", write_one)
    patch.setattr(SimulatedNode, "complete_one", complete_one)


@bug
def entries_are_applied_before_they_are_stored(patch: pytest.MonkeyPatch) -> None:
    real = Log.take_committed

    def take_committed(self: Log, max_bytes: int) -> list[Any]:
        stable, self.stable_index = self.stable_index, self.last_index
        taken = real(self, max_bytes)
        self.stable_index = stable
        return taken

    patch.setattr(Log, "take_committed", take_committed)


@bug
def pre_vote_clears_the_vote(patch: pytest.MonkeyPatch) -> None:
    real = elections.answer_pre_vote

    def answer_pre_vote(state: State, request: VoteRequest, *, hears_leader: bool) -> None:
        real(state, request, hears_leader=hears_leader)
        state.hard_state = HardState(state.term)

    patch.setattr(roles, "answer_pre_vote", answer_pre_vote)


@bug
def lost_requests_are_never_noticed(patch: pytest.MonkeyPatch) -> None:
    def on_heartbeat_reply(self: Replication, reply: HeartbeatReply) -> None:
        progress = self.progress[reply.sender]
        progress.ticks_since_heard = 0
        progress.answered_round = max(progress.answered_round, reply.round)

    patch.setattr(Replication, "on_heartbeat_reply", on_heartbeat_reply)


# -- changing the members ---------------------------------------------------------------------


@bug
def one_half_of_a_joint_configuration_commits(patch: pytest.MonkeyPatch) -> None:
    real = leadership.quorum_value

    def quorum_value(configuration: Configuration, value_of: Callable[[int], int]) -> int:
        return real(Configuration(configuration.voters), value_of)

    patch.setattr(leadership, "quorum_value", quorum_value)


@bug
def one_half_of_a_joint_configuration_elects(patch: pytest.MonkeyPatch) -> None:
    real = elections.verdict

    def verdict(configuration: Configuration, votes: dict[int, bool]) -> Verdict:
        return real(Configuration(configuration.voters), votes)

    patch.setattr(elections, "verdict", verdict)


@bug
def new_voters_decide_without_a_joint_configuration(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(leadership, "first_step", lambda _, target: target)


@bug_for_scripts
def configuration_outlives_its_removed_entry(patch: pytest.MonkeyPatch) -> None:
    def truncate(self: ConfigurationHistory, from_index: int) -> None:
        self._indexes = [min(index, from_index - 1) for index in self._indexes]

    patch.setattr(ConfigurationHistory, "truncate", truncate)


@bug
def learners_count(patch: pytest.MonkeyPatch) -> None:
    real = leadership.quorum_value

    def quorum_value(configuration: Configuration, value_of: Callable[[int], int]) -> int:
        return real(Configuration(tuple(sorted(configuration.members()))), value_of)

    patch.setattr(leadership, "quorum_value", quorum_value)


@bug
def joint_configuration_is_never_left(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leadership, "_take_last_step", lambda _: None)


@bug
def joint_configuration_is_left_at_once(patch: pytest.MonkeyPatch) -> None:
    real = Leadership.propose_configuration

    def propose_configuration(self: Leadership, target: Configuration) -> int:
        index = real(self, target)
        if self._state.configuration.voters_outgoing:
            self._append_configuration(leadership.last_step(self._state.configuration))
        return index

    patch.setattr(Leadership, "propose_configuration", propose_configuration)


@bug
def removed_leader_stays(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leadership, "is_removed", False)


@bug_for_scripts
def removed_voter_never_campaigns(patch: pytest.MonkeyPatch) -> None:
    real = Roles._may_stand

    def may_stand(self: Roles) -> bool:
        state = self._state
        may: bool = real.__get__(self)
        return may and state.configuration.is_voter(state.node_id)

    patch.setattr(Roles, "_may_stand", property(may_stand))


@bug_for_scripts
def change_before_an_own_entry_is_committed(patch: pytest.MonkeyPatch) -> None:
    real = Leadership.propose_configuration

    def propose_configuration(self: Leadership, target: Configuration) -> int:
        patch.setattr(Leadership, "has_committed_in_term", True)
        return real(self, target)

    patch.setattr(Leadership, "propose_configuration", propose_configuration)


@bug_for_scripts
def removed_node_is_not_notified(patch: pytest.MonkeyPatch) -> None:
    real = Replication.follow_configuration

    def follow_configuration(self: Replication) -> None:
        real(self)
        for gone in list(self._departures):
            self._forget(gone)

    patch.setattr(Replication, "follow_configuration", follow_configuration)


# -- Raft snapshots and lost entries ----------------------------------------------------------


@bug_for_scripts
def raft_snapshot_replaces_a_log_that_holds_more(patch: pytest.MonkeyPatch) -> None:
    def begin_restore(self: Core, index: int, term: int) -> bool:
        if self.role == core.Role.FOLLOWER and index > self.commit_index:
            self._state.restoring = index, term
        return self._state.restoring == (index, term)

    patch.setattr(Core, "begin_restore", begin_restore)


@bug_for_scripts
def log_grows_while_it_is_replaced(patch: pytest.MonkeyPatch) -> None:
    real = following.follow_append

    def follow_append(state: State, request: AppendRequest) -> None:
        restoring, state.restoring = state.restoring, None
        real(state, request)
        state.restoring = restoring

    patch.setattr(roles, "follow_append", follow_append)


@bug
def failed_raft_snapshot_is_not_retried(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Replication, "snapshot_failed", lambda *_: None)


@bug_for_scripts
def raft_snapshot_names_an_uncommitted_configuration(patch: pytest.MonkeyPatch) -> None:
    def take_snapshot(self: SimulatedNode) -> RaftSnapshot:
        return self.stored._replace(configuration=self.core.configuration)

    patch.setattr(SimulatedNode, "take_snapshot", take_snapshot)


@bug
def node_without_its_entries_votes(patch: pytest.MonkeyPatch) -> None:
    real = VoteEligibility.__init__
    patch.setattr(VoteEligibility, "__init__", lambda self, _, *given: real(self, True, *given))


@bug
def lost_entries_are_not_reported(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(following, "_reject", lambda *_: None)


# -- time and leadership ----------------------------------------------------------------------


@bug_for_scripts
def leader_stays_though_nobody_hears_it(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leadership, "is_heard_by_quorum", lambda _: True)


@bug_for_scripts
def leader_stays_though_its_disk_is_stuck(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Writes, "have_stalled", False)


@bug_for_scripts
def campaigns_depose_a_leader_that_is_heard(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Roles, "_ignores_campaign", lambda *_: False)


@bug_for_scripts
def transfer_is_ignored_as_a_campaign(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Roles, "_ignores_campaign", lambda self, _: self._hears_leader())


@bug_for_scripts
def transfer_goes_to_a_node_that_lacks_entries(patch: pytest.MonkeyPatch) -> None:
    def ask_to_campaign(self: Replication, member: int) -> bool:
        state = self._state
        state.messages.append(TimeoutNow(state.node_id, member, state.term))
        return True

    patch.setattr(Replication, "ask_to_campaign", ask_to_campaign)


@bug_for_scripts
def answer_to_an_earlier_life_is_taken(patch: pytest.MonkeyPatch) -> None:
    real = ForwardedReads.on_reply

    def on_reply(self: ForwardedReads, reply: ReadReply) -> None:
        life, self._life = self._life, reply.life
        real(self, reply)
        self._life = life

    patch.setattr(ForwardedReads, "on_reply", on_reply)
