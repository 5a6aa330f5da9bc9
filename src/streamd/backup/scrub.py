"""A slow reading of everything in the cold store: archived bytes are otherwise not read until
needed.

The leader checks every few minutes whether the objects that the state and the archive need exist.
In each interval it reads all of them once, paced, and compares them with the digests in their
names. Its findings and its progress are in the state: an alarm outlasts a restart and a change of
leader, and reading continues where it was. It changes nothing in the store.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby

import msgspec
import structlog
import trio
from msgspec.structs import replace

from streamd.backup.archived_objects import list_all
from streamd.backup.checkpoints import ArchiveTarget
from streamd.config.settings import ColdConfig
from streamd.group.proposals import Unavailable
from streamd.objectstore.catalog import Catalog
from streamd.objectstore.errors import ObjectCorrupt, ObjectMissing
from streamd.objectstore.names import CHECKPOINTS, LOG, PIECES, expect_digest, group_folder
from streamd.objectstore.objects import ObjectInfo
from streamd.storage.state_store import StateStore
from streamd.streams import keys
from streamd.streams.cold.packs import Place, StoredPack, living_page
from streamd.streams.cold.scrubs import MAX_NAMED, Scrub
from streamd.streams.commands import Scrubbed
from streamd.streams.model import Pack
from streamd.tiering.tier import LeaderTerm

log = structlog.get_logger("streamd.objectstore")

# How long after its election a leader first looks, and how often it looks then.
FIRST_LOOK_S = 10.0
LOOK_INTERVAL_S = 300.0
# A scheduled pass begins this long after a leader's term did.
FIRST_PASS_S = 60.0
# How much is read, and how many objects, until the progress goes into the log.
_CHECKPOINT_BYTES = 64 * 1024 * 1024
_CHECKPOINT_OBJECTS = 100
_ROUND_S = 5.0
# About how large a `Scrubbed` is in the log.
_COMMAND_BYTES = 2048

_PACK = msgspec.msgpack.Decoder(Pack)


class Scrubber:
    """Reads and checks the store; runs on the leader."""

    def __init__(self, target: ArchiveTarget, store: StateStore, config: ColdConfig) -> None:
        self._target = target
        self._group = target.group
        self._store = store
        self._interval_ms = config.scrub_interval_hours * 3_600_000
        self._retention_ms = config.archive_retention_hours * 3_600_000
        self._bytes_per_s = config.scrub_bytes_per_s
        self._lead: LeaderTerm | None = None
        self._led_since = 0.0
        self._look_at = math.inf
        self._asked = False
        # The archive's objects of the current pass, and their sizes; None before they are listed.
        self._listed: list[ObjectInfo] | None = None

    @property
    def scrub(self) -> Scrub:
        """The progress, as all nodes agree."""
        return self._group.state.header.scrub

    def ask(self) -> int:
        """Begin a pass now, in place of one that is under way. It has ended when `scrub.passes` has
        reached the returned number."""
        self._asked = True
        return self.scrub.passes + 1

    def report(self) -> dict[str, object]:
        """The status of the scrub, for operators."""
        scrub = self.scrub
        return {
            "passes": scrub.passes,
            "last_pass_time_ms": scrub.done_ms or None,
            "under_way": scrub.under_way,
            "objects": scrub.objects,
            "bytes": scrub.size,
            "missing": list(scrub.missing),
            "missing_objects": scrub.missing_count,
            "damaged": list(scrub.damaged),
            "damaged_objects": scrub.damaged_count,
        }

    async def make_round(self, lead: LeaderTerm) -> float:
        """Look, and continue reading, if either is due.

        Raises `ColdError`, `StorageError`, `Unavailable`, `OutcomeUnknown`.
        """
        if self._group.state.header.applied_term != lead.term:
            raise Unavailable("this node has only just become the leader")
        now = trio.current_time()
        if lead is not self._lead:
            self._lead, self._led_since = lead, now
            self._look_at, self._listed = now + FIRST_LOOK_S, None
        if now >= self._look_at or self._asked:
            await self._look(lead)
            self._look_at = trio.current_time() + LOOK_INTERVAL_S
        if self._asked or (not self.scrub.under_way and self._is_due(now)):
            self._asked, self._listed = False, None
            await self._note(lead, _begun(self.scrub))
        if not self.scrub.under_way:
            return _ROUND_S
        await self._read_some(lead)
        return 0.0 if self.scrub.under_way else _ROUND_S

    def _is_due(self, now: float) -> bool:
        rested_ms = self._group.now_ms() - self.scrub.done_ms
        return now >= self._led_since + FIRST_PASS_S and rested_ms >= self._interval_ms

    async def _note(self, lead: LeaderTerm, scrub: Scrub) -> None:
        """Tell all nodes through the log. Raises `Unavailable`, `OutcomeUnknown`."""
        before = self.scrub
        if scrub == before:
            return
        await self._group.writes.propose(Scrubbed(lead.term, scrub), _COMMAND_BYTES)
        if self.scrub != scrub:
            raise Unavailable("leadership has changed")
        for name in set(scrub.missing) - set(before.missing):
            log.error("an object in the cold store is missing", object=name)
        if is_alarm(before) and not is_alarm(scrub):
            log.info("no damage found in the objects checked so far")

    # -- whether all objects exist ------------------------------------------------------------

    async def _look(self, lead: LeaderTerm) -> None:
        missing = await self._missing_packs()
        cured = {name for name in self.scrub.damaged if not await self._is_damaged(name)}
        scrub = await self._look_at_archive()
        if scrub.lost is not None:
            folder = f"{self._target.folder}{group_folder(LOG, self._target.group_id)}"
            missing.insert(0, f"{folder} entries {scrub.lost[0] + 1} to {scrub.lost[1]}")
        damaged = tuple(name for name in scrub.damaged if name not in cured)
        count = max(len(damaged), scrub.damaged_count - len(cured))
        await self._note(
            lead,
            replace(
                scrub,
                missing=tuple(missing[:MAX_NAMED]),
                missing_count=len(missing),
                damaged=damaged,
                damaged_count=count,
            ),
        )

    async def _missing_packs(self) -> list[str]:
        """The packs that slices are in but that the store does not list with their size."""
        found: list[str] = []
        await self._group.reads.stored()
        start: bytes | None = keys.PACK
        while start is not None:
            packs, start = await self._target.run_blocking(living_page, self._store, start)
            absent: set[str] = set()
            sizes = {pack.name: pack.size for _, pack in packs}
            for folder, names in groupby(sorted(sizes), key=_folder_of):
                absent |= await self._absent(folder, {name: sizes[name] for name in names})
            if absent:
                # Packs that died meanwhile may have been removed.
                await self._group.reads.stored()
                places = [place for place, pack in packs if pack.name in absent]
                left = await self._target.run_blocking(_packs_at, self._store, places)
                found += sorted(pack.name for pack in left if pack.name in absent)
        return found

    async def _absent(self, folder: str, wanted: dict[str, int]) -> set[str]:
        """The names of missing objects; `wanted` has names and sizes, in the order of names."""
        names = list(wanted)
        # Sorts directly before the first of them.
        after, last = names[0][:-1], names[-1]
        absent = set(names)
        while after < last and (page := await self._target.cold.page(folder, after=after)):
            absent -= {one.name for one in page if wanted.get(one.name) == one.size}
            after = page[-1].name
        return absent

    async def _look_at_archive(self) -> Scrub:
        """Check whether what could be restored still can be."""
        archived = self._group.state.header.archived.index
        if not archived:
            return self.scrub
        async with self._target.removing:
            catalog = await self._target.objects.catalog()
        return with_losses(self.scrub, catalog, archived, self._group.now_ms(), self._retention_ms)

    # -- whether they are what was put --------------------------------------------------------

    async def _read_some(self, lead: LeaderTerm) -> None:
        """Read the next objects of the pass, and note the progress."""
        scrub = before = self.scrub
        try:
            while scrub.under_way and scrub.size - before.size < _CHECKPOINT_BYTES:
                scrub, name, size = await self._next(scrub)
                if not name:
                    scrub = _ended(scrub, self._group.now_ms())
                elif await self._is_damaged(name):
                    scrub = _with_damage(scrub, name)
                await trio.sleep(size / self._bytes_per_s)
                if scrub.objects - before.objects >= _CHECKPOINT_OBJECTS:
                    break
        except BaseException:
            # Objects taken from it are read again.
            self._listed = None
            raise
        await self._note(lead, scrub)

    async def _next(self, scrub: Scrub) -> tuple[Scrub, str, int]:
        """The next object of the pass, packs first, and its size; no name if the pass has ended.
        Also returns the pass after that object."""
        if not scrub.name:
            found = await self._target.run_blocking(_next_pack, self._store, scrub.pack)
            if found is not None:
                (term, number), pack = found
                return _beyond(scrub, pack.size, pack=(term, number + 1)), pack.name, pack.size
        if self._listed is None:
            self._listed = await self._list_archive(scrub.name)
        if not self._listed:
            return scrub, "", 0
        one = self._listed.pop()
        return _beyond(scrub, one.size, name=one.name), one.name, one.size

    async def _list_archive(self, after: str) -> list[ObjectInfo]:
        """The archive's objects after that name, the first one last."""
        found: list[ObjectInfo] = []
        for kind in (LOG, PIECES, CHECKPOINTS):
            folder = self._target.folder + group_folder(kind, self._target.group_id)
            found += await list_all(self._target.cold, folder)
        return sorted((one for one in found if one.name > after), reverse=True)

    async def _is_damaged(self, name: str) -> bool:
        """Whether an object is not what its name says. Raises `ColdError`."""
        try:
            digest, _ = await self._target.cold.digest(name)
            expect_digest(name, digest)
            return False
        except ObjectMissing:
            # It was removed since it was listed, or the next look finds that it should exist.
            return False
        except ObjectCorrupt as damage:
            if name not in self.scrub.damaged:
                log.error("an object in the cold store is damaged", object=name, error=str(damage))
            return True


