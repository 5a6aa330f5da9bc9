"""Leading for one term: propose, commit, answer reads, hand over (thesis 3.5, 3.6, 6.4, 3.10)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from streamd.raft.interface import (
    ChangeInProgress,
    InvalidTransfer,
    Overloaded,
    ReadState,
    TransferInProgress,
)
from streamd.raft.membership import (
    checked,
    encode_configuration,
    first_step,
    last_step,
    quorum_value,
)
from streamd.raft.messages import (
    AppendAccepted,
    AppendRejected,
    Configuration,
    Entry,
    EntryKind,
    HeartbeatReply,
    ReadReply,
    ReadRequest,
)
from streamd.raft.reads import ReadQueue, RemoteRead
from streamd.raft.replication import Replication
from streamd.raft.state import State


class Transfer:
    """The transfer of leadership to a chosen voter (thesis 3.10).

    It lasts from the request until the target leads, or one election timeout has passed.

    Nothing is proposed meanwhile, so the target catches up. Then it is asked to campaign, again
    with every tick, because the message may be lost.
    """

    __slots__ = ("_ticks_left", "to")

    def __init__(self, to: int, election_timeout_ticks: int) -> None:
        self.to = to
        self._ticks_left = election_timeout_ticks

    def tick(self) -> bool:
        """Whether to keep trying."""
        self._ticks_left -= 1
        return self._ticks_left > 0


class Leadership:
    """Begins with the election and ends with the first sign of a later term.

    The leader's own log counts towards a majority only up to its last stored entry, so the
    followers may commit an entry that the leader is still writing.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        log = state.log
        # Entries from here on are of the leader's own term; only those commit by counting.
        self._own_from_index = log.last_index + 1
        self._uncommitted_bytes = 0
        # Whether some member has not been notified of the latest commit.
        self.commit_is_news = False
        self.reads = ReadQueue()
        self._heartbeat_elapsed = 0
        self._transfer: Transfer | None = None
        self.replication = Replication(state)
        log.append([Entry(log.last_index + 1, state.term, EntryKind.NOOP, b"")])
        self.replication.to_all()

    @property
    def has_committed_in_term(self) -> bool:
        """Until then, the leader may not know what earlier leaders committed (thesis 6.4)."""
        return self._state.log.commit_index >= self._own_from_index

    # -- time -----------------------------------------------------------------------------

    def tick(self) -> None:
        self.replication.tick()
        if self._transfer is not None:
            if self._transfer.tick():
                self.replication.ask_to_campaign(self._transfer.to)
            else:
                self._transfer = None
        self._heartbeat_elapsed += 1
        if self._heartbeat_elapsed >= self._state.settings.heartbeat_interval_ticks:
            self._heartbeat_elapsed = 0
            self.replication.heartbeat(self.reads.round)

    def is_heard_by_quorum(self) -> bool:
        """Whether a majority has sent anything within an election timeout (CheckQuorum)."""
        return bool(quorum_value(self._state.configuration, self.replication.is_heard))

    # -- proposals ------------------------------------------------------------------------

    def propose(self, payloads: Sequence[bytes]) -> range:
        """Append the payloads and send them. Raises before appending anything.

        While nothing waits to be committed any size is accepted, so that no proposal is refused for
        ever.
        """
        state = self._state
        log = state.log
        self._refuse_during_transfer()
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
        self.replication.to_all()
        return range(first, log.last_index + 1)

    def handed_out(self, committed: Iterable[Entry]) -> None:
        """Committed entries were handed out: their bytes no longer count."""
        for entry in committed:
            if entry.index > self._own_from_index:
                self._uncommitted_bytes -= len(entry.payload)

    # -- changes of the configuration -----------------------------------------------------

    def propose_configuration(self, target: Configuration) -> int:
        """Take the first step towards `target`; `_take_last_step` takes the other.

        Until an entry of its own term is committed, the leader may not know of an earlier leader's
        change. A second change could then create two majorities that do not overlap.
        """
        state = self._state
        self._refuse_during_transfer()
        if not self.has_committed_in_term:
            raise ChangeInProgress("nothing of this leader's term is committed yet")
        if state.configurations.latest_index > state.log.commit_index:
            raise ChangeInProgress("the last change of the configuration is not committed yet")
        return self._append_configuration(first_step(state.configuration, checked(target)))

    def _append_configuration(self, configuration: Configuration) -> int:
        state = self._state
        index = state.log.last_index + 1
        payload = encode_configuration(configuration)
        entry = Entry(index, state.term, EntryKind.CONFIGURATION, payload)
        self._uncommitted_bytes += len(payload)
        state.log.append([entry])
        state.configurations.append(entry)
        self.replication.follow_configuration()
        self.replication.to_all()
        return index

    def _take_last_step(self) -> None:
        configurations = self._state.configurations
        is_committed = configurations.latest_index <= self._state.log.commit_index
        if configurations.latest.voters_outgoing and is_committed:
            self._append_configuration(last_step(configurations.latest))

    @property
    def is_removed(self) -> bool:
        """Whether the committed configuration has no vote for this node (thesis 4.2.2)."""
        state = self._state
        return (
            not state.configurations.latest.is_voter(state.node_id)
            and state.configurations.latest_index <= state.log.commit_index
        )

    # -- transfer of leadership ---------------------------------------------------------------

    @property
    def transferring(self) -> int:
        return 0 if self._transfer is None else self._transfer.to

    def transfer(self, to: int) -> None:
        state = self._state
        if to not in state.configuration.voters:
            raise InvalidTransfer(f"node {to} is not a voter")
        self._transfer = None
        if to != state.node_id:
            self._transfer = Transfer(to, state.settings.election_timeout_ticks)
            if not self.replication.ask_to_campaign(to):
                self.replication.to(to)

    def _refuse_during_transfer(self) -> None:
        if self._transfer is not None:
            raise TransferInProgress(self._transfer.to)

    def hand_over(self) -> None:
        """Before stepping down without being deposed, ask a voter that has all entries to campaign
        at once. Of several, ask the one heard last: one that is gone would cost an election
        timeout."""
        self.announce()
        peers = self.replication.progress
        others = [voter for voter in self._state.configuration.voters if voter in peers]
        for voter in sorted(others, key=lambda voter: peers[voter].ticks_since_heard):
            if self.replication.ask_to_campaign(voter):
                return

    # -- committing -----------------------------------------------------------------------

    def stored(self) -> None:
        """More of the leader's own log is on its disk."""
        self._commit()

    def _commit(self) -> None:
        state = self._state
        log = state.log
        index = quorum_value(state.configurations.latest, self.replication.match_index)
        # An entry of an earlier term may be on a majority and still be replaced; it commits
        # together with one of the leader's own term (figure 3.7).
        if index < self._own_from_index or index <= log.commit_index:
            return
        log.commit_to(index)
        self.commit_is_news = bool(self.replication.progress)
        if state.configurations.latest.voters_outgoing:
            self._take_last_step()

    def announce(self) -> None:
        """Tell the followers of commits. This comes last before a `Ready` is handed out: entries
        proposed meanwhile carry the news."""
        if self.commit_is_news:
            self.commit_is_news = False
            self.replication.announce_commit()

    # -- answers --------------------------------------------------------------------------

    def on_accepted(self, reply: AppendAccepted) -> None:
        """A follower's log holds the leader's entries up to `match_index`."""
        if reply.sender not in self.replication.progress:
            return
        if reply.match_index > self._state.log.last_index:
            # The reply is of this term, in which this log's end never moves back: no follower can
            # hold more.
            self._state.refused_messages += 1
            return
        if self.replication.on_accepted(reply):
            self._commit()
            if self.replication.progress[reply.sender].next_index <= self._state.log.last_index:
                self.replication.to(reply.sender)
            elif not self.commit_is_news:
                self.replication.tell_commit(reply.sender)
            if reply.sender == self.transferring:
                self.announce()
                self.replication.ask_to_campaign(reply.sender)

    def on_rejected(self, reply: AppendRejected) -> None:
        if reply.sender in self.replication.progress:
            self.replication.on_rejected(reply)

    def on_heartbeat_reply(self, reply: HeartbeatReply) -> None:
        if reply.round > self.reads.round:
            self._state.refused_messages += 1
        elif reply.sender in self.replication.progress:
            self.replication.on_heartbeat_reply(reply)
            self._answer_reads()

    # -- reads ----------------------------------------------------------------------------

    def read(self, context: int) -> None:
        self.reads.add(context)

    def on_read_request(self, request: ReadRequest) -> None:
        self.reads.add_remote(request.sender, RemoteRead(request.life, request.round))

    def begin_reads(self) -> None:
        """Start to confirm the reads that arrived, once earlier leaders' commits are known.

        Reads that arrive during a transfer wait for its end: most likely leadership changes, and
        they are lost and asked of the new leader.
        """
        reads = self.reads
        if not reads.has_gathered or not self.has_committed_in_term or self._transfer is not None:
            return
        reads.begin_round(self._state.log.commit_index)
        self.replication.heartbeat(reads.round)
        self._answer_reads()

    def _answer_reads(self) -> None:
        state = self._state
        confirmed = quorum_value(state.configuration, self._answered_round)
        for done in self.reads.confirmed(confirmed):
            index = done.commit_index
            state.reads += [ReadState(context, index) for context in done.contexts]
            state.messages += [
                ReadReply(state.node_id, reader, state.term, read.life, read.round, index)
                for reader, read in done.remote.items()
            ]

    def _answered_round(self, member: int) -> int:
        if member == self._state.node_id:
            return self.reads.round
        return self.replication.progress[member].answered_round
