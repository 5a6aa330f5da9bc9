"""Hashes of the tree over the log are read from the archive, wherever they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from streamd.backup import archived_objects
from streamd.backup.archived_objects import ArchivedObjects
from streamd.backup.log_tree import StoredTree
from streamd.objectstore.errors import ObjectMissing
from streamd.objectstore.fs import FsStore
from streamd.objectstore.names import NamedObject
from streamd.objectstore.segments import SegmentWriter
from streamd.process.threads import in_thread
from streamd.proofs.tree import (
    GrowingTree,
    Place,
    consistency,
    folded,
    inclusion,
    node_hash,
    path_of,
    root_of,
)
from streamd.streams.model import LogTree
from streamd.tiering.async_store import AsyncObjectStore
from tests.backup.test_archive import archived, stored_entries
from tests.objectstore.test_tree_frames import (
    CLUSTER,
    FIRST_INDEX,
    LEAVES,
    leaf_of,
    merged,
    perfect_root,
    segments,
)
from tests.support.archived import cold_in
from tests.support.nodes import append_to, create, running_node


class Watched(FsStore):
    """A directory that notes where reads began."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.offsets: list[int] = []

    def get(self, name: str, offset: int, length: int) -> bytes:
        self.offsets.append(offset)
        return super().get(name, offset, length)


class Archive:
    """Segments in a directory, and the tree over their entries."""

    def __init__(self, place: Path) -> None:
        self.store = Watched(place)
        cold = AsyncObjectStore(
            self.store, run_blocking=in_thread, random=Random(1), max_requests=4
        )
        self.objects = ArchivedObjects(cold, CLUSTER, in_thread)

    def put(self, some: Sequence[NamedObject]) -> None:
        for one in some:
            self.store.put(f"{CLUSTER}/{one.name}", one.content)

    def remove(self, some: Sequence[NamedObject]) -> None:
        self.store.delete([f"{CLUSTER}/{one.name}" for one in some])

    def tree(self, **settings: int) -> StoredTree:
        return StoredTree(self.objects, in_thread, **settings)


@pytest.fixture
def archive(tmp_path: Path) -> Archive:
    return Archive(tmp_path / "cold")


def grown(count: int) -> LogTree:
    tree = GrowingTree()
    for leaf in LEAVES[:count]:
        tree.add(leaf)
    return LogTree(FIRST_INDEX, tuple(tree.nodes))


def merge(some: Sequence[NamedObject]) -> NamedObject:
    writer: SegmentWriter = merged([one.content for one in some])
    return writer.finish()


