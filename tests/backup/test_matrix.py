"""Every kind of object of a backup, damaged in every way: damage is reported, or nothing is lost.

Of each kind the first, one in the middle and the last are damaged, one at a time. `verify` must
name the damage unless a restore does without the object; a restore must fail, or give exactly the
state at the end of the archive, never an earlier one.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from streamd.backup.base import RestoreRefused
from streamd.backup.inventory import verify
from streamd.backup.restore import Restored
from streamd.config.settings import ColdConfig
from streamd.objectstore.errors import ColdError
from streamd.process.threads import in_thread
from streamd.raft.messages import Entry
from streamd.storage.incoming import SnapshotDamaged
from streamd.tiering.async_store import AsyncObjectStore
from tests.backup.test_archive import a_round, archived
from tests.support.archived import NOW_MS, Quiet, cold_in, log_of, restored, state_after, state_in
from tests.support.nodes import Clock, append_to, create, running_node, wait_until

CONFIG = ColdConfig(
    backend="fs",
    flush_after_ms=1,
    pack_bytes=64 * 1024,
    snapshot_interval_minutes=1,
    archive_retention_hours=1000,
)
KINDS = {
    "segment": "log",
    "manifest": "snapshots",
    "piece": "pieces",
    "pack": "packs",
    "end": "ends",
}
PLACES = ("first", "middle", "last")
WAYS = ("missing", "empty", "truncated", "flipped", "foreign", "replaced")


class Life(NamedTuple):
    """A lost cluster: where its archive is, and its log as it was."""

    place: Path
    cluster_id: str
    archived_index: int
    entries: list[Entry]


async def live(data: Path, place: Path, streams: str) -> Life:
    """Some minutes with checkpoints and packs; the log continues after the last checkpoint."""
    cold, _ = cold_in(place)
    clock = Clock(NOW_MS)
    async with running_node(data, cold=cold, clock=clock, cold_config=CONFIG) as node:
        header = node.group.state.header
        for minute in range(4):
            clock.now_ms += 120_000
            for name in streams:
                await node.group.writes.propose(create(name))
                await append_to(node, name, bytes([minute, ord(name)]) * 5_000)
            await wait_until(lambda: not header.hot_bytes)
            await archived(node)
            if minute < 3:
                await a_round(node, "snapshot")
                await append_to(node, streams[0], b"a little more")
                await archived(node)
        # Commands about forgotten or repacked packs would differ from run to run.
        cluster_id, index = node.stores.data_dir.identity.cluster_id, header.archived.index
    return Life(place, cluster_id, index, log_of(data))


@pytest.fixture(scope="session")
def lives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lives")


@pytest.fixture
async def both(lives: Path) -> tuple[Life, Life]:
    """A life, and that of another cluster in another store, recorded once."""
    if not KNOWN:
        for name, streams in (("own", "abc"), ("other", "xy")):
            KNOWN.append(await live(lives / name / "data", lives / name / "cold", streams))
    own, other = KNOWN
    return own, other


KNOWN: list[Life] = []


def objects(place: Path, cluster_id: str, kind: str) -> list[Path]:
    return sorted((place / cluster_id / KINDS[kind] / "00000000").iterdir())


def spoilt(kind: str, place: Path, own: Life, other: Life) -> Iterator[tuple[str, Path]]:
    """The store with one object of a kind damaged, once for each object."""
    for where in PLACES:
        for way in WAYS:
            shutil.rmtree(place, ignore_errors=True)
            shutil.copytree(own.place, place)
            there = objects(place, own.cluster_id, kind)
            assert len(there) >= 3, f"too few of {kind} to have a middle"
            one = {"first": there[0], "middle": there[len(there) // 2], "last": there[-1]}[where]
            theirs = objects(other.place, other.cluster_id, kind)
            foreign = {"first": theirs[0], "last": theirs[-1]}.get(where, theirs[len(theirs) // 2])
            SPOIL[way](one, foreign)
            yield f"{where} {way}", one


def truncate(one: Path, _: Path) -> None:
    content = one.read_bytes()
    one.write_bytes(content[: len(content) // 2])


def flip(one: Path, _: Path) -> None:
    content = bytearray(one.read_bytes())
    content[len(content) // 2] ^= 1
    one.write_bytes(content)


def replace(one: Path, foreign: Path) -> None:
    one.unlink()
    shutil.copy(foreign, one.with_name(foreign.name))


SPOIL: dict[str, Callable[[Path, Path], object]] = {
    "missing": lambda one, _: one.unlink(),
    "empty": lambda one, _: one.write_bytes(b""),
    "truncated": truncate,
    "flipped": flip,
    # Another cluster's object of that kind: under this one's name, or in its place under its own.
    "foreign": lambda one, foreign: shutil.copy(foreign, one),
    "replaced": replace,
}


async def outcome(cold: AsyncObjectStore, new: Path) -> tuple[str, Restored | None]:
    """Why a restore fails, or what it restored."""
    try:
        return "", await restored(cold, new, fencing=False)
    except (ColdError, RestoreRefused, SnapshotDamaged) as error:
        return str(error), None


@pytest.mark.parametrize("kind", KINDS)
async def test_damage_is_reported_or_costs_nothing(
    tmp_path: Path, both: tuple[Life, Life], kind: str
) -> None:
    own, other = both
    wanted = state_after(own.entries[: own.archived_index])
    told, whole = 0, 0
    for number, (case, one) in enumerate(spoilt(kind, tmp_path / "cold", own, other)):
        cold, _ = cold_in(tmp_path / "cold")
        problems = (await verify(cold, own.cluster_id, in_thread, Quiet())).problems
        new = tmp_path / str(number)
        failure, done = await outcome(cold, new)
        cold.close()
        if done is None:
            assert failure
            assert problems, f"{case}: a restore fails ({failure}), and verify finds nothing"
            told += 1
            continue
        assert done.last_index == own.archived_index, f"{case}: it ends too early"
        said = state_in(new)
        assert (said.applied_index, said.rows) == (wanted.applied_index, wanted.rows), case
        if one.exists():
            assert problems, f"{case}: verify takes {one.name} for whole"
        whole += 1
        shutil.rmtree(new)
    assert told + whole == len(PLACES) * len(WAYS)
    assert whole if kind in ("manifest", "piece", "end") else told


async def test_missing_last_segments_are_reported(tmp_path: Path, both: tuple[Life, Life]) -> None:
    own, _ = both
    place = tmp_path / "cold"
    segments = objects(own.place, own.cluster_id, "segment")
    for count in range(1, len(segments) + 1):
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(own.place, place)
        for segment in objects(place, own.cluster_id, "segment")[-count:]:
            segment.unlink()
        cold, _ = cold_in(place)
        assert (await verify(cold, own.cluster_id, in_thread, Quiet())).problems
        with pytest.raises(RestoreRefused, match=f"to {own.archived_index} cannot be restored"):
            await restored(cold, tmp_path / f"{count}", fencing=False)


async def test_an_archive_of_this_version_without_pointers_is_not_called_whole(
    tmp_path: Path, both: tuple[Life, Life]
) -> None:
    own, _ = both
    shutil.copytree(own.place, tmp_path / "cold")
    shutil.rmtree(tmp_path / "cold" / own.cluster_id / "ends")
    cold, _ = cold_in(tmp_path / "cold")
    found = await verify(cold, own.cluster_id, in_thread, Quiet())
    assert not found.has_end
    assert any("pointer to the archive's end is missing" in one for one in found.problems)
    done = await restored(cold, tmp_path / "new", fencing=False)
    assert done.is_end_proved is False
    assert done.last_index == own.archived_index
