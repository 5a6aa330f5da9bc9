"""Every way to damage a bucket is found once, by its kind and place.

A start of Spark's jobs costs more than what they do here. So each damage is done to a group of its
own, all groups lie in one bucket, and one audit judges them; no group knows of another. A handful
by default, all with ``AUDIT_TESTS=all``.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from streamd.storage.state_store import StateStore
from streamd_audit.findings import INFO, KINDS
from tests.spark.auditing import Audited, audited, check
from tests.spark.buckets import Clean, Place
from tests.spark.conftest import BUCKET
from tests.spark.damages import Damage, Expected, Scene
from tests.spark.damages_live import LIVE
from tests.spark.test_damages import ALL
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long

# One for each part of the audit.
QUICK = (
    "byte_of_a_slice",
    "pack_deleted",
    "entry_forged",
    "chain_recomputed_against_packs",
    "append_after_a_close",
    "lost_trim",
    "forged_token",
    "lost_token",
    "manifest_that_names_another_piece",
    "part_of_a_body_forged_everywhere",
    "living_stream_awaits_removal",
)
IS_ALL = os.environ.get("AUDIT_TESTS") == "all"
DAMAGES = [one for one in ALL if one.name in QUICK or IS_ALL]
every_one = pytest.mark.skipif(not IS_ALL, reason="takes long: make audit-test")


class Batch(NamedTuple):
    """An audit of many groups, and the expected findings of each, by its number."""

    audited: Audited
    expected: dict[int, list[Expected]]


def _batch(clean: Clean, little: Clean, damages: list[Damage], place: Place, out: Path) -> Batch:
    """Damage a group in each of the ways, the first of which is 1; group 0 is clean."""
    expected: dict[int, list[Expected]] = {}
    place.put(clean.objects)
    for group_id, damage in enumerate(damages, start=1):
        scene = Scene.of(clean, little, group_id)
        expected[group_id] = damage.on(scene)
        place.put(scene.folder.objects)
    return Batch(audited(place, out), expected)


@pytest.fixture(scope="module")
def batch(
    spark: object, unsubscribed: Clean, little: Clean, tmp_path_factory: pytest.TempPathFactory
) -> Batch:
    place = Place(unsubscribed.place.minio, BUCKET, "damaged/each")
    return _batch(unsubscribed, little, DAMAGES, place, tmp_path_factory.mktemp("batch"))


def test_an_audit_of_damaged_groups_reports_them(batch: Batch) -> None:
    assert {one.name for one in ALL} >= set(QUICK)
    assert batch.audited.status == 1
    of_groups = sum(len(batch.audited.of_group(group_id)) for group_id in batch.expected)
    assert of_groups == len(batch.audited.found)


def test_nothing_is_found_in_the_untouched_group(batch: Batch) -> None:
    check(batch.audited.of_group(0), [])


@pytest.mark.parametrize(
    ("number", "damage"), [*enumerate(DAMAGES, start=1)], ids=[damage.name for damage in DAMAGES]
)
def test_each_damage_is_found_once_by_its_kind(batch: Batch, number: int, damage: Damage) -> None:
    check(batch.audited.of_group(number), batch.expected[number])


@every_one
def test_harmless_objects_are_listed_and_leave_the_bucket_clean(
    spark: object, rich: Clean, little: Clean, tmp_path: Path
) -> None:
    scene = Scene.of(rich, little)
    expected = [
        one
        for name in ("pack_nobody_refers_to", "piece_nobody_names", "stray_object")
        for one in next(damage for damage in ALL if damage.name == name).on(scene)
    ]
    assert {KINDS[one.kind].severity for one in expected} == {INFO}
    place = Place(rich.place.minio, BUCKET, "damaged/harmless")
    place.put(scene.folder.objects)
    found = audited(place, tmp_path)
    check(found.found, expected)
    assert found.status == 0


# -- a live cluster ---------------------------------------------------------------------------


@contextmanager
def _serving(data: Path, place: Place) -> Iterator[str]:
    """A node over a copy of the rich one's data that continues in the bucket at a place."""
    cold = place.cold()
    environment = {
        "STREAMD_COLD_BACKEND": "s3",
        "STREAMD_COLD_S3_BUCKET": place.bucket,
        "STREAMD_COLD_S3_PREFIX": place.prefix,
        "STREAMD_COLD_S3_ENDPOINT": place.minio.endpoint,
        "STREAMD_COLD_S3_ACCESS_KEY_ID": place.minio.access_key_id,
        "STREAMD_COLD_S3_SECRET_ACCESS_KEY": place.minio.secret_access_key,
        "STREAMD_COLD_FLUSH_AFTER_MS": str(cold.flush_after_ms),
        "STREAMD_COLD_HOT_KEEP_BYTES": str(cold.hot_keep_bytes),
    }
    with ServerProcess(data, environment=environment) as server:
        yield server.url


def _spoil(data: Path, damage: Damage) -> list[Expected]:
    store = StateStore(data / "state")
    try:
        before = dict(store.scan(b"", b"\xff", limit=1_000_000))
        after = dict(before)
        expected = damage.on(after)
        changed = {
            key: after.get(key) for key in before | after if before.get(key) != after.get(key)
        }
        store.write(changed.items())
    finally:
        store.close()
    return expected


def _live(rich: Clean, rich_data: Path, tmp_path: Path, damage: Damage | None) -> None:
    place = Place(rich.place.minio, BUCKET, f"live/{damage.name if damage else 'clean'}")
    place.put(rich.objects)
    data = tmp_path / "data"
    shutil.copytree(rich_data, data)
    expected = _spoil(data, damage) if damage else []
    with _serving(data, place) as url:
        found = audited(place, tmp_path / "out", "--url", url)
    check(found.found, expected)
    assert found.status == bool(expected)


@every_one
@pytest.mark.usefixtures("spark")
def test_a_live_cluster_that_serves_what_it_archived_is_clean(
    rich: Clean, rich_data: Path, tmp_path: Path
) -> None:
    _live(rich, rich_data, tmp_path, None)


@every_one
@pytest.mark.usefixtures("spark")
@pytest.mark.parametrize("damage", LIVE.damages, ids=[damage.name for damage in LIVE.damages])
def test_a_live_answer_that_differs_is_found(
    rich: Clean, rich_data: Path, tmp_path: Path, damage: Damage
) -> None:
    _live(rich, rich_data, tmp_path, damage)
