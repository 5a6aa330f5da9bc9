"""A log with a journal before LevelDB: after a crash at any step it is what it was, or is meant to
be; readers beside the writer miss nothing; and each of the two makes good what the other lacks."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest

from streamd.raft.chain import ChainPosition
from streamd.raft.messages import Entry, HardState
from streamd.storage import journal, journaled_log
from streamd.storage.errors import DataDamaged, LogCorrupt, StorageFailed
from streamd.storage.journal import SECTOR_BYTES
from streamd.storage.journaled_log import JournaledLog
from streamd.storage.leveldb_log import LevelDBLog
from tests.sim.persisting import PersistPoints
from tests.storage import images
from tests.storage.images import copy_of, entry, fill, newest_file, open_log, read_all
from tests.storage.log_steps import (
    SMALL_BYTES,
    Contents,
    Steps,
    between_lines_of,
    contents_of,
    stored,
)
from tests.storage.test_order import Notes
from tests.support.directories import copy_in_use
from tests.support.seeds import seeds

T = TypeVar("T")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MAX_BYTES", SMALL_BYTES)


@pytest.mark.parametrize("seed", seeds(3))
def test_killed_before_anything_it_makes_durable_a_log_is_as_before_or_as_meant(
    seed: int, tmp_path: Path
) -> None:
    images_of_step: list[Path] = []

    def take() -> None:
        image = tmp_path / f"image{len(images_of_step)}"
        images_of_step.append(copy_of(tmp_path / "live", image))

    points = PersistPoints()
    steps = Steps(seed)
    starts = 0
    with points.installed():
        log = open_log(tmp_path / "live")
        fill(log, 1)
        for number in range(120):
            before = Contents(log)
            if number % 4:
                steps.any_step(log, resets=True)()
            else:
                step = steps.any_step(log, resets=False)
                with points.of(Notes(take)):
                    step()
            after = Contents(log)
            for image in images_of_step:
                found = contents_of(image)
                assert found in (before, after, before.with_vote_of(after))
                starts += 1
            images_of_step.clear()
        assert contents_of(copy_of(tmp_path / "live", tmp_path / "last")) == Contents(log)
        log.close()
    assert starts > 30


def test_what_a_start_finds_in_the_journal_goes_to_leveldb(tmp_path: Path) -> None:
    """A process that was killed before its fdatasync leaves records that only the system's cache
    has: LevelDB gets them by a synced batch of its own."""
    log = open_log(tmp_path)
    entries = fill(log, 20)
    log.close()
    assert stored(tmp_path) == []
    open_log(tmp_path).close()
    assert stored(tmp_path) == entries


def test_what_the_journal_has_no_room_for_goes_to_leveldb(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    entries = fill(log, 300)
    assert read_all(log) == entries
    log.close()
    in_leveldb = stored(tmp_path)
    assert 100 < len(in_leveldb) < 300
    assert in_leveldb == entries[: len(in_leveldb)]
    assert contents_of(tmp_path).entries == entries


def test_what_is_too_large_for_the_journal_takes_all_before_it_along(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 3)
    large = entry(4, payload=b"x" * SMALL_BYTES)
    log.append([large], None)
    fill(log, 1)
    log.close()
    assert [each.index for each in stored(tmp_path)] == [1, 2, 3, 4]


def test_a_reader_finds_rows_that_move_to_leveldb_while_it_reads(tmp_path: Path) -> None:
    log = JournaledLog(tmp_path / "log", 0)
    position = ChainPosition()

    def put(count: int) -> None:
        nonlocal position
        for _ in range(count):
            each = entry(position.index + 1)
            position = position.next(0, each)
            log.write([(each, position)])

    put(50)
    rows = log.rows(1, 10_000)
    found = [next(rows) for _ in range(5)]
    put(200)
    found += [next(rows) for _ in range(60)]
    put(200)
    found += rows
    assert [each.index for each, _ in found] == [*range(1, 451)]
    assert all(log.position(each.index) == place for each, place in found)
    log.close()


def test_a_reader_misses_nothing_at_whatever_line_the_writer_is(tmp_path: Path) -> None:
    log = JournaledLog(tmp_path / "log", 0)
    positions = [ChainPosition()]
    known = range(1, 1)

    def look() -> None:
        assert [each.index for each, _ in log.rows(known.start, known.stop)] == [*known]
        assert all(log.position(index) == positions[index] for index in known)

    def put(first: int, size: int, term: int) -> None:
        nonlocal known
        replaced = range(first, len(positions))
        del positions[first:]
        row = entry(first, term, bytes(size))
        positions.append(positions[-1].next(0, row))
        known = range(known.start, first)
        log.write([(row, positions[-1])], replaced=replaced)
        known = range(known.start, first + 1)

    with between_lines_of(journaled_log, look):
        for size in [1_000] * 50 + [SMALL_BYTES] + [10] * 10:
            put(len(positions), size, 1)
        put(55, 1_000, 2)  # LevelDB gets it: too many are stored
        put(56, 1_000, 2)
        put(56, 1_000, 3)
        known = range(11, known.stop)
        log.begin_after(positions[10])
        log.remove(range(1, 11))
    log.close()


def test_a_cut_keeps_the_records_of_all_entries_after_it(tmp_path: Path) -> None:
    log = open_log(tmp_path / "live")
    entries = fill(log, 3)
    several = [entry(index) for index in range(4, 9)]
    log.append(several, None)
    entries += [*several, *fill(log, 3)]
    for number, through in enumerate((2, 3, 5, 7, 8, 9)):
        log.begin_cut(through)
        image = copy_in_use(tmp_path / "live", tmp_path / f"begun{number}")
        if number % 2:
            assert log.cut()
            log.remove_cut()
            image = copy_in_use(tmp_path / "live", tmp_path / f"cut{number}")
        assert contents_of(image).entries == entries[through:]
    log.close()


def test_entries_replaced_by_fewer_leave_nothing_of_them_to_store(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    entries = fill(log, 2)
    log.append([entry(index) for index in range(3, 8)], None)
    log.append([entry(4, term=2)], HardState(2, 1))
    entries += [entry(3), entry(4, term=2)]
    for term in range(3, 150):
        log.append([], HardState(term))
    assert read_all(log) == entries
    log.close()
    assert contents_of(tmp_path).entries == entries


@pytest.mark.parametrize("count", [1, 300])
def test_the_hard_state_is_kept_by_the_journal_and_then_by_leveldb(
    count: int, tmp_path: Path
) -> None:
    """The vote's own file is there for when it is not."""
    log = open_log(tmp_path)
    log.append([], HardState(3, 2))
    for index in range(1, count + 1):
        log.append([entry(index, 3)], None)
    log.close()
    engine = JournaledLog(tmp_path / "log", 0)
    assert engine.hard_state() == HardState(3, 2)
    engine.close()


