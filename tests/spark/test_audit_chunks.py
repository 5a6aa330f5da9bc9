"""``audit_chunks`` by itself: of clean stores, of a damaged one, and of none."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from streamd_audit import chunks_job
from streamd_audit.options import CLEAN, FINDINGS, NOT_RUN, start
from tests.releases.record import HERE
from tests.spark.buckets import Clean


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
def test_the_cold_store_of_a_released_version_is_clean(tmp_path: Path) -> None:
    with tarfile.open(HERE / "9319db4.tar.xz") as archive:
        archive.extractall(tmp_path, filter="data")
    store = tmp_path / "data" / "cold"
    out = tmp_path / "out"
    assert chunks_job.main(["--store", str(store), "--out", str(out)]) == CLEAN
    assert document(out)["facts"]["slice_count"] > 0


@pytest.mark.usefixtures("spark")
def test_a_rich_store_is_clean_until_a_pack_is_gone(
    rich: Clean, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = written(dict(rich.objects), tmp_path / "store")
    out = tmp_path / "out"
    assert chunks_job.main(["--store", str(store), "--out", str(out)]) == CLEAN
    assert capsys.readouterr().out.startswith("CLEAN")
    facts = document(out)["facts"]
    assert facts["pack_count"] == sum("/packs/" in name for name in rich.objects)

    gone = next(name for name in sorted(rich.objects) if "/packs/" in name)
    (store / gone).unlink()
    assert chunks_job.main(["--store", str(store), "--out", str(out)]) == FINDINGS
    assert capsys.readouterr().out.startswith("1 FINDING ")
    [found] = document(out)["findings"]
    assert (found["kind"], found["object"]) == ("pack_missing", gone)


@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--store", "/nowhere/at/all"], "/nowhere/at/all is not a directory"),
        (["--store", "{empty}"], "it holds no cluster"),
        (
            ["--store", "s3://none/at", "--endpoint", "http://127.0.0.1:1",
             "--access-key", "k", "--secret-key", "s"],
            "listing in s3://none/at/",
        ),
    ],
    ids=["no directory", "no cluster", "no answer"],
)  # fmt: skip
def test_a_store_that_cannot_be_read_is_told_in_a_line(
    arguments: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [argument.format(empty=tmp_path) for argument in arguments]
    assert start("chunks_job", given) == NOT_RUN
    said = capsys.readouterr().err.strip().splitlines()
    assert said[-1].startswith("could not be run: ")
    assert reason in said[-1]
    assert len([line for line in said if "Traceback" in line]) == 0
