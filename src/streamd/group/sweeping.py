"""Proposes what follows from time alone: renewals by reads, expiry, idle uploads and producers."""

from __future__ import annotations

import trio

from streamd.group.counting import Counting
from streamd.group.ending import Ending
from streamd.group.faces import Faces
from streamd.group.proposals import OutcomeUnknown, Unavailable
from streamd.process.threads import RunBlocking
from streamd.storage.state_store import StateStore
from streamd.streams.commands import DropUploads, Sweep
from streamd.streams.state import due_for_sweep, idle_uploads

SWEEP_INTERVAL_S = 0.5
SWEEP_BATCH = 256
# How long an upload may get nothing new. Its server adds what it has every few seconds, so this
# only ends uploads whose server is gone.
UPLOAD_IDLE_MS = 120_000
_MAX_ABANDONED = 10_000


class Sweeper:
    """Proposes these things twice a second, among them what `GroupWrites` notes until then."""

    def __init__(self, group: Faces, store: StateStore, run_blocking: RunBlocking) -> None:
        self._group = group
        self._store = store
        self._run_blocking = run_blocking
        self._touches = group.writes.touches
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

    async def _sweep(self) -> bool:
        """Propose what is due; returns whether there may be more streams to check now.

        Streams may expire as fast as clients create them; one batch per sweep would not keep pace.
        """
        await self._drop_abandoned()
        if not self._group.view.leads:
            if self._touches.noted:
                await self._pass_touches_on()
            return False
        due, idle = await self._run_blocking(_due, self._store, self._group.now_ms())
        if due or self._touches.noted:
            await self._group.writes.propose(Sweep(due))
        if idle:
            await self._group.writes.propose(DropUploads(idle, UPLOAD_IDLE_MS))
        await self._ending.step(self._group.now_ms())
        more = await self._counting.step()
        if len(due) < SWEEP_BATCH:
            return more
        # Until then the store would return the same streams again.
        await self._group.reads.stored()
        return True

    async def _pass_touches_on(self) -> None:
        touch = self._touches.take()
        try:
            await self._group.writes.propose(touch)
        except (Unavailable, OutcomeUnknown):
            self._touches.put_back(touch)
            raise

    async def _drop_abandoned(self) -> None:
        # Uploads beyond this many are left to time out.
        writes = self._group.writes
        dropped, writes.abandoned_uploads = writes.abandoned_uploads[:_MAX_ABANDONED], []
        if dropped:
            try:
                await writes.propose(DropUploads(dropped))
            except BaseException:
                writes.abandoned_uploads += dropped
                raise


def _due(store: StateStore, now_ms: int) -> tuple[list[bytes], list[int]]:
    """Streams that may have expired, and uploads that were abandoned. Blocks."""
    return (
        due_for_sweep(store, now_ms, SWEEP_BATCH),
        idle_uploads(store, now_ms - UPLOAD_IDLE_MS, SWEEP_BATCH),
    )
