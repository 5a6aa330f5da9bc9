"""Databases after a loss of power: a torn tail is cut off, damage is refused. The rest of the files
tells the two apart."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from crc32c import crc32c

from streamd.raft.messages import HardState
from streamd.storage.errors import LogBelowFloor, LogCorrupt
from streamd.storage.leveldb_format import BLOCK_BYTES
from streamd.storage.leveldb_log import LevelDBLog
from streamd.storage.state_store import StateStore
from tests.storage import images
from tests.storage.images import entry, fill, open_log, read_all
from tests.support.directories import copy_in_use

PAGE_BYTES = 4096


@pytest.fixture(autouse=True)
def _without_a_journal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which would make good what LevelDB lost."""
    monkeypatch.setattr(images, "chosen_engine", LevelDBLog)


def newest(directory: Path, pattern: str = "*.log") -> Path:
    return max(directory.glob(pattern))


def torn_image(tmp_path: Path) -> tuple[Path, Path, int]:
    """A log of 9 entries, the last written over five pages. Returns the file with it, and its
    start."""
    log = open_log(tmp_path / "live")
    fill(log, 8)
    log.sync_floor()
    size = newest(tmp_path / "live" / "log").stat().st_size
    log.append([entry(9, payload=b"\x5a" * 20_000)], None)
    image = copy_in_use(tmp_path / "live", tmp_path / "image")
    log.close()
    return image, newest(image / "log"), size


def zero_page(file: Path, page: int, start: int = 0) -> None:
    content = bytearray(file.read_bytes())
    first, last = max(page * PAGE_BYTES, start), min((page + 1) * PAGE_BYTES, len(content))
    content[first:last] = bytes(last - first)
    file.write_bytes(content)


def zero_tail(file: Path, start: int) -> None:
    for page in (3, 4, 5):
        zero_page(file, page, start)


def repeat_old_block(file: Path, start: int) -> None:
    content = file.read_bytes()
    assert start < 3 * PAGE_BYTES
    file.write_bytes((content[: 3 * PAGE_BYTES] + content)[: len(content)])


TEARS: dict[str, Callable[[Path, int], None]] = {
    "a page of zeros with later pages whole": lambda file, start: zero_page(file, 2, start),
    "the first page of it missing": lambda file, start: zero_page(file, 0, start),
    "zeros at the tail": zero_tail,
    "an old block's bytes in the tail": repeat_old_block,
    "a beginning": lambda file, start: os.truncate(file, start + 9_000),
}


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("tear", TEARS)
def test_a_torn_write_is_cut_off_and_the_node_has_lost_nothing(
    tear: str, alone: bool, tmp_path: Path
) -> None:
    image, file, start = torn_image(tmp_path)
    TEARS[tear](file, start)
    torn = file.read_bytes()[start:]
    for _ in range(2):
        log = open_log(image, alone=alone)
        assert (log.last_index, log.lost_below) == (8, None)
        log.close()
    assert not (image / "log.damaged").exists()
    assert (image / "log.torn").read_bytes() == torn


def test_entries_cut_off_can_be_written_again(tmp_path: Path) -> None:
    image, file, start = torn_image(tmp_path)
    TEARS["zeros at the tail"](file, start)
    log = open_log(image)
    log.append([entry(9, term=2)], HardState(2, 1))
    log.close()
    again = open_log(image)
    assert [each.term for each in read_all(again)] == [1] * 8 + [2]
    again.close()


def test_confirmed_entries_that_look_torn_are_missed_by_the_floor(tmp_path: Path) -> None:
    log = open_log(tmp_path / "live")
    fill(log, 8)
    log.append([entry(9, payload=b"\x5a" * 20_000)], None)
    log.sync_floor()
    image = copy_in_use(tmp_path / "live", tmp_path / "image")
    log.close()
    zero_page(newest(image / "log"), 3)
    with pytest.raises(LogBelowFloor, match="ends at entry 8, but entry 9 had been stored"):
        open_log(copy_in_use(image, tmp_path / "alone"))
    member = open_log(image, alone=False)
    assert member.lost_below is not None
    assert member.lost_below.index == 9
    member.close()


