"""A cluster restored from the cold store alone, to any entry or time that is archived.

1. The plan is made and written down: which cluster, from which checkpoint, how far. No node
   serves a data directory with a plan. The plan changes if the checkpoint proves damaged.
2. The checkpoint's rows become the state; the log after it is replayed, proved by its chain.
3. All packs that the state refers to are read and compared with their digests.
4. A fence in the old cluster's folder stops its nodes from changing what the new cluster needs. A
   restore that fails after this removes the fence.
5. The log begins after the last entry replayed, with this node as the only voter of a new
   cluster. The plan is removed.

The same request, repeated after a crash, repeats or continues the interrupted step.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Protocol

import msgspec
import trio
from msgspec.structs import replace

from streamd.backup.archived_objects import ArchivedObjects, for_each
from streamd.backup.base import (
    Base,
    Choice,
    RestoreRefused,
    check_time,
    choose_base,
    note_damage,
)
from streamd.backup.clusters import choose_cluster
from streamd.backup.replay import Replay, Wanted, become_another
from streamd.backup.takeover import SETTLE_S, fence_off, missing_packs
from streamd.config.settings import Config
from streamd.objectstore.catalog import Catalog
from streamd.objectstore.checkpoints import Manifest
from streamd.objectstore.errors import ColdError, ObjectCorrupt, ObjectMissing
from streamd.objectstore.names import PackName, cluster_folder, cluster_of, expect_digest
from streamd.objectstore.segments import PositionFields, named_fields
from streamd.process.cures import with_cure
from streamd.process.threads import RunBlocking
from streamd.raft.membership import encode_configuration
from streamd.raft.messages import Configuration, Entry, EntryKind, HardState
from streamd.storage.data_dir import DataDir
from streamd.storage.errors import StorageFailed
from streamd.storage.files import is_there, read_checked, remove_durably, write_checked
from streamd.storage.incoming import SnapshotDamaged, SnapshotSink
from streamd.storage.install import recover_install
from streamd.storage.log_storage import open_log, reset_log
from streamd.storage.raft_snapshots import SnapshotMeta, SnapshotPiece, piece_crc
from streamd.storage.state_store import StateStore
from streamd.streams.cold.packs import living_packs
from streamd.streams.model import LogPosition, Pack
from streamd.streams.state import State
from streamd.tiering.async_store import AsyncObjectStore
from streamd.tiering.fence import FenceNote, remove_fence

_DONE = "restored"
# The files that can exist before the plan: a first attempt may have been interrupted.
_OURS = {"LOCK", "identity.json", "identity.json.new", "restore.new"}


class Plan(msgspec.Struct, frozen=True):
    """What a data directory is being restored from. `reached` is set once the state is complete.

    `given_up` holds the damaged checkpoints, and what is wrong with each.
    """

    place: str
    choice: Choice
    former_cluster_id: str
    base_index: int
    manifest: str
    until_index: int
    reached: PositionFields | None = None
    given_up: dict[str, str] = {}


class Restored(msgspec.Struct, frozen=True):
    """The result. `time_ms` is the log's time as of its last entry.

    `given_up` holds newer checkpoints that were damaged, and what is wrong with each. `streams` is
    the number of streams. `is_end_proved` says whether the archive names its end; one that only
    builds before 0.1.0 wrote does not.
    """

    cluster_id: str
    former_cluster_id: str
    last_index: int
    last_term: int
    time_ms: int
    base_index: int
    packs: int
    given_up: dict[str, str] = {}
    streams: int | None = None
    is_end_proved: bool | None = None


class _Done(msgspec.Struct, frozen=True):
    """Kept in the directory: the same request, repeated, gets the same answer."""

    place: str
    choice: Choice
    restored: Restored


class Progress(Protocol):
    """Shows the progress of a restore or a verification."""

    def stage(self, name: str, total: int) -> None:
        """Begin a stage with `total` units to do."""

    def advance(self, amount: int) -> None: ...


async def restore(
    cold: AsyncObjectStore,
    config: Config,
    choice: Choice,
    *,
    run_blocking: RunBlocking,
    clock_ms: Callable[[], int],
    progress: Progress,
    fencing: bool = True,
    settle_s: float = SETTLE_S,
) -> Restored:
    """Restore into `config.server.data_dir`, or continue there.

    With `fencing` the old cluster is fenced off once the new one is proved.

    Raises `RestoreRefused`, `ColdError`, `StorageError`.
    """
    path = Path(config.server.data_dir)
    earlier = await run_blocking(_check_usable, path)
    if earlier is not None and (earlier.place, earlier.choice) == (cold.place, choice):
        restored = earlier.restored
        # The first run may have been a drill, without a fence; its repetition takes over.
        if fencing:
            note = FenceNote(restored.cluster_id, clock_ms())
            await fence_off(cold, restored.former_cluster_id, note, settle_s=settle_s)
        return restored
    if earlier is not None:
        raise RestoreRefused(f"{path} holds another restore, which is finished")
    data_dir = await run_blocking(_open, path, config)
    try:
        plan = await _plan(cold, data_dir, choice, run_blocking, clock_ms)
        source = ArchivedObjects(cold, plan.former_cluster_id, run_blocking)
        work = _Restoration(source, data_dir, plan, run_blocking, progress)
        reached = LogPosition(**plan.reached) if plan.reached else await work.bring_state()
        plan = work.plan
        # Also when a repetition begins after the state: while the first run was away, the old
        # cluster was not fenced off yet, and its garbage collection went on.
        packs, streams = await work.verify_packs(cold)
        restored = Restored(
            data_dir.identity.cluster_id,
            plan.former_cluster_id,
            reached.index,
            reached.term,
            reached.time_ms,
            plan.base_index,
            len(packs),
            plan.given_up,
            streams,
            work.has_end,
        )
        done = _Done(cold.place, choice, restored)
        async with AsyncExitStack() as undoing:
            if fencing:
                undoing.push_async_exit(
                    partial(_unless_done, cold, plan.former_cluster_id, data_dir)
                )
                note = FenceNote(restored.cluster_id, clock_ms())
                await fence_off(cold, plan.former_cluster_id, note, settle_s=settle_s)
                # Again, after the fence: a pack that was verified first may have been deleted while
                # the last ones were read. From here on nothing deletes.
                await _expect_all(cold, packs)
            await run_blocking(_found_cluster, data_dir, config, reached, done)
        return restored
    finally:
        data_dir.close()


def _check_usable(path: Path) -> _Done | None:
    """Check that the directory is new, or has a restore under way; returns the result of one that
    is finished. Raises `RestoreRefused`, `StorageError`."""
    # The plan goes last. Where both it and the result are there, a crash came between, and the last
    # step is repeated.
    if not is_there(path) or is_there(path / "restore"):
        return None
    if path.is_dir() and (done := read_checked(path / _DONE, _Done)) is not None:
        return done
    if not path.is_dir() or {file.name for file in path.iterdir()} - _OURS:
        raise RestoreRefused(f"{path} is not empty: name a directory that is not there yet")
    return None


def _open(path: Path, config: Config) -> DataDir:
    return DataDir.open(path, config.server.node_id, cluster_name=config.cluster.name or "")


# -- the plan -----------------------------------------------------------------------------------


async def _plan(
    cold: AsyncObjectStore,
    data_dir: DataDir,
    choice: Choice,
    run_blocking: RunBlocking,
    clock_ms: Callable[[], int],
) -> Plan:
    """The existing plan, or a new one, which is written down."""
    known = await run_blocking(read_checked, data_dir.restoring, Plan)
    if known is not None:
        if (known.place, known.choice) != (cold.place, choice):
            raise RestoreRefused(
                f"{data_dir.path} holds an unfinished restore of cluster "
                f"{known.former_cluster_id} from {known.place}: ask for the same again, or name "
                "another directory"
            )
        return known
    cluster_id = await choose_cluster(cold, choice)
    source = ArchivedObjects(cold, cluster_id, run_blocking)
    catalog = await source.catalog()
    if choice.at_ms is not None:
        await check_time(source, catalog, choice.at_ms, clock_ms())
    base = await choose_base(source, catalog, choice, {})
    # Written down before any row: the cluster archives on, and a repetition that chose for itself
    # might take a newer checkpoint for the rest of an older one.
    plan = _begin_with(base, Plan(cold.place, choice, cluster_id, 0, "", 0))
    await run_blocking(write_checked, data_dir.restoring, plan)
    return plan


def _begin_with(base: Base, plan: Plan) -> Plan:
    return replace(
        plan,
        base_index=base.index,
        manifest="" if base.manifest is None else base.manifest.name,
        until_index=base.until_index,
        given_up=dict(base.given_up),
    )


# -- the work -----------------------------------------------------------------------------------


class _Restoration:
    def __init__(
        self,
        source: ArchivedObjects,
        data_dir: DataDir,
        plan: Plan,
        run_blocking: RunBlocking,
        progress: Progress,
    ) -> None:
        self._source = source
        self._data_dir = data_dir
        self.plan = plan
        self._run_blocking = run_blocking
        self._progress = progress
        self.has_end: bool | None = None

    async def bring_state(self) -> LogPosition:
        """Bring the state to where the plan ends; returns that position."""
        catalog = await self._source.catalog()
        self.has_end = bool(catalog.ends)
        begin = await self._bring_base(catalog)
        store = await self._run_blocking(StateStore, self._data_dir.state)
        try:
            reached = await self._replay(store, catalog, begin)
        finally:
            with trio.CancelScope(shield=True):
                await self._run_blocking(store.close)
        done = replace(self.plan, reached=named_fields(reached))
        await self._run_blocking(write_checked, self._data_dir.restoring, done)
        return reached

    async def _bring_base(self, catalog: Catalog) -> LogPosition:
        """Bring a base state, the planned one or an older one; returns its position."""
        while self.plan.manifest:
            try:
                return await self._bring_checkpoint(catalog)
            except (ObjectCorrupt, ObjectMissing, SnapshotDamaged) as damage:
                await self._begin_with_another(catalog, damage)
        return LogPosition()

    async def _begin_with_another(self, catalog: Catalog, damage: Exception) -> None:
        """Plan without a damaged checkpoint. Raises `RestoreRefused` if no other suits; the next
        attempt tries all of them again, because they may have been repaired."""
        # The rows first, then the new plan: rows of the damaged checkpoint would pass for those of
        # the next one after a crash in between.
        await self._run_blocking(_forget_base, self._data_dir)
        given_up = note_damage(self.plan.given_up, self.plan.manifest, damage)
        try:
            base = await choose_base(self._source, catalog, self.plan.choice, given_up)
        except RestoreRefused:
            fresh = replace(self.plan, given_up={})
            await self._run_blocking(write_checked, self._data_dir.restoring, fresh)
            raise
        self.plan = _begin_with(base, self.plan)
        await self._run_blocking(write_checked, self._data_dir.restoring, self.plan)

    async def _bring_checkpoint(self, catalog: Catalog) -> LogPosition:
        """Make the checkpoint's rows the state, unless they already are."""
        stored = next((one for one in catalog.manifests if one.name == self.plan.manifest), None)
        if stored is None:
            raise ObjectMissing(f"{self.plan.manifest} is gone")
        manifest = await self._source.manifest(stored)
        of = manifest.of
        meta = SnapshotMeta(of.index, of.term, of.chain, of.configuration, of.snapshot_id)
        await self._run_blocking(recover_install, self._data_dir)
        if not is_there(self._data_dir.state):
            await self._receive(manifest, meta)
            # A crash before the marker makes the next attempt receive what is missing, one after it
            # makes it install: half a checkpoint never becomes the state.
            await self._run_blocking(write_checked, self._data_dir.install_marker, meta)
            await self._run_blocking(recover_install, self._data_dir)
        return of.position

    async def _receive(self, manifest: Manifest, meta: SnapshotMeta) -> None:
        sink = SnapshotSink(self._data_dir.incoming)
        try:
            await self._fill(sink, manifest, meta)
            await self._run_blocking(sink.finish)
        finally:
            with trio.CancelScope(shield=True):
                await self._run_blocking(sink.close)

    async def _fill(self, sink: SnapshotSink, manifest: Manifest, meta: SnapshotMeta) -> None:
        """Add all pieces that are still missing."""
        sizes = [piece.rows_size for piece in manifest.pieces]
        self._progress.stage("snapshot", sum(sizes))
        wanted = await self._run_blocking(sink.begin, meta)
        self._progress.advance(sum(sizes[:wanted]))
        while not sink.is_complete:
            rows = await self._source.rows(manifest, wanted)
            is_last = wanted == len(sizes) - 1
            crc = piece_crc(meta, wanted, rows, is_last)
            wanted = await self._run_blocking(sink.take, SnapshotPiece(wanted, crc, rows, is_last))
            self._progress.advance(len(rows))

    async def _replay(self, store: StateStore, catalog: Catalog, begin: LogPosition) -> LogPosition:
        plan = self.plan
        wanted = Wanted(plan.until_index, plan.choice.at_ms)
        replay = await self._run_blocking(Replay, store, wanted, begin)
        self._progress.stage("entries", plan.until_index - begin.index)
        self._progress.advance(replay.position.index - begin.index)
        while not replay.ended:
            try:
                await self._replay_along(replay, catalog)
                break
            except ObjectMissing:
                # A running cluster merges segments: the same entries are in others then.
                before, catalog = catalog, await self._source.catalog()
                # Tried again only if the catalog has changed, and still leads to the end: a segment
                # that the catalog lists and the store lacks would be asked for without end.
                is_gone = not before.names() <= catalog.names()
                if not is_gone or catalog.reach(replay.position.index) < plan.until_index:
                    raise
        _expect_end(catalog, replay.position)
        if replay.position.index < plan.until_index and not replay.ended:
            raise RestoreRefused(
                f"the archive ends at entry {replay.position.index}, before {plan.until_index}"
            )
        return replay.position

    async def _replay_along(self, replay: Replay, catalog: Catalog) -> None:
        """Replay the segments that continue. Raises `ObjectMissing` if one of them is gone."""
        path = catalog.path(replay.position.index, self.plan.until_index)
        async for segment in self._source.segments(path):
            before = replay.position.index
            await self._run_blocking(replay.apply, segment)
            self._progress.advance(replay.position.index - before)
            if replay.ended:
                return

    async def verify_packs(self, cold: AsyncObjectStore) -> tuple[list[Pack], int]:
        """Read every pack that the state refers to, and compare it; returns the packs, and the
        number of streams. Raises `ObjectCorrupt`, `ObjectMissing`.
        """
        packs, streams = await self._run_blocking(_look_into, self._data_dir)
        self._progress.stage("packs", len(packs))

        async def check(pack: Pack) -> None:
            await check_pack(cold, pack.name)
            self._progress.advance(1)

        await for_each(packs, check)
        return packs, streams


