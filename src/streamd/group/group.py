"""A Raft group for the layers above: its loop, and the faces that they use."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import trio

from streamd.group.admission import Admission
from streamd.group.applying import Applied, Applier
from streamd.group.commit_announcer import CommitAnnouncer
from streamd.group.committed_log import CommittedLog
from streamd.group.drafts import Drafting, PendingEntry
from streamd.group.forwarding import Forwarding
from streamd.group.log_clock import LogClock
from streamd.group.packages import ForeignPackage, OwnPackages
from streamd.group.peers import ChangeListener, NoPeers, Peers
from streamd.group.proposals import OutcomeUnknown, Proposal, ProposalQueue, Unavailable
from streamd.group.reads import GroupReads
from streamd.group.reclaim import Pins
from streamd.group.retention import Retention
from streamd.group.session_opener import SessionOpener
from streamd.group.state_flusher import StateFlusher
from streamd.group.storage import GroupStorage
from streamd.group.stores import Stores
from streamd.group.sweeping import Sweeper
from streamd.group.turn_loop import TurnLoop
from streamd.group.view import GroupView
from streamd.group.writer import Writer
from streamd.group.writes import GroupWrites
from streamd.process.metrics import Metrics
from streamd.process.threads import OneThread, RunBlocking
from streamd.raft.core import Core, CoreRefused, Ready, Role, SoftState
from streamd.raft.messages import AppendRequest, Configuration, Message
from streamd.streams.codec import Batch, encode_batch
from streamd.streams.machine import Machine

MAX_BATCH_COMMANDS = 1024
MAX_BATCH_BYTES = 1024 * 1024
MAX_PENDING_COMMANDS = 50_000
MAX_PENDING_BYTES = 256 * 1024 * 1024
TICK_S = 0.1


class Group:
    """The replicated machine of one Raft group. Nothing happens unless `run` is running.

    Its faces: `writes` takes commands, `reads` says when the state may be read, `view` tells what
    the node knows of the group and changes leader and members, `storage` is the group on disk.
    `admission` takes what other nodes send, `committed` reads entries back, `retention` and `pins`
    keep entries and rows from removal.

    Ids of streams and blobs are unique within one group only. Whatever is kept by such an id
    outside the group's state is kept under the group's id too, or belongs to the group, like
    `pins`.
    """

    # The version of the subscriptions at the end of the last turn.
    _subscriptions: object = None

    def __init__(
        self,
        core: Core,
        machine: Machine,
        stores: Stores,
        *,
        run_blocking: RunBlocking,
        in_log_thread: OneThread,
        clock_ms: Callable[[], int],
        metrics: Metrics,
        listener: ChangeListener,
        peers: Peers | None = None,
        tick_s: float = TICK_S,
        nonce: int = 0,
    ) -> None:
        """`nonce` is a random number that no other process of this node draws."""
        self.group_id = stores.group_id
        self.pins = Pins()
        self.machine = machine
        self.state = machine.state
        self.tick_s = tick_s
        self._core = core
        self._clock = LogClock(clock_ms)
        self._metrics = metrics
        self._listener = listener
        self._peers = peers or NoPeers()
        self._configuration: Configuration | None = None
        # Set when the core refuses a proposal, until the next tick.
        self._proposing_pauses = False
        self._loop = TurnLoop(self._turn)
        self._wake = self._loop.wake
        self._turned: Callable[[], None] = lambda: None
        self._changes_made = trio.lowlevel.ParkingLot()  # wakes `_publish`
        self.view = GroupView(core, self._wake)

        # From a write to an entry.
        limits = MAX_PENDING_COMMANDS, MAX_PENDING_BYTES
        self._queue: ProposalQueue[Proposal] = ProposalQueue(*limits)
        foreign: ProposalQueue[ForeignPackage] = ProposalQueue(*limits)
        self._packages = OwnPackages(core.node_id, metrics, self._queue.put_back)
        self._opener = SessionOpener(core, self.state, self._peers, nonce)
        numbered = self._queue, self._packages, self._opener
        self._forwarding = Forwarding(self._peers, *numbered, self._wake)
        self._drafting = Drafting(core, foreign, *numbered)
        self.admission = Admission(
            core, self.state, self._drafting, self._opener, self._peers,
            run_blocking, self.now_ms, self._proposed,
        )  # fmt: skip

        # From an entry to the disk, the machine and the other nodes.
        self.retention = Retention(core, tick_s)
        self._flusher = StateFlusher(
            self.state, stores.state, stores.log, self.retention,
            run_blocking=run_blocking, due=self._wake,
        )  # fmt: skip
        self._applier = Applier(machine, core.node_id, self._packages)
        self._writer = Writer(
            core, stores, self.state, self._applier, self._flusher, self._peers,
            in_log_thread=in_log_thread, metrics=metrics,
            job_ended=self._loop.now, state_replaced=self._state_replaced,
        )  # fmt: skip
        self._announcer = CommitAnnouncer(core)
        self.committed = CommittedLog(stores.log, core, in_log_thread=in_log_thread)
        self.writes = GroupWrites(
            self.admission, self._queue, self._flusher, self.view, self._loop, self.now_ms
        )
        self.reads = GroupReads(core, self.state, self.admission, self._flusher, self._wake)
        self._read_index = self.reads.index
        self.storage = GroupStorage(core, self._flusher, self._writer, self.view, self._wake)
        self._sweeper = Sweeper(self, stores.state, run_blocking)

    def now_ms(self) -> int:
        """Current log time (`LogClock`)."""
        return self._clock.now_ms(self.state.header.log_ms)

    def watch(self, applied: Applied, turned: Callable[[], None]) -> None:
        """Call `applied` with the commands of each entry, before anyone learns their outcomes, and
        `turned` at the end of each turn, when they have."""
        self._applier.applied, self._turned = applied, turned

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
        core = self._core
        if core.role is Role.LEADER:
            self._propose_pending()
        elif core.leader_id:
            self._forwarding.send(nursery, core.leader_id, MAX_BATCH_COMMANDS, MAX_BATCH_BYTES)
        self._read_index.ask()
        applied_before = core.applied_index
        announce = self._announcer.is_due()
        while (ready := core.ready(announce=announce)) is not None:
            self._take(ready)
        applied_index, configuration = core.applied_index, core.configuration
        self._read_index.applied(applied_index)
        if configuration is not self._configuration:
            self._configuration = configuration
            self._peers.configured(configuration)
        self._writer.start_next()
        if self.view.turn_taken:
            self.view.turn_taken.unpark_all()
        if self.state.subscriptions.version is not self._subscriptions:
            self._subscriptions = self.state.subscriptions.version
            self.view.subscriptions_changed.unpark_all()
        self._turned()
        if applied_index > applied_before:
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
        self.view.leader_or_term_changed.unpark_all()
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
        if (
            not self._drafting.has_waiting
            or self._proposing_pauses
            or self._writer.is_storing
            or self._flusher.is_full
        ):
            return
        draft = self._drafting.draft(MAX_BATCH_COMMANDS, MAX_BATCH_BYTES)
        if draft is None:
            return
        if self.writes.touches.noted:
            draft.begin_with(self.writes.touches.proposal())
        now_ms = self.now_ms()
        payload = encode_batch(Batch(now_ms, draft.commands, draft.stamps))
        try:
            [index] = self._core.propose([payload])
        except CoreRefused as error:
            draft.refused(Unavailable(str(error)))
            self._proposing_pauses = True
            return
        pending = PendingEntry(
            self._core.term, now_ms, draft.commands, draft.stamps, draft.proposals, draft.foreign
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
