"""Tells what can be restored from a cold store, from the store alone; and whether it is whole."""

from __future__ import annotations

from contextlib import suppress

import msgspec
import structlog

from streamd.backup.archived_objects import ArchivedObjects, list_all
from streamd.backup.base import RestoreRefused, first_command_ms
from streamd.backup.restore import Progress, check_pack
from streamd.objectstore.catalog import Catalog, StoredManifest, StoredSegment
from streamd.objectstore.errors import ObjectCorrupt, ObjectMissing, StoreFaulty
from streamd.objectstore.names import FENCE
from streamd.objectstore.segments import (
    SegmentHead,
    cluster_of_segment,
    read_entries,
    read_segment_head,
)
from streamd.process.threads import RunBlocking
from streamd.raft.messages import Entry, EntryKind
from streamd.storage.raft_snapshots import whole_rows
from streamd.streams import keys
from streamd.streams.codec import decode_batch
from streamd.streams.commands import FlushCold, MoveSlices
from streamd.streams.content import UNDECODABLE
from streamd.streams.model import Header, LogPosition, Pack
from streamd.tiering.async_store import AsyncObjectStore

log = structlog.get_logger("streamd.objectstore")

_MAX_ATTEMPTS = 3
# Problems that are noted before continuing. A store that fails at an object, when no other object
# proves that it works, may be in trouble itself; but it did answer.
_DAMAGE = (ObjectCorrupt, ObjectMissing, StoreFaulty)

_HEADER = msgspec.msgpack.Decoder(Header)
# An entry that makes a pack known contains this, so other entries need not be decoded.
_PACK_TAGS = (b"flush-cold", b"move-slices")
_PACK = msgspec.msgpack.Decoder(Pack)


class RestorePoint(msgspec.Struct, frozen=True):
    """A checkpoint: its entry and log time (milliseconds since the epoch), and the bytes of its
    pieces."""

    index: int
    time_ms: int
    pieces: int
    size: int


class ArchivedRange(msgspec.Struct, frozen=True):
    """Every state from the one as of entry `first_index` to the one as of `last_index`; the log
    times of the two, None if the object with it is damaged. State 0 is the empty one, and has the
    time of the first command."""

    first_index: int
    first_time_ms: int | None
    last_index: int
    last_time_ms: int | None


class Gap(msgspec.Struct, frozen=True):
    """Entries that are missing between two ranges."""

    first_index: int
    last_index: int


class ClusterStatus(msgspec.Struct, frozen=True):
    """What the store has of one cluster. `damaged` describes objects that cannot be read, and what
    is wrong. `end_index` is the entry that the archive must reach, if the archive says so."""

    cluster_id: str
    restore_points: list[RestorePoint]
    ranges: list[ArchivedRange]
    gaps: list[Gap]
    segments: int
    segment_bytes: int
    fenced_by: list[str]
    damaged: list[str] = []
    end_index: int | None = None


class Verified(msgspec.Struct):
    """What was read of one cluster, and what is wrong with it, a sentence each.

    `has_end` says whether the archive names its end, so that a loss of its last objects shows.
    """

    cluster_id: str
    segments: int = 0
    entries: int = 0
    snapshots: int = 0
    packs: int = 0
    size: int = 0
    problems: list[str] = msgspec.field(default_factory=list)
    has_end: bool = False


async def look(cold: AsyncObjectStore, cluster_id: str, run_blocking: RunBlocking) -> ClusterStatus:
    """The status of one cluster, which may merge and remove objects meanwhile.

    Raises `ColdError`.
    """
    source = ArchivedObjects(cold, cluster_id, run_blocking)
    for _ in range(_MAX_ATTEMPTS - 1):
        with suppress(ObjectMissing):
            return await _look(cold, source)
    return await _look(cold, source)


async def _look(cold: AsyncObjectStore, source: ArchivedObjects) -> ClusterStatus:
    catalog = await source.catalog()
    damaged: list[str] = []
    points: list[RestorePoint] = []
    for stored in catalog.manifests:
        try:
            manifest = await source.manifest(stored)
        except (ObjectCorrupt, StoreFaulty) as error:
            damaged.append(f"{stored.name}: {error}")
            continue
        size = sum(piece.size for piece in manifest.pieces)
        points.append(
            RestorePoint(stored.parsed.log_index, manifest.of.time_ms, len(manifest.pieces), size)
        )
    ranges = await _ranges(source, catalog, points, damaged)
    fences = await list_all(cold, source.folder + FENCE)
    return ClusterStatus(
        source.cluster_id,
        points,
        ranges,
        [Gap(first, last) for first, last in catalog.gaps()],
        len(catalog.segments),
        sum(segment.size for segment in catalog.segments),
        [fence.name.removeprefix(source.folder + FENCE) for fence in fences],
        damaged,
        catalog.end_index or None,
    )


