"""What ``streamd backup`` and ``streamd restore`` print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.backup.history import MINUTE_MS, History, streamd
from tests.support.archived import NOW_MS, state_in


async def test_status_and_verify_report_what_can_be_restored(history: History) -> None:
    place = ("--from", f"fs:{history.place}", "--json")
    (told,) = json.loads((await streamd("backup", "status", *place)).stdout)
    assert told["cluster_id"] == history.cluster_id
    (whole,) = told["ranges"]
    assert (whole["first_index"], whole["last_index"]) == (0, history.archived_index)
    assert whole["first_time_ms"] == NOW_MS
    assert (whole["last_time_ms"] - NOW_MS) // MINUTE_MS == 29
    assert len(told["restore_points"]) >= 2
    assert told["gaps"] == told["fenced_by"] == []
    (told,) = json.loads((await streamd("backup", "verify", *place)).stdout)
    assert told["problems"] == []
    assert told["entries"] == history.archived_index


async def test_the_restore_command_prints_json(tmp_path: Path, history: History) -> None:
    place = ("--from", f"fs:{history.place}", "--no-fence", "--json")
    at = "2023-11-14T22:36:00+00:00"
    new = str(tmp_path / "new")
    found = await streamd("restore", *place, "--at", at, "--data-dir", new)
    told = json.loads(found.stdout)
    assert told["base_index"] > 0
    assert 0 <= 1_700_001_360_000 - told["time_ms"] < MINUTE_MS
    assert state_in(tmp_path / "new") == history.as_of(told["last_index"])


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("--from", "ftp://x"), 2, "must be s3://bucket/prefix or fs:path"),
        (("--at", "5", "--index", "7"), 2, "cannot be combined"),
        (("--at", "yesterday"), 2, "is not a time"),
        (("--at", "9" * 20, "--from", "{history}"), 2, "is not a time"),
        ((), 2, "name the store"),
        (("--from", "fs:{empty}"), 1, "holds no cluster"),
        (("--from", "{history}", "--index", "99999"), 1, "cannot be restored to that time"),
    ],
)
async def test_a_command_that_cannot_be_carried_out_says_why(
    tmp_path: Path, history: History, arguments: tuple[str, ...], status: int, message: str
) -> None:
    given = [
        one.format(empty=tmp_path / "empty", history=f"fs:{history.place}") for one in arguments
    ]
    found = await streamd("restore", "--data-dir", str(tmp_path / "new"), "--no-fence", *given)
    assert found.exit_code == status, found.output
    assert message in found.output
