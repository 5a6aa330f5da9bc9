"""Checkpoints of the state beside the archived log, so that a restore need not replay all of it;
and removal of what is older than the retention.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from random import Random

import structlog
import trio

from streamd.backup.archived_objects import ArchivedObjects, list_all
from streamd.backup.history import Guard, History
from streamd.config.settings import ColdConfig
from streamd.group.committed_log import EntriesGone
from streamd.group.group import Group
from streamd.group.proposals import Unavailable
from streamd.objectstore.catalog import Catalog, StoredManifest
from streamd.objectstore.checkpoints import CheckpointOf, CheckpointWriter
from streamd.objectstore.errors import ColdError, ColdUnavailable, ObjectCorrupt, ObjectMissing
from streamd.objectstore.names import PIECES, cluster_folder, group_folder
from streamd.objectstore.objects import MAX_PAGE
from streamd.process.threads import RunBlocking
from streamd.storage.raft_snapshots import SnapshotSource, SnapshotUnavailable
from streamd.streams.model import LogPosition
from streamd.tiering.async_store import AsyncObjectStore
from streamd.tiering.fence import Fence
from streamd.tiering.tier import LeaderTerm

log = structlog.get_logger("streamd.objectstore")

# The size of a piece's rows before compression.
_PIECE_BYTES = 16 * 1024 * 1024
_READ_BYTES = 1024 * 1024
# How often the leader checks whether a checkpoint is due.
ROUND_S = 5.0
_ARCHIVE_TIMEOUT_S = 60.0
# How often to look in the store for what can be restored, besides when that is known to change.
_LOOK_S = 900.0


class ArchiveTarget:
    """Where a node's group archives, and what archiving needs."""

    def __init__(
        self,
        cold: AsyncObjectStore,
        group: Group,
        cluster_id: Callable[[], str],
        run_blocking: RunBlocking,
        former_cluster_id: Callable[[], str] = lambda: "",
    ) -> None:
        """The cluster may get its id only when the node joins it."""
        self.cold = cold
        self.group = group
        self.cluster_id = cluster_id
        self.run_blocking = run_blocking
        self.group_id = group.group_id
        self.fence = Fence(cold, cluster_id, former_cluster_id, group.now_ms)
        self.history = History(cold, group, lambda: self.objects, run=run_blocking)
        self.guard = Guard(self.fence, self.history)
        self._former_cluster_id = former_cluster_id
        # A checkpoint waits until the log is archived up to this entry.
        self.wanted_index = 0
        # Held while objects are replaced by others with the same content, or removed for age.
        # Otherwise a segment merged meanwhile would bring back what was removed for age.
        self.removing = trio.Lock()

    def begins_archive(self, catalog: Catalog) -> bool:
        """Whether none of what the state counts as archived is here: a recovered cluster's archive
        begins where the former cluster's ended, in a folder of its own."""
        return bool(self._former_cluster_id()) and not catalog.last_index

    @property
    def folder(self) -> str:
        return cluster_folder(self.cluster_id())

    async def delete(self, names: Sequence[str]) -> None:
        """Delete objects of the cluster's folder, each request after a fresh check.

        Raises `ColdError`, `Unavailable`.
        """
        for start in range(0, len(names), MAX_PAGE):
            await self.guard.check(deleting=True)
            some = names[start : start + MAX_PAGE]
            await self.cold.delete_now([self.folder + name for name in some])

    @property
    def objects(self) -> ArchivedObjects:
        return ArchivedObjects(self.cold, self.cluster_id(), self.run_blocking, self.group_id)