def test_a_log_from_before_there_was_a_journal_gets_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(images, "chosen_engine", LevelDBLog)
        log = open_log(tmp_path)
        entries = fill(log, 5)
        log.close()
    assert not (tmp_path / "log" / "journal").exists()
    log = open_log(tmp_path)
    assert read_all(log) == entries
    entries += fill(log, 5)
    log.close()
    assert contents_of(tmp_path).entries == entries


# -- damage ---------------------------------------------------------------------------------------


def crashed(tmp_path: Path, count: int = 20) -> Path:
    """What a log with so many entries leaves, all of them in the journal; no floor was noted."""
    log = open_log(tmp_path / "live")
    fill(log, count)
    image = copy_in_use(tmp_path / "live", tmp_path / "image")
    log.close()
    return image


def test_a_torn_record_is_left_out_and_kept_beside_the_log(tmp_path: Path) -> None:
    image = crashed(tmp_path)
    log = open_log(image)
    log.append([entry(21, payload=b"z" * 1_500)], None)
    torn = copy_in_use(image, tmp_path / "torn")
    log.close()
    file, written = newest_file(torn)
    content = bytearray(file.read_bytes())
    content[written.stop - SECTOR_BYTES : written.stop] = bytes(SECTOR_BYTES)
    file.write_bytes(content)
    for alone in (True, False):
        copy = copy_of(torn, tmp_path / "copy")
        log = open_log(copy, alone=alone)
        assert (log.last_index, log.lost_below) == (20, None)
        fill(log, 3, term=2)
        log.close()
        assert b"z" * 400 in (copy / "log.torn").read_bytes()
        again = open_log(copy, alone=alone)
        assert [each.term for each in read_all(again)] == [1] * 20 + [2] * 3
        again.close()


def test_two_writes_torn_one_after_the_other_are_both_left_out(tmp_path: Path) -> None:
    """Of the first all sectors but one reach the disk, of the second just that one: with the same
    stamps they would look like one that was whole, and has changed."""
    image = crashed(tmp_path)
    for byte, kept in ((b"a", slice(SECTOR_BYTES, None)), (b"b", slice(0, SECTOR_BYTES))):
        log = open_log(image)
        before = (image / "log" / "journal").read_bytes()
        log.append([entry(21, payload=byte * 1_500)], None)
        torn = copy_of(image, tmp_path / byte.decode())
        log.close()
        file, written = newest_file(torn)
        content, start = bytearray(before), written.start
        whole = file.read_bytes()[start : written.stop]
        place = range(len(whole))[kept]
        content[start + place.start : start + place.stop] = whole[kept]
        file.write_bytes(content)
        image = torn
    log = open_log(image)
    assert log.last_index == 20
    log.close()


