"""One Raft group at work: what waits is proposed, written, applied, answered.

The loop around the two pure hearts. A write takes this way:

1. `propose` puts the command on the pending list and parks its task.
2. When the log writer is free, `_turn` makes everything pending one log entry.
3. One synced batch puts it on disk, in a thread; the next entry gathers meanwhile.
4. The core commits it, the machine applies it, and the parked tasks get their outcomes.
5. Live readers of the touched streams are told, once the answers have gone out.

The machine's state is stored afterwards, many entries at a time: what a crash loses of it, the
log replays.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import TypeVar

import outcome
import trio

from streamd.blocking import RunBlocking
from streamd.codec import UNDECODABLE, Batch, decode_batch, encode_batch
from streamd.group.committed_log import CommittedLog
from streamd.group.drafts import Drafting, PendingEntry
from streamd.group.forwarding import Forwarding
from streamd.group.opening import Opener
from streamd.group.packages import (
    HOT_TIER_FULL,
    Decision,
    ForeignPackage,
    OwnPackages,
    decode_package,
    encode_decision,
)
from streamd.group.peers import ChangeListener, NoPeers, Peers
from streamd.group.proposals import (
    OutcomeUnknown,
    Proposal,
    ProposalBatch,
    ProposalQueue,
    Unavailable,
    decode_proposals,
    encode_answers,
    refusals_of,
)
from streamd.group.read_index import ReadIndex
from streamd.group.retention import Retention
from streamd.group.state_flusher import StateFlusher
from streamd.group.sweeping import Sweeper, until_now
from streamd.metrics import Metrics
from streamd.raft import interface as raft
from streamd.raft.core import Core, Ready, Role, SoftState
from streamd.raft.membership import decode_configuration, departed
from streamd.raft.messages import AppendRequest, Configuration, Entry, EntryKind, Message
from streamd.storage.data_dir import DataDir
from streamd.storage.install import install
from streamd.storage.log_storage import LogStorage
from streamd.storage.raft_snapshots import SnapshotMeta, SnapshotSource
from streamd.storage.state_store import StateStore
from streamd.streams.checks import are_of_clients
from streamd.streams.commands import Command, Outcome, Result, brings_bytes
from streamd.streams.content import SMALL_BYTES
from streamd.streams.machine import Machine
from streamd.streams.sessions import PackageStamp
from streamd.streams.state import load_rows

W = TypeVar("W")
V = TypeVar("V")

MAX_BATCH_COMMANDS = 1024
MAX_BATCH_BYTES = 1024 * 1024
MAX_PENDING_COMMANDS = 50_000
MAX_PENDING_BYTES = 256 * 1024 * 1024
# How long a write may wait for a leader to take it, a read for one to confirm it.
PROPOSE_TIMEOUT_S = 10.0
READ_TIMEOUT_S = 10.0
TICK_S = 0.1


class Group:
    """The replicated machine of one group. `run` must be running for anything else to happen."""

    def __init__(
        self,
        core: Core,
        log: LogStorage,
        machine: Machine,
        store: StateStore,
        data_dir: DataDir,
        *,
        run_blocking: RunBlocking,
        clock_ms: Callable[[], int],
        metrics: Metrics,
        audience: ChangeListener,
        peers: Peers | None = None,
        tick_s: float = TICK_S,
        nonce: int = 0,
    ) -> None:
        """`nonce` is a random number that no other process of this node draws."""
        self.core = core
        self.machine = machine
        self.state = machine.state
        self._log = log
        self._store = store
        self._data_dir = data_dir
        self._run_blocking = run_blocking
        self._clock_ms = clock_ms
        self._metrics = metrics
        self._audience = audience
        self._peers = peers or NoPeers()
        self.tick_s = tick_s
        # Without a cold store there is none.
        self.hot_limit_bytes = math.inf
        self._intake: ProposalQueue[Proposal] = ProposalQueue(
            MAX_PENDING_COMMANDS, MAX_PENDING_BYTES
        )
        # Packages of other nodes, while this one leads.
        self._foreign: ProposalQueue[ForeignPackage] = ProposalQueue(
            MAX_PENDING_COMMANDS, MAX_PENDING_BYTES
        )
        self._pauses = False
        self._packages = OwnPackages(core.node_id, metrics, self._intake.put_back)
        self.opener = Opener(core, self.state, self._peers, nonce)
        self._forwarding = Forwarding(
            self._peers, self._intake, self._packages, self.opener, self.wake
        )
        self._batches: dict[int, PendingEntry] = {}
        self._writes: deque[Ready] = deque()
        self._writing = False
        self._work = trio.lowlevel.ParkingLot()
        self._stirred = trio.lowlevel.ParkingLot()
        self._news = trio.lowlevel.ParkingLot()
        self._turned = trio.lowlevel.ParkingLot()
        self._roles = trio.lowlevel.ParkingLot()
        self.retention = Retention(core, tick_s)
        self._storing = StateFlusher(
            self.state, store, log, self.retention, run_blocking=run_blocking, due=self.wake
        )
        # While it is held, nothing is written to the state's store, and nobody replaces it.
        self.state_write_lock = self._storing.exclusive
        self._sweeper = Sweeper(self, store, run_blocking)
        self._drafting = Drafting(core, self._intake, self._foreign, self._packages, self.opener)
        self._barriers = ReadIndex(core, self.wake)
        self._configuration: Configuration | None = None
        self._writer = trio.CapacityLimiter(1)
        self._judging = trio.CapacityLimiter(1)
        # Forwarded by peers, though their clients cannot have asked for them.
        self.refused_commands = 0
        self.committed = CommittedLog(log, core, run_blocking=run_blocking, writer=self._writer)
        self._installing: SnapshotMeta | None = None

    # -- for the layers above -----------------------------------------------------------------

    async def propose(self, command: Command, size: int = 0) -> Outcome:
        """Have `command` take effect and wait for its outcome; `size` is its payload in bytes.

        Cancelled, the caller learns nothing: the command may still take effect.
        Raises `Unavailable` when it will not, `OutcomeUnknown` when nobody can tell.
        """
        self._admit(command)
        proposal = Proposal(command, size, trio.current_time() + PROPOSE_TIMEOUT_S)
        self._drafting.add(proposal)
        self._work.unpark()
        try:
            return await proposal.settled()
        except OutcomeUnknown:
            self._metrics.outcomes_unknown += 1
            raise

    async def propose_forwarded(self, payload: bytes) -> bytes:
        """Propose what another node forwarded, and answer when all of it is settled.

        What the API would have refused is not proposed: its outcome is `INVALID`.
        Raises `Unavailable` when this node does not lead: nothing was proposed.
        """
        if not self.leads:
            raise Unavailable("this node does not lead")
        proposals = decode_proposals(payload, trio.current_time() + PROPOSE_TIMEOUT_S)
        refusals = await self._judge(refusals_of, proposals, len(payload))
        gathering = ProposalBatch(proposals)
        for proposal, refusal in zip(proposals, refusals, strict=True):
            if refusal is not None:
                self.refused_commands += 1
                proposal.settle(refusal)
                continue
            proposal.command = until_now(proposal.command, self.now_ms())
            try:
                self._admit(proposal.command)
                self._drafting.add(proposal)
            except Unavailable as error:
                proposal.settle(outcome.Error(error))
        self._work.unpark()
        await gathering.wait()
        return encode_answers(gathering.settled)

    async def propose_package(self, node_id: int, payload: bytes) -> bytes:
        """Propose a package of another node, which takes effect once however often it comes, and
        answer when it is decided.

        Raises `Unavailable` when this copy did not get into the log, `OutcomeUnknown` when this
        node lost the lead meanwhile.
        """
        if not self.leads or node_id not in self.core.configuration.members():
            raise Unavailable("this node does not lead, or not that one")
        sent = decode_package(payload)
        # The sender has judged each command already, so one that no client can have asked for is
        # the sender's own, and makes the whole package suspect.
        if not await self._judge(are_of_clients, sent.commands, len(payload)):
            self.refused_commands += len(sent.commands)
            invalid = [Outcome(Result.INVALID) for _ in sent.commands]
            return encode_decision(Decision(invalid))
        if self.is_full and not sent.is_repeated and any(map(brings_bytes, sent.commands)):
            return encode_decision(Decision(is_full=True))
        if not self.leads:
            raise Unavailable("this node does not lead any more")
        stamp = PackageStamp(
            node_id, sent.session_id, sent.sequence, sent.lowest, len(sent.commands)
        )
        deadline = trio.current_time() + PROPOSE_TIMEOUT_S
        now_ms = self.now_ms()
        commands = [until_now(command, now_ms) for command in sent.commands]
        package = ForeignPackage(stamp, commands, deadline)
        self._foreign.add(package)
        self._work.unpark()
        return encode_decision(Decision(await package.settled()))

    async def _judge(self, judge: Callable[[W], V], what: W, size: int) -> V:
        """Judge what another node forwarded, in a thread if it has many bytes."""
        if size <= SMALL_BYTES:
            return judge(what)
        return await self._run_blocking(judge, what, limiter=self._judging)

    def _admit(self, command: Command) -> None:
        """Raises `Unavailable` for more bytes, on the leader, while there is no room for them."""
        if self.is_full and self.leads and brings_bytes(command):
            raise Unavailable(HOT_TIER_FULL)

    @property
    def is_full(self) -> bool:
        """Whether more waits for the cold store than may."""
        return self.state.header.hot_bytes > self.hot_limit_bytes

    def step(self, messages: Sequence[Message]) -> None:
        """Take messages from peers. Raises `RaftViolation`: the process must end.

        While too much waits to be stored, entries are treated as lost on the way: the leader
        sends them again, and memory stays bounded. Heartbeats still count.
        """
        for message in messages:
            if isinstance(message, AppendRequest) and message.entries and self._storing.is_behind:
                continue
            self.core.step(message)
        self.wake()

    def wake(self) -> None:
        """Have the loop look at what was put into the core."""
        self._work.unpark()
        self._stirred.unpark()

    async def wait_for(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for something that the loop's turns bring about; False when time ran out."""
        with trio.move_on_after(max(0.0, timeout_s)):
            while not condition():
                await self._turned.park()
            return True
        return False

    async def role_changed(self) -> None:
        """Wait until the node's role, its leader or its term is another."""
        await self._roles.park()

    @property
    def leads(self) -> bool:
        return self.core.role == Role.LEADER

    def may_read(self) -> bool:
        """Whether a read of the state as it is now is linearizable without asking anyone."""
        return self.core.local_read_index() is not None

    async def read_barrier(self, timeout_s: float = READ_TIMEOUT_S) -> None:
        """Return once the state includes everything acknowledged before the call.

        Raises `Unavailable` when no leader confirms it in time.
        """
        if not await self._barriers.wait(timeout_s):
            raise Unavailable("no leader confirmed that the state is up to date")

    async def stored(self) -> int:
        """Wait until the store has all that was applied before the call; returns log time then."""
        log_ms = self.state.header.log_ms
        await self._storing.stored(self.state.header.applied_index)
        return log_ms

    def touch(self, key: bytes, stream_id: int) -> None:
        """Note that a stream with a sliding window was read; the log hears of it soon."""
        self._sweeper.touches[key] = (stream_id, self.now_ms())

    async def have_room(self) -> None:
        """Return once little waits to be stored. Who brings much waits here between two parts,
        rather than make all writes wait at the limit. Raises `Unavailable`."""
        if self._storing.has_room:
            return
        if not await self.wait_for(lambda: self._storing.has_room, PROPOSE_TIMEOUT_S):
            raise Unavailable("too much waits to be stored")

    @property
    def writes_taken(self) -> int:
        """How many writes of this node went on their way so far."""
        return self._intake.taken

    def abandon_upload(self, upload_id: int) -> None:
        """Have the log forget an upload, some time soon."""
        self._sweeper.abandoned.append(upload_id)

    def touched_ms(self, key: bytes, stream_id: int) -> int:
        """The latest read of a stream that the log has not heard of yet, or 0."""
        noted = self._sweeper.touches.get(key)
        return noted[1] if noted is not None and noted[0] == stream_id else 0

    def now_ms(self) -> int:
        """Log time as of now: the wall clock, but never before an entry already stamped."""
        return max(self._clock_ms(), self.state.header.log_ms)

    # -- the loop -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until cancelled. Raises `StorageError` when a disk fails, `RaftViolation` when
        something happened that cannot: the process must end."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write_loop, nursery)
            nursery.start_soon(self._turn_loop, nursery)
            nursery.start_soon(self._publish_loop)
            nursery.start_soon(self._storing.run)
            nursery.start_soon(self._sweeper.run)
            nursery.start_soon(self._tick_loop)

    async def _tick_loop(self) -> None:
        while True:
            await trio.sleep(self.tick_s)
            self.core.tick()
            self._barriers.tick()
            now = trio.current_time()
            self._drafting.expire(now)
            self._pauses = False
            self._forwarding.resume()
            self.wake()

    async def _turn_loop(self, nursery: trio.Nursery) -> None:
        """Take turns while the writer waits for the disk: a slow disk must not look like a dead
        node to its peers."""
        while True:
            await self._stirred.park()
            self._turn(nursery)

    async def _write_loop(self, nursery: trio.Nursery) -> None:
        while True:
            self._turn(nursery)
            if self._writes:
                self._writing = True
                await self._write(self._writes.popleft())
                self._writing = False
            elif self._installing is not None:
                await self._install(self._installing)
            elif (duty := self._storing.next_duty()) is not None:
                await self._run_blocking(duty, limiter=self._writer)
            elif self._log.lost_below is not None and self.core.may_vote:
                await self._run_blocking(self._log.note_regained, limiter=self._writer)
            else:
                await self._work.park()

    async def _write(self, ready: Ready) -> None:
        """Put a `Ready`'s hard state and entries on disk, and load what applying will need."""
        wanted = self._rows_wanted(ready.entries)
        flushes = self.state.flushes
        started = trio.current_time()
        rows = await self._run_blocking(self._write_blocking, ready, wanted, limiter=self._writer)
        self._metrics.fsync_latency.observe(trio.current_time() - started)
        # A row read before a flush ended may be older than one the flush let go of.
        if flushes == self.state.flushes:
            for row, raw in rows.items():
                self.state.install(row, raw)
        self._storing.log_grew(sum(len(entry.payload) for entry in ready.entries))
        self._peers.send(ready.messages_after_store)
        self.core.stored(*ready.completion)

    def _write_blocking(self, ready: Ready, wanted: list[bytes]) -> dict[bytes, bytes | None]:
        rows = load_rows(self._store, wanted, b"")
        self._log.append(ready.entries, ready.hard_state)
        return rows

    def _rows_wanted(self, entries: Sequence[Entry]) -> list[bytes]:
        """Rows that the entries will look at and that are not in memory."""
        wanted: list[bytes] = []
        for entry in entries:
            if entry.kind == EntryKind.COMMANDS:
                for command in self._batch(entry).commands:
                    wanted += self.state.missing(command)
        return wanted

    def _batch(self, entry: Entry) -> PendingEntry:
        """The commands of an entry, as proposed here or as another leader sent them."""
        batch = self._batches.get(entry.index)
        if batch is not None and batch.term == entry.term:
            return batch
        if batch is not None:
            batch.fail(Unavailable("another leader's entry took its place"))
        try:
            decoded = decode_batch(entry.payload)
        except UNDECODABLE as error:
            # To skip it would be to differ from a replica that understands it.
            raise raft.RaftViolation(
                f"log entry {entry.index} has a command that this release of streamd does not know"
                f" ({error}): start the release that wrote it, or a later one"
            ) from error
        batch = self._batches[entry.index] = PendingEntry(
            entry.term, decoded.now_ms, decoded.commands, decoded.packages
        )
        return batch

    def _turn(self, nursery: trio.Nursery) -> None:
        """Do all that can be done without waiting."""
        if not self._packages.session_id and self.opener.is_due:
            nursery.start_soon(self._open_session, self.opener.begin())
        self._pass_on(nursery)
        self._barriers.ask()
        applied = False
        while (ready := self.core.ready()) is not None:
            if ready.soft_state is not None:
                self._role_changed(ready.soft_state)
            if ready.messages:
                self._peers.send(ready.messages)
            if ready.must_store:
                self._writes.append(ready)
            for entry in ready.committed:
                self._apply(entry)
                applied = True
            if ready.reads:
                self._barriers.answer(ready.reads)
            if ready.snapshots:
                self._peers.snapshots_wanted(ready.snapshots)
        self._barriers.applied(self.core.applied_index)
        if self.core.configuration is not self._configuration:
            self._configuration = self.core.configuration
            self._peers.configured(self._configuration)
        self._turned.unpark_all()
        if applied:
            if self._audience.present:
                self._news.unpark()
            else:
                self.machine.take_changes()
            self._storing.changed()

    async def _open_session(self, call: trio.CancelScope) -> None:
        session_id = await self.opener.ask(call)
        if session_id:
            self._packages.open(session_id)
            self.wake()

    def _pass_on(self, nursery: trio.Nursery) -> None:
        """Propose what is pending, or have the leader propose it."""
        if self.leads:
            # While the disk is busy the next batch gathers.
            if not self._writes and not self._writing and not self._pauses:
                self._propose_pending()
        elif self.core.leader_id:
            self._forwarding.send(nursery, self.core.leader_id, MAX_BATCH_COMMANDS, MAX_BATCH_BYTES)

    def _role_changed(self, state: SoftState) -> None:
        """Another role, leader or term: nobody may wait for what only the old one could do."""
        self._barriers.ask_again()
        self._roles.unpark_all()
        self.opener.leader_changed()
        self._forwarding.leader_changed()
        self._pauses = False
        self.wake()
        if state.role == Role.LEADER:
            return
        error = OutcomeUnknown("the leader changed before the write was committed")
        for batch in self._batches.values():
            batch.fail(error)
        self._drafting.lead_lost()

    def _propose_pending(self) -> None:
        """Make all that is pending one entry, as far as one entry may hold it."""
        if self._storing.is_behind:
            return
        draft = self._drafting.draft(MAX_BATCH_COMMANDS, MAX_BATCH_BYTES)
        if draft is None:
            return
        if self._sweeper.touches:
            draft.begin_with(self._sweeper.touching())
        now_ms = self.now_ms()
        payload = encode_batch(Batch(now_ms, draft.commands, draft.stamps))
        try:
            indexes = self.core.propose([payload])
        except raft.CoreRefused as error:
            draft.refused(Unavailable(str(error)))
            self._pauses = True
            return
        self._batches[indexes[0]] = PendingEntry(
            self.core.term, now_ms, draft.commands, draft.stamps, draft.proposals, draft.foreign
        )
        self._metrics.commit_batch.observe(len(draft.commands))

    def _apply(self, entry: Entry) -> None:
        if entry.kind == EntryKind.COMMANDS:
            batch = self._batch(entry)
            outcomes = self.machine.apply(
                entry.index, entry.term, batch.now_ms, batch.commands, batch.packages
            )
            batch.settle(outcomes, self.core.node_id, self._packages)
        else:
            if entry.kind == EntryKind.CONFIGURATION:
                gone = departed(self.state.header.configuration, entry.payload)
                self.machine.configure(entry.index, entry.term, entry.payload, gone)
            else:
                self.machine.apply(entry.index, entry.term, 0, [])
            stale = self._batches.get(entry.index)
            if stale is not None:
                stale.fail(Unavailable("another leader's entry took its place"))
        self._batches.pop(entry.index, None)
        self.core.applied(entry.index)

    async def _publish_loop(self) -> None:
        """Tell live readers what changed, after those who changed it.

        A stream with a thousand readers costs the loop some milliseconds an append. The tasks
        that got their outcome in the same turn run before this one goes on.
        """
        while True:
            while not self.machine.changes:
                await self._news.park()
            await trio.lowlevel.checkpoint()
            self._audience.publish(self.machine.take_changes())

    # -- behind the writes --------------------------------------------------------------------

    async def flush(self) -> None:
        """Store all changes made so far."""
        await self._storing.flush()

    async def compact(self) -> int:
        """Store the state and cut the log behind it; returns the log's first entry then."""
        through = await self._storing.compact()
        await self.wait_for(lambda: self._log.first_index > through, READ_TIMEOUT_S)
        return self._log.first_index

    # -- snapshots ----------------------------------------------------------------------------

    async def open_snapshot(self, snapshot_id: int, *, only_hot: bool = False) -> SnapshotSource:
        """A snapshot of the state as stored; see there. Raises `SnapshotUnavailable`."""
        args = (self._store, self._log, snapshot_id, only_hot)
        return await self._run_blocking(SnapshotSource.open, *args, limiter=self._writer)

    @property
    def is_installing(self) -> bool:
        """Whether a snapshot is taking the place of state and log."""
        return self._installing is not None

    async def install(self, meta: SnapshotMeta) -> bool:
        """Put a received snapshot in the place of state and log, between two writes.

        False when it is not wanted any more.
        """
        if self._installing is not None or not self.core.begin_restore(meta.index, meta.term):
            return False
        self._installing = meta
        self.wake()
        while self._installing is not None:
            await self._turned.park()
        return True

    async def _install(self, meta: SnapshotMeta) -> None:
        async with self._storing.exclusive:
            await self._run_blocking(
                install, self._data_dir, self._log, self._store, meta, limiter=self._writer
            )
            self.state.load()
            self.machine.take_changes()
            configuration = decode_configuration(meta.configuration)
            restored = self.core.restore(meta.index, meta.term, configuration)
            assert restored, meta
        unknown = OutcomeUnknown("a snapshot took the place of the log")
        for batch in self._batches.values():
            batch.fail(unknown)
        self._batches = {}
        self._storing.restarted(meta.index)
        self._installing = None
        self._audience.start_over()
        self._turned.unpark_all()
