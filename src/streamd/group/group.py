"""A Raft group for the layers above, which use `Group` and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager

import trio

from streamd.group.admission import PROPOSE_TIMEOUT_S, Admission
from streamd.group.applying import Applied, Applier
from streamd.group.commit_announcer import CommitAnnouncer
from streamd.group.committed_log import CommittedLog
from streamd.group.drafts import Drafting, PendingEntry
from streamd.group.forwarding import Forwarding
from streamd.group.packages import ForeignPackage, OwnPackages
from streamd.group.peers import ChangeListener, NoPeers, Peers
from streamd.group.pins import Pins
from streamd.group.proposals import OutcomeUnknown, Proposal, ProposalQueue, Settled, Unavailable
from streamd.group.read_index import ReadIndex
from streamd.group.retention import Retention
from streamd.group.session_opener import SessionOpener
from streamd.group.state_flusher import StateFlusher
from streamd.group.sweeping import Sweeper
from streamd.group.turn_loop import TurnLoop
from streamd.group.writer import Writer
from streamd.process.metrics import Metrics
from streamd.process.threads import OneThread, RunBlocking
from streamd.raft.core import Core, CoreRefused, PeerStatus, Ready, Role, SoftState
from streamd.raft.messages import AppendRequest, Configuration, Message
from streamd.storage.data_dir import DataDir
from streamd.storage.log_storage import LogStorage
from streamd.storage.raft_snapshots import SnapshotMeta, SnapshotSource
from streamd.storage.state_store import StateStore
from streamd.streams.codec import Batch, encode_batch
from streamd.streams.commands import Command, Outcome
from streamd.streams.machine import Machine

MAX_BATCH_COMMANDS = 1024
MAX_BATCH_BYTES = 1024 * 1024
MAX_PENDING_COMMANDS = 50_000
MAX_PENDING_BYTES = 256 * 1024 * 1024
# How long a read may wait for a leader to confirm it.
READ_TIMEOUT_S = 10.0
TICK_S = 0.1


class Group:
    """The replicated machine of one Raft group. Nothing happens unless `run` is running.

    Ids of streams and blobs are unique within one group only. Whatever is kept by such an id
    outside the group's state is kept under the group's id too, or belongs to the group, like
    `pins`.
    """

    def __init__(
        self,
        core: Core,
        log: LogStorage,
        machine: Machine,
        store: StateStore,
        data_dir: DataDir,
        *,
        run_blocking: RunBlocking,
        in_log_thread: OneThread,
        clock_ms: Callable[[], int],
        metrics: Metrics,
        listener: ChangeListener,
        peers: Peers | None = None,
        tick_s: float = TICK_S,
        nonce: int = 0,
        group_id: int = 0,
    ) -> None:
        """`nonce` is a random number that no other process of this node draws."""
        self.group_id = group_id
        self.pins = Pins()
        self.machine = machine
        self.state = machine.state
        self.tick_s = tick_s
        self._core = core
        self._clock_ms = clock_ms
        self._metrics = metrics
        self._listener = listener
        self._peers = peers or NoPeers()
        self._configuration: Configuration | None = None
        # After a refusal by the core, nothing is proposed until the next tick.
        self._proposing_pauses = False
        self._loop = TurnLoop(self._turn)
        self._wake = self._loop.wake
        self._turn_taken = trio.lowlevel.ParkingLot()  # wakes `wait_for`, `install`
        self._turned: Callable[[], None] = lambda: None
        self._leadership_changed = trio.lowlevel.ParkingLot()  # wakes the leader's tasks
        self._changes_made = trio.lowlevel.ParkingLot()  # wakes `_publish`

        limits = MAX_PENDING_COMMANDS, MAX_PENDING_BYTES
        self._queue: ProposalQueue[Proposal] = ProposalQueue(*limits)
        foreign: ProposalQueue[ForeignPackage] = ProposalQueue(*limits)
        self._packages = OwnPackages(core.node_id, metrics, self._queue.put_back)
        self._opener = SessionOpener(core, self.state, self._peers, nonce)
        self._forwarding = Forwarding(
            self._peers, self._queue, self._packages, self._opener, self._wake
        )
        self._drafting = Drafting(core, self._queue, foreign, self._packages, self._opener)
        self.admission = Admission(
            core, self.state, self._drafting, self._opener, self._peers,
            run_blocking, self.now_ms, self._proposed,
        )  # fmt: skip
        self._read_index = ReadIndex(core, self._wake)
        self._announcer = CommitAnnouncer(core)
        self.retention = Retention(core, tick_s)
        self._flusher = StateFlusher(
            self.state, store, log, self.retention, run_blocking=run_blocking, due=self._wake
        )
        self._sweeper = Sweeper(self, store, run_blocking)
        self._applier = Applier(machine, core.node_id, self._packages)
        self._writer = Writer(
            core, log, self.state, store, data_dir, self._applier, self._flusher, self._peers,
            in_log_thread=in_log_thread, metrics=metrics,
            job_ended=self._loop.now, state_replaced=self._state_replaced,
        )  # fmt: skip
        self.committed = CommittedLog(log, core, in_log_thread=in_log_thread)

    # -- the node in its group ----------------------------------------------------------------

    @property
    def node_id(self) -> int:
        return self._core.node_id

    @property
    def role(self) -> Role:
        return self._core.role

    @property
    def leads(self) -> bool:
        return self._core.role == Role.LEADER

    @property
    def leader_id(self) -> int:
        """The leader of this term, 0 while none is known."""
        return self._core.leader_id

    @property
    def term(self) -> int:
        return self._core.term

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
    def configuration(self) -> Configuration:
        """The configuration in force, committed or not."""
        return self._core.configuration

    @property
    def is_caught_up(self) -> bool:
        """Whether the node leads or follows, and its state is about as new as the group's."""
        return self._core.is_caught_up

    @property
    def may_vote(self) -> bool:
        """False while the log lacks entries that this node confirmed."""
        return self._core.may_vote

    @property
    def transferring(self) -> int:
        """The node to which this one is transferring leadership, or 0."""
        return self._core.transferring

    @property
    def refused_messages(self) -> int:
        """How many Raft messages were ignored because their senders may not send them."""
        return self._core.refused_messages

    def peers(self) -> dict[int, PeerStatus]:
        """What the leader knows about the other members; empty on any other node."""
        return self._core.peers()

    async def leadership_changed(self) -> None:
        """Wait until the node's role, its leader or its term changes."""
        await self._leadership_changed.park()

    async def wait_for(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Wait for a condition that the group's turns make true; False on a timeout."""
        with trio.move_on_after(max(0.0, timeout_s)):
            while not condition():
                await self._turn_taken.park()
            return True
        return False

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

    def step(self, messages: Sequence[Message]) -> None:
        """Take messages from peers. Raises `RaftViolation`: the process must end.

        While too many changes wait to be stored, new entries are ignored: the leader sends them
        again, and memory stays bounded. Heartbeats still count.
        """
        for message in messages:
            if isinstance(message, AppendRequest) and message.entries and self._flusher.is_full:
                continue
            self._core.step(message)
        self._loop.now()  # A peer waits.

    # -- writes -------------------------------------------------------------------------------

    async def propose(self, command: Command, size: int = 0) -> Outcome:
        """Propose `command` and wait for its outcome; `size` is its payload in bytes.

        A cancelled caller learns nothing: the command may still take effect.
        Raises `Unavailable` if it never will, `OutcomeUnknown` if no node can tell.
        """
        return await self.submit(command, size).settled()

    def submit(
        self, command: Command, size: int = 0, tell: Callable[[Settled], None] | None = None
    ) -> Proposal:
        """As `propose`, without waiting: `tell` gets what the caller of `propose` would.

        It is called in a turn of the group, before the next batch goes to the disk, so it must be
        quick. Raises `Unavailable`; then it is never called.
        """
        proposal = Proposal(command, size, trio.current_time() + PROPOSE_TIMEOUT_S, tell)
        self.admission.add(proposal)
        return proposal

    @property
    def gathering(self) -> AbstractContextManager[None]:
        """A block without waiting whose writes are proposed together, and at its end."""
        return self._loop

    @property
    def writes_taken(self) -> int:
        """How many commands of this node have left the queue."""
        return self._queue.taken

    async def have_room(self) -> None:
        """Wait until few changes wait to be stored. Raises `Unavailable`.

        A large upload waits here between two parts: otherwise it would fill memory up to the
        limit at which all writes wait.
        """
        if not await self.wait_for(lambda: self._flusher.has_room, PROPOSE_TIMEOUT_S):
            raise Unavailable("too many changes are waiting to be stored on this node's disk")

    def abandon_upload(self, upload_id: int) -> None:
        """Remove an upload through the log, at some later time."""
        self._sweeper.abandoned.append(upload_id)

    def touch(self, key: bytes, stream_id: int) -> None:
        """Note a read of a stream with a sliding window; the next sweep proposes it."""
        self._sweeper.touches[key] = (stream_id, self.now_ms())

    def touched_ms(self, key: bytes, stream_id: int) -> int:
        """The latest read of a stream that is not in the log yet, or 0."""
        noted = self._sweeper.touches.get(key)
        return noted[1] if noted is not None and noted[0] == stream_id else 0

    # -- reads --------------------------------------------------------------------------------

    def may_read_now(self) -> bool:
        """Whether a read of the state as it is now is linearizable without asking any peer."""
        # A node that restarts commits its whole log a turn before it has applied it.
        index = self._core.local_read_index()
        return index is not None and index <= self._core.applied_index

    async def catch_up(self, timeout_s: float = READ_TIMEOUT_S) -> None:
        """Return once the state includes everything acknowledged before the call, so that a read
        of it is linearizable. A leader that is the only voter asks no peer.

        Raises `Unavailable` when no leader confirms it in time.
        """
        if self.may_read_now():
            return
        self.admission.must_be_member()
        if not await self._read_index.wait(timeout_s):
            raise Unavailable("no leader confirmed that the state is up to date")

    def now_ms(self) -> int:
        """Current log time: the wall clock, but never before an entry already stamped."""
        return max(self._clock_ms(), self.state.header.log_ms)

    # -- the state on disk --------------------------------------------------------------------

    @property
    def state_write_lock(self) -> trio.Lock:
        """While it is held, the state's store is neither written nor replaced."""
        return self._flusher.exclusive

    async def stored(self) -> int:
        """Wait until the store has all that was applied before the call; returns log time then."""
        log_ms = self.state.header.log_ms
        await self._flusher.stored(self.state.header.applied_index)
        return log_ms

    async def flush(self) -> None:
        """Store all changes made so far."""
        await self._flusher.flush()

    async def compact(self) -> int:
        """Store the state and compact the log up to it; returns the log's new first entry."""
        through = await self._flusher.compact()
        await self.wait_for(lambda: self.first_index > through, READ_TIMEOUT_S)
        return self.first_index

    async def open_snapshot(self, snapshot_id: int, *, only_hot: bool = False) -> SnapshotSource:
        """A Raft snapshot of the stored state. Raises `SnapshotUnavailable`."""
        return await self._writer.open_snapshot(snapshot_id, only_hot=only_hot)

    def snapshot_ended(self, peer_id: int, index: int | None) -> None:
        """Note that a follower installed a Raft snapshot as of `index`; with None, that it did
        not."""
        if index is None:
            self._core.snapshot_failed(peer_id)
        else:
            self._core.snapshot_sent(peer_id, index)
        self._wake()

    @property
    def is_installing(self) -> bool:
        """Whether a Raft snapshot is replacing state and log."""
        return self._writer.is_installing

    async def install(self, meta: SnapshotMeta) -> bool:
        """Replace state and log with a received Raft snapshot; False if it is not needed."""
        if self.is_installing or not self._core.begin_restore(meta.index, meta.term):
            return False
        self._writer.install(meta)
        self._wake()
        while self.is_installing:
            await self._turn_taken.park()
        return True

    def watch(self, applied: Applied, turned: Callable[[], None]) -> None:
        """Call `applied` with the commands of each entry, before anyone learns their outcomes, and
        `turned` at the end of each turn, when they have."""
        self._applier.applied, self._turned = applied, turned

    def _state_replaced(self) -> None:
        self.machine.take_changes()
        self._listener.start_over(self.group_id)

    # -- turns --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until cancelled. Raises `StorageError` when a disk fails, and `RaftViolation` when
        something happened that Raft rules out: the process must end."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._loop.run, nursery)
            nursery.start_soon(self._writer.run)
            nursery.start_soon(self._tick)
            nursery.start_soon(self._announcer.run, self._wake)
            nursery.start_soon(self._publish)
            nursery.start_soon(self._flusher.run)
            nursery.start_soon(self._sweeper.run)

    def _proposed(self) -> None:
        # While the disk is busy the next entry gathers; a turn follows when the write has ended.
        if not self._writer.is_storing:
            self._wake()

    def _turn(self, nursery: trio.Nursery) -> None:
        """Do everything that needs no waiting, and give the writer its next job."""
        if not self._packages.session_id and self._opener.is_due:
            nursery.start_soon(self._open_session, self._opener.begin())
        if self.leads:
            self._propose_pending()
        elif self.leader_id:
            self._forwarding.send(nursery, self.leader_id, MAX_BATCH_COMMANDS, MAX_BATCH_BYTES)
        self._read_index.ask()
        applied_before = self._core.applied_index
        announce = self._announcer.is_due()
        while (ready := self._core.ready(announce=announce)) is not None:
            self._take(ready)
        self._read_index.applied(self._core.applied_index)
        if self._core.configuration is not self._configuration:
            self._configuration = self._core.configuration
            self._peers.configured(self._configuration)
        self._writer.start_next()
        self._turn_taken.unpark_all()
        self._turned()
        if self._core.applied_index > applied_before:
            self._flusher.changed()
            if self._listener.present:
                self._changes_made.unpark()
            else:
                self.machine.take_changes()

    def _take(self, ready: Ready) -> None:
        """Carry out what the core hands out."""
        if ready.soft_state is not None:
            self._leader_or_term_changed(ready.soft_state)
        # `messages` promises nothing that must be on disk first, so it does not wait for the disk:
        # the leader replicates entries while it writes them itself (thesis 10.2.1).
        if ready.messages:
            self._peers.send(ready.messages)
        if ready.must_store:
            self._writer.store(ready)
            self._writer.start_next()  # Before the answers to the entry before it.
        for entry in ready.committed:
            self._applier.apply(entry)
            self._core.applied(entry.index)
        if ready.reads:
            self._read_index.answer(ready.reads)
        if ready.snapshots:
            self._peers.snapshots_wanted(ready.snapshots)

    def _leader_or_term_changed(self, state: SoftState) -> None:
        """Let no task wait for what only the former leader could do."""
        self._read_index.ask_again()
        self._leadership_changed.unpark_all()
        self._opener.leader_changed()
        self._forwarding.leader_changed()
        self._proposing_pauses = False
        self._wake()
        if state.role != Role.LEADER:
            self._applier.fail_all(
                OutcomeUnknown("the leader changed before the write was committed")
            )
            self._drafting.leadership_lost()

    def _propose_pending(self) -> None:
        """Propose what waits as one entry, as much as one entry may hold.

        While one entry is on its way to the disk the next gathers: the slower the disk, the more
        writes share a sync.
        """
        if self._writer.is_storing or self._proposing_pauses or self._flusher.is_full:
            return
        draft = self._drafting.draft(MAX_BATCH_COMMANDS, MAX_BATCH_BYTES)
        if draft is None:
            return
        if self._sweeper.touches:
            draft.begin_with(self._sweeper.touching())
        now_ms = self.now_ms()
        payload = encode_batch(Batch(now_ms, draft.commands, draft.stamps))
        try:
            [index] = self._core.propose([payload])
        except CoreRefused as error:
            draft.refused(Unavailable(str(error)))
            self._proposing_pauses = True
            return
        pending = PendingEntry(
            self.term, now_ms, draft.commands, draft.stamps, draft.proposals, draft.foreign
        )
        self._applier.proposed(index, pending)
        self._metrics.commit_batch.observe(len(draft.commands))

    async def _open_session(self, call: trio.CancelScope) -> None:
        session_id = await self._opener.ask(call)
        if session_id:
            self._packages.open(session_id)
            self._wake()

    async def _tick(self) -> None:
        while True:
            await trio.sleep(self.tick_s)
            self._core.tick()
            self._read_index.tick()
            self._drafting.expire(trio.current_time())
            self._proposing_pauses = False
            self._forwarding.resume()
            self._wake()

    async def _publish(self) -> None:
        """Tell live readers what changed, after the writers that changed it.

        A stream with a thousand readers costs some milliseconds per append. The tasks that got
        their outcome in the same turn run before this one continues.
        """
        while True:
            while not self.machine.changes:
                await self._changes_made.park()
            await trio.lowlevel.checkpoint()
            await self._listener.publish(self.group_id, self.machine.take_changes())