def test_a_lost_page_of_a_write_before_another_is_damage(tmp_path: Path) -> None:
    """Even without a floor: the later write began when the earlier one was synced."""
    log = open_log(tmp_path / "live")
    fill(log, 3)
    log.append([entry(4, payload=b"\x5a" * 20_000)], None)
    fill(log, 1)
    image = copy_in_use(tmp_path / "live", tmp_path / "image")
    log.close()
    file = newest(image / "log")
    zero_page(file, 2)
    content = file.read_bytes()
    with pytest.raises(LogCorrupt, match=r"byte .* was written"):
        open_log(image)
    assert file.read_bytes() == content, "nothing is cut off what may be rescued"
    member = open_log(image, alone=False)
    assert member.lost_below is not None
    assert (image / "log.damaged" / file.name).read_bytes() == content
    member.close()


def test_a_flipped_bit_in_the_last_write_is_damage(tmp_path: Path) -> None:
    """A loss of power takes pages, not bits."""
    log = open_log(tmp_path / "live")
    fill(log, 8)
    image = copy_in_use(tmp_path / "live", tmp_path / "image")
    log.close()
    assert not (image / "floor").exists()
    file = newest(image / "log")
    content = bytearray(file.read_bytes())
    content[-20] ^= 4
    file.write_bytes(content)
    with pytest.raises(LogCorrupt, match=r"a bit .* has changed"):
        open_log(image)


