"""The one task of a group that writes to the log, a job at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TypeVar, TypeVarTuple

import trio
from outcome import Outcome

from streamd.group.applying import Applier
from streamd.group.peers import Peers
from streamd.group.proposals import OutcomeUnknown
from streamd.group.state_flusher import StateFlusher
from streamd.group.stores import Stores
from streamd.process.metrics import Metrics
from streamd.process.threads import OneThread
from streamd.raft.core import Core, Ready
from streamd.raft.membership import decode_configuration
from streamd.storage.install import install
from streamd.storage.raft_snapshots import SnapshotMeta, SnapshotSource
from streamd.streams.state import State, load_rows

T = TypeVar("T")
Args = TypeVarTuple("Args")


class Writer:
    """Stores what the core hands out, installs Raft snapshots, and maintains the log.

    The turn task decides: at the end of each turn it calls `start_next`, and a finished job calls
    `job_ended` for the next turn. So a job never begins before the turn that follows the previous
    job, and what has to be stored goes before what can wait.
    """

    def __init__(
        self,
        core: Core,
        stores: Stores,
        state: State,
        applier: Applier,
        flusher: StateFlusher,
        peers: Peers,
        *,
        in_log_thread: OneThread,
        metrics: Metrics,
        job_ended: Callable[[], None],
        state_replaced: Callable[[], None],
    ) -> None:
        """`in_log_thread` runs everything that touches the log's files, a call at a time.
        `state_replaced` is called when a Raft snapshot has been installed."""
        self._core = core
        self._log = stores.log
        self._state = state
        self._store = stores.state
        self._data_dir = stores.data_dir
        self._applier = applier
        self._flusher = flusher
        self._peers = peers
        self._in_log_thread = in_log_thread
        self._metrics = metrics
        self._job_ended = job_ended
        self._state_replaced = state_replaced
        self._unwritten: deque[Ready] = deque()
        self._is_storing = False
        self._stalled_s = self._log.stalled_s
        self._is_busy = False
        self._failure: Exception | None = None
        self._woken = trio.lowlevel.ParkingLot()  # wakes `run`
        self._installing: SnapshotMeta | None = None
        self._may_install = False  # Nothing else is under way.

    @property
    def is_storing(self) -> bool:
        """Whether entries or votes are on their way to the disk, or wait for it."""
        return self._is_storing or bool(self._unwritten)

    @property
    def is_installing(self) -> bool:
        """Whether a Raft snapshot is replacing state and log, or waits to."""
        return self._installing is not None

    def store(self, ready: Ready) -> None:
        """Store a `Ready`'s hard state and entries, after those before it."""
        self._unwritten.append(ready)

    def install(self, meta: SnapshotMeta) -> None:
        """Install a received Raft snapshot once everything handed out before is stored."""
        assert self._installing is None, "a Raft snapshot is already being installed"
        self._installing = meta

    async def open_snapshot(self, snapshot_id: int, *, only_hot: bool) -> SnapshotSource:
        """A Raft snapshot of the stored state. Raises `SnapshotUnavailable`."""
        args = (self._store, self._log, snapshot_id, only_hot)
        return await self._in_log_thread(SnapshotSource.open, *args)

    def start_next(self) -> None:
        """Begin the next job unless one is under way."""
        if self._is_busy:
            return
        if self._unwritten:
            self._is_storing = True
            self._begin_store(self._unwritten.popleft())
        elif self._installing is not None:
            self._is_busy = self._may_install = True
            self._woken.unpark()
        elif (duty := self._next_duty()) is not None:
            self._begin(partial(self._duty_ended, trio.current_time()), duty)

    async def run(self) -> None:
        """Run until cancelled and the job under way has ended. Raises `StorageError`: the process
        must end."""
        try:
            while self._failure is None:
                if self._may_install:
                    await self._install()
                else:
                    await self._woken.park()
        finally:
            with trio.CancelScope(shield=True):
                await self._in_log_thread.idle()
            if self._failure is not None:
                raise self._failure

    def _begin(self, end: Callable[[T], None], job: Callable[[*Args], T], *args: *Args) -> None:
        """Do a job in the log's thread, then call `end` with its result."""

        def ended(result: Outcome[T]) -> None:
            try:
                end(result.unwrap())
            except Exception as failure:
                # Nothing is stored after it, because the writer stays busy.
                self._failure = failure
                self._woken.unpark()
            else:
                self._is_busy = False
                self._job_ended()

        self._is_busy = True
        self._in_log_thread.begin(ended, job, *args)

    def _next_duty(self) -> Callable[[], None] | None:
        duty = self._flusher.next_duty()
        if duty is None and self._log.lost_below is not None and self._core.may_vote:
            duty = self._log.note_regained
        return duty

    def _duty_ended(self, started: float, _: None) -> None:
        self._metrics.log_stall.observe(trio.current_time() - started)

    def _begin_store(self, ready: Ready) -> None:
        """Store a `Ready` with one synced write, and load the rows that applying it will need."""
        wanted = self._applier.rows_wanted(ready.entries)
        stored = partial(self._stored, ready, self._state.flushes, trio.current_time())
        self._begin(stored, self._store_blocking, ready, wanted)

    def _stored(
        self, ready: Ready, flushes: int, started: float, rows: dict[bytes, bytes | None]
    ) -> None:
        """A `Ready` is stored. Only then may the messages that confirm it leave (thesis 3.8)."""
        self._metrics.fsync_latency.observe(trio.current_time() - started)
        if (stalled_s := self._log.stalled_s) > self._stalled_s:
            self._metrics.log_stall.observe(stalled_s - self._stalled_s)
            self._stalled_s = stalled_s
        # A flush that ended meanwhile may have stored a newer row and evicted it from memory; a row
        # read before that must not replace it.
        if flushes == self._state.flushes:
            for row, raw in rows.items():
                self._state.install(row, raw)
        self._flusher.log_grew(sum(len(entry.payload) for entry in ready.entries))
        self._peers.send(ready.messages_after_store)
        self._core.stored(*ready.completion)
        self._is_storing = False

    def _store_blocking(self, ready: Ready, wanted: list[bytes]) -> dict[bytes, bytes | None]:
        rows = load_rows(self._store, wanted, b"") if wanted else {}
        self._log.append(ready.entries, ready.hard_state)
        return rows

    async def _install(self) -> None:
        meta = self._installing
        assert meta is not None
        async with self._flusher.exclusive:
            await self._in_log_thread(install, self._data_dir, self._log, self._store, meta)
            self._state.load()
            configuration = decode_configuration(meta.configuration)
            restored = self._core.restore(meta.index, meta.term, configuration)
            assert restored, meta
        self._applier.reset(OutcomeUnknown("a Raft snapshot replaced the log"))
        self._flusher.restarted(meta.index)
        self._installing = None
        self._is_busy = self._may_install = False
        self._state_replaced()
        self._job_ended()
