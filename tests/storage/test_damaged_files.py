"""A file of a data directory is damaged while the node is down: what its next starts do about it.

A single voter starts with everything that it confirmed, or refuses. A member starts, knows what it
lost, and keeps nothing that is not proved; it refuses only without the files that no log replaces.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest

from streamd.config.settings import ClusterConfig
from streamd.group.stores import Stores, open_core
from streamd.raft.chain import ChainPosition
from streamd.raft.messages import HardState
from streamd.storage import journal, leveldb_log, state_store
from streamd.storage.errors import LogCorrupt, StorageError
from streamd.streams.state import State
from tests.crash.recorded_steps import PEERS, Contents, Script, rows_of
from tests.storage.images import copy_of
from tests.support.directories import copy_in_use
from tests.support.seeds import first_seed


@pytest.fixture(name="base")
def _base() -> Iterator[Path]:
    """In memory if possible: every start syncs many files."""
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with TemporaryDirectory(dir=shared) as base:
        yield Path(base)


# Who the node is, and what it last voted for.
IRREPLACEABLE = {"identity.json", "vote"}


@pytest.fixture(autouse=True)
def _small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind of file is there, several of some."""
    monkeypatch.setattr(leveldb_log, "_WRITE_BUFFER_BYTES", 1 << 16)
    monkeypatch.setattr(state_store, "_WRITE_BUFFER_BYTES", 1 << 16)
    monkeypatch.setattr(journal, "MAX_BYTES", 1 << 18)


def directory_after(script: Script, steps: int, base: Path) -> Path:
    """What a crash leaves after so many steps, with a floor that names the last entry."""
    stores = script.open(base / "live")
    for step in script.steps[:steps]:
        stores = step(stores)
    stores.log.sync_floor()
    left = copy_in_use(base / "live", base / "left")
    stores.close()
    return left


def damages(directory: Path) -> Iterator[tuple[Path, str, bytes | None]]:
    """Files below a directory, each with damages: what is in it then, or None if it is gone."""
    for file in sorted(directory.glob("**/*")):
        if not file.is_file() or file.name.startswith("LOG"):
            continue
        name = file.relative_to(directory)
        content = file.read_bytes()
        for place in sorted({0, len(content) // 2, len(content) - 1} if content else ()):
            flipped = bytearray(content)
            flipped[place] ^= 1 << place % 8
            yield name, f"a bit of byte {place} flipped", bytes(flipped)
            yield name, f"cut to {place} bytes", content[:place]
        if len(name.parts) > 1:
            yield name, "gone", None


def damaged_copies(left: Path) -> Iterator[tuple[Path, Path, str]]:
    for name, what, content in damages(left):
        copy = copy_of(left, left.with_name("copy"))
        (copy / name).unlink()
        if content is not None:
            (copy / name).write_bytes(content)
        yield copy, name, f"{name}: {what}"


def entries(stores: Stores) -> dict[int, object]:
    log = stores.log
    if log.last_index < log.first_index:
        return {}
    found = log.entries(log.first_index, log.last_index + 1, 1 << 30)
    return {each.index: each for each in found}


def assert_state_is_as_of_some_entry(stores: Stores, contents: Contents) -> None:
    applied = State(stores.state).header.applied_index
    assert applied <= contents.applied_index
    rows = rows_of(Contents(contents.entries, applied_index=applied))
    try:
        found = {key: stores.state.get(key) for key in rows}
    except LogCorrupt:
        return  # The start does not read every row: the node stops when it reads a damaged one.
    assert found == rows


def whole_entries(contents: Contents, first: int) -> dict[int, object]:
    return {index: each for index, each in contents.entries.items() if index >= first}


@pytest.mark.parametrize("steps", [1, 60])
def test_a_single_voter_starts_with_everything_or_refuses(steps: int, base: Path) -> None:
    script = Script(first_seed(), with_peers=False)
    contents = script.after[steps - 1]
    started = refused = 0
    for copy, _, what in damaged_copies(directory_after(script, steps, base)):
        try:
            stores = script.open(copy)
        except StorageError:
            refused += 1
            with pytest.raises(StorageError):
                script.open(copy)
            continue
        started += 1
        assert entries(stores) == whole_entries(contents, stores.log.first_index), what
        assert stores.log.last_index == contents.last_index, what
        assert_state_is_as_of_some_entry(stores, contents)
        stores.close()
    assert started  # How many of each there are depends on the seed.
    assert refused


@pytest.mark.parametrize("steps", [0, 25, 60])
def test_a_member_starts_and_knows_what_it_lost(steps: int, base: Path) -> None:
    script = Script(first_seed(), with_peers=True)
    contents = script.after[steps - 1] if steps else Contents()
    losses = set()
    for copy, name, what in damaged_copies(directory_after(script, steps, base)):
        try:
            stores = script.open(copy)
        except StorageError:
            assert name.name in IRREPLACEABLE, what
            continue
        lost = stores.log.lost_below
        core = open_core(stores, State(stores.state), Random(0), ClusterConfig())
        assert core.may_vote == (lost is None), what
        assert stores.log.hard_state == contents.hard_state, what
        assert_state_is_as_of_some_entry(stores, contents)
        found, first = entries(stores), stores.log.first_index
        if lost is None:
            assert stores.log.last_index == contents.last_index, what
            assert found == whole_entries(contents, first), what
        else:
            losses.add(name.parts[0])
            assert lost.index >= contents.last_index, what
            regain(stores, contents)
            stores = script.open(copy)
            assert stores.log.lost_below is None, what
            assert entries(stores) == whole_entries(contents, stores.log.first_index), what
        stores.close()
    assert "log" in losses


def regain(stores: Stores, contents: Contents) -> None:
    """Do as a leader does that has everything, and close the stores."""
    log = stores.log
    first = next(
        (
            index
            for index in range(log.first_index, log.last_index + 1)
            if log.entries(index, index + 1, 1 << 30) != [contents.entries.get(index)]
        ),
        log.last_index + 1,
    )
    if first - 1 < contents.base_index:
        # With a Raft snapshot.
        base = contents.entries[contents.base_index]
        stores.state.write(rows_of(Contents(contents.entries, applied_index=base.index)).items())
        log.reset(ChainPosition(base.index, base.term))
        first = base.index + 1
    missing = [contents.entries[index] for index in range(first, contents.last_index + 1)]
    if missing:
        log.append(missing, None)
    log.note_regained()
    stores.close()


def test_a_member_that_never_voted_survives_damage_to_its_log(base: Path) -> None:
    """It has joined, and crashed before its leader sent it anything."""
    stores = Stores.open(base / "live", 2, PEERS)
    left = copy_in_use(base / "live", base / "left")
    stores.close()
    (file,) = (left / "log").glob("*.log")
    content = bytearray(file.read_bytes())
    content[0] ^= 1
    file.write_bytes(content)
    for _ in range(2):
        stores = Stores.open(left, 2, PEERS)
        assert (stores.log.last_index, stores.log.hard_state) == (0, HardState())
        assert stores.log.lost_below is not None
        stores.close()