class Checkpointer:
    """Runs on the leader. A new leader forgets what was known about the store and looks again."""

    def __init__(self, target: ArchiveTarget, config: ColdConfig, *, random: Random) -> None:
        self._target = target
        self._group = target.group
        self._random = random
        self._interval_ms = config.snapshot_interval_minutes * 60_000
        self._retention_ms = config.archive_retention_hours * 3_600_000
        self._times: dict[str, int] = {}
        # The newest checkpoint's position, 0 if there is none, None before a look; and since when,
        # on Trio's clock.
        self.newest: LogPosition | None = None
        self._newest_at = 0.0
        self._lead: LeaderTerm | None = None
        self._look_at = 0.0
        # Entries (first, last) missing between two restorable ranges; None before the first
        # listing.
        self.gaps: list[tuple[int, int]] | None = None
        # Checkpoints that proved damaged, by name; and whether one is due, because without it
        # newer states could not be restored, or only by replaying more of the log.
        self.damaged: dict[str, str] = {}
        self._is_hurt = False

    # -- making -------------------------------------------------------------------------------

    async def make_round(self, lead: LeaderTerm) -> float:
        """Make a checkpoint if one is due, and remove what is too old.

        Raises `ColdError`, `StorageError`, `Unavailable`.
        """
        if lead is not self._lead:
            self._lead, self.newest, self.gaps, self.damaged = lead, None, None, {}
        is_lost = self._target.history.has_lost_end
        if self.newest is None or trio.current_time() >= self._look_at or is_lost:
            self._note_newest(await self._look())
            # A deposed leader's last call may have restored some of the removed objects.
            if await self.remove_old():
                await self._look()
        archived = self._group.state.header.archived
        if self._is_due(archived):
            try:
                await self._make(archived)
            except EntriesGone as gone:
                raise Unavailable(str(gone)) from gone
            await self.remove_old()
            await self._look()
        return ROUND_S

    def _is_due(self, archived: LogPosition) -> bool:
        # In an idle cluster the newest checkpoint is still the current state.
        if self.newest is None or archived.index <= self.newest.index:
            return False
        if self._is_hurt:
            return True
        # Log time stands still after a clock that was ahead is corrected, for as long as it was.
        has_stood_ms = (trio.current_time() - self._newest_at) * 1000
        age_ms = self._group.now_ms() - self.newest.time_ms
        return max(age_ms, has_stood_ms) >= self._interval_ms

    def _note_newest(self, position: LogPosition) -> None:
        if self.newest is None or position.index != self.newest.index:
            self._newest_at = trio.current_time()
        self.newest = position

    async def begin_archive(self) -> LogPosition:
        """Make a checkpoint after which the archive can continue; returns its position.

        Raises `ColdError`, `StorageError`.
        """
        async with self._source() as source:
            meta = source.meta
            position = LogPosition(meta.index, meta.term, meta.chain, source.log_ms)
            await self._upload(source, position)
        # Everything before it is a separate range from now on.
        await self._look()
        return position

    async def _look(self) -> LogPosition:
        """Find out what can be restored; returns the position of the newest checkpoint."""
        archived = self._group.state.header.archived
        catalog = await self._target.objects.catalog()
        newest = await self._newest_whole(catalog)
        reach = max((found.last for found in catalog.ranges()), default=0)
        # A recovered cluster's archive begins where the former cluster's ended.
        is_short = reach < archived.index and not self._target.begins_archive(catalog)
        if is_short:
            log.error(
                "THE ARCHIVE HAS LOST ITS END, or [cold] names another place than before: a "
                "new checkpoint of the state follows, from which on all can be restored again",
                place=self._target.cold.place,
                archived=archived.index,
                found=reach,
            )
        self.gaps = catalog.gaps()
        if is_short and reach >= catalog.end_index:
            self.gaps.append((reach + 1, archived.index))
        is_newest_damaged = bool(catalog.manifests) and catalog.manifests[-1].name in self.damaged
        self._is_hurt = is_short or is_newest_damaged
        self._look_at = trio.current_time() + _LOOK_S
        return newest

    async def _newest_whole(self, catalog: Catalog) -> LogPosition:
        """The position of the newest checkpoint that can be read, judged by its manifest."""
        for stored in reversed(catalog.manifests):
            try:
                of = (await self._target.objects.manifest(stored)).of
            except (ObjectCorrupt, ObjectMissing) as error:
                self._note_damaged(stored, error)
                continue
            return of.position
        return LogPosition()

    def _note_damaged(self, stored: StoredManifest, error: ColdError) -> None:
        if stored.name not in self.damaged:
            log.error(
                "A CHECKPOINT IN THE COLD STORE IS DAMAGED; restores do without it",
                manifest=stored.name,
                error=str(error),
            )
        self.damaged[stored.name] = str(error)

    async def _make(self, archived: LogPosition) -> None:
        async with self._source() as source:
            position = await self._target.history.position_at(source.meta.index, archived)
            await self._upload(source, position, precedes_archive=False)

    @asynccontextmanager
    async def _source(self) -> AsyncIterator[SnapshotSource]:
        await self._group.storage.flush()
        try:
            source = await self._group.storage.open_snapshot(
                self._random.getrandbits(64), only_hot=True
            )
        except SnapshotUnavailable as gone:
            raise ColdUnavailable(str(gone)) from gone
        try:
            yield source
        finally:
            with trio.CancelScope(shield=True):
                await self._target.run_blocking(source.close)

    async def _upload(
        self, source: SnapshotSource, position: LogPosition, *, precedes_archive: bool = True
    ) -> None:
        """Put a checkpoint: its pieces, then the manifest that makes them one.

        Unless it `precedes_archive`, which will continue from it, this waits until the log is
        archived up to it, so that the restorable range has no gap.

        Raises `ColdError`, `Unavailable`.
        """
        meta = source.meta
        writer = CheckpointWriter(
            CheckpointOf(
                self._target.cluster_id(),
                self._target.group_id,
                position.index,
                position.term,
                position.chain,
                position.time_ms,
                meta.snapshot_id,
                meta.configuration,
            )
        )
        folder, put = self._target.folder, set()
        async for rows in self._rows(source):
            piece = await self._target.run_blocking(writer.piece, rows)
            await self._target.cold.put_verified(folder + piece.name, piece.content)
            put.add(folder + piece.name)
        if not precedes_archive:
            await self._archived_through(position.index)
        await self._target.fence.check(fresh=True)
        await self._check_all_there(meta.index, put)
        manifest = writer.manifest()
        await self._target.cold.put_verified(folder + manifest.name, manifest.content)
        self._note_newest(position)
        log.info(
            "a checkpoint of the state is in the cold store", index=meta.index, pieces=len(put)
        )

    async def _archived_through(self, index: int) -> None:
        self._target.wanted_index = index
        state = self._group.state
        if not await self._group.view.wait_for(
            lambda: state.header.archived.index >= index, _ARCHIVE_TIMEOUT_S
        ):
            raise Unavailable(f"the log is not archived up to entry {index}")

    async def _rows(self, source: SnapshotSource) -> AsyncIterator[bytes]:
        """The state's rows, a piece at a time."""
        number, gathered, size = 0, list[bytes](), 0
        while True:
            try:
                piece = await self._target.run_blocking(source.piece, number)
            except SnapshotUnavailable as gone:
                raise ColdUnavailable(str(gone)) from gone
            gathered.append(piece.rows)
            size += len(piece.rows)
            if piece.is_last or size >= _PIECE_BYTES:
                yield b"".join(gathered)
                gathered, size = [], 0
            if piece.is_last:
                return
            number += 1

    async def _check_all_there(self, index: int, names: set[str]) -> None:
        """Check the pieces: a leader deposed long ago must not complete what its successor
        removed."""
        prefix = f"{self._target.folder}{group_folder(PIECES, self._target.group_id)}{index:016x}-"
        found = {info.name for info in await list_all(self._target.cold, prefix)}
        if names - found:
            raise ColdUnavailable("pieces of the checkpoint were removed meanwhile")

    # -- removing -----------------------------------------------------------------------------

    async def remove_old(self) -> bool:
        """Remove everything before the oldest restore point that is kept; returns whether there was
        anything. Raises `ColdError`.

        That point is the newest checkpoint that is as old as the retention: from it on everything
        can be restored. At each moment of the removal every remaining object has what it needs.
        """
        async with self._target.removing:
            return await self._remove_old()

    async def _remove_old(self) -> bool:
        catalog = await self._target.objects.catalog()
        kept = await self._oldest_kept(catalog)
        if kept is None:
            return False
        first = kept.parsed.log_index
        manifests = [one.name for one in catalog.manifests if one.parsed.log_index < first]
        pieces = [one.name for one in catalog.pieces if one.parsed.log_index < first]
        segments = [one.name for one in catalog.segments if one.parsed.last_index <= first]
        for names in (manifests, pieces, segments):
            if names:
                await self._target.delete(names)
        if manifests:
            log.info(
                "old restore points were removed",
                snapshots=len(manifests),
                segments=len(segments),
                oldest_index=first,
            )
        return bool(manifests or pieces or segments)

    async def _oldest_kept(self, catalog: Catalog) -> StoredManifest | None:
        """The newest checkpoint that is not younger than the retention; None if all are younger.

        Its age counts by the log's time, and by the store's own clock relative to the last write: a
        leader whose clock is far ahead must not remove all but the newest objects.
        """
        until_ms = self._group.now_ms() - self._retention_ms
        stored_until_ms = catalog.newest_ms - self._retention_ms
        there = {stored.name for stored in catalog.manifests}
        self.damaged = {name: why for name, why in self.damaged.items() if name in there}
        for stored in reversed(catalog.manifests):
            if stored.modified_ms > stored_until_ms:
                continue
            try:
                if await self._time_of(stored) <= until_ms:
                    return stored
            except (ObjectCorrupt, ObjectMissing) as error:
                # It can be no restore point; an older one is kept instead.
                self._note_damaged(stored, error)
        return None

    async def _time_of(self, stored: StoredManifest) -> int:
        if stored.name not in self._times:
            self._times[stored.name] = (await self._target.objects.manifest(stored)).of.time_ms
        return self._times[stored.name]


async def oldest_base(
    cold: AsyncObjectStore, cluster_id: str, run_blocking: RunBlocking
) -> int | None:
    """The entry of the oldest state with which a restore may begin, 0 for the empty one; None if
    nothing can be restored. Packs that died after it are still needed. Raises `ColdError`."""
    bases = (await ArchivedObjects(cold, cluster_id, run_blocking).catalog()).bases()
    return bases[0] if bases else None
