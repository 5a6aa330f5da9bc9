"""A damaged log of a node with peers: proved entries are kept, and the node claims no others."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamd.raft.chain import ChainPosition
from streamd.raft.messages import HardState
from streamd.storage.errors import LogBelowFloor, LogCorrupt, StateLagsLog, StorageError
from streamd.storage.log_evidence import LogEvidence
from streamd.storage.log_storage import reset_log
from streamd.storage.log_store import LogStore
from tests.storage.images import (
    compact,
    copy_of,
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

HARD_STATE = HardState(3, 2)


def damaged_image(tmp_path: Path) -> tuple[Path, Path, range]:
    """A crash image whose floor is at entry 24 of 30; its file with entries, and where they are."""
    log = open_log(tmp_path / "live")
    fill(log, 20)
    log.append([entry(index, term=3) for index in range(21, 25)], HARD_STATE)
    log.sync_floor()
    for index in range(25, 31):
        log.append([entry(index, term=3)], None)
    image = copy_in_use(tmp_path / "live", tmp_path / "image")
    log.close()
    return image, *newest_file(image)


def assert_salvaged(log: LogStore, lost_at_least: int) -> int:
    """A proved beginning is left, and everything after it counts as lost."""
    assert log.lost_below is not None
    assert log.lost_below.index >= max(lost_at_least, log.last_index)
    assert log.hard_state == HARD_STATE
    term = {index: 1 if index <= 20 else 3 for index in range(1, 31)}
    assert list(read_all(log)) == [entry(i, term[i]) for i in range(1, log.last_index + 1)]
    return log.last_index


def test_a_log_truncated_below_its_floor_follows_but_may_not_vote(tmp_path: Path) -> None:
    image, file, written = damaged_image(tmp_path)
    file.write_bytes(file.read_bytes()[: written.stop // 2])
    with pytest.raises(StorageError):
        open_log(copy_in_use(image, tmp_path / "single"))
    log = open_log(image, alone=False)
    assert 5 < assert_salvaged(log, 24) < 24
    assert (image / "log.damaged").is_dir()
    log.close()


def test_the_loss_is_recorded_until_the_entries_are_back(tmp_path: Path) -> None:
    image, file, written = damaged_image(tmp_path)
    file.write_bytes(file.read_bytes()[: written.stop // 2])
    log = open_log(image, alone=False)
    left = log.last_index
    log.append([entry(index, term=4) for index in range(left + 1, 31)], HardState(4, 0))
    log.close()

    with pytest.raises(LogBelowFloor, match="has lost entries up to 24"):
        open_log(image)
    again = open_log(image, alone=False)
    assert again.lost_below is not None
    assert (again.lost_below.index, again.last_index) == (24, 30)
    again.note_regained()
    assert again.lost_below is None
    again.close()
    whole = open_log(image)
    assert whole.lost_below is None
    assert whole.last_index == 30
    whole.close()


def test_only_proved_entries_are_kept_wherever_a_bit_is_flipped(tmp_path: Path) -> None:
    image, file, written = damaged_image(tmp_path)

    @settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.sampled_from(written), st.integers(0, 7))
    def flip(place: int, bit: int) -> None:
        copy = copy_of(image, tmp_path / "copy")
        damaged = bytearray(file.read_bytes())
        damaged[place] ^= 1 << bit
        (copy / "log" / file.name).write_bytes(damaged)
        log = open_log(copy, alone=False)
        assert_salvaged(log, 24)
        log.close()

    flip()


def test_a_loss_below_the_floor_is_noticed_wherever_the_file_is_truncated(tmp_path: Path) -> None:
    image, file, written = damaged_image(tmp_path)

    @settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.sampled_from(written))
    def cut(size: int) -> None:
        copy = copy_of(image, tmp_path / "copy")
        (copy / "log" / file.name).write_bytes(file.read_bytes()[:size])
        log = open_log(copy, alone=False)
        if log.lost_below is None:
            assert log.last_index >= 24
        else:
            assert_salvaged(log, 24)
        log.close()

    cut()


def test_a_damaged_table_is_kept_aside(tmp_path: Path) -> None:
    image, *_ = damaged_image(tmp_path)
    open_log(image).close()  # the replayed entries become a table
    (table,) = (image / "log").glob("*.ldb")
    content = bytearray(table.read_bytes())
    content[len(content) // 3] ^= 0x40
    table.write_bytes(content)
    with pytest.raises(LogCorrupt):
        open_log(copy_in_use(image, tmp_path / "single"))
    log = open_log(image, alone=False)
    left = assert_salvaged(log, 24)
    assert log.lost_below is not None
    assert log.lost_below.index <= 30, "no index is believed that is read from a damaged block"
    fill(log, 40, term=4)
    compact(log, left + 20)
    log.close()
    assert (image / "log.damaged" / table.name).read_bytes() == bytes(content)


def test_entries_seen_after_the_damage_count_as_lost(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 9)
    log._floor = log._last  # as if the floor had last been written long ago
    log.close()
    sabotage(tmp_path, removed=[5])
    again = open_log(tmp_path, alone=False)
    assert again.last_index == 4
    assert again.lost_below is not None
    assert again.lost_below.index == 9
    again.close()


def test_a_missing_log_is_lost_up_to_its_floor(tmp_path: Path) -> None:
    image, *_ = damaged_image(tmp_path)
    (image / "log").rename(tmp_path / "gone")
    log = open_log(image, alone=False)
    assert assert_salvaged(log, 24) == 0
    log.close()


def test_a_damaged_floor_makes_every_entry_doubtful(tmp_path: Path) -> None:
    image, *_ = damaged_image(tmp_path)
    floor = bytearray((image / "floor").read_bytes())
    floor[6] ^= 1
    (image / "floor").write_bytes(floor)
    log = open_log(image, alone=False)
    assert assert_salvaged(log, 30) == 30
    log.close()


def test_without_a_record_of_the_last_vote_nothing_is_salvaged(tmp_path: Path) -> None:
    image, file, written = damaged_image(tmp_path)
    (image / "vote").unlink()
    file.write_bytes(file.read_bytes()[: written.stop // 2])
    with pytest.raises(StorageError):
        open_log(image, alone=False)


def test_another_log_under_the_same_floor_is_refused_in_a_cluster_too(tmp_path: Path) -> None:
    other = with_another_floor(tmp_path)
    for _ in range(2):
        with pytest.raises(LogCorrupt, match="entry 5"):
            open_log(other, alone=False)


def test_replaced_entries_that_are_back_are_not_those_that_the_floor_names(tmp_path: Path) -> None:
    log = open_log(tmp_path / "live", alone=False)
    fill(log, 10)
    log.close()
    log = open_log(tmp_path / "live", alone=False)
    log.append([entry(index, term=2) for index in (5, 6, 7)], HardState(2, 1))
    log.sync_floor()
    image = copy_in_use(tmp_path / "live", tmp_path / "image")
    log.close()
    (file,) = (image / "log").glob("*.log")
    content = bytearray(file.read_bytes())
    content[-20] ^= 1
    file.write_bytes(content)

    log = open_log(image, alone=False)
    assert read_all(log) == [entry(index) for index in range(1, 7)]
    assert log.lost_below is not None
    assert log.lost_below.index == 10
    log.fit_to_state(6, 2)
    assert (log.first_index, log.last_index, log.term(6)) == (7, 6, 2)
    log.close()


@pytest.mark.parametrize("step", ["copying", "between the renames"])
def test_an_interrupted_salvage_is_repeated_or_completed(step: str, tmp_path: Path) -> None:
    image, file, written = damaged_image(tmp_path)
    file.write_bytes(file.read_bytes()[: written.stop // 2])
    damaged = copy_in_use(image, tmp_path / "damaged")
    log = open_log(image, alone=False)
    left = log.last_index
    log.close()

    if step == "copying":
        halfway = damaged
        for name in ("log.copy", "log.kept"):
            (halfway / name).mkdir()
            (halfway / name / "000003.log").write_bytes(b"half of it")
    else:
        halfway = image
        (halfway / "log").rename(halfway / "log.kept")
    again = open_log(halfway, alone=False)
    assert assert_salvaged(again, 24) == left
    again.close()


def test_votes_survive_the_loss_of_the_log(tmp_path: Path) -> None:
    log = open_log(tmp_path / "live")
    fill(log, 3)
    log.sync_floor()
    before_vote = copy_in_use(tmp_path / "live", tmp_path / "image")
    log.append([], HardState(9, 3))
    log.close()
    (before_vote / "vote").write_bytes((tmp_path / "live" / "vote").read_bytes())
    again = open_log(before_vote)
    assert again.hard_state == HardState(9, 3)
    again.close()


def test_a_log_written_before_votes_had_a_file_gets_one(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 3, term=4)
    log.close()
    (tmp_path / "vote").unlink()
    again = open_log(tmp_path)
    assert again.hard_state == HardState(4, 1)
    assert (tmp_path / "vote").exists()
    again.close()


# -- the log and the state ------------------------------------------------------------------------


def test_a_log_that_reaches_the_state_is_not_changed(tmp_path: Path) -> None:
    log = open_log(tmp_path, alone=False)
    fill(log, 9)
    compact(log, 3)
    log.fit_to_state(3, 1)
    log.fit_to_state(9, 1)
    assert (log.first_index, log.last_index, log.lost_below) == (4, 9, None)
    log.close()


def test_a_log_that_lags_the_state_restarts_after_it_and_may_not_vote(tmp_path: Path) -> None:
    log = open_log(tmp_path, alone=False)
    fill(log, 5)
    log.fit_to_state(8, 2)
    for _ in range(2):
        assert (log.first_index, log.last_index, log.term(8)) == (9, 8, 2)
        assert log.lost_below is not None
        assert log.lost_below.index == 8
        log.close()
        log = open_log(tmp_path, alone=False)
    log.close()


@pytest.mark.usefixtures("each_engine")
def test_a_log_that_fell_back_to_replaced_entries_restarts_after_the_state(tmp_path: Path) -> None:
    """The state had the new ones. A leader that replaces committed entries ends it."""
    log = open_log(tmp_path / "live", alone=False)
    fill(log, 10)
    log.close()
    log = open_log(tmp_path / "live", alone=False)
    log.append([entry(index, term=2) for index in (5, 6, 7)], HardState(2, 1))
    image = copy_in_use(tmp_path / "live", tmp_path / "image")
    log.close()
    file = max((image / "log").glob("*.log"))
    content = bytearray(file.read_bytes())
    content[-20] ^= 1
    file.write_bytes(content)

    log = open_log(image, alone=False)
    assert (log.last_index, log.term(6)) == (10, 1), "the new entries are lost"
    log.fit_to_state(6, 2)
    for _ in range(2):
        assert (log.first_index, log.last_index, log.term(6)) == (7, 6, 2)
        assert log.lost_below is not None
        assert log.lost_below.index == 10
        log.close()
        log = open_log(image, alone=False)
    log.close()


def test_a_single_voter_refuses_a_log_that_lags_its_state(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 5)
    with pytest.raises(LogBelowFloor, match="ends at entry 5"):
        log.fit_to_state(6, 1)
    assert log.last_index == 5
    log.close()


@pytest.mark.parametrize("alone", [True, False])
def test_a_gap_between_state_and_log_is_refused(alone: bool, tmp_path: Path) -> None:
    log = open_log(tmp_path, alone=alone)
    fill(log, 9)
    compact(log, 5)
    with pytest.raises(StateLagsLog, match="the state ends at entry 4"):
        log.fit_to_state(4, 1)
    log.close()


# -- reset ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("index", [2, 5, 9, 20])
def test_a_reset_log_is_empty_after_the_given_entry(index: int, tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 9)
    log.sync_floor()
    log.reset(ChainPosition(index, 7, 0xABCD))
    for _ in range(2):
        assert (log.first_index, log.last_index, log.term(index)) == (index + 1, index, 7)
        assert log.position(index).chain == 0xABCD
        assert log.hard_state == HardState(1, 1)
        log.close()
        log = open_log(tmp_path)
    more = [entry(index + 1, term=8), entry(index + 2, term=8)]
    log.append(more, HardState(8, 0))
    log.close()
    log = open_log(tmp_path)
    assert read_all(log) == more
    log.close()


def test_a_closed_log_is_reset_regardless_of_its_floor(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 9)
    log.close()
    LogEvidence(tmp_path / "floor").note_floor(ChainPosition(99, 9, 9))
    reset_log(tmp_path / "log", tmp_path / "floor", index=40, term=3, chain=1)
    again = open_log(tmp_path)
    assert (again.first_index, again.last_index, again.term(40)) == (41, 40, 3)
    again.close()
