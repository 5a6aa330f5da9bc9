"""One Raft group at work: what waits is proposed, written, applied, answered.

The loop around the two pure hearts. A write takes this way:

1. `propose` puts the command on the pending list and parks its task.
2. When the log writer is free, `_turn` makes everything pending one log entry.
3. One synced batch puts it on disk, in a thread; the next entry gathers meanwhile.
4. The core commits it, the machine applies it, and the parked tasks get their outcomes.
5. Live readers of the touched streams are told, once the answers have gone out.

The machine's state is stored afterwards and unsynced: what a crash loses of it, the log replays.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

import outcome
import trio

from streamd.blocking import RunBlocking
from streamd.codec import Batch, decode_batch, encode_batch
from streamd.metrics import Metrics
from streamd.raft.core import Core, NotLeader, Overloaded, Ready
from streamd.raft.messages import Entry, EntryKind
from streamd.storage.log_store import LogStore
from streamd.storage.state_store import StateStore
from streamd.streams.commands import Change, Command, Outcome, Sweep, Touch
from streamd.streams.machine import Machine
from streamd.streams.state import due_for_sweep, load_rows, stream_keys

MAX_BATCH_COMMANDS = 1024
MAX_BATCH_BYTES = 1024 * 1024
MAX_PENDING_COMMANDS = 50_000
MAX_PENDING_BYTES = 256 * 1024 * 1024
# How much replayed or applied work may gather in memory before it is stored, and for how long.
FLUSH_BYTES = 4 * 1024 * 1024
FLUSH_INTERVAL_S = 0.2
MAX_UNSTORED_BYTES = 64 * 1024 * 1024
SWEEP_INTERVAL_S = 0.5
SWEEP_BATCH = 256
TICK_S = 0.1
FLOOR_INTERVAL_S = 1.0
# The log is cut each time this much was added, at the place it had grown to the time before.
CHECKPOINT_BYTES = 32 * 1024 * 1024


class Unavailable(Exception):
    """The command was not accepted and will never take effect; try again later."""


class Audience(Protocol):
    """Those who follow streams live."""

    @property
    def present(self) -> bool:
        """Whether anyone is there to be told."""

    def publish(self, changes: dict[int, Change]) -> None:
        """Hear, by stream id, what became of streams since the last time. Must not block."""


class _Proposal:
    """A command on its way, and the task that waits for its outcome, if one still does."""

    __slots__ = ("command", "size", "task")

    def __init__(self, command: Command, size: int, task: trio.lowlevel.Task | None) -> None:
        self.command = command
        self.size = size
        self.task = task

    def resolve(self, value: outcome.Outcome[Outcome]) -> None:
        if self.task is not None:
            task, self.task = self.task, None
            trio.lowlevel.reschedule(task, value)


class _Batch:
    """An entry's commands as proposed here, kept until the entry at its index commits."""

    __slots__ = ("now_ms", "proposals", "term")

    def __init__(self, term: int, now_ms: int, proposals: list[_Proposal]) -> None:
        self.term = term
        self.now_ms = now_ms
        self.proposals = proposals


