"""Restores and verifications beside a cluster that keeps removing and merging objects."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest

from streamd.backup.inventory import look, verify
from streamd.objectstore.objects import MAX_PAGE, ObjectInfo
from streamd.objectstore.segments import SegmentWriter, read_segment_head
from streamd.process.threads import in_thread
from streamd.tiering.async_store import AsyncObjectStore
from tests.backup.history import History
from tests.support.archived import Quiet, restored, state_in
from tests.support.flaky_store import FlakyStore
from tests.support.segments import entries_of


async def test_objects_that_a_cluster_removes_during_a_verification_are_not_reported(
    tmp_path: Path, history: History
) -> None:
    shutil.copytree(history.place, tmp_path / "cold")

    class Ageing(FlakyStore):
        def get(self, name: str, offset: int, length: int) -> bytes:
            """Before anything is read, the log up to the first checkpoint is removed for its
            age."""
            through = min(path.name[:16] for path in (tmp_path / "cold").rglob("*.manifest"))
            for segment in list((tmp_path / "cold").rglob("*.segment")):
                _, last = segment.name.split("-")[:2]
                if last <= through:
                    segment.unlink()
                    removed.append(segment.name)
            return super().get(name, offset, length)

    removed: list[str] = []
    store = Ageing(tmp_path / "cold")
    cold = AsyncObjectStore(store, run_blocking=in_thread, random=Random(1), max_requests=4)
    found = await verify(cold, history.cluster_id, in_thread, Quiet())
    assert removed
    assert found.problems == []
    assert 0 < found.entries < history.archived_index


def merge_segments(folder: Path) -> None:
    """Merge all segments of a log, as a running cluster does."""
    cluster_id = folder.parent.parent.name
    parts = sorted(folder.glob("*.segment"))
    writer = None
    for part in parts:
        content = part.read_bytes()
        writer = writer or SegmentWriter(0, read_segment_head(content).previous, cluster_id)
        for entry in entries_of(content):
            if entry.index > writer.last.index:
                writer.add(entry)
    assert writer is not None
    merged = writer.finish()
    (folder / merged.name.rpartition("/")[2]).write_bytes(merged.content)
    for part in parts:
        part.unlink()


class Merging(FlakyStore):
    """A store in which a running cluster merges the segments when told to."""

    def __init__(self, history: History, root: Path) -> None:
        shutil.copytree(history.place, root)
        super().__init__(root)
        self.folder = root / history.cluster_id / "log" / "00000000"
        self.before_page = self.before_get = -1

    def page(self, prefix: str, *, after: str = "", limit: int = MAX_PAGE) -> list[ObjectInfo]:
        if after.endswith(".segment"):
            self.before_page -= 1
            if self.before_page == 0:
                merge_segments(self.folder)
        return super().page(prefix, after=after, limit=min(limit, 3))

    def get(self, name: str, offset: int, length: int) -> bytes:
        if name.endswith(".segment"):
            self.before_get -= 1
            if self.before_get == 0:
                merge_segments(self.folder)
        return super().get(name, offset, length)


@pytest.fixture
def merging(tmp_path: Path, history: History) -> tuple[AsyncObjectStore, Merging]:
    store = Merging(history, tmp_path / "cold")
    return AsyncObjectStore(store, run_blocking=in_thread, random=Random(1), max_requests=1), store


async def test_segments_merged_during_the_listing_are_not_reported(
    history: History, merging: tuple[AsyncObjectStore, Merging]
) -> None:
    cold, store = merging
    store.before_page = 2
    status = await look(cold, history.cluster_id, in_thread)
    assert [one.last_index for one in status.ranges] == [history.archived_index]


async def test_segments_merged_during_the_listing_do_not_shorten_a_restore(
    tmp_path: Path, history: History, merging: tuple[AsyncObjectStore, Merging]
) -> None:
    cold, store = merging
    store.before_page = 2
    done = await restored(cold, tmp_path / "new", fencing=False)
    assert done.last_index == history.archived_index
    assert state_in(tmp_path / "new") == history.as_of(history.archived_index)


async def test_segments_merged_while_they_are_read_are_not_reported(
    history: History, merging: tuple[AsyncObjectStore, Merging]
) -> None:
    cold, store = merging
    store.before_get = 1
    status = await look(cold, history.cluster_id, in_thread)
    assert [one.last_index for one in status.ranges] == [history.archived_index]


@pytest.mark.parametrize("before_get", [1, 2, 3])
async def test_a_restore_continues_with_segments_that_a_cluster_merges_meanwhile(
    tmp_path: Path, history: History, merging: tuple[AsyncObjectStore, Merging], before_get: int
) -> None:
    cold, store = merging
    for file in store.folder.parent.parent.glob("snapshots/*/*"):
        file.unlink()
    store.before_get = before_get
    done = await restored(cold, tmp_path / "new", fencing=False)
    assert store.before_get <= 0
    assert done.last_index == history.archived_index
    assert state_in(tmp_path / "new") == history.as_of(history.archived_index)