def _expect_end(catalog: Catalog, position: LogPosition) -> None:
    """Raises `ObjectCorrupt` if the archive's end is another entry than the one replayed."""
    for end in catalog.ends:
        if end.parsed.log_index == position.index and (end.parsed.term, end.parsed.chain) != (
            position.term,
            position.chain,
        ):
            raise ObjectCorrupt(f"entry {position.index} does not match {end.name}")


async def _unless_done(
    cold: AsyncObjectStore,
    former_cluster_id: str,
    data_dir: DataDir,
    kind: type[BaseException] | None,
    error: BaseException | None,
    traceback: TracebackType | None,
) -> None:
    """Remove the fence if the restore fails after setting it: nothing needs it then."""
    if error is None:
        return
    with trio.CancelScope(shield=True), suppress(ColdError):
        await remove_fence(cold, former_cluster_id, data_dir.identity.cluster_id)


async def _expect_all(cold: AsyncObjectStore, packs: list[Pack]) -> None:
    """Check the packs again: the old cluster may have continued. Raises `ObjectMissing`."""
    missing = await missing_packs(cold, (pack.name for pack in packs))
    if missing:
        raise ObjectMissing(f"the old cluster has deleted {missing[0]} meanwhile: stop its nodes")


async def check_pack(cold: AsyncObjectStore, name: str) -> int:
    """Read a whole pack; returns its size. Raises `ObjectCorrupt` if it is not the one that was put
    under that name, `ObjectMissing`, `ColdError`."""
    cluster_id = cluster_of(name)
    if cluster_id is None or not PackName.parse(name.removeprefix(cluster_folder(cluster_id))):
        raise ObjectCorrupt(f"{name!r} is referred to, but is not the name of a pack")
    digest, size = await cold.digest(name)
    expect_digest(name, digest)
    return size


