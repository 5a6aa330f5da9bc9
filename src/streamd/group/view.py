"""What the node knows of its group, and the changes of leader and members that it may begin."""

from __future__ import annotations

from collections.abc import Callable

import trio

from streamd.raft.core import Core, PeerStatus, Role
from streamd.raft.messages import Configuration


class GroupView:
    """The node in its group, as its Raft core sees it.

    Invariants:

    - Every value is what this node knows at this moment. Another node may know more: a deposed
      leader takes itself for the leader until it hears of the next. Only a commit, or a read index
      (`GroupReads.catch_up`), proves that a node leads.
    - What a caller has read holds until it waits.
    - `transfer` and `propose_configuration` begin a change and return; `wait_for` its end.
    """

    def __init__(self, core: Core, wake: Callable[[], None]) -> None:
        self._core = core
        self._wake = wake
        # The group unparks them: at the end of each turn, and when role, leader or term changed.
        self.turn_taken = trio.lowlevel.ParkingLot()
        self.leader_or_term_changed = trio.lowlevel.ParkingLot()
        # When something about subscriptions has changed in the state.
        self.subscriptions_changed = trio.lowlevel.ParkingLot()

    # -- roles --------------------------------------------------------------------------------

    @property
    def node_id(self) -> int:
        return self._core.node_id

    @property
    def role(self) -> Role:
        return self._core.role

    @property
    def leads(self) -> bool:
        return self._core.role is Role.LEADER

    @property
    def leader_id(self) -> int:
        """The leader of this term, 0 while none is known."""
        return self._core.leader_id

    @property
    def term(self) -> int:
        return self._core.term

    @property
    def may_vote(self) -> bool:
        """False while the log lacks entries that this node confirmed."""
        return self._core.may_vote

    # -- the log ------------------------------------------------------------------------------

    @property
    def first_index(self) -> int:
        """The oldest entry kept in the log."""
        return self._core.first_index

    @property
    def last_index(self) -> int:
        return self._core.last_index

    @property
    def commit_index(self) -> int:
        return self._core.commit_index

    @property
    def applied_index(self) -> int:
        return self._core.applied_index

    @property
    def is_caught_up(self) -> bool:
        """Whether the node leads or follows, and its state is about as new as the group's."""
        return self._core.is_caught_up

    # -- the others ---------------------------------------------------------------------------

    @property
    def configuration(self) -> Configuration:
        """The configuration in force, committed or not."""
        return self._core.configuration

    @property
    def committed_configuration(self) -> Configuration:
        """The last configuration known to be committed."""
        return self._core.committed_configuration

    @property
    def refused_messages(self) -> int:
        """How many Raft messages were ignored because their senders may not send them."""
        return self._core.refused_messages

    def peers(self) -> dict[int, PeerStatus]:
        """What the leader knows about the other members; empty on any other node."""
        return self._core.peers()

    # -- changes ------------------------------------------------------------------------------

    async def wait_to_lead(self) -> int:
        """Wait until this node leads; returns the term in which it does."""
        while not self.leads:
            await self.leader_or_term_changed.park()
        return self.term

    async def wait_for_end_of(self, term: int) -> None:
        """Wait for the end of this node's leadership in that term."""
        while self.leads and self.term == term:
            await self.leader_or_term_changed.park()

    async def wait_for(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for a condition that the group's turns make true; False on a timeout."""
        with trio.move_on_after(max(0.0, timeout_s)):
            while not condition():
                await self.turn_taken.park()
            return True
        return False

    @property
    def transferring(self) -> int:
        """The node to which this one is transferring leadership, or 0."""
        return self._core.transferring

    def transfer(self, to: int) -> None:
        """Begin to transfer leadership to a voter. Raises `NotLeader`, `InvalidTransfer`."""
        self._core.transfer(to)
        self._wake()

    def propose_configuration(self, target: Configuration) -> int:
        """Begin to change the members; returns the index of the first entry that does so.

        Raises what `Core.propose_configuration` raises; nothing is appended then.
        """
        index = self._core.propose_configuration(target)
        self._wake()
        return index
