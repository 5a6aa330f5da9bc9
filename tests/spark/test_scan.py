"""The audit's scan of the log: bundles of commands, and rows about forks and packages."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest

from streamd_audit.commands import Append, Command, Create, Delete, Fork, Package, Settings, Touch
from streamd_audit.replay import heads, scan
from streamd_audit.segments import COMMANDS
from streamd_audit.sources.log_columns import LogEntry

pytestmark = pytest.mark.long

ONE, OTHER = b"agents\0one", b"agents\0other"
COLUMNS = [part.split()[0].strip("`") for part in scan.SCANNED_DDL.split(", ")]


def append(key: bytes, *records: bytes) -> Append:
    data = memoryview(b"".join(records))
    return Append(key, "text/plain", data, [len(record) for record in records])


def scanned(*entries: list[Command], packages: list[Package] | None = None) -> list[dict[str, Any]]:
    log = [
        LogEntry(index, 1, COMMANDS, 0, 1000 + index, 1000 + index, commands, packages or [])
        for index, commands in enumerate(entries, 1)
    ]
    return [dict(zip(COLUMNS, row, strict=True)) for row in scan.commands_of(0, log)]


def bundles(rows: list[dict[str, Any]]) -> dict[str, list[heads.Step]]:
    return {row["stream"]: heads.unpack(row["body"]) for row in rows if row["what"] == scan.BUNDLE}


def test_the_commands_of_a_stream_are_one_row_in_log_order() -> None:
    rows = scanned(
        [append(ONE, b"a"), append(OTHER, b"b", b"cc")],
        [Touch([(OTHER, 7, 5), (ONE, 6, 5)]), append(ONE, b"d")],
    )
    assert [row["what"] for row in rows] == [scan.BUNDLE, scan.BUNDLE]
    found = bundles(rows)
    assert [step[:3] for step in found["one"]] == [(1, 0, 0), (2, 0, 1), (2, 1, 0)]
    assert [step[:3] for step in found["other"]] == [(1, 1, 0), (2, 0, 0)]
    [records, size, digests] = found["other"][0][6:]
    assert (records, size) == (2, 3)
    assert digests == sha256(b"b").digest()[:16] + sha256(b"cc").digest()[:16]


@pytest.mark.parametrize("count", [1, 500])
def test_a_bundle_is_decoded_unchanged(count: int) -> None:
    rows = scanned([append(ONE, b"%d" % number) for number in range(count)])
    [steps] = bundles(rows).values()
    assert [step[1] for step in steps] == list(range(count))
    assert {step[5].key for step in steps if isinstance(step[5], Append)} == {ONE}
    assert all(not len(step[5].data) for step in steps if isinstance(step[5], Append))


def test_a_fork_has_a_row_in_addition_to_its_creation() -> None:
    rows = scanned([Create(OTHER, Settings("text/plain", fork=Fork(ONE))), Delete(ONE)])
    [fork] = [row for row in rows if row["what"] == scan.FORK]
    assert (fork["stream"], fork["other_stream"]) == ("other", "one")
    assert [type(step[5]) for steps in bundles(rows).values() for step in steps] == [Create, Delete]


def test_a_package_has_a_row_at_its_first_command() -> None:
    commands: list[Command] = [append(ONE, b"a"), append(ONE, b"b"), append(ONE, b"c")]
    rows = scanned(commands, packages=[Package(9, 4, 1, 0, 2)])
    [package] = [row for row in rows if row["what"] == scan.PACKAGE]
    assert (package["index"], package["position"], package["one"]) == (1, 1, 9)
    assert scan.decode_package(package["body"]) == Package(9, 4, 1, 0, 2)