async def _ranges(
    source: ArchivedObjects, catalog: Catalog, points: list[RestorePoint], damaged: list[str]
) -> list[ArchivedRange]:
    times = {point.index: point.time_ms for point in points}
    found: list[ArchivedRange] = []
    for first, last in catalog.ranges():
        path = catalog.path(first)
        first_ms = times.get(first)
        if first_ms is None and not first:
            with suppress(*_DAMAGE, RestoreRefused):
                first_ms = await first_command_ms(source, catalog)
        last_ms = first_ms
        if path:
            head = await _head(source, path[-1], damaged)
            last_ms = None if head is None else head.last.time_ms
        found.append(ArchivedRange(first, first_ms, last, last_ms))
    return found


async def _head(
    source: ArchivedObjects, stored: StoredSegment, damaged: list[str]
) -> SegmentHead | None:
    try:
        return await source.head(stored)
    except (ObjectCorrupt, StoreFaulty) as error:
        damaged.append(f"{stored.name}: {error}")
        return None


async def verify(
    cold: AsyncObjectStore, cluster_id: str, run_blocking: RunBlocking, progress: Progress
) -> Verified:
    """Read everything that a restore of the cluster could need, and prove it.

    A running cluster removes what is too old and merges segments. What it removes meanwhile is not
    damage; everything is then read again. Raises `ColdUnavailable`, and `ColdRefused`; damaged or
    missing objects are noted.
    """
    for _ in range(_MAX_ATTEMPTS):
        verification = _Verification(cold, cluster_id, run_blocking, progress)
        found = await verification.run()
        if not found.problems or not await verification.has_lost_objects():
            break
        log.info("the cluster removed objects meanwhile; verifying again", cluster=cluster_id)
    return found


class _Verification:
    def __init__(
        self, cold: AsyncObjectStore, cluster_id: str, run_blocking: RunBlocking, progress: Progress
    ) -> None:
        self._cold = cold
        self._source = ArchivedObjects(cold, cluster_id, run_blocking)
        self._run_blocking = run_blocking
        self._progress = progress
        self._found = Verified(cluster_id)
        # Positions that more than one object mentions, and the first object that did.
        self._positions: dict[int, tuple[int, int, str]] = {}
        self._packs: set[str] = set()
        self._oldest_base = 0
        self._names: set[str] = set()
        # Whether any object is from a version that points at the archive's end.
        self._names_cluster = False

    async def has_lost_objects(self) -> bool:
        """Whether any object that existed at the beginning no longer does."""
        return not self._names <= (await self._source.catalog()).names()

    async def run(self) -> Verified:
        """Read everything once."""
        catalog = await self._source.catalog()
        self._names = catalog.names()
        found = self._found
        self._oldest_base = min(catalog.bases(), default=0)
        self._progress.stage("segments", sum(segment.size for segment in catalog.segments))
        shared = {one.parsed.log_index for one in catalog.manifests}
        shared |= {segment.parsed.first_index - 1 for segment in catalog.segments}
        shared |= {segment.parsed.last_index for segment in catalog.segments}
        shared |= {end.parsed.log_index for end in catalog.ends}
        for segment in catalog.segments:
            await self._segment(segment, shared)
            found.segments += 1
            found.size += segment.size
            self._progress.advance(segment.size)
        await self._ends(catalog)
        present = {piece.name for piece in catalog.pieces}
        self._progress.stage("snapshots", len(catalog.manifests))
        for manifest in catalog.manifests:
            await self._checkpoint(manifest, present)
            found.snapshots += 1
            self._progress.advance(1)
        self._progress.stage("packs", len(self._packs))
        for name in sorted(self._packs):
            await self._pack(name)
            self._progress.advance(1)
        for first, last in catalog.gaps():
            self._problem(f"entries {first} to {last} are missing")
        if not catalog.bases():
            self._problem("the archive has no restore point")
        return found

    def _problem(self, text: str) -> None:
        self._found.problems.append(text)

    async def _segment(self, stored: StoredSegment, shared: set[int]) -> None:
        try:
            content = await self._source.segment(stored)
            positions, packs = await self._run_blocking(
                _read_segment, content, shared, self._oldest_base
            )
            self._names_cluster |= cluster_of_segment(content) is not None
        except _DAMAGE as error:
            self._problem(f"{stored.name}: {error}")
            return
        self._packs |= packs
        self._found.entries += positions[-1].index - positions[0].index
        for position in positions:
            self._expect(position, stored.name)

    def _expect(self, position: LogPosition, name: str) -> None:
        """All objects that mention an entry must mean the same one."""
        if not position.index:
            return
        said = self._positions.setdefault(position.index, (position.term, position.chain, name))
        if said[:2] != (position.term, position.chain):
            self._problem(f"entry {position.index} in {name} does not match {said[2]}")

    async def _ends(self, catalog: Catalog) -> None:
        """What the archive says about its end."""
        self._found.has_end = bool(catalog.ends)
        if self._names_cluster and not catalog.ends:
            self._problem(
                "the pointer to the archive's end is missing: its last segments may be missing"
            )
        for stored in catalog.ends:
            try:
                self._expect((await self._source.end(stored)).position, stored.name)
            except ObjectMissing:
                continue  # a running cluster has removed an old one
            except _DAMAGE as error:
                self._problem(f"{stored.name}: {error}")

    async def _checkpoint(self, stored: StoredManifest, present: set[str]) -> None:
        try:
            manifest = await self._source.manifest(stored)
            of = manifest.of
            self._expect(of.position, stored.name)
            rows = _Rows()
            for number, piece in enumerate(manifest.pieces):
                if manifest.piece_name(number) not in present:
                    raise ObjectMissing(f"{manifest.piece_name(number)} is missing")
                await self._run_blocking(rows.add, await self._source.rows(manifest, number))
                self._found.size += piece.size
            rows.end(of.index)
            self._packs |= rows.packs
        except _DAMAGE as error:
            self._problem(f"{stored.name}: {error}")

    async def _pack(self, name: str) -> None:
        try:
            self._found.size += await check_pack(self._cold, name)
            self._found.packs += 1
        except _DAMAGE as error:
            self._problem(str(error))


