"""Segments carry the part of the tree over the log that their entries add."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.backup import merging
from streamd.objectstore.errors import ObjectCorrupt
from streamd.objectstore.names import NamedObject
from streamd.objectstore.segments import (
    HEAD_BYTES,
    SegmentWriter,
    cluster_of_segment,
    frames_bytes,
    read_segment_head,
    tree_of_segment,
)
from streamd.objectstore.tree_frames import TILE_LEVEL, TreeRecorder, leaf_of
from streamd.proofs.tree import GrowingTree, Place, root_of
from streamd.raft.messages import Entry, EntryKind
from streamd.streams.codec import Batch, encode_batch
from streamd.streams.commands import Append
from streamd.streams.model import LogPosition, LogTree
from tests.support.segments import entries_of

CLUSTER = "7d0c3a52-0f6e-4f3c-9d0a-2b7f1f0c6a11"
FIRST_INDEX = 5
BEFORE = LogPosition(FIRST_INDEX - 1, 1, 77, 900)
NEW = LogTree(FIRST_INDEX)


def entry(index: int) -> Entry:
    """Some commands in one, two or three entries out of four."""
    if index % 4 == 0:
        return Entry(index, 1, EntryKind.NOOP, b"")
    data = b"%d" % index
    one = Append(b"b\0s", "text/plain", data, [len(data)])
    return Entry(index, 1, EntryKind.COMMANDS, encode_batch(Batch(1_000, [one] * (index % 4))))


ENTRIES = [entry(index) for index in range(FIRST_INDEX, FIRST_INDEX + 1200)]
LEAVES = [leaf_of(one) for one in ENTRIES]


def written(sizes: Sequence[int], trees: Sequence[bool] | None = None) -> list[bytes]:
    """The content of consecutive segments with so many entries; those without a tree end it."""
    return [one.content for one in segments(sizes, trees)]


def segments(sizes: Sequence[int], trees: Sequence[bool] | None = None) -> list[NamedObject]:
    """As `written`, with their names."""
    found, at, previous = list[NamedObject](), 0, BEFORE
    tree: LogTree | None = None
    for number, size in enumerate(sizes):
        has_tree = trees is None or trees[number]
        tree = (tree or LogTree(previous.index + 1)) if has_tree else None
        writer = SegmentWriter(0, previous, CLUSTER, tree)
        for one in ENTRIES[at : at + size]:
            writer.add(one)
        previous, tree = writer.last, writer.tree
        found.append(writer.finish())
        at += size
    return found


def merged(parts: Sequence[bytes]) -> SegmentWriter:
    writer = None
    for part in parts:
        writer = merging._add(writer, part, CLUSTER)
    assert writer is not None
    return writer


def perfect_root(place: Place) -> bytes:
    begin = place.number << place.level
    return root_of(LEAVES[begin : begin + (1 << place.level)])


def tiles_of(parts: Sequence[bytes]) -> dict[Place, bytes]:
    """All tiles that any of the segments has."""
    places = [
        Place(level, number)
        for level in range(12)
        for number in range(len(ENTRIES) >> level)
        if level >= TILE_LEVEL or number < 3
    ]
    found = {}
    for part in parts:
        frame = tree_of_segment(part)
        assert frame is not None
        for place in places:
            tile = frame.tile(place)
            if tile is not None:
                assert place not in found, "each is completed once"
                found[place] = tile
    return found


@settings(max_examples=25)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=4))
def test_a_segment_has_the_tree_before_it_and_the_tiles_that_it_completes(sizes: list[int]) -> None:
    parts = written(sizes)
    count = 0
    for part, size in zip(parts, sizes, strict=True):
        frame = tree_of_segment(part)
        assert frame is not None
        assert (frame.first_index, frame.begin) == (FIRST_INDEX, FIRST_INDEX + count)
        assert GrowingTree(count, frame.nodes).root() == root_of(LEAVES[:count])
        count += size
    tiles = tiles_of(parts)
    levels = range(TILE_LEVEL, 12)
    assert set(tiles) == {Place(lv, number) for lv in levels for number in range(count >> lv)}
    assert all(tile == perfect_root(place) for place, tile in tiles.items())


def test_readers_of_the_entries_skip_the_tree() -> None:
    [with_tree], [without] = written([300]), written([300], [False])
    assert entries_of(with_tree) == entries_of(without) == ENTRIES[:300]
    assert cluster_of_segment(with_tree) == CLUSTER
    assert tree_of_segment(without) is None
    assert frames_bytes(without) == 0
    whole = zstandard.ZstdDecompressor().stream_reader(with_tree[HEAD_BYTES:]).readall()
    assert len(whole) == read_segment_head(with_tree).entries_size


def test_the_tree_is_found_from_the_end_of_a_segment() -> None:
    [_, content] = written([300, 900])
    size = frames_bytes(content)
    assert content[-size:][:4] == bytes.fromhex("5d2a4d18")
    for tail in (60, 100, size - 1, size, size + 9):
        assert frames_bytes(content[-tail:]) == size
    assert tree_of_segment(content[-size:]) == tree_of_segment(content)
    assert tree_of_segment(content[1 - size :]) is None, "its beginning is missing"
    assert frames_bytes(b"\x00") == 0


def test_no_segment_without_a_tree_looks_as_if_it_had_one() -> None:
    """Bytes that do not compress are in the segment as they are; a batch's last ones are fixed."""
    frame = TreeRecorder(NEW, FIRST_INDEX).frame()
    data = Random(1).randbytes(5000) + frame
    one = Append(b"b\0s", "text/plain", data, [len(data)])
    writer = SegmentWriter(0, LogPosition(), CLUSTER)
    writer.add(Entry(1, 1, EntryKind.COMMANDS, encode_batch(Batch(1, [one]))))
    content = writer.finish().content
    assert frame in content
    assert tree_of_segment(content) is None


