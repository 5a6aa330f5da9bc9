"""Leading for one term: replicating, committing, answering reads (thesis 3.5, 3.6, 6.4)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from streamd.raft.interface import Overloaded, ReadState
from streamd.raft.membership import quorum_value
from streamd.raft.messages import (
    AppendAccepted,
    AppendRejected,
    AppendRequest,
    Entry,
    EntryKind,
    Heartbeat,
    HeartbeatReply,
)
from streamd.raft.progress import Progress
from streamd.raft.reads import ReadQueue
from streamd.raft.state import State


class Leadership:
    """Begins with the election and ends with the first sign of a later term.

    The leader's own log counts towards a majority only as far as it is stored, so followers
    may well be the ones to commit an entry that the leader is still writing.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        log = state.log
        # Entries from here on are of the leader's own term; only those commit by counting.
        self._own_from_index = log.last_index + 1
        self._uncommitted_bytes = 0
        self._reads = ReadQueue()
        self.progress = {
            member: Progress(log.last_index + 1, state.settings.max_appends_in_flight)
            for member in state.other_members()
        }
        log.append([Entry(log.last_index + 1, state.term, EntryKind.NOOP, b"")])
        self._replicate_to_all()

    @property
    def has_committed_in_term(self) -> bool:
        """Until then, what earlier leaders committed may not be known (thesis 6.4)."""
        return self._state.log.commit_index >= self._own_from_index

    # -- proposals ------------------------------------------------------------------------

    def propose(self, payloads: Sequence[bytes]) -> range:
        """Append the payloads and send them. Raises `Overloaded` before appending anything.

        While nothing waits to be committed any size is taken, so that no proposal is refused
        for ever.
        """
        state = self._state
        log = state.log
        limit = state.settings.max_uncommitted_bytes
        size = sum(map(len, payloads))
        if self._uncommitted_bytes and self._uncommitted_bytes + size > limit:
            raise Overloaded(self._uncommitted_bytes, limit)
        self._uncommitted_bytes += size
        term = state.hard_state.term
        first = log.last_index + 1
        log.append(
            [
                Entry(index, term, EntryKind.COMMANDS, payload)
                for index, payload in enumerate(payloads, first)
            ]
        )
        self._replicate_to_all()
        return range(first, log.last_index + 1)

    def handed_out(self, committed: Iterable[Entry]) -> None:
        """Committed entries leave the core: their bytes no longer count."""
        for entry in committed:
            if entry.index > self._own_from_index:
                self._uncommitted_bytes -= len(entry.payload)

    def stored(self) -> None:
        """More of the leader's own log is on its disk."""
        self._commit()

    # -- replication ----------------------------------------------------------------------

    def on_accepted(self, reply: AppendAccepted) -> None:
        progress = self.progress.get(reply.sender)
        if progress is None:
            return
        progress.heard = True
        if progress.accepted(reply.match_index):
            self._commit()
            if progress.next_index <= self._state.log.last_index:
                self._replicate(reply.sender, progress)

    def on_rejected(self, reply: AppendRejected) -> None:
        progress = self.progress.get(reply.sender)
        if progress is None:
            return
        progress.heard = True
        found, _ = self._state.log.last_not_after_term(reply.hint_index, reply.hint_term)
        if progress.rejected(reply.prev_index, min(found, reply.hint_index) + 1):
            self._replicate(reply.sender, progress)

    def _replicate_to_all(self) -> None:
        for member, progress in self.progress.items():
            self._replicate(member, progress)

    def _replicate(self, member: int, progress: Progress) -> None:
        """Send what the follower lacks, as far as it may have unanswered; at least one request,
        an empty one if need be, unless it has to answer first.

        A follower that needs entries already removed from the log hears only heartbeats.
        """
        log = self._state.log
        if progress.next_index < log.first_index:
            return
        while not progress.paused:
            self._send_append(member, progress)
            if not progress.replicating or progress.next_index > log.last_index:
                return

    def _send_append(self, member: int, progress: Progress) -> None:
        state = self._state
        log = state.log
        prev_index = progress.next_index - 1
        entries: list[Entry] = []
        if prev_index < log.last_index:
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
        progress.sent(prev_index + len(entries))

    # -- committing -----------------------------------------------------------------------

    def _commit(self) -> None:
        state = self._state
        index = quorum_value(state.configuration, self._match_index)
        # An entry of an earlier term may be on a majority and still be replaced; it commits
        # together with one of the own term (figure 3.7).
        if index < self._own_from_index or index <= state.log.commit_index:
            return
        state.log.commit_to(index)
        self._replicate_to_all()

    def _match_index(self, member: int) -> int:
        if member == self._state.node_id:
            return self._state.log.stable_index
        return self.progress[member].match_index

    # -- heartbeats and reads -------------------------------------------------------------

    def heartbeat(self) -> None:
        state = self._state
        for member, progress in self.progress.items():
            commit_index = min(state.log.commit_index, progress.match_index)
            state.messages.append(
                Heartbeat(state.node_id, member, state.term, commit_index, self._reads.round)
            )

    def on_heartbeat_reply(self, reply: HeartbeatReply) -> None:
        progress = self.progress.get(reply.sender)
        if progress is None:
            return
        progress.heard = True
        progress.answered_round = max(progress.answered_round, reply.round)
        self._answer_reads()
        if progress.match_index < self._state.log.last_index:
            progress.make_room()
            self._replicate(reply.sender, progress)

    def is_heard_by_quorum(self) -> bool:
        """Whether a majority answered anything since the last time this was asked."""
        configuration = self._state.configuration
        node_id = self._state.node_id
        heard = quorum_value(
            configuration,
            lambda member: member == node_id or self.progress[member].heard,
        )
        for progress in self.progress.values():
            progress.heard = False
        return bool(heard)

    def read(self, context: int) -> None:
        self._reads.add(context)

    def begin_reads(self) -> None:
        """Have the reads that came confirmed, once earlier leaders' commits are known."""
        if self.has_committed_in_term and self._reads.begin_round(self._state.log.commit_index):
            self.heartbeat()
            self._answer_reads()

    def _answer_reads(self) -> None:
        confirmed = quorum_value(self._state.configuration, self._answered_round)
        for context, index in self._reads.confirmed(confirmed):
            self._state.reads.append(ReadState(context, index))

    def _answered_round(self, member: int) -> int:
        if member == self._state.node_id:
            return self._reads.round
        return self.progress[member].answered_round