@pytest.mark.parametrize("what", ["missing", "empty", "of another log"])
def test_a_log_without_its_journal_is_refused_or_salvaged(what: str, tmp_path: Path) -> None:
    image = crashed(tmp_path)
    log = open_log(image)
    log.close()
    file = image / "log" / "journal"
    file.unlink()
    if what == "empty":
        file.write_bytes(b"")
    if what == "of another log":
        other = crashed(tmp_path / "other", 30)
        shutil.copy(other / "log" / "journal", file)
        for name in ("CURRENT", *(each.name for each in (image / "log").glob("*.log"))):
            (image / "log" / name).unlink()
    with pytest.raises(DataDamaged):
        open_log(copy_in_use(image, tmp_path / "alone"))


def test_what_leveldb_lost_the_journal_makes_good(tmp_path: Path) -> None:
    """As long as it was not overwritten; else records are missing, which is noticed."""
    log = open_log(tmp_path / "live")
    fill(log, 1)
    log.close()
    log = open_log(tmp_path / "live")
    fill(log, 20)
    before = copy_in_use(tmp_path / "live" / "log", tmp_path / "before")
    fill(log, 80)
    image = copy_in_use(tmp_path / "live", tmp_path / "image")
    fill(log, 200)
    later = copy_in_use(tmp_path / "live", tmp_path / "later")
    log.close()
    for broken in (image, later):
        shutil.copy(broken / "log" / "journal", tmp_path / "journal")
        shutil.rmtree(broken / "log")
        shutil.copytree(before, broken / "log")
        shutil.copy(tmp_path / "journal", broken / "log")
    again = open_log(image)
    assert again.last_index == 101
    again.close()
    with pytest.raises(LogCorrupt, match="is lost, though record"):
        open_log(later)


def test_a_member_whose_leveldb_lost_everything_keeps_what_the_journal_has(tmp_path: Path) -> None:
    image = crashed(tmp_path)
    (file,) = (image / "log").glob("*.log")
    file.write_bytes(b"")
    with pytest.raises(LogCorrupt, match="LevelDB names no place in it"):
        open_log(copy_in_use(image, tmp_path / "alone"))
    member = open_log(image, alone=False)
    assert member.lost_below is not None
    assert member.last_index == 20
    member.close()


def test_entries_after_a_damaged_record_count_as_lost(tmp_path: Path) -> None:
    image = crashed(tmp_path)
    file, written = newest_file(image)
    content = bytearray(file.read_bytes())
    content[written.stop // 2] ^= 8
    file.write_bytes(content)
    member = open_log(image, alone=False)
    assert member.last_index == 10
    assert member.lost_below is not None
    assert member.lost_below.index == 20
    assert (image / "log.damaged" / "journal").read_bytes() == bytes(content)
    member.close()


# -- errors ---------------------------------------------------------------------------------------


class Failing(Notes):
    """A disk that refuses to write to a journal from some byte on."""

    def __init__(self, number: int, from_byte: int = 0) -> None:
        super().__init__()
        self._error = OSError(number, "the disk says no")
        self._from_byte = from_byte

    def overwrite(self, write: Callable[[], T], file: Path, at: int, content: bytes) -> T:
        if at >= self._from_byte:
            raise self._error
        return write()


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_journal_that_cannot_be_written_ends_the_log_with_all_that_was_confirmed(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk shows as the file grows, before anything is in what it grows by."""
    monkeypatch.setattr(journal, "MAX_BYTES", 4 * SMALL_BYTES)
    points = PersistPoints()
    confirmed: list[Entry] = []
    with points.installed():
        log = open_log(tmp_path)
        failure = None
        with points.of(Failing(number, from_byte=SMALL_BYTES)):
            while failure is None:
                try:
                    confirmed += fill(log, 1)
                except StorageFailed as error:
                    failure = error
        assert "Nothing was acknowledged after this" in str(failure)
        with pytest.raises(StorageFailed):
            fill(log, 1)
        log.close()
    assert len(confirmed) > 50
    again = open_log(tmp_path)
    assert read_all(again) == confirmed
    again.close()