def with_frame(frame: bytes) -> bytes:
    [content] = written([3])
    size = frames_bytes(content)
    return content[:-size] + frame + content[-45:]


@pytest.mark.parametrize(
    "encoded",
    [
        b"\x90",
        b"\x94\x01\x02\x90\xc4\x00",
        b"\x94\x00\x05\x90\xc4\x00",
        b"\x94\x09\x05\x90\xc4\x00",
    ],
    ids=["empty", "too few nodes", "no first entry", "begins before it"],
)
def test_a_part_of_a_tree_that_cannot_be_is_damage(encoded: bytes) -> None:
    length = len(encoded).to_bytes(4, "little")
    inside = (len(encoded) + 4).to_bytes(4, "little") + encoded + length
    with pytest.raises(ObjectCorrupt):
        tree_of_segment(with_frame(bytes.fromhex("5d2a4d18") + inside))


def test_a_tree_that_cannot_be_is_not_continued() -> None:
    with pytest.raises(ObjectCorrupt, match="the tree before entry 5 cannot be"):
        SegmentWriter(0, BEFORE, CLUSTER, LogTree(1, (bytes(32), bytes(32))))


def test_an_entry_that_should_hold_commands_is_damage() -> None:
    payload = b"\x92\x01\x07"
    writer = SegmentWriter(0, BEFORE, CLUSTER, NEW)
    with pytest.raises(ObjectCorrupt, match="entry 5 holds no commands"):
        writer.add(Entry(5, 1, EntryKind.COMMANDS, payload))


# -- merging -------------------------------------------------------------------------------------


@settings(max_examples=15)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=4))
def test_a_merged_segment_has_the_tree_of_its_parts(sizes: list[int]) -> None:
    [whole] = written([sum(sizes)])
    assert merged(written(sizes)).finish().content == whole


def test_segments_that_overlap_are_merged_to_one_tree() -> None:
    [whole] = written([900])
    [one, two], [_, other], [_, _, last] = (
        written([300, 300]),
        written([200, 500]),
        written([400, 250, 250]),
    )
    assert merged([one, other, last]).finish().content == whole
    assert merged([one, two, other, last]).finish().content == whole


def test_the_tree_of_a_merged_segment_begins_at_the_first_part_that_has_one() -> None:
    parts = written([100, 200, 300, 50], [False, False, True, True])
    writer = merged(parts)
    frame = tree_of_segment(writer.finish().content)
    assert frame is not None
    assert (frame.first_index, frame.begin, frame.nodes) == (
        FIRST_INDEX + 300,
        FIRST_INDEX + 300,
        (),
    )
    assert writer.tree == LogTree(FIRST_INDEX + 300, tuple(_grown(LEAVES[300:650]).nodes)), (
        "it continues with the tree that the parts lead to"
    )


def test_of_trees_that_do_not_continue_each_other_the_last_one_stays() -> None:
    parts = written([100, 200, 300], [True, False, True])
    frame = tree_of_segment(merged(parts).finish().content)
    assert frame is not None
    assert frame.begin == FIRST_INDEX + 300
    assert merged(parts[:2]).tree is None, "the last part has none"
    again = merged([merged(parts).finish().content, written([600, 50], [False, True])[1]])
    frame = tree_of_segment(again.finish().content)
    assert frame is not None
    assert (frame.begin, len(frame.nodes)) == (FIRST_INDEX + 600, 0)


def test_a_part_that_overlaps_begins_its_tree_inside() -> None:
    [one] = written([250], [False])
    merged_part = merged(written([200, 300], [False, True])).finish().content
    writer = merged([one, merged_part])
    frame = tree_of_segment(writer.finish().content)
    assert frame is not None
    assert (frame.first_index, frame.begin) == (FIRST_INDEX + 200, FIRST_INDEX + 250)
    assert frame.nodes == tuple(_grown(LEAVES[200:250]).nodes)


def _grown(leaves: Sequence[bytes]) -> GrowingTree:
    tree = GrowingTree()
    for leaf in leaves:
        tree.add(leaf)
    return tree
