"""Brings the followers' logs up to the leader's (thesis 3.5, 5.3, 10.2.1)."""

from __future__ import annotations

from streamd.raft.interface import PeerStatus
from streamd.raft.messages import (
    AppendAccepted,
    AppendRejected,
    AppendRequest,
    CommitNotice,
    Entry,
    Heartbeat,
    HeartbeatReply,
    TimeoutNow,
)
from streamd.raft.progress import Flow, Progress
from streamd.raft.state import State


class Departure:
    """A node that the entry at `index` removes. For a while the leader tries to tell it."""

    __slots__ = ("index", "ticks_left")

    def __init__(self, index: int, ticks_left: int) -> None:
        self.index = index
        self.ticks_left = ticks_left


class Replication:
    """What the leader sends to each member. `progress` has all members but the leader, and for a
    while those that have been removed."""

    def __init__(self, state: State) -> None:
        self._state = state
        self.progress: dict[int, Progress] = {}
        self._departures: dict[int, Departure] = {}
        self._admit(state.log.last_index + 1)

    def _admit(self, next_index: int) -> None:
        settings = self._state.settings
        for member in self._state.other_members():
            self._departures.pop(member, None)
            if member not in self.progress:
                self.progress[member] = Progress(
                    next_index, settings.max_appends_in_flight, settings.max_in_flight_bytes
                )

    def follow_configuration(self) -> None:
        """The last entry of the log has changed the members."""
        index = self._state.log.last_index
        self._admit(index)
        ticks = self._state.settings.election_timeout_ticks
        for gone in self.progress.keys() - {*self._state.other_members()}:
            self._departures.setdefault(gone, Departure(index, ticks))

    def peers(self) -> dict[int, PeerStatus]:
        return {
            member: PeerStatus(p.match_index, p.next_index, p.flow.value, p.ticks_since_heard)
            for member, p in self.progress.items()
            if member not in self._departures
        }

    def match_index(self, member: int) -> int:
        """How far a member's log equals the leader's, on the member's disk."""
        if member == self._state.node_id:
            return self._state.log.stable_index
        return self.progress[member].match_index

    # -- time -----------------------------------------------------------------------------

    def tick(self) -> None:
        for progress in self.progress.values():
            progress.ticks_since_heard += 1
        for member, departure in list(self._departures.items()):
            departure.ticks_left -= 1
            if departure.ticks_left <= 0:
                self._forget(member)

    def heartbeat(self, round_number: int) -> None:
        """Send every member a heartbeat with the number of a read round."""
        state = self._state
        log = state.log
        for member, progress in self.progress.items():
            commit_index = min(log.commit_index, progress.match_index)
            state.messages.append(
                Heartbeat(
                    state.node_id,
                    member,
                    state.term,
                    commit_index,
                    round_number,
                    log.last_index,
                    progress.life,
                )
            )
        for member, departure in list(self._departures.items()):
            # This heartbeat tells the member that the entry that removes it is committed.
            if min(state.log.commit_index, self.match_index(member)) >= departure.index:
                self._forget(member)

    def _forget(self, member: int) -> None:
        del self._departures[member], self.progress[member]

    def is_heard(self, member: int) -> bool:
        """Whether a member has sent anything within an election timeout."""
        if member == self._state.node_id:
            return True
        timeout = self._state.settings.election_timeout_ticks
        return self.progress[member].ticks_since_heard < timeout

    # -- sending --------------------------------------------------------------------------

    def to_all(self) -> None:
        for member in self.progress:
            self.to(member)

    def to(self, member: int) -> None:
        """Send what the follower lacks, as far as its limits of unanswered requests allow; at least
        one request, which may be empty, unless the follower has to answer first."""
        log = self._state.log
        progress = self.progress[member]
        while not progress.paused:
            if progress.next_index < log.first_index:
                self._ask_for_snapshot(member, progress)
                return
            self._send_append(member, progress)
            if progress.flow is not Flow.REPLICATE or progress.next_index > log.last_index:
                return

    def announce_commit(self) -> None:
        """Tell everyone the commit index: with the entries they lack, or by itself."""
        for member, progress in self.progress.items():
            if progress.flow is Flow.REPLICATE and progress.next_index > self._state.log.last_index:
                self.tell_commit(member)
            else:
                self.to(member)

    def tell_commit(self, member: int) -> None:
        """Notify a follower of commits that its log is known to hold, unless it was notified
        before."""
        state = self._state
        progress = self.progress[member]
        commit_index = min(state.log.commit_index, progress.match_index)
        if commit_index > progress.told_commit_index:
            progress.told_commit_index = commit_index
            state.messages.append(CommitNotice(state.node_id, member, state.term, commit_index))

    def _send_append(self, member: int, progress: Progress, *, empty: bool = False) -> None:
        state = self._state
        log = state.log
        prev_index = progress.next_index - 1
        entries: list[Entry] = []
        if prev_index < log.last_index and not empty:
            limit = state.settings.max_append_bytes
            entries = log.entries(prev_index + 1, log.last_index + 1, limit)
        state.messages.append(
            AppendRequest(
                state.node_id,
                member,
                state.term,
                prev_index,
                log.term(prev_index),
                log.commit_index,
                entries,
            )
        )
        told = min(log.commit_index, prev_index + len(entries))
        progress.told_commit_index = max(progress.told_commit_index, told)
        progress.sent(prev_index + len(entries), sum(len(entry.payload) for entry in entries))

    def ask_to_campaign(self, member: int) -> bool:
        """Ask a member to campaign; returns False, and asks nothing, if it would lack entries."""
        state = self._state
        is_caught_up = self.progress[member].match_index == state.log.last_index
        if is_caught_up:
            state.messages.append(TimeoutNow(state.node_id, member, state.term))
        return is_caught_up

    # -- answers --------------------------------------------------------------------------

    def on_accepted(self, reply: AppendAccepted) -> bool:
        """Whether the member's log is now known to reach further."""
        log = self._state.log
        progress = self.progress[reply.sender]
        progress.ticks_since_heard = 0
        news = progress.accepted(reply.match_index)
        if progress.flow is Flow.SNAPSHOT and progress.next_index >= log.first_index:
            progress.probe(progress.next_index)
            news = True
        return news

    def on_rejected(self, reply: AppendRejected) -> None:
        progress = self.progress[reply.sender]
        progress.ticks_since_heard = 0
        found, _ = self._state.log.last_not_after_term(reply.hint_index, reply.hint_term)
        next_index = min(found, reply.hint_index) + 1
        if reply.lost_entries and reply.hint_index < progress.match_index:
            progress.lost(next_index)
            self.to(reply.sender)
        elif progress.rejected(reply.prev_index, next_index):
            self.to(reply.sender)

    def on_heartbeat_reply(self, reply: HeartbeatReply) -> None:
        """Unanswered requests may be lost. Where the follower must not get more entries yet, an
        empty request finds that out: it is rejected if something before it is missing."""
        progress = self.progress[reply.sender]
        progress.ticks_since_heard = 0
        progress.answered_round = max(progress.answered_round, reply.round)
        progress.life = reply.life
        if progress.match_index >= self._state.log.last_index:
            return
        progress.probe_unanswered = False
        if progress.flow is Flow.REPLICATE and progress.paused:
            if progress.next_index >= self._state.log.first_index:
                self._send_append(reply.sender, progress, empty=True)
            else:
                self._ask_for_snapshot(reply.sender, progress)
        else:
            self.to(reply.sender)

    # -- snapshots ------------------------------------------------------------------------

    def _ask_for_snapshot(self, member: int, progress: Progress) -> None:
        """Only for a follower that can take the snapshot, and that stays a member."""
        if self.is_heard(member) and member not in self._departures:
            progress.await_snapshot()
            self._state.snapshots.append(member)

    def snapshot_sent(self, member: int, index: int) -> None:
        progress = self.progress.get(member)
        if progress is not None and progress.flow is Flow.SNAPSHOT:
            progress.probe(max(progress.match_index, index) + 1)
            self.to(member)

    def snapshot_failed(self, member: int) -> None:
        progress = self.progress.get(member)
        if progress is not None and progress.flow is Flow.SNAPSHOT:
            progress.snapshot_failed()
