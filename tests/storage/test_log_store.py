"""The contract of the log: appended entries survive any crash, or the log reports the loss."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamd.raft.messages import Entry, HardState
from streamd.storage import log_store
from streamd.storage.errors import DataDamaged, LogBelowFloor, LogCorrupt, StorageError
from tests.storage.images import (
    compact,
    entry,
    fill,
    newest_file,
    open_log,
    read_all,
    sabotage,
    with_another_floor,
)
from tests.support.directories import copy_in_use

pytestmark = pytest.mark.usefixtures("each_engine")


def test_a_new_log_is_empty(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    assert (log.first_index, log.last_index) == (1, 0)
    assert log.term(0) == 0
    assert log.hard_state == HardState()
    log.close()


def test_entries_and_hard_state_survive_a_crash(tmp_path: Path) -> None:
    log = open_log(tmp_path / "live")
    entries = [entry(1), entry(2), entry(3, term=4)]
    log.append(entries[:2], HardState(1, 1))
    log.append(entries[2:], HardState(4, 2))
    image = copy_in_use(tmp_path / "live", tmp_path / "image")
    log.close()

    again = open_log(image)
    assert read_all(again) == entries
    assert again.hard_state == HardState(4, 2)
    assert [again.term(index) for index in range(4)] == [0, 1, 1, 4]
    again.close()


def test_a_hard_state_may_be_stored_without_entries(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append([], HardState(7, 3))
    log.close()
    again = open_log(tmp_path)
    assert again.hard_state == HardState(7, 3)
    assert again.last_index == 0
    again.close()


def test_an_append_in_the_middle_replaces_everything_after_it(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    kept = fill(log, 10)[:4]
    replacement = [entry(5, term=2), entry(6, term=2)]
    log.append(replacement, HardState(2, 1))
    assert log.last_index == 6
    assert read_all(log) == kept + replacement
    assert log.term(4) == 1
    assert log.term(5) == 2
    log.close()
    again = open_log(tmp_path)
    assert read_all(again) == kept + replacement
    again.close()


def test_a_replacement_below_the_floor_moves_the_floor_first(tmp_path: Path) -> None:
    log = open_log(tmp_path / "live")
    kept = fill(log, 10)[:2]
    log.sync_floor()
    log.append([entry(3, term=2)], HardState(2, 1))
    image = copy_in_use(tmp_path / "live", tmp_path / "image")
    log.close()
    again = open_log(image)
    assert read_all(again) == [*kept, entry(3, term=2)]
    again.close()


def test_reads_are_bounded_in_bytes_but_give_at_least_one_entry(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.append([entry(index, payload=b"x" * 100) for index in range(1, 11)], HardState(1, 1))
    for reader in (log, _reopened(log, tmp_path)):
        assert len(reader.entries(1, 11, 1)) == 1
        assert len(reader.entries(1, 11, 350)) == 3
        assert [e.index for e in reader.entries(4, 7, 1 << 20)] == [4, 5, 6]
    reader.close()


def _reopened(log: object, directory: Path):  # type: ignore[no-untyped-def]
    log.close()  # type: ignore[attr-defined]
    return open_log(directory)


def test_entries_that_left_memory_are_read_from_disk_and_verified(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    big = [entry(index, payload=bytes([index]) * (1024 * 1024)) for index in range(1, 21)]
    for each in big:
        log.append([each], HardState(1, 1))
    assert log.entries(2, 5, 1 << 30) == big[1:4]
    assert log.entries(1, 2, 1) == big[:1]
    log.close()


# -- compaction -----------------------------------------------------------------------------------


def test_the_bytes_after_an_entry_in_memory_are_known(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    entries = [entry(index, payload=b"x" * index) for index in range(1, 5)]
    log.append(entries, None)
    assert [log.size_after(index) for index in range(5)] == [10, 9, 7, 4, 0]
    compact(log, 2)
    assert log.size_after(2) == 7
    log.close()


def test_the_bytes_after_an_entry_on_disk_are_estimated(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    size = 1_000_000
    payloads = [bytes([index]) * size for index in range(40)]
    for index, payload in enumerate(payloads, start=1):
        log.append([entry(index, payload=payload)], None)
    log.close()
    again = open_log(tmp_path)
    sizes = [again.size_after(index) for index in (0, 20, 39, 40)]
    assert sizes[2:] == [size, 0]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[1] >= 20 * size
    again.close()


def test_a_compacted_log_begins_after_the_removed_entries(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    entries = fill(log, 4) + fill(log, 4, term=3)
    compact(log, 5)
    compact(log, 2)
    for reader in (log, _reopened(log, tmp_path)):
        assert (reader.first_index, reader.last_index) == (6, 8)
        assert reader.term(5) == 3
        assert read_all(reader) == entries[5:]
    more = fill(reader, 2, term=3)
    assert read_all(reader) == entries[5:] + more
    reader.close()


def test_a_log_may_be_compacted_to_its_end(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 3)
    compact(log, 3)
    again = _reopened(log, tmp_path)
    assert (again.first_index, again.last_index) == (4, 3)
    assert again.term(3) == 1
    assert read_all(again) == []
    fill(again, 1)
    again.close()


def test_a_compaction_takes_no_entries_from_a_read_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_store, "_RECENT_BYTES", 1)
    log = open_log(tmp_path)
    entries = fill(log, 8)
    in_memory = log._recent.entries

    def cut_meanwhile(lo: int, hi: int, max_bytes: int) -> list[Entry] | None:
        # The writer's thread may get this far while the event loop is between two steps.
        with ThreadPoolExecutor(1) as writer:
            writer.submit(log.begin_cut, 5).result()
        return in_memory(lo, hi, max_bytes)

    monkeypatch.setattr(log._recent, "entries", cut_meanwhile)
    first = log.first_index
    assert log.entries(first, first + 4, 1000) == entries[:4]
    assert log.first_index == first
    assert log.term(first) == 1
    monkeypatch.undo()

    assert log.cut()
    assert (log.first_index, log.term(5)) == (6, 1)
    log.remove_cut()
    assert not log.cut()
    assert read_all(log) == entries[5:]
    again = _reopened(log, tmp_path)
    assert read_all(again) == entries[5:]
    again.close()


# -- damage ---------------------------------------------------------------------------------------


def _damaged_log(tmp_path: Path) -> tuple[Path, Path, range]:
    """A crash image with a floor, the file with its entries, and where in it they are."""
    log = open_log(tmp_path / "live")
    fill(log, 30)
    log.sync_floor()
    image = copy_in_use(tmp_path / "live", tmp_path / "image")
    log.close()
    return image, *newest_file(image)


def test_no_flipped_bit_anywhere_in_the_log_goes_unnoticed(tmp_path: Path) -> None:
    image, file, written = _damaged_log(tmp_path)
    whole = file.read_bytes()

    @settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.sampled_from(written), st.integers(0, 7))
    def flip(place: int, bit: int) -> None:
        damaged = bytearray(whole)
        damaged[place] ^= 1 << bit
        _restore(image, file, bytes(damaged))
        with pytest.raises(StorageError):
            open_log(image)

    flip()


def test_no_truncation_of_the_log_goes_unnoticed(tmp_path: Path) -> None:
    image, file, written = _damaged_log(tmp_path)
    whole = file.read_bytes()

    @settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.sampled_from(written))
    def cut(size: int) -> None:
        _restore(image, file, whole[:size])
        with pytest.raises(StorageError):
            open_log(image)

    cut()


def _restore(image: Path, file: Path, content: bytes) -> None:
    """Undo the last attempt to open it: LevelDB writes new files before it fails."""
    for other in (image / "log").iterdir():
        if other.name.startswith("LOG") or other.suffix in (".ldb", ".dbtmp"):
            other.unlink()
    file.write_bytes(content)


def test_an_entry_taken_out_of_the_middle_breaks_the_chain(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 9)
    log.close()
    sabotage(tmp_path, removed=[5])
    with pytest.raises(LogCorrupt, match="entry 5"):
        open_log(tmp_path)


def test_an_entry_changed_with_a_valid_database_checksum_breaks_the_chain(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 9)
    chain = log.position(5).chain
    log.close()
    sabotage(tmp_path, entries=[entry(5, payload=b"another")], chain=chain)
    with pytest.raises(LogCorrupt, match="entry 5"):
        open_log(tmp_path)


def test_another_log_under_the_same_floor_is_refused(tmp_path: Path) -> None:
    other = with_another_floor(tmp_path)
    with pytest.raises(LogCorrupt, match="entry 5"):
        open_log(other)


def test_a_state_ahead_of_the_log_shows_that_the_log_lost_entries(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 5)
    log.fit_to_state(5, 1)
    with pytest.raises(LogBelowFloor, match="ends at entry 5"):
        log.fit_to_state(6, 1)
    log.close()


@pytest.mark.parametrize("name", ["CURRENT", "MANIFEST-*"])
def test_a_database_without_its_root_is_refused_not_recreated(name: str, tmp_path: Path) -> None:
    image, *_ = _damaged_log(tmp_path)
    open_log(image).close()  # the replayed entries become a table
    before = {file.name for file in (image / "log").glob("*.ldb")}
    for file in (image / "log").glob(name):
        file.unlink()
    with pytest.raises(DataDamaged):
        open_log(image)
    assert {file.name for file in (image / "log").glob("*.ldb")} == before, "it can be rescued"


def test_a_damaged_floor_is_refused(tmp_path: Path) -> None:
    image, *_ = _damaged_log(tmp_path)
    floor = bytearray((image / "floor").read_bytes())
    floor[6] ^= 1
    (image / "floor").write_bytes(floor)
    with pytest.raises(LogCorrupt, match="floor"):
        open_log(image)
