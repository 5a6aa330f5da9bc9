"""The audit as it is run: of a released version's store, of a damaged one, and of none."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pytest

from streamd_audit import audit, chunks_job
from streamd_audit.options import CLEAN, FINDINGS, NOT_RUN, start
from streamd_audit.watermark import read_watermark
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
def test_a_pack_that_is_gone_is_one_finding(
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