def two_file_log(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A database that has begun a second log and still needs the first."""
    live = tmp_path / "live"
    log = LevelDBLog(live, 0)
    db = log._db
    head, tag, lengths = 7 + 12, 1, 1 + 3
    to_the_block = BLOCK_BYTES - head - tag - lengths - len(log._key(1))
    db.put(log._key(1), b"\x5a" * to_the_block, sync=True)
    db.put(log._key(2), b"the second", sync=True)
    image = copy_in_use(live, tmp_path / "image")
    db.close()
    older = newest(image)
    newer = older.with_name("000009.log")
    content = older.read_bytes()
    older.write_bytes(content[:BLOCK_BYTES])
    newer.write_bytes(content[BLOCK_BYTES:])
    return image, older, newer


def test_two_logs_are_read_one_after_the_other(tmp_path: Path) -> None:
    image, _, newer = two_file_log(tmp_path)
    newer.write_bytes(newer.read_bytes() + b"torn")
    log = LevelDBLog(image, 0)
    assert log._db.get(log._key(2)) == b"the second"
    log.close()


def test_an_older_log_is_never_torn(tmp_path: Path) -> None:
    image, older, _ = two_file_log(tmp_path)
    older.write_bytes(older.read_bytes()[:-5000])
    with pytest.raises(LogCorrupt, match=older.name):
        LevelDBLog(image, 0)


def test_a_missing_earlier_log_file_is_noticed(tmp_path: Path) -> None:
    image, older, newer = two_file_log(tmp_path)
    older.unlink()
    with pytest.raises(LogCorrupt, match=newer.name):
        LevelDBLog(image, 0)


def test_a_new_log_may_begin_with_a_stale_block_of_another_database(tmp_path: Path) -> None:
    other = StateStore(tmp_path / "other")
    for number in range(9):
        other.write([(b"%d" % number, b"x")])
    other.close()
    StateStore(tmp_path / "other").close()
    old_block = b"".join(file.read_bytes() for file in (tmp_path / "other").glob("MANIFEST-*"))
    image, _, newer = two_file_log(tmp_path)
    for block in (old_block, newest(tmp_path / "other", "*.ldb").read_bytes()):
        newer.write_bytes(block)
        LevelDBLog(copy_in_use(image, tmp_path / block[:9].hex()), 0).close()


# -- the manifest ---------------------------------------------------------------------------------


def test_a_torn_manifest_is_cut_off(tmp_path: Path) -> None:
    image, manifest, start = manifest_image(tmp_path)
    whole = manifest.read_bytes()
    for torn in (whole[: start + 9], whole[:start] + bytes(len(whole) - start)):
        manifest.write_bytes(torn)
        log = LevelDBLog(copy_in_use(image, tmp_path / f"torn{len(torn)}"), 0)
        assert len(list(log._db.iterator(include_value=False))) == 9
        log.close()


def test_a_manifest_with_a_flipped_bit_is_refused(tmp_path: Path) -> None:
    image, manifest, start = manifest_image(tmp_path)
    for place in (start // 2, start + 9):
        content = bytearray(manifest.read_bytes())
        content[place] ^= 1
        copy = copy_in_use(image, tmp_path / f"flipped{place}")
        (copy / manifest.name).write_bytes(content)
        with pytest.raises(LogCorrupt, match="MANIFEST"):
            LevelDBLog(copy, 0)


def manifest_image(tmp_path: Path) -> tuple[Path, Path, int]:
    """A database whose manifest has just recorded a new table while that table's log is still
    there. Returns the manifest, and where the last record begins."""
    live = tmp_path / "live"
    log = LevelDBLog(live, 0)
    db = log._db
    for index in range(9):
        db.put(log._key(index), b"x", sync=True)
    image = copy_in_use(live, tmp_path / "image")
    start = newest(live, "MANIFEST-*").stat().st_size
    db.compact_range()
    for file in copy_in_use(live, tmp_path / "after").iterdir():
        if not file.name.endswith(".log"):
            shutil.copy(file, image)
    db.close()
    return image, newest(image, "MANIFEST-*"), start


def test_a_failed_write_is_not_missed_though_the_manifest_counts_it(tmp_path: Path) -> None:
    """LevelDB counts it, and a table finished at that moment records the count."""
    log = LevelDBLog(tmp_path / "live", 0)
    db = log._db
    db.put(log._key(1), b"the first", sync=True)
    image = copy_in_use(tmp_path / "live", tmp_path / "image")
    db.close()
    count_batches(newest(image, "MANIFEST-*"), last_sequence=2)
    again = LevelDBLog(image, 0)
    assert again._db.get(log._key(1)) == b"the first"
    again.close()


def test_a_state_ignores_records_that_may_be_of_an_older_file(tmp_path: Path) -> None:
    store = StateStore(tmp_path / "live")
    store.write([(b"stored", b"1")])
    store.close()
    store = StateStore(tmp_path / "live")  # it is in a table now
    store.write([(b"old", b"2")])
    image = copy_in_use(tmp_path / "live", tmp_path / "image")
    store.close()
    count_batches(newest(image, "MANIFEST-*"), last_sequence=9)
    again = StateStore(image)
    assert (again.get(b"stored"), again.get(b"old")) == (b"1", None)
    again.close()


def count_batches(manifest: Path, last_sequence: int) -> None:
    """Make a manifest claim so many changes."""
    number = int(newest(manifest.parent).stem)
    edit = bytes([1, 2, number, 9, 0, 3, number + 1, 4, last_sequence])
    crc = crc32c(edit)
    masked = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF
    with manifest.open("ab") as file:
        file.write(masked.to_bytes(4, "little") + (len(edit) - 1).to_bytes(2, "little") + edit)


@pytest.mark.parametrize("left", [b"", bytes(50), b"\xff" * 20])
def test_a_database_whose_creation_was_cut_short_is_created_again(
    left: bytes, tmp_path: Path
) -> None:
    (tmp_path / "log").mkdir()
    (tmp_path / "log" / "MANIFEST-000001").write_bytes(left)
    (tmp_path / "log" / "CURRENT").write_text("MANIFEST-000001\n")
    (tmp_path / "log" / "000003.log").write_bytes(b"")
    log = open_log(tmp_path)
    fill(log, 3)
    log.close()
    again = open_log(tmp_path)
    assert again.last_index == 3
    again.close()


# -- the state ------------------------------------------------------------------------------------


def test_a_torn_write_to_the_state_leaves_the_write_before_it(tmp_path: Path) -> None:
    image, file, start = state_image(tmp_path)
    zero_page(file, start // PAGE_BYTES + 2)
    store = StateStore(image)
    assert store.get(b"applied") == b"7"
    assert store.get(b"row") == b"7" * 20_000
    store.close()


def test_a_damaged_state_goes_back_to_the_write_before_the_damage(tmp_path: Path) -> None:
    """The log replaces the rest; no later write may hide the damage."""
    image, file, _ = state_image(tmp_path)
    zero_page(file, 12)
    store = StateStore(image)
    assert store.get(b"applied") == b"2"
    assert store.get(b"row") == b"2" * 20_000
    store.close()


def state_image(tmp_path: Path) -> tuple[Path, Path, int]:
    """A state after eight writes over five pages each; the file, and where the last begins."""
    store = StateStore(tmp_path / "live")
    start = 0
    for number in range(1, 9):
        start = newest(tmp_path / "live").stat().st_size
        store.write([(b"row", b"%d" % number * 20_000), (b"applied", b"%d" % number)])
    image = copy_in_use(tmp_path / "live", tmp_path / "image")
    store.close()
    return image, newest(image), start