class Group:
    """The replicated machine of one group. `run` must be running for anything else to happen."""

    def __init__(
        self,
        core: Core,
        log: LogStore,
        machine: Machine,
        store: StateStore,
        *,
        run_blocking: RunBlocking,
        clock_ms: Callable[[], int],
        metrics: Metrics,
        audience: Audience,
    ) -> None:
        self.core = core
        self.machine = machine
        self.state = machine.state
        self._log = log
        self._store = store
        self._run_blocking = run_blocking
        self._clock_ms = clock_ms
        self._metrics = metrics
        self._audience = audience
        self._pending: deque[_Proposal] = deque()
        self._pending_bytes = 0
        self._proposed: dict[int, _Batch] = {}
        self._writes: deque[Ready] = deque()
        self._touches: dict[bytes, tuple[int, int]] = {}
        self._work = trio.lowlevel.ParkingLot()
        self._changed = trio.lowlevel.ParkingLot()
        self._progress = trio.lowlevel.ParkingLot()
        self._news = trio.lowlevel.ParkingLot()
        self._writer = trio.CapacityLimiter(1)
        self._flushing = trio.Lock()
        self._checkpoint_index = self.state.stored_index
        self._log_bytes = 0
        self._compact_through = 0
        self._floor_due = False

    # -- for the layers above -----------------------------------------------------------------

    async def propose(self, command: Command, size: int = 0) -> Outcome:
        """Have `command` take effect and wait for its outcome; `size` is its payload in bytes.

        Cancelled, the caller learns nothing: the command may still take effect.
        Raises `Unavailable` when it will not.
        """
        if len(self._pending) >= MAX_PENDING_COMMANDS or self._pending_bytes > MAX_PENDING_BYTES:
            raise Unavailable("too many writes are waiting")
        proposal = _Proposal(command, size, trio.lowlevel.current_task())
        self._pending.append(proposal)
        self._pending_bytes += size
        self._work.unpark()

        def abort(_: object) -> trio.lowlevel.Abort:
            proposal.task = None
            return trio.lowlevel.Abort.SUCCEEDED

        result: Outcome = await trio.lowlevel.wait_task_rescheduled(abort)
        return result

    def may_read(self) -> bool:
        """Whether a read of the state as it is now is linearizable without asking anyone."""
        return self.core.local_read_index() is not None

    async def read_barrier(self) -> None:
        """Return once the state includes everything acknowledged before the call."""
        while self.core.local_read_index() is None:
            await self._progress.park()

    def touch(self, key: bytes, stream_id: int) -> None:
        """Note that a stream with a sliding window was read; the log hears of it soon."""
        self._touches[key] = (stream_id, self.now_ms())

    def touched_ms(self, key: bytes, stream_id: int) -> int:
        """The latest read of a stream that the log has not heard of yet, or 0."""
        noted = self._touches.get(key)
        return noted[1] if noted is not None and noted[0] == stream_id else 0

    def now_ms(self) -> int:
        """Log time as of now: the wall clock, but never before an entry already stamped."""
        return max(self._clock_ms(), self.state.header.log_ms)

    # -- the loop -----------------------------------------------------------------------------

    async def run(self) -> None:
        """Run until cancelled. Raises `StorageError` when a disk fails: the process must end."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write_loop)
            nursery.start_soon(self._publish_loop)
            nursery.start_soon(self._flush_loop)
            nursery.start_soon(self._sweep_loop)
            nursery.start_soon(self._tick_loop)

    async def _tick_loop(self) -> None:
        while True:
            await trio.sleep(TICK_S)
            self.core.tick()
            self._work.unpark()

    async def _write_loop(self) -> None:
        while True:
            self._turn()
            if self._writes:
                await self._write(self._writes.popleft())
            elif self._floor_due:
                self._floor_due = False
                await self._run_blocking(self._log.sync_floor, limiter=self._writer)
            elif self._compact_through:
                through, self._compact_through = self._compact_through, 0
                await self._run_blocking(self._log.compact, through, limiter=self._writer)
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
            for key, raw in rows.items():
                self.state.streams.install(key, raw)
        self.core.stored(*ready.completion)

    def _write_blocking(self, ready: Ready, wanted: list[bytes]) -> dict[bytes, bytes | None]:
        rows = load_rows(self._store, wanted)
        self._log.append(ready.entries, ready.hard_state)
        return rows

    def _rows_wanted(self, entries: Sequence[Entry]) -> list[bytes]:
        streams = self.state.streams
        wanted: list[bytes] = []
        for entry in entries:
            batch = self._proposed.get(entry.index)
            if batch is not None and batch.term == entry.term:
                for proposal in batch.proposals:
                    wanted += [k for k in stream_keys(proposal.command) if k not in streams]
        return wanted

    def _turn(self) -> None:
        """Do all that can be done without waiting."""
        if not self._writes and self._pending:
            self._propose_pending()
        applied = False
        while (ready := self.core.ready()) is not None:
            if ready.must_store:
                self._writes.append(ready)
            for entry in ready.committed:
                self._apply(entry)
                applied = True
        if applied:
            if self._audience.present:
                self._news.unpark()
            else:
                self.machine.take_changes()
            self._changed.unpark_all()
        self._progress.unpark_all()

    def _propose_pending(self) -> None:
        """Make all that is pending one entry, as far as one entry may hold it."""
        if self.state.unstored_bytes > MAX_UNSTORED_BYTES:
            return
        proposals: list[_Proposal] = []
        if self._touches:
            reads = [(key, *noted) for key, noted in self._touches.items()]
            self._touches = {}
            proposals.append(_Proposal(Touch(reads), 0, None))
        size = 0
        while self._pending and len(proposals) < MAX_BATCH_COMMANDS:
            size += self._pending[0].size
            if size > MAX_BATCH_BYTES and proposals:
                break
            proposals.append(self._pending.popleft())
        self._pending_bytes -= sum(proposal.size for proposal in proposals)
        now_ms = self.now_ms()
        payload = encode_batch(Batch(now_ms, [proposal.command for proposal in proposals]))
        try:
            indexes = self.core.propose([payload])
        except (NotLeader, Overloaded) as error:
            refusal = outcome.Error(Unavailable(str(error)))
            for proposal in proposals:
                proposal.resolve(refusal)
            return
        self._proposed[indexes[0]] = _Batch(self.core.term, now_ms, proposals)
        self._log_bytes += len(payload)
        self._metrics.commit_batch.observe(len(proposals))

    def _apply(self, entry: Entry) -> None:
        batch = self._proposed.pop(entry.index, None)
        if batch is not None and batch.term != entry.term:
            lost = outcome.Error(Unavailable("another leader's entry took its place"))
            for proposal in batch.proposals:
                proposal.resolve(lost)
            batch = None
        if entry.kind != EntryKind.COMMANDS:
            if entry.kind == EntryKind.CONFIGURATION:
                self.state.header.configuration = entry.payload
            self.machine.apply(entry.index, entry.term, 0, [])
        elif batch is None:
            decoded = decode_batch(entry.payload)
            self.machine.apply(entry.index, entry.term, decoded.now_ms, decoded.commands)
        else:
            commands = [proposal.command for proposal in batch.proposals]
            outcomes = self.machine.apply(entry.index, entry.term, batch.now_ms, commands)
            for proposal, result in zip(batch.proposals, outcomes, strict=True):
                proposal.resolve(outcome.Value(result))
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

    async def _flush_loop(self) -> None:
        """Store the machine's changes a batch at a time, and keep the disk tidy behind them."""
        floor_at = trio.current_time()
        while True:
            while not self.state.unstored:
                await self._changed.park()
            with trio.move_on_after(FLUSH_INTERVAL_S):
                while self.state.unstored_bytes < FLUSH_BYTES:
                    await self._changed.park()
            await self.flush()
            if trio.current_time() - floor_at >= FLOOR_INTERVAL_S:
                floor_at = trio.current_time()
                self._floor_due = True
            if self._log_bytes >= CHECKPOINT_BYTES:
                await self._checkpoint()
            self._work.unpark()

    async def flush(self) -> None:
        """Store all changes made so far, one flush after the other."""
        async with self._flushing:
            items = self.state.begin_flush()
            await self._run_blocking(self._store.write, items)
            self.state.end_flush()

    async def _checkpoint(self) -> None:
        """Sync the state, so that the log it was made from can be cut.

        The log keeps what was added since the checkpoint before, for followers a little behind.
        """
        self._log_bytes = 0
        through = self.state.stored_index
        await self._run_blocking(self._sync_store)
        self._compact_through, self._checkpoint_index = self._checkpoint_index, through

    def _sync_store(self) -> None:
        self._store.write([], sync=True)

    async def _sweep_loop(self) -> None:
        """Propose what only time brings about: renewals by reads, and expiry."""
        while True:
            await trio.sleep(SWEEP_INTERVAL_S)
            if not self.may_read():
                continue
            due = await self._run_blocking(due_for_sweep, self._store, self.now_ms(), SWEEP_BATCH)
            if due or self._touches:
                await self.propose(Sweep(due))
