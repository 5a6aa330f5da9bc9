"""The audit's twin without Spark finds what the audit finds, at the same places."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import trio

from streamd_audit.audit import JOBS
from streamd_audit.findings import Finding
from streamd_audit.runner import run
from streamd_audit.verdict import as_json
from tests.spark.auditing import check
from tests.spark.buckets import Clean
from tests.spark.damages import Scene
from tests.spark.forging import Folder
from tests.spark.regrouping import regrouped
from tests.spark.tamper.memory_store import MemoryStore
from tests.spark.tamper.mutations import mutation
from tests.spark.tamper.stores import Grown, Objects, grow, grow_other, write_objects
from tests.spark.tamper.twin import Twin
from tests.spark.test_damages import ALL
from tests.support.seeds import seeds

# How many mutations one audit in Spark judges, each in a group of its own.
SAMPLE = 200 if os.environ.get("AUDIT_TESTS") == "all" else 12
FIXED = 6


@pytest.fixture(scope="module")
def twin(rich: Clean) -> Twin:
    return Twin(rich.cluster_id)


def test_an_untouched_bucket_is_clean(rich: Clean, twin: Twin) -> None:
    assert not twin.findings(MemoryStore(rich.objects))


@pytest.mark.long
def test_the_twin_reports_each_damage_as_the_audit_must(
    rich: Clean, little: Clean, twin: Twin
) -> None:
    for damage in ALL:
        scene = Scene.of(rich, little)
        # As in the groups that are audited in Spark, for which nobody can sign heads.
        for name in scene.folder.names("heads"):
            del scene.folder.objects[name]
        expected = damage.on(scene)
        verdict = twin.verdict(MemoryStore(scene.folder.objects))
        document = as_json(verdict, {}, {})
        found = [*document["findings"], *document["listed"]]
        try:
            check(found, expected)
        except AssertionError as error:
            raise AssertionError(f"{damage.name}: {error}") from error


def _mutated_groups(grown: Grown, other: Grown) -> Objects:
    """Many groups of one cluster, each with another mutation; group 0 has none."""
    found = dict(grown.objects)
    left = {**found}
    for group_id, seed in enumerate((*range(FIXED), *seeds(SAMPLE - FIXED)), start=1):
        mine = _in_group(grown, group_id)
        one = mutation(seed, mine, _in_group(other, group_id), of=("bytes", "element", "object"))
        left |= one.objects
    return left


def _in_group(grown: Grown, group_id: int) -> Grown:
    moments = [_regrouped(grown, moment, group_id) for moment in grown.moments]
    objects = _regrouped(grown, grown.objects, group_id)
    return Grown(grown.cluster_id, objects, moments, group_id=group_id)


def _regrouped(grown: Grown, objects: Objects, group_id: int) -> Objects:
    return regrouped(Folder(objects, grown.cluster_id), group_id).objects


@pytest.mark.long
@pytest.mark.usefixtures("spark")
def test_twin_and_audit_find_the_same_in_mutated_stores(tmp_path: Path) -> None:
    grown, other = trio.run(grow, tmp_path / "grown"), trio.run(grow_other, tmp_path / "other")
    objects = _mutated_groups(grown, other)
    write_objects(tmp_path / "store", objects)
    options = ["--store", str(tmp_path / "store"), "--out", str(tmp_path / "out")]
    options += ["--cluster", grown.cluster_id]
    run(JOBS, "Judge.", options)
    rows = pq.read_table(tmp_path / "out" / "findings.parquet").to_pylist()
    by_spark = Counter(map(_place, (Finding(**row) for row in rows)))
    by_twin = Counter(map(_place, Twin(grown.cluster_id).findings(MemoryStore(objects))))
    assert not by_spark - by_twin, "found in Spark only"
    assert not by_twin - by_spark, "found by the twin only"
    assert len({kind for kind, *_ in by_twin}) >= 8


def _place(found: Finding) -> tuple[object, ...]:
    return (
        found.kind, found.group, found.stream_id, found.offset, found.index, found.object
    )  # fmt: skip