def _forget_base(data_dir: DataDir) -> None:
    """Remove the rows of any checkpoint. Raises `StorageFailed`."""
    try:
        data_dir.install_marker.unlink(missing_ok=True)
        for directory in (data_dir.incoming, data_dir.state):
            if is_there(directory):
                shutil.rmtree(directory)
    except OSError as error:
        raise StorageFailed(f"{data_dir.path} cannot be cleared: {with_cure(error)}") from error


def _look_into(data_dir: DataDir) -> tuple[list[Pack], int]:
    """The packs that a state's slices are in, and the number of its streams."""
    store = StateStore(data_dir.state)
    try:
        return list(living_packs(store)), State(store).header.streams
    finally:
        store.close()


def _found_cluster(data_dir: DataDir, config: Config, position: LogPosition, done: _Done) -> None:
    """Begin the log after the state, with this node alone; then the directory is complete."""
    store = StateStore(data_dir.state)
    # All of this can be repeated: until the plan is removed, no node opens the directory.
    try:
        become_another(store, data_dir.identity.cluster_id)
    finally:
        store.close()
    reset_log(
        data_dir.log,
        data_dir.floor,
        index=position.index,
        term=position.term,
        chain=position.chain,
    )
    server = config.server
    advertised = server.advertise or server.listen
    alone = Configuration(
        voters=(server.node_id,),
        addresses=((server.node_id, config.cluster.address, advertised),),
    )
    term = position.term + 1
    entry = Entry(position.index + 1, term, EntryKind.CONFIGURATION, encode_configuration(alone))
    log = open_log(data_dir.log, data_dir.floor)
    try:
        log.append([entry], HardState(term))
    finally:
        log.close()
    try:
        write_checked(data_dir.path / _DONE, done)
        remove_durably(data_dir.restoring)
    except OSError as error:
        raise StorageFailed(f"{data_dir.path} cannot be written: {with_cure(error)}") from error
