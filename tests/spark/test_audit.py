"""The audit as users run it: of a released version's store, of a growing one, and of an absent
one."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streamd.streams.commands import FlushCold
from streamd_audit import audit, chunks_job
from streamd_audit.names import (
    EndName,
    HeadName,
    ManifestName,
    PieceName,
    SegmentName,
    parse,
    split,
)
from streamd_audit.options import CLEAN, FINDINGS, NOT_RUN, start
from streamd_audit.watermark import read_watermark, write_watermark
from tests.releases.record import HERE
from tests.spark.buckets import Clean
from tests.spark.forging import Folder

pytestmark = pytest.mark.long

ALL = os.environ.get("AUDIT_TESTS") == "all"


def written(objects: dict[str, bytes], directory: Path) -> Path:
    """The objects of a store as files below a directory."""
    for name, content in objects.items():
        file = directory / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return directory


def document(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "findings.json").read_text())
    return found


@pytest.mark.usefixtures("spark")
def test_the_cold_store_of_a_released_version_is_clean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with tarfile.open(HERE / "9319db4.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    store, out = tmp_path / "data" / "cold", tmp_path / "out"
    assert audit.main(["--store", str(store), "--out", str(out)]) == CLEAN
    assert capsys.readouterr().out.startswith("CLEAN")
    found = document(out)
    assert found["findings"] == []
    assert found["facts"]["slice_count"] > 0
    assert read_watermark(out) is not None


@pytest.mark.usefixtures("spark")
def test_a_missing_pack_is_one_finding(
    rich: Clean, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = next(name for name in sorted(rich.objects) if "/packs/" in name)
    left = {name: content for name, content in rich.objects.items() if name != gone}
    store, out = written(left, tmp_path / "store"), tmp_path / "out"
    assert chunks_job.main(["--store", str(store), "--out", str(out)]) == FINDINGS
    assert capsys.readouterr().out.startswith("1 FINDING ")
    [found] = document(out)["findings"]
    assert (found["kind"], found["object"]) == ("pack_missing", gone)
    assert read_watermark(out) is None


@pytest.mark.usefixtures("spark")
def test_a_store_that_was_set_back_is_found_and_the_watermark_stays(
    rich: Clean, tmp_path: Path
) -> None:
    """Everything is as it was some hours ago, in itself without a fault. The second audit, in the
    same session, does not see the first one's store."""
    store, out = written(rich.objects, tmp_path / "store"), tmp_path / "out"
    arguments = ["--store", str(store), "--out", str(out)]
    assert audit.main(arguments) == CLEAN
    mark = read_watermark(out)
    assert mark is not None
    shutil.rmtree(store)
    written(as_it_was(rich), store)
    assert audit.main(arguments) == FINDINGS
    [found] = document(out)["findings"]
    assert (found["kind"], found["index"]) == ("history_rolled_back", mark.index)
    assert read_watermark(out) == mark


@pytest.mark.skipif(not ALL, reason="long; make audit-test runs it")
@pytest.mark.usefixtures("spark")
def test_an_audit_continues_from_the_previous_one(rich: Clean, tmp_path: Path) -> None:
    """A store as it was at its second state, and as it was later."""
    names = sorted(name for name in rich.objects if "/snapshots/" in name)
    assert len(names) >= 2
    store, out = tmp_path / "store", tmp_path / "out"
    until = as_of(names[-2])
    written(as_it_was(rich), store)
    arguments = ["--store", str(store), "--out", str(out)]
    assert audit.main(arguments) == CLEAN
    mark = read_watermark(out)
    assert mark is not None
    assert mark.index >= until
    everything = document(out)["facts"]["entry_count"]

    written(dict(rich.objects), store)
    assert audit.main([*arguments, "--since", "last"]) == CLEAN
    assert document(out)["since"] == mark.index
    after = read_watermark(out)
    assert after is not None
    assert after.index > mark.index
    assert document(out)["facts"]["entry_count"] < everything + after.index - mark.index

    write_watermark(out, replace(mark, chain=mark.chain ^ 1))
    assert audit.main([*arguments, "--since", "last"]) == FINDINGS
    [found] = document(out)["findings"]
    assert (found["kind"], found["index"]) == ("history_changed", mark.index)


def as_it_was(rich: Clean) -> dict[str, bytes]:
    """The objects as of the state before the newest, and a little later."""
    until = as_of(sorted(name for name in rich.objects if "/snapshots/" in name)[-2])
    flushes = Folder(rich.objects, rich.cluster_id).find(lambda said: isinstance(said, FlushCold))
    packs = {said.command.name for said in flushes if said.index <= until}
    return {
        name: content
        for name, content in rich.objects.items()
        if name in packs or ("/packs/" not in name and as_of(name) <= until + 12)
    }


def as_of(name: str) -> int:
    """The entry that a manifest or piece is of, or that a segment or pointer ends with."""
    named = parse(split(name)[1])
    if isinstance(named, SegmentName):
        return named.last
    assert isinstance(named, ManifestName | PieceName | EndName | HeadName)
    return named.index


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--store", "/nowhere/at/all"], "/nowhere/at/all is not a directory"),
        (["--store", "{empty}"], "the store holds no cluster"),
        (
            ["--store", "s3://none/at", "--endpoint", "http://127.0.0.1:1",
             "--access-key", "k", "--secret-key", "s"],
            "listing in s3://none/at/",
        ),
    ],
    ids=["no directory", "no cluster", "no answer"],
)  # fmt: skip
def test_a_store_that_cannot_be_read_is_reported_in_one_line(
    arguments: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [argument.format(empty=tmp_path) for argument in arguments]
    assert start("chunks_job", given) == NOT_RUN
    said = capsys.readouterr().err.strip().splitlines()
    assert said[-1].startswith("could not be run: ")
    assert reason in said[-1]
    assert len([line for line in said if "Traceback" in line]) == 0
