"""When and how a node campaigns, and how it judges a candidate (thesis 3.4, 3.6.1, 9.3 and 9.6)."""

from __future__ import annotations

from random import Random

from streamd.raft.membership import Verdict, verdict
from streamd.raft.messages import HardState, VoteReply, VoteRequest
from streamd.raft.state import State


class ElectionTimer:
    """How long a node has not heard from a leader, in ticks (thesis 3.4, 9.3).

    It runs out between one and two election timeouts, so that candidates rarely collide.
    """

    def __init__(self, base_ticks: int, random: Random) -> None:
        self._base_ticks = base_ticks
        self._random = random
        self.restart()

    @property
    def has_run_out(self) -> bool:
        return self.elapsed >= self._timeout

    @property
    def is_within_one_timeout(self) -> bool:
        """Whether a leader was heard so recently that no node may presume it gone."""
        return self.elapsed < self._base_ticks

    def tick(self) -> None:
        self.elapsed += 1

    def heard(self) -> None:
        self.elapsed = 0

    def restart(self) -> None:
        self.elapsed = 0
        self._timeout = self._base_ticks + self._random.randrange(self._base_ticks)


class Candidacy:
    """One campaign, or with `pre_vote` the question whether to start one.

    A pre-vote changes no term and no vote, so a node that cannot win does not disturb a group
    that has a leader. With `transfer` the leader itself asked to be deposed.
    """

    def __init__(self, state: State, *, pre_vote: bool, transfer: bool = False) -> None:
        self._state = state
        self.pre_vote = pre_vote
        self._votes: dict[int, bool] = {}
        term = state.term + 1
        if pre_vote:
            self._votes[state.node_id] = True
            outbox = state.messages
        else:
            state.hard_state = HardState(term, state.node_id)
            # The requests wait for the disk too. Sent earlier, they could claim entries that a
            # crash then removes, and their answers could elect the restarted node in the same term.
            # log.
            outbox = state.messages_after_store
        log = state.log
        for voter in state.other_voters():
            outbox.append(
                VoteRequest(
                    state.node_id, voter, term, log.last_index, log.last_term, pre_vote, transfer
                )
            )

    def record(self, voter: int, granted: bool) -> None:
        """Count an answer; a second one from the same voter changes nothing."""
        self._votes.setdefault(voter, granted)

    def verdict(self) -> Verdict:
        return verdict(self._state.configuration, self._votes)


def answer_vote(state: State, request: VoteRequest) -> bool:
    """Grant or refuse a vote in the current term; the answer leaves once the vote is stored."""
    vote = state.hard_state.vote
    free = vote == request.sender or (vote == 0 and state.leader_id == 0)
    granted = (
        state.vote_eligibility.may_vote
        and free
        and state.log.is_up_to_date(request.last_index, request.last_term)
    )
    if granted and vote == 0:
        state.hard_state = HardState(state.term, request.sender)
    state.messages_after_store.append(VoteReply(state.node_id, request.sender, state.term, granted))
    return granted


def answer_pre_vote(state: State, request: VoteRequest, *, hears_leader: bool) -> None:
    """Say whether the sender would get this node's vote; the answer promises nothing."""
    granted = (
        state.vote_eligibility.may_vote
        and not hears_leader
        and request.term > state.term
        and state.log.is_up_to_date(request.last_index, request.last_term)
    )
    term = request.term if granted else state.term
    state.messages.append(VoteReply(state.node_id, request.sender, term, granted, pre_vote=True))
