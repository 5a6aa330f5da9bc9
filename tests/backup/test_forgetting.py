"""``streamd backup forget``: only what no cluster needs any longer is deleted."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest

from tests.backup.history import History, Ran, streamd

_DRILL = "0" * 8 + "-0000-4000-8000-" + "0" * 12


@pytest.fixture
def store(tmp_path: Path, history: History) -> Path:
    """A store with a cluster and the folder of a drill, both quiet for an hour."""
    place = tmp_path / "store"
    shutil.copytree(history.place, place)
    shutil.copytree(place / history.cluster_id, place / _DRILL)
    _set_age(place, 3600)
    return place


def _set_age(place: Path, age_s: float) -> None:
    then = time.time() - age_s
    for file in place.rglob("*"):
        os.utime(file, (then, then))


def _files(place: Path, cluster_id: str) -> list[Path]:
    return [file for file in (place / cluster_id).rglob("*") if file.is_file()]


def _remove_all_but_the_drill(store: Path) -> None:
    for folder in store.iterdir():
        if folder.name != _DRILL:
            shutil.rmtree(folder)


async def _forget(store: Path, *more: str) -> Ran:
    place = ("--from", f"fs:{store}", "--cluster", _DRILL)
    return await streamd("backup", "forget", *place, *more)


async def test_without_yes_it_lists_what_it_would_delete(store: Path) -> None:
    before = _files(store, _DRILL)
    told = await _forget(store)
    assert told.exit_code == 0, told.output
    assert "would lose" in told.stdout
    assert "snapshots:" in told.stdout
    assert "Nothing was deleted" in told.stdout
    assert _files(store, _DRILL) == before


async def test_with_yes_it_deletes_that_folder_and_no_other(store: Path, history: History) -> None:
    before = _files(store, history.cluster_id)
    place = ("--from", f"fs:{store}")
    done = await streamd("backup", "forget", *place, "--cluster", _DRILL, "--yes", "--json")
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["deleted"]
    assert sum(told["objects"].values()) > 0
    assert _files(store, _DRILL) == []
    assert _files(store, history.cluster_id) == before
    assert (await streamd("backup", "verify", *place)).exit_code == 0


async def test_a_cluster_that_wrote_lately_is_kept(store: Path) -> None:
    newest = _files(store, _DRILL)[0]
    os.utime(newest)
    refused = await streamd(
        "backup", "forget", "--from", f"fs:{store}", "--cluster", _DRILL, "--yes"
    )
    assert refused.exit_code == 1
    assert "it may still run" in refused.output
    assert newest.exists()


async def test_a_cluster_from_which_another_was_restored_is_kept(
    store: Path, history: History
) -> None:
    fence = store / _DRILL / "fence" / history.cluster_id
    fence.parent.mkdir(parents=True)
    fence.write_text(json.dumps({"cluster_id": history.cluster_id, "at_ms": 1}))
    _set_age(store, 3600)
    refused = await streamd(
        "backup", "forget", "--from", f"fs:{store}", "--cluster", _DRILL, "--yes"
    )
    assert refused.exit_code == 1
    assert f"cluster {history.cluster_id} was restored from cluster {_DRILL}" in refused.output
    assert _files(store, _DRILL)


async def test_the_only_cluster_of_a_store_is_kept(store: Path) -> None:
    _remove_all_but_the_drill(store)
    refused = await streamd(
        "backup", "forget", "--from", f"fs:{store}", "--cluster", _DRILL, "--yes"
    )
    assert refused.exit_code == 1
    assert "is the only one" in refused.output
    assert _files(store, _DRILL)


async def test_a_cluster_that_is_not_there_is_named(store: Path) -> None:
    wrong = _DRILL.replace("4000", "4001")
    refused = await streamd("backup", "forget", "--from", f"fs:{store}", "--cluster", wrong)
    assert refused.exit_code == 1
    assert "does not hold cluster" in refused.output