async def is_whole(tree: StoredTree, count: int) -> bool:
    """Whether all hashes, and some paths, of the tree over the first entries are right."""
    for level in (0, 1, 5, 8, 9, 10):
        for number in range(0, count >> level, 1 if level > 4 else 53):
            place = Place(level, number)
            assert await tree.node(FIRST_INDEX, place) == perfect_root(place)
    now, last = grown(count), FIRST_INDEX + count - 1
    for number in (0, 255, 256, count // 3, count - 1):
        expected = path_of(inclusion(number, count), perfect_root)
        assert await tree.inclusion(FIRST_INDEX + number, now, last) == expected
        expected = path_of(consistency(number + 1, count), perfect_root)
        assert await tree.consistency(number + 1, now, last) == expected
    return True


async def test_hashes_come_from_the_tiles_and_the_entries(archive: Archive) -> None:
    archive.put(segments([100, 300, 1, 255, 444]))
    assert await is_whole(archive.tree(), 1100)


async def test_hashes_that_no_segment_has_follow_from_the_entries(archive: Archive) -> None:
    """Of a tree that a merge did not keep, because another one followed."""
    archive.put(segments([100, 300, 1, 255, 444], [False] * 5))
    assert await is_whole(archive.tree(), 1100)


async def test_a_small_memory_changes_nothing(archive: Archive) -> None:
    archive.put(segments([100, 300, 1, 255, 444]))
    assert await is_whole(archive.tree(cache_bytes=1), 1100)


async def test_tiles_are_read_without_the_entries(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archived_objects, "_TAIL_BYTES", 64)
    archive.put(segments([600, 500]))
    tree = archive.tree()
    assert await tree.node(FIRST_INDEX, Place(8, 3)) == perfect_root(Place(8, 3))
    assert len(archive.store.offsets) == 2, "more of the end, once it says how long it is"
    assert min(archive.store.offsets) > 1000


async def test_nodes_of_the_known_tree_are_not_read(archive: Archive) -> None:
    path = await archive.tree().consistency(1024, grown(1100), FIRST_INDEX + 1099)
    assert len(path) == 1
    root = root_of(LEAVES[:1024])
    assert node_hash(root, path[0]) == folded(grown(1100).nodes)


async def test_segments_that_are_merged_meanwhile_are_listed_again(archive: Archive) -> None:
    parts = segments([100, 300, 1, 255, 444])
    archive.put(parts)
    tree = archive.tree(cache_bytes=1)
    assert await is_whole(tree, 1100)
    archive.put([merge(parts[:3]), merge(parts[3:])])
    archive.remove(parts)
    assert await is_whole(tree, 1100)


async def test_segments_may_overlap(archive: Archive) -> None:
    long, _ = segments([900, 200])
    archive.put([long, *segments([100, 200, 800])])
    assert await is_whole(archive.tree(), 1100)


async def test_an_entry_that_is_no_longer_archived_is_missing(archive: Archive) -> None:
    first, second = segments([256, 844])
    archive.put([second])
    tree = archive.tree()
    assert await tree.node(FIRST_INDEX, Place(8, 1)) == perfect_root(Place(8, 1))
    with pytest.raises(ObjectMissing, match="no log segment has entry 5"):
        await tree.node(FIRST_INDEX, Place(0, 0))
    archive.put([first])
    assert await tree.node(FIRST_INDEX, Place(0, 0)) == LEAVES[0]


@pytest.mark.parametrize("removed", [1, 2, 3])
async def test_paths_of_the_entries_that_are_kept_survive_the_others(
    archive: Archive, removed: int
) -> None:
    """Retention removes the oldest segments."""
    parts = segments([100, 300, 1, 255, 444])
    archive.put(parts[removed:])
    tree, now = archive.tree(), grown(1100)
    begin = sum([100, 300, 1][:removed])
    for number in (begin, begin + 1, 511, 512, 700, 1099):
        expected = path_of(inclusion(number, 1100), perfect_root)
        assert await tree.inclusion(FIRST_INDEX + number, now, FIRST_INDEX + 1099) == expected
    for old in (begin, begin + 1, 1023, 1100):
        expected = path_of(consistency(old, 1100), perfect_root)
        assert await tree.consistency(old, now, FIRST_INDEX + 1099) == expected
    with pytest.raises(ObjectMissing):
        await tree.inclusion(FIRST_INDEX + begin - 2, now, FIRST_INDEX + 1099)


async def test_the_tree_in_the_state_is_the_one_over_the_archived_log(tmp_path: Path) -> None:
    cold, _ = cold_in(tmp_path / "cold")
    random = Random(2)
    for _ in range(3):
        async with running_node(tmp_path / "data", cold=cold) as node:
            await node.group.writes.propose(create("a"))
            for number in range(30):
                await append_to(node, "a", b"%d" % number)
                if random.random() < 0.2:
                    await archived(node)
            await archived(node)
            header = node.group.state.header
            entries = (await stored_entries(node, cold))[: header.archived.index]
            leaves = [leaf_of(entry) for entry in entries]
            assert header.tree.first_index == 1
            assert header.tree.fits(header.archived.index)
            assert folded(header.tree.nodes) == root_of(leaves)
            assert node.archive is not None
            stored = StoredTree(node.archive.target.objects, in_thread)
            path = await stored.inclusion(7, header.tree, header.archived.index)
            assert path[0] == leaves[7]
