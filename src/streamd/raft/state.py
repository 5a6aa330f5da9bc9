"""What a node is in every role, and the content of its next `Ready`."""

from __future__ import annotations

from streamd.raft.interface import ReadState, Settings
from streamd.raft.log import Log
from streamd.raft.membership import ConfigurationHistory
from streamd.raft.messages import Configuration, HardState, Message
from streamd.raft.vote_eligibility import VoteEligibility


class LagTracker:
    """Whether a follower lags its leader, and so makes its clients wait.

    `value` is True while this node keeps applying the leader's entries within an election timeout:
    the end of the leader's log at some moment is compared with what is applied one timeout later,
    because under load there is always a little more to apply. The commit index in a heartbeat would
    not tell: it never exceeds what the follower is known to hold, so a follower that lags far would
    believe that it has everything.
    """

    def __init__(self, patience_ticks: int) -> None:
        self._patience_ticks = patience_ticks
        self._told_index = 0
        self._goal_index = 0
        self._ticks_left = 0
        self.value = False

    def heard(self, last_index: int) -> None:
        """A leader's log reaches `last_index`."""
        self._told_index = last_index

    def tick(self, applied_index: int) -> None:
        """Let one tick pass; this node has applied up to `applied_index`."""
        if not self._goal_index:
            self._aim()
        elif applied_index >= self._goal_index:
            self.value = True
            self._aim()
        elif self._ticks_left > 1:
            self._ticks_left -= 1
        else:
            self.value = False
            self._aim()

    def _aim(self) -> None:
        self._goal_index = self._told_index
        self._ticks_left = self._patience_ticks


class State:
    """Shared by the core and the object that plays the current role."""

    def __init__(
        self,
        node_id: int,
        settings: Settings,
        hard_state: HardState,
        log: Log,
        configurations: ConfigurationHistory,
        vote_eligibility: VoteEligibility,
    ) -> None:
        self.node_id = node_id
        self.settings = settings
        # Replaced as a whole, never changed: the core compares it with the one it handed out.
        self.hard_state = hard_state
        self.log = log
        self.configurations = configurations
        self.vote_eligibility = vote_eligibility
        self.lag = LagTracker(settings.election_timeout_ticks)
        self.leader_id = 0
        # (index, term) of a snapshot being installed: the log must not change meanwhile.
        self.restoring: tuple[int, int] | None = None
        self.messages: list[Message] = []
        self.messages_after_store: list[Message] = []
        self.reads: list[ReadState] = []
        self.snapshots: list[int] = []
        # Messages ignored because of their sender or their claims.
        self.refused_messages = 0

    @property
    def term(self) -> int:
        return self.hard_state.term

    @property
    def configuration(self) -> Configuration:
        return self.configurations.latest

    @property
    def is_only_voter(self) -> bool:
        configuration = self.configurations.latest
        return configuration.voters == (self.node_id,) and not configuration.voters_outgoing

    def other_voters(self) -> list[int]:
        configuration = self.configurations.latest
        voters = {*configuration.voters, *configuration.voters_outgoing}
        return sorted(voters - {self.node_id})

    def other_members(self) -> list[int]:
        return sorted(self.configurations.latest.members() - {self.node_id})
