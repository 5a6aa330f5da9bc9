"""Entries move from the journal to LevelDB beside the writer: nothing that was written is lost by
it, and nothing that was replaced comes back."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from streamd.raft.chain import ChainPosition
from streamd.raft.messages import Entry, HardState
from streamd.storage import journal, journaled_log
from streamd.storage.journaled_log import JournaledLog
from streamd.storage.leveldb_log import LevelDBLog
from tests.storage.images import entry, fill, open_log, read_all
from tests.storage.log_steps import (
    SMALL_BYTES,
    Contents,
    Steps,
    between_lines_of,
    contents_of,
    stored,
)
from tests.support.directories import copy_in_use
from tests.support.seeds import seeds


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MAX_BYTES", SMALL_BYTES)


class Written:
    """A log of small entries, and all that was written to it."""

    def __init__(self, directory: Path) -> None:
        self.log = JournaledLog(directory, 0)
        self.rows: list[tuple[Entry, ChainPosition]] = []

    def put(self, count: int) -> None:
        for _ in range(count):
            last = self.rows[-1][1] if self.rows else ChainPosition()
            each = entry(last.index + 1)
            self.rows.append((each, last.next(0, each)))
            self.log.write([self.rows[-1]])

    def check(self) -> None:
        assert [*self.log.rows(1, 10_000)] == self.rows


def test_what_is_written_at_whatever_line_of_a_settlement_stays_readable_and_durable(
    tmp_path: Path,
) -> None:
    written = Written(tmp_path / "log")
    written.put(30)

    def look() -> None:
        # Within these lines a writer in another thread would wait.
        if not written.log._memory.locked():
            written.put(1)
            written.check()

    with between_lines_of(journaled_log, look):
        written.log.settle()
    assert len(written.rows) > 35
    image = copy_in_use(tmp_path / "log", tmp_path / "image")
    written.check()
    written.log.close()
    assert [*JournaledLog(image, 0).rows(1, 10_000)] == written.rows


def test_settled_rows_are_in_leveldb_and_leave_room_in_the_journal(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    entries: list[Entry] = []
    while not log.is_filling:
        entries += fill(log, 1)
    while log.is_filling:
        log.settle()
    assert log.stalled_s == 0
    assert read_all(log) == entries
    log.close()
    assert stored(tmp_path) == entries[: len(stored(tmp_path))] != []


def test_a_write_that_finds_no_room_makes_some_and_says_how_long_that_took(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    fill(log, 300)
    assert log.stalled_s > 0
    log.close()


def test_entries_on_their_way_to_leveldb_do_not_come_back_when_they_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The replacement waits for the batch. Were it written to the journal at once, the batch would
    then bring the old entries back into LevelDB, beyond the mark: the next start would find them
    after the new ones."""
    log = open_log(tmp_path)
    fill(log, 20)
    store = LevelDBLog.store
    replacing: list[Thread] = []

    def store_beside_a_replacement(self: LevelDBLog, **changes: Any) -> None:
        if not replacing:
            new = entry(10, term=2)
            replacing.append(Thread(target=log.append, args=([new], HardState(2, 1))))
            replacing[0].start()
            replacing[0].join(0.05)
        store(self, **changes)

    monkeypatch.setattr(LevelDBLog, "store", store_beside_a_replacement)
    log.settle()
    replacing[0].join()
    after = Contents(log)
    assert log.last_index == 10
    log.close()
    assert contents_of(tmp_path) == after


@pytest.mark.parametrize("seed", seeds(3))
def test_beside_a_thread_that_settles_a_log_is_what_was_written(seed: int, tmp_path: Path) -> None:
    steps = Steps(seed)
    log, alone = open_log(tmp_path / "beside"), open_log(tmp_path / "alone")
    fill(log, 1)
    fill(alone, 1)
    is_over = Event()

    def settle() -> None:
        while not is_over.is_set():
            log.settle()
            log.sync_floor()

    settling = Thread(target=settle)
    settling.start()
    try:
        for _ in range(300):
            same = deepcopy(steps)
            steps.any_step(log, resets=True)()
            same.any_step(alone, resets=True)()
            assert Contents(log) == Contents(alone)
    finally:
        is_over.set()
        settling.join()
    expected = Contents(log)
    for one in (log, alone):
        one.close()
    assert contents_of(tmp_path / "beside") == expected
