"""Stores the machine's changes after the log has them, and then compacts the log."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

import trio

from streamd.group.retention import Retention
from streamd.process.threads import RunBlocking
from streamd.storage.log_storage import LogStorage
from streamd.storage.state_store import StateStore
from streamd.streams.state import State

# How much replayed or applied work may gather in memory before it is stored, and for how long.
FLUSH_BYTES = 4 * 1024 * 1024
FLUSH_INTERVAL_S = 1.0
# A flush that readers of the store wait for comes earlier, but not this soon after the last one.
AWAITED_INTERVAL_S = 0.05
MAX_UNSTORED_BYTES = 64 * 1024 * 1024
# Parts of blobs are stored in smaller batches: a snapshot of 128 MiB should pass through memory,
# not fill it.
FLUSH_PARTS_BYTES = 1024 * 1024
FLOOR_INTERVAL_S = 1.0
# The log is cut each time this much was added, at the place where it ended the time before.
CHECKPOINT_BYTES = 32 * 1024 * 1024
# The log is kept for followers that lag more, up to this many checkpoints.
MAX_CHECKPOINTS_KEPT = 16


class LogGrowth:
    """How many bytes of entries were added to the log since someone began to wait for some."""

    def __init__(self) -> None:
        self._left = math.inf
        self._reached = trio.Event()

    def add(self, size: int) -> None:
        """Note that so many bytes were added."""
        self._left -= size
        if self._left <= 0:
            self._reached.set()

    async def wait_for(self, size: int) -> None:
        """Wait until so many more bytes were added. For one task at a time."""
        self._left, self._reached = size, trio.Event()
        await self._reached.wait()


class StateFlusher:
    """Owns the state's store while the group runs.

    The log's writer does the work on the log itself, one thing at a time, and asks for it with
    `next_duty`; `due` is called when there is some.
    """

    def __init__(
        self,
        state: State,
        store: StateStore,
        log: LogStorage,
        retention: Retention,
        *,
        run_blocking: RunBlocking,
        due: Callable[[], None],
    ) -> None:
        self._state = state
        self._store = store
        self._log = log
        self._run_blocking = run_blocking
        self._due = due
        self._retention = retention
        self._changed = trio.lowlevel.ParkingLot()  # wakes `run`
        self._flushed = trio.lowlevel.ParkingLot()  # wakes callers of `stored`
        self._flushed_at = -math.inf
        self._awaited_index = 0
        # Held by a flush, and during the installation of a Raft snapshot.
        self.exclusive = trio.Lock()
        self._gathers = False  # While True, not every change wakes the flusher.
        self.log_growth = LogGrowth()
        self._log_bytes = 0
        # Places where the log may be cut, oldest first, about `CHECKPOINT_BYTES` of log apart.
        self._checkpoints = deque([state.stored_index])
        self._compact_through = 0
        self._removing = False  # Entries are being removed from the log.
        self._may_waste = True  # The log's files may take much more than its entries.
        self._removed = trio.lowlevel.ParkingLot()  # wakes `_free_space`
        self._filling = trio.lowlevel.ParkingLot()  # wakes `_settle`

    @property
    def is_full(self) -> bool:
        """Whether so many bytes wait to be stored that no more may be added."""
        return self._state.unstored_bytes > MAX_UNSTORED_BYTES

    @property
    def has_room(self) -> bool:
        """Whether so little waits to be stored that a part of a blob may be added."""
        return not self._has_enough

    @property
    def _has_enough(self) -> bool:
        """Whether so much waits to be stored that waiting for more is not worth it."""
        state = self._state
        return state.unstored_bytes >= FLUSH_BYTES or state.parts.size >= FLUSH_PARTS_BYTES

    def changed(self) -> None:
        """Note that entries were applied."""
        if not self._gathers or self._has_enough:
            self._changed.unpark_all()

    def log_grew(self, size: int) -> None:
        """Note that so many bytes were added to the log."""
        self._log_bytes += size
        self.log_growth.add(size)
        if self._log.is_filling:
            self._filling.unpark_all()

    def restarted(self, index: int) -> None:
        """Note that the state was replaced by one as of `index`."""
        self._compact_through = 0
        self._checkpoints = deque([index])
        self._flushed.unpark_all()
        self._have_space_freed()

    async def run(self) -> None:
        """Store changes, and free the log's space, until cancelled. Raises `StorageError`."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._flush_batches)
            nursery.start_soon(self._free_space)
            nursery.start_soon(self._settle)

    async def _flush_batches(self) -> None:
        """Store changes a batch at a time."""
        floor_at = trio.current_time()
        while True:
            while not self._state.unstored:
                await self._changed.park()
            await self._gather()
            await self.flush()
            if trio.current_time() - floor_at >= FLOOR_INTERVAL_S:
                floor_at = trio.current_time()
                await self._run_blocking(self._log.sync_floor)
            if self._log_bytes >= CHECKPOINT_BYTES:
                # Entries since the last checkpoint stay, for followers that lag a little.
                self._log_bytes = 0
                self._pass_checkpoints()
                self._checkpoints.append(self._state.stored_index)
            self._due()

    def _pass_checkpoints(self) -> None:
        """Compact the log up to the last checkpoint before which no entry is needed."""
        retention = self._retention
        unneeded, archived = retention.unneeded_through(), retention.archived_through()
        max_unarchived = retention.max_unarchived_bytes // CHECKPOINT_BYTES
        while self._checkpoints:
            checkpoint, count = self._checkpoints[0], len(self._checkpoints)
            if checkpoint > unneeded and count <= MAX_CHECKPOINTS_KEPT:
                return
            if checkpoint > archived and count <= max_unarchived:
                return
            retention.cut_through(checkpoint)
            self._compact_through = self._checkpoints.popleft()

    async def _gather(self) -> None:
        """Let changes gather for a while; for less when a reader waits until they are stored."""
        self._gathers = True
        with trio.move_on_after(FLUSH_INTERVAL_S) as scope:
            while not self._has_enough:
                if self._awaited_index > self._state.stored_index:
                    scope.deadline = min(scope.deadline, self._flushed_at + AWAITED_INTERVAL_S)
                await self._changed.park()
        self._gathers = False

    async def stored(self, index: int) -> None:
        """Return once the store has everything up to log entry `index`, which is applied.

        All callers share flushes, `AWAITED_INTERVAL_S` apart: each flush is a synced write, and a
        client that lists a bucket in a loop must not cause one for every request.
        """
        while self._state.stored_index < index:
            if index > self._awaited_index:
                self._awaited_index = index
                self._changed.unpark_all()
            await self._flushed.park()

    async def flush(self) -> None:
        """Store all changes made so far, one flush after the other."""
        async with self.exclusive:
            items = self._state.begin_flush()
            await self._run_blocking(self._store.write, items)
            self._state.end_flush()
            self._flushed_at = trio.current_time()
            self._flushed.unpark_all()

    async def compact(self) -> int:
        """Store everything and compact the log up to there, or up to what is archived; returns
        the last entry compacted."""
        await self.flush()
        archived = self._retention.archived_through()
        through = self._compact_through = int(min(self._state.stored_index, archived))
        self._checkpoints = deque([through])
        self._due()
        return through

    def next_duty(self) -> Callable[[], None] | None:
        """Some work on the log. Call it once, in the log's thread, before asking for the next."""
        if self._removing:
            self._removing = False
            self._have_space_freed()
        if self._log.cut():
            self._removing = True
            return self._log.remove_cut
        if self._compact_through:
            through, self._compact_through = self._compact_through, 0
            return lambda: self._log.begin_cut(through)
        return None

    def _have_space_freed(self) -> None:
        self._may_waste = True
        self._removed.unpark_all()

    async def _settle(self) -> None:
        """Keep room in the log's journal, beside the log's thread, whose appends would else wait
        for LevelDB."""
        while True:
            while not self._log.is_filling:
                await self._filling.park()
            await self._run_blocking(self._log.settle)

    async def _free_space(self) -> None:
        """Give the space of entries that were removed from the log back to the disk.

        This happens beside the log's thread: LevelDB rewrites what lies around the entries, and no
        append should wait for that.
        """
        while True:
            while not self._may_waste:
                await self._removed.park()
            self._may_waste = False
            while await self._run_blocking(self._log.free_some):
                pass
