"""A cluster may flush, merge and remove while it is audited, without a finding."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
import trio

from tests.spark.aged_buckets import write_on
from tests.spark.auditing import audited
from tests.spark.buckets import Clean, Place
from tests.spark.conftest import BUCKET
from tests.spark.test_clean_buckets import check_clean
from tests.support.minio import MinioServer
from tests.support.s3_proxy import Hold, Moment, S3Proxy

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("spark")]
# Held while the bucket changes: the first request of each kind of object, and a later one.
MOMENTS = [(about, number) for about in ("/log/", "/packs/", "/pieces/") for number in (0, 2)]
if os.environ.get("AUDIT_TESTS") != "all":
    MOMENTS = []


@pytest.fixture(scope="module")
def later(
    rich: Clean, rich_data: Path, minio: MinioServer, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, bytes]:
    """What the same cluster makes of the rich bucket in the next day."""
    place, directory = Place(minio, BUCKET, "clean/later"), tmp_path_factory.mktemp("later")
    place.put(rich.objects)
    shutil.copytree(rich_data, directory / "data")
    trio.run(write_on, directory, place)
    return place.objects()


def _go_on(place: Place, before: Mapping[str, bytes], after: Mapping[str, bytes]) -> None:
    """Apply the cluster's changes to a copy of the bucket: put new objects, then remove old
    ones."""
    place.put({name: content for name, content in after.items() if name not in before})
    client = place.minio.client()
    for name in before.keys() - after.keys():
        client.remove_object(place.bucket, f"{place.prefix}/{name}")


def test_the_cluster_has_flushed_merged_and_removed(rich: Clean, later: dict[str, bytes]) -> None:
    gone = rich.objects.keys() - later.keys()
    for kind in ("/log/", "/packs/", "/snapshots/", "/pieces/"):
        assert any(kind in name for name in gone), kind
        assert any(kind in name for name in later.keys() - rich.objects.keys()), kind


@pytest.mark.parametrize(("about", "number"), MOMENTS)
def test_a_cluster_that_works_during_the_audit_is_clean(
    rich: Clean, later: dict[str, bytes], tmp_path: Path, about: str, number: int
) -> None:
    place = Place(rich.place.minio, BUCKET, f"meanwhile/{about.strip('/')}-{number}")
    place.put(rich.objects)
    with S3Proxy(place.minio.port) as proxy:
        hold = proxy.hold(Moment.BEFORE, "GET", about, passed_over=number)
        thread = threading.Thread(target=_change, args=(hold, place, rich.objects, later))
        thread.start()
        found = audited(place, tmp_path, "--endpoint", proxy.endpoint)
        thread.join()
    assert hold.is_reached
    check_clean(found)


def _change(
    hold: Hold, place: Place, before: Mapping[str, bytes], after: Mapping[str, bytes]
) -> None:
    hold.wait()
    try:
        _go_on(place, before, after)
    finally:
        hold.release()
