"""Eviction: a node removes records that the cold store has from its own disk.

A node evicts records only after it has compared its own copy with the digest of the slice that
holds them. It keeps about `cold.hot_keep_bytes` of flushed bytes for readers, its budget.

    start
      │
      ▼
    COUNTING ◄──────────────────────────┐
      │ all rows are counted            │ more was flushed since the last count began,
      ▼                                 │ and the pause after it is over
    WITHIN BUDGET ──────────────────────┘
      │      ▲      ▲
      │ more │      └───────────────────┐
      │ kept │ enough was evicted       │ a pass corrected the sum
      ▼      │                          │
    EVICTING ───────────────────────► EXHAUSTED
           ▲   a pass evicted nothing   │
           └────────────────────────────┘
               more was flushed

- COUNTING: `_count` is set. What is flushed meanwhile is added at the end.
- WITHIN BUDGET: `kept_bytes` is at most the budget. A pass that is not at its end waits there.
- EVICTING: `_pass` is set, a pass over all rows from the first to the last. The budget is checked
  before each step.
- EXHAUSTED: as many bytes are flushed as `_exhausted_at` says. What is left shares chunks with
  bytes that are not flushed, or differs from the store.

A node takes the next step of a count or a pass at once, and looks once a second otherwise.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass

import trio

from streamd.process.threads import RunBlocking
from streamd.storage.state_store import StateStore
from streamd.streams.state import State
from streamd.tiering.local_rows import START, Place, count_some, evict_some

_LOOK_EVERY_S = 1.0
# How much deleted data may stay on the disk before it is compacted.
COMPACT_BYTES = 64 * 1024 * 1024
# Everything is counted again this often, but counting takes only a small part of the time.
_COUNT_EVERY_S = 20.0
_COUNT_PAUSES = 20


@dataclass
class _Count:
    """A count under way. `flushed` is how many bytes had been flushed when it began."""

    flushed: int
    place: Place = START
    kept: int = 0
    took_s: float = 0.0


@dataclass
class _Pass:
    """A pass over all rows. `flushed` is how many bytes had been flushed when it began; all of
    them are stored, so the pass meets them."""

    flushed: int
    place: Place = START
    evicted: int = 0
    straddling: int = 0


class Evictor:
    """Keeps a node's flushed bytes within a limit; the module says by which states.

    `stored` waits until all that was applied is in the store; while `exclusive` is held, no other
    task writes there.

    The bytes are counted at the start, and newly flushed ones added. Removed streams make the
    count too high, until a pass over everything corrects it. A chunk that returns, joined to the
    records after it, makes it too low, until everything is counted again.
    """

    def __init__(
        self,
        state: State,
        store: StateStore,
        exclusive: AbstractAsyncContextManager[object],
        stored: Callable[[], Awaitable[object]],
        *,
        keep_bytes: int,
        run_blocking: RunBlocking,
    ) -> None:
        self._state = state
        self._store = store
        self._exclusive = exclusive
        self._stored = stored
        self._keep_bytes = keep_bytes
        self._run_blocking = run_blocking
        flushed = state.header.flushed_bytes
        self._count: _Count | None = _Count(flushed)
        self._pass: _Pass | None = None
        self._exhausted_at = -1
        # How many bytes had been flushed when the last count began, and as of `kept_bytes`.
        self._counted_at = self._kept_at = flushed
        self._next_count_at_s = 0.0
        self._freed = _FreedSpace(store, run_blocking)
        # For operators.
        self.kept_bytes = 0
        self.evicted_bytes = 0
        self.differing = 0

    @property
    def held_bytes(self) -> int:
        """About how many bytes this node holds that the store has too; until the first count has
        ended, only those flushed since the start."""
        return self.kept_bytes + self._state.header.flushed_bytes - self._kept_at

    async def round(self) -> float:
        """Do a step of what is due; returns in how many seconds to look again. Raises
        `StorageError`."""
        if self._count is not None:
            await self._go_on_counting(self._count)
            return 0.0
        await self._freed.give_back()
        flushed = self._state.header.flushed_bytes
        # Fewer than before: another node's state has replaced this one's.
        self.kept_bytes += max(0, flushed - self._kept_at)
        self._kept_at = flushed
        if self.kept_bytes <= self._keep_bytes:
            if flushed != self._counted_at and trio.current_time() >= self._next_count_at_s:
                self._count = _Count(flushed)
            return _LOOK_EVERY_S
        if self._pass is None:
            if self._exhausted_at == flushed:
                return _LOOK_EVERY_S
            # A pass sees stored rows only. It would take bytes that were flushed but are not stored
            # yet for bytes that cannot be evicted, and the next pass waits for another flush, which
            # may never come.
            await self._stored()
            self._pass = _Pass(flushed)
        return await self._evict(self._pass)

    async def _go_on_counting(self, count: _Count) -> None:
        """Count a little more; the result is valid once everything has been counted."""
        started = trio.current_time()
        counted = await self._run_blocking(count_some, self._store, count.place)
        count.took_s += trio.current_time() - started
        count.kept += counted.kept
        if counted.place is not None:
            count.place = counted.place
            return
        self._count = None
        self.kept_bytes = count.kept
        # As of the begin. What was flushed since is added to the sum, whether or not the count came
        # to those rows later: a sum that is too high costs a pass, one that is too low the disk.
        self._counted_at = self._kept_at = count.flushed
        pause_s = max(_COUNT_EVERY_S, _COUNT_PAUSES * count.took_s)
        self._next_count_at_s = trio.current_time() + pause_s

    async def _evict(self, current: _Pass) -> float:
        """Compare and evict a little more."""
        # No flush may be under way, and the state must not be replaced: what is deleted must be
        # what was compared.
        async with self._exclusive:
            step = await self._run_blocking(evict_some, self._store, current.place)
        if step.place is not None and step.evicted:
            self._freed.note(current.place, step.place, step.evicted)
        self.kept_bytes = max(0, self.kept_bytes - step.evicted)
        self.evicted_bytes += step.evicted
        self.differing += step.differing
        current.evicted += step.evicted
        current.straddling += step.straddling
        if step.place is not None:
            current.place = step.place
            return 0.0
        self._pass = None
        if not current.evicted:
            self._exhausted_at = current.flushed
            # What the pass met and left, and what was flushed after it began. The rest of the sum
            # was of streams that are removed, and would cause a pass in vain after each flush.
            self.kept_bytes = current.straddling + self._kept_at - current.flushed
        return _LOOK_EVERY_S


class _FreedSpace:
    """Gives the disk space of deleted rows back.

    Otherwise it stays taken until rows are written over its keys, which for old streams may be
    never. Compaction rewrites the live rows in between: at most as many bytes.
    """

    def __init__(self, store: StateStore, run_blocking: RunBlocking) -> None:
        self._store = store
        self._run_blocking = run_blocking
        # By letter: the keys between which rows were deleted, and about how many bytes.
        self._deleted: dict[bytes, tuple[bytes, bytes, int]] = {}
        # Whether files of the deleted rows may still exist.
        self._replaced_files = False

    def note(self, before: Place, after: Place, size: int) -> None:
        """Note that about `size` bytes were deleted between two places."""
        first, last, so_far = self._deleted.get(before.letter, (before.key, b"", 0))
        self._deleted[before.letter] = (
            min(first, before.key),
            max(last, after.key),
            so_far + size,
        )

    async def give_back(self) -> None:
        """Compact what was deleted, if it is much."""
        for letter, (first, last, size) in list(self._deleted.items()):
            if size >= COMPACT_BYTES and await self._run_blocking(
                _compact, self._store, first, last, size
            ):
                del self._deleted[letter]
                self._replaced_files = True
        # Refused while anyone reads; then the next round tries again.
        if self._replaced_files and await self._run_blocking(self._store.remove_unused):
            self._replaced_files = False


def _compact(store: StateStore, first: bytes, last: bytes, size: int) -> bool:
    # Not while most of the range is alive: compaction would rewrite it all for little space.
    return store.size_between(first, last) <= 2 * size and store.compact(first, last)