def _read_segment(
    content: bytes, shared: set[int], oldest_base: int
) -> tuple[list[LogPosition], set[str]]:
    """The positions of a segment that other objects mention too, including its first and last; and
    the packs that entries after the oldest base add to a state."""
    positions, packs = [read_segment_head(content).previous], set[str]()
    for entry, position in read_entries(content):
        if position.index in shared:
            positions.append(position)
        if position.index > oldest_base:
            packs |= _packs_taken_by(entry)
    return positions, packs


def _packs_taken_by(entry: Entry) -> set[str]:
    """The packs that an entry makes known to the state.

    None of these is deleted while the state as of the entry can be restored, not even a pack
    without live slices. The state never took the packs of a deposed leader: their term is stale.
    """
    if entry.kind != EntryKind.COMMANDS or not any(tag in entry.payload for tag in _PACK_TAGS):
        return set()
    try:
        commands = decode_batch(entry.payload).commands
    except UNDECODABLE as error:
        raise ObjectCorrupt(f"entry {entry.index} has an unknown command") from error
    return {
        command.name
        for command in commands
        if isinstance(command, FlushCold | MoveSlices) and command.term == entry.term
    }


class _Rows:
    """Checks a checkpoint's rows as they pass."""

    def __init__(self) -> None:
        self._begun = b""
        self._applied_index: int | None = None
        self.packs: set[str] = set()

    def add(self, data: bytes) -> None:
        """Check some more. Raises `ObjectCorrupt` for rows that no state has."""
        try:
            self._add(data)
        except UNDECODABLE as error:
            raise ObjectCorrupt(f"a row cannot be decoded: {error}") from error

    def _add(self, data: bytes) -> None:
        data = self._begun + data
        used = 0
        for key, value, end in whole_rows(data):
            used = end
            if key == keys.HEADER:
                self._applied_index = _HEADER.decode(value).applied_index
            elif key[:1] == keys.PACK and (pack := _PACK.decode(value)).live:
                self.packs.add(pack.name)
        self._begun = data[used:]

    def end(self, index: int) -> None:
        """Raises `ObjectCorrupt` unless the rows were complete, and of the state as of `index`."""
        if self._begun or self._applied_index != index:
            raise ObjectCorrupt(f"the rows are not those of the state as of entry {index}")
