"""Audits as an auditor runs them, in the session that the tests share."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from streamd_audit import audit
from tests.spark.buckets import Place
from tests.spark.damages import Expected


class Audited(NamedTuple):
    """The result of an audit: exit status, faults, and listed objects that are not faults."""

    status: int
    faults: list[dict[str, Any]]
    listed: list[dict[str, Any]]

    @property
    def found(self) -> list[dict[str, Any]]:
        return [*self.faults, *self.listed]

    def of_group(self, group_id: int) -> list[dict[str, Any]]:
        """Everything reported of one group."""
        return [one for one in self.found if _group_of(one) == group_id]


def _group_of(finding: dict[str, Any]) -> int | None:
    if finding["group"] is not None:
        return int(finding["group"])
    in_name = re.search("/([0-9a-f]{8})/", finding["object"] or "")
    return int(in_name[1], 16) if in_name else None


def told(findings: Sequence[dict[str, Any]]) -> str:
    """Findings for the message of a failed test."""
    shown = ("kind", "stream", "offset", "index", "object", "expected", "found", "followers")
    return "\n".join(
        str({name: found.get(name) for name in shown if found.get(name) not in (None, {})})
        for found in findings
    )


def audited(place: Place, out: Path, *more: str) -> Audited:
    """The whole audit of a place."""
    minio = place.minio
    status = audit.main(
        [
            *("--store", place.url, "--out", str(out)),
            *("--endpoint", minio.endpoint, "--region", "us-east-1"),
            *("--access-key", minio.access_key_id, "--secret-key", minio.secret_access_key),
            *more,
        ]
    )
    document = json.loads((out / "findings.json").read_text())
    return Audited(status, document["findings"], document["listed"])


def check(found: Sequence[dict[str, Any]], expected: Sequence[Expected]) -> None:
    """Each fault is found once, by its kind and place, and nothing else is found."""
    kinds = sorted(one["kind"] for one in found)
    assert kinds == sorted(one.kind for one in expected), told(found)
    left = [*found]
    for one in expected:
        suitable = [finding for finding in left if _is(finding, one)]
        assert suitable, f"nothing is told as {one}, but:\n{told(found)}"
        left.remove(suitable[0])


def _is(finding: dict[str, Any], expected: Expected) -> bool:
    if finding["kind"] != expected.kind:
        return False
    for name, value in expected.place().items():
        if name == "record":
            offset = finding["offset"]
            if offset is None or int(offset.partition("_")[0]) != value:
                return False
        elif finding[name] != value:
            return False
    return True
