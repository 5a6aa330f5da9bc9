"""Buckets with a history, and none with a fault: no false alarm."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from streamd.objectstore.names import ManifestName, SegmentName
from streamd.objectstore.segments import SegmentWriter, read_segment_head
from streamd_audit.findings import INFO
from tests.spark.aged_buckets import write_under_faults, write_worn
from tests.spark.auditing import Audited, audited, told
from tests.spark.buckets import Clean, Place
from tests.spark.conftest import BUCKET
from tests.spark.damages import Scene
from tests.support.minio import MinioServer

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("spark")]
every_one = pytest.mark.skipif(
    os.environ.get("AUDIT_TESTS") != "all", reason="takes long: make audit-test"
)


def check_clean(found: Audited) -> None:
    """Nothing but objects that clusters may leave: orphans are listed and are not a fault."""
    assert found.status == 0, told(found.found)
    assert not found.faults, told(found.found)
    assert {one["kind"] for one in found.listed} <= {"pack_orphan", "piece_orphan"}
    assert {one["severity"] for one in found.listed} <= {INFO}


def _cut(scene: Scene, keep: int) -> None:
    """Remove what retention does: all but the newest states, their pieces, and the log before."""
    folder = scene.folder
    gone = folder.manifests()[:-keep]
    oldest = ManifestName.parse(folder.local(folder.manifests()[-keep]))
    assert oldest is not None
    for name in gone:
        for piece in folder.pieces(name):
            del folder.objects[piece]
        del folder.objects[name]
    for name in folder.segments():
        segment = SegmentName.parse(folder.local(name))
        assert segment is not None
        if segment.last_index <= oldest.log_index:
            del folder.objects[name]


@every_one
@pytest.mark.parametrize("keep", [2, 1])
def test_a_log_whose_start_retention_removed_is_clean(
    rich: Clean, scene: Scene, tmp_path: Path, keep: int
) -> None:
    before = len(scene.folder.objects)
    _cut(scene, keep)
    assert len(scene.folder.objects) < before
    place = Place(rich.place.minio, BUCKET, f"clean/cut-{keep}")
    place.put(scene.folder.objects)
    check_clean(audited(place, tmp_path))


@every_one
def test_segments_that_overlap_and_agree_are_clean(
    rich: Clean, scene: Scene, tmp_path: Path
) -> None:
    """As two leaders leave them: both began at the same entry, and one wrote less."""
    folder = scene.folder
    chosen = folder.segments()[1:6:2]
    for name in chosen:
        head = read_segment_head(folder.objects[name])
        writer = SegmentWriter(head.group_id, head.previous, folder.cluster_id)
        for entry in folder.entries(name)[: max(1, (head.last.index - head.previous.index) // 2)]:
            writer.add(entry)
        made = writer.finish()
        folder.put(made.name, made.content)
    assert len(folder.objects) == len(rich.objects) + len(chosen)
    place = Place(rich.place.minio, BUCKET, "clean/overlapping")
    place.put(folder.objects)
    check_clean(audited(place, tmp_path))


@every_one
def test_a_cluster_under_faults_leaves_a_clean_bucket(minio: MinioServer, tmp_path: Path) -> None:
    place = Place(minio, BUCKET, "clean/faults")
    (tmp_path / "cluster").mkdir()
    write_under_faults(tmp_path / "cluster", place)
    check_clean(audited(place, tmp_path / "out"))


@every_one
def test_removals_merges_a_restore_and_changes_of_leader_leave_a_clean_bucket(
    minio: MinioServer, tmp_path: Path
) -> None:
    place = Place(minio, BUCKET, "clean/worn")
    done = trio.run(write_worn, tmp_path / "nodes", place)
    for cluster in (done.cluster_id, done.former_cluster_id):
        check_clean(audited(place, tmp_path / cluster, "--cluster", cluster))