def is_alarm(scrub: Scrub) -> bool:
    """Whether objects are missing or damaged."""
    return scrub.missing_count > 0 or scrub.damaged_count > 0


def with_losses(
    scrub: Scrub, catalog: Catalog, archived: int, now_ms: int, retention_ms: float
) -> Scrub:
    """What is known to be lost of an archive that goes up to entry `archived`.

    A new checkpoint repairs nothing: states before it cannot be restored. So a loss is reported
    until the objects are back, or everything of that time would have been removed for age by now.
    """
    ranges = catalog.ranges()
    if scrub.lost is not None:
        before, last, found_ms = scrub.lost
        is_back = any(one.first <= before and one.last >= last for one in ranges)
        if not is_back and now_ms - found_ms <= retention_ms:
            return scrub
        scrub = replace(scrub, lost=None, restorable_from=None)
    known = scrub.restorable_from
    reach = ranges[-1].last if ranges else known or 0
    if reach < archived:
        return replace(scrub, lost=(reach, archived, now_ms))
    first = ranges[0].first if ranges else 0
    if known is not None and first > known and _is_young(catalog, retention_ms):
        # Retention keeps a checkpoint that is as old as itself.
        return replace(scrub, lost=(known, first, now_ms))
    return replace(scrub, restorable_from=first)


