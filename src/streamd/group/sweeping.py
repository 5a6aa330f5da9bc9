"""Proposes what follows from time alone: renewals by reads, expiry, idle uploads and producers."""

from __future__ import annotations

from typing import Protocol

import outcome
import trio

from streamd.group.counting import Counting, CountingGroup
from streamd.group.ending import Ending
from streamd.group.proposals import OutcomeUnknown, Proposal, Settled, Unavailable
from streamd.process.threads import RunBlocking
from streamd.storage.state_store import StateStore
from streamd.streams.commands import Command, DropUploads, Sweep, Touch
from streamd.streams.state import due_for_sweep, idle_uploads

SWEEP_INTERVAL_S = 0.5
SWEEP_BATCH = 256
# How long an upload may get nothing new. Its server adds what it has every few seconds, so this
# only ends uploads whose server is gone.
UPLOAD_IDLE_MS = 120_000
_MAX_ABANDONED = 10_000
# How many renewals that no leader has taken are kept for the next sweep.
_MAX_TOUCHES_KEPT = 100_000


def until_now(command: Command, now_ms: int) -> Command:
    """Limit the times of reads that another node noted to `now_ms`, the leader's log time.

    By a clock an hour ahead, every read would seem to come after the stream's window had passed,
    and would renew nothing.
    """
    if not isinstance(command, Touch):
        return command
    return Touch([(key, stream_id, min(at_ms, now_ms)) for key, stream_id, at_ms in command.reads])


class _Group(CountingGroup, Protocol):
    @property
    def leads(self) -> bool: ...

    def now_ms(self) -> int: ...


class Sweeper:
    """Proposes these things twice a second; reads are noted here until then."""

    def __init__(self, group: _Group, store: StateStore, run_blocking: RunBlocking) -> None:
        self._group = group
        self._store = store
        self._run_blocking = run_blocking
        self.touches: dict[bytes, tuple[int, int]] = {}
        self.abandoned: list[int] = []
        self._counting = Counting(group, store, run_blocking)
        self._ending = Ending(group, store, run_blocking)

    async def run(self) -> None:
        """Run until cancelled. Raises `StorageError`."""
        more = False
        while True:
            if not more:
                await trio.sleep(SWEEP_INTERVAL_S)
            try:
                more = await self._sweep()
            except (Unavailable, OutcomeUnknown):
                more = False  # The next sweep finds these streams again.

    def touching(self) -> Proposal:
        """The reads since the last sweep, to be proposed. They come back if that fails."""
        touch = self._take_touches()

        def tell(value: Settled) -> None:
            if isinstance(value, outcome.Error):
                self._put_back(touch)

        return Proposal(touch, 0, 0.0, tell)

    def _take_touches(self) -> Touch:
        reads = [(key, *noted) for key, noted in self.touches.items()]
        self.touches = {}
        return Touch(reads)

    def _put_back(self, touch: Touch) -> None:
        """A read renews the window from its own time, so a late proposal is soon enough; a later
        read replaces it."""
        for key, stream_id, at_ms in touch.reads:
            if len(self.touches) >= _MAX_TOUCHES_KEPT:
                return
            self.touches.setdefault(key, (stream_id, at_ms))

    async def _sweep(self) -> bool:
        """Propose what is due; returns whether there may be more streams to check now.

        Streams may expire as fast as clients create them; one batch per sweep would not keep pace.
        """
        await self._drop_abandoned()
        if not self._group.leads:
            if self.touches:
                await self._pass_touches_on()
            return False
        due, idle = await self._run_blocking(_due, self._store, self._group.now_ms())
        if due or self.touches:
            await self._group.propose(Sweep(due))
        if idle:
            await self._group.propose(DropUploads(idle, UPLOAD_IDLE_MS))
        await self._ending.step(self._group.now_ms())
        more = await self._counting.step()
        if len(due) < SWEEP_BATCH:
            return more
        # Until then the store would return the same streams again.
        await self._group.stored()
        return True

    async def _pass_touches_on(self) -> None:
        touch = self._take_touches()
        try:
            await self._group.propose(touch)
        except (Unavailable, OutcomeUnknown):
            self._put_back(touch)
            raise

    async def _drop_abandoned(self) -> None:
        # Uploads beyond this many are left to time out.
        dropped, self.abandoned = self.abandoned[:_MAX_ABANDONED], []
        if dropped:
            try:
                await self._group.propose(DropUploads(dropped))
            except BaseException:
                self.abandoned += dropped
                raise


def _due(store: StateStore, now_ms: int) -> tuple[list[bytes], list[int]]:
    """Streams that may have expired, and uploads that were abandoned. Blocks."""
    return (
        due_for_sweep(store, now_ms, SWEEP_BATCH),
        idle_uploads(store, now_ms - UPLOAD_IDLE_MS, SWEEP_BATCH),
    )
