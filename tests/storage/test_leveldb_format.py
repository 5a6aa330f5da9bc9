"""Files as LevelDB writes them: a torn last write is distinguished from damage to synced bytes."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.storage.binding import plyvel
from streamd.storage.leveldb_format import BLOCK_BYTES, FileDamaged, whole_size
from streamd.storage.torn_writes import Batches

PAGE_BYTES = 4096
# Within a page, over several, over blocks, and one that leaves room for a head only.
SIZES = (10, 300, 20_000, 70_000, BLOCK_BYTES - 300)


class Written:
    """LevelDB's log of a new database, and where each of its synced batches ended."""

    def __init__(self, directory: Path, seed: int, count: int) -> None:
        random = Random(seed)
        self.ends = [0]
        db = plyvel.DB(str(directory), create_if_missing=True, compression=None)
        (file,) = directory.glob("*.log")
        for number in range(count):
            with db.write_batch(sync=True) as batch:
                for change in range(random.choice((1, 1, 3))):
                    key = b"%d.%d" % (number, change)
                    batch.put(key, random.randbytes(random.choice(SIZES)))
            self.ends.append(file.stat().st_size)
        self.content = file.read_bytes()
        db.close()

    @property
    def last_start(self) -> int:
        return self.ends[-2]


@pytest.fixture(scope="module", params=[2, 6, pytest.param(18, marks=pytest.mark.long)])
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Written:
    directory = tmp_path_factory.mktemp("wal") / "db"
    directory.mkdir()
    return Written(directory, request.param, count=request.param)


def measured(content: bytes) -> int:
    return whole_size(content, Batches(0, len(content), None))


def test_files_that_leveldb_wrote_are_whole(written: Written) -> None:
    for end in written.ends:
        assert measured(written.content[:end]) == end


@given(st.data())
@settings(max_examples=20)
def test_any_prefix_of_the_last_write_is_torn(written: Written, data: st.DataObject) -> None:
    start, end = written.ends[-2:]
    size = data.draw(st.integers(start, end - 1))
    assert measured(written.content[:size]) == start


@given(st.data())
@settings(max_examples=30)
def test_the_last_write_without_some_of_its_pages_is_torn(
    written: Written, data: st.DataObject
) -> None:
    start, end = written.ends[-2:]
    pages = range(start // PAGE_BYTES, -(-end // PAGE_BYTES))
    lost = data.draw(st.sets(st.sampled_from(pages), min_size=1))
    filling = data.draw(st.sampled_from(["zeros", "an old file", "anything"]))
    content = bytearray(written.content)
    for page in lost:
        first, last = max(page * PAGE_BYTES, start), min((page + 1) * PAGE_BYTES, end)
        content[first:last] = _filling(filling, written, page, last - first, data)
    if content == written.content:
        return
    assert measured(bytes(content)) in (start, end)
    if filling == "zeros":
        assert measured(bytes(content)) == start or not any(written.content[first:last])


def _filling(kind: str, written: Written, page: int, size: int, data: st.DataObject) -> bytes:
    if kind == "zeros":
        return bytes(size)
    if kind == "anything":
        return Random(data.draw(st.integers(0, 999))).randbytes(size)
    # What another page of the same file had, where a record may begin as well.
    pages = max(1, written.last_start // PAGE_BYTES)
    source = data.draw(st.integers(0, pages - 1)) * PAGE_BYTES
    return (written.content[source : source + size] + bytes(size))[:size]


@given(st.data())
@settings(max_examples=30)
def test_a_flipped_bit_anywhere_is_damage(written: Written, data: st.DataObject) -> None:
    """Also in the last write, which may have been confirmed."""
    content = bytearray(written.content)
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= 1 << data.draw(st.integers(0, 7))
    if place % BLOCK_BYTES > BLOCK_BYTES - 7 and not written.content[place]:
        return  # It may be in a block's padding, which nothing reads.
    with pytest.raises(FileDamaged):
        measured(bytes(content))


@given(st.data())
@settings(max_examples=30)
def test_bytes_lost_before_the_last_write_are_damage(written: Written, data: st.DataObject) -> None:
    content = bytearray(written.content)
    first = data.draw(st.integers(0, written.last_start - 1))
    last = data.draw(st.integers(first + 1, written.last_start))
    filling = data.draw(st.sampled_from(["zeros", "anything"]))
    content[first:last] = _filling(filling, written, 0, last - first, data)
    begun = [end for end in written.ends if end <= first][-1]
    if not any(written.content[begun + 6 : last]) or content == written.content:
        return
    with pytest.raises(FileDamaged) as damaged:
        measured(bytes(content))
    assert damaged.value.size <= first


def test_a_sector_with_a_single_bit_set_can_be_lost(tmp_path: Path) -> None:
    """Its loss looks different from a flipped bit."""
    (tmp_path / "db").mkdir()
    db = plyvel.DB(str(tmp_path / "db"), create_if_missing=True)
    head, tag, lengths = 7 + 12, 1, 1 + 2
    value = b"\xff" * (PAGE_BYTES - head - tag - lengths - len(b"key")) + b"\x20"
    db.put(b"key", value, sync=True)
    (file,) = (tmp_path / "db").glob("*.log")
    content = file.read_bytes()
    db.close()
    assert len(content) == PAGE_BYTES + 1
    assert measured(content[:PAGE_BYTES] + b"\0") == 0
    with pytest.raises(FileDamaged, match="a bit"):
        measured(content[:PAGE_BYTES] + b"\x21")