def _is_young(catalog: Catalog, retention_ms: float) -> bool:
    """Whether the oldest checkpoint is, by the store's own clock, younger than the retention."""
    oldest_ms = min((one.modified_ms for one in catalog.manifests), default=catalog.newest_ms)
    return oldest_ms > catalog.newest_ms - retention_ms


def _begun(scrub: Scrub) -> Scrub:
    return replace(scrub, under_way=True, pack=(0, 0), name="", objects=0, size=0, found=0)


def _beyond(
    scrub: Scrub, size: int, *, pack: Place | None = None, name: str | None = None
) -> Scrub:
    return replace(
        scrub,
        pack=scrub.pack if pack is None else pack,
        name=scrub.name if name is None else name,
        objects=scrub.objects + 1,
        size=scrub.size + size,
    )


def _with_damage(scrub: Scrub, name: str) -> Scrub:
    known = name in scrub.damaged
    named = known or len(scrub.damaged) >= MAX_NAMED
    return replace(
        scrub,
        found=scrub.found + 1,
        damaged=scrub.damaged if named else (*scrub.damaged, name),
        damaged_count=max(scrub.damaged_count + (not known), scrub.found + 1),
    )


def _ended(scrub: Scrub, now_ms: int) -> Scrub:
    """Drop damage of earlier passes that was only counted: this pass would have found it again."""
    return replace(
        scrub,
        passes=scrub.passes + 1,
        done_ms=now_ms,
        under_way=False,
        damaged_count=max(len(scrub.damaged), scrub.found),
    )


def _folder_of(name: str) -> str:
    return name[: name.rindex("/") + 1]


def _next_pack(store: StateStore, place: Place) -> StoredPack | None:
    """The pack at that place, or the next one after it. Blocks."""
    start: bytes | None = keys.pack_key(*place)
    while start is not None:
        packs, start = living_page(store, start, limit=10)
        if packs:
            return packs[0]
    return None


def _packs_at(store: StateStore, places: Sequence[Place]) -> list[Pack]:
    """Those of the packs that slices are still in. Blocks."""
    rows = store.get_many([keys.pack_key(*place) for place in places])
    packs = [_PACK.decode(row) for row in rows if row is not None]
    return [pack for pack in packs if pack.live]
