"""What the log removes goes back to the disk: its files take at most twice what it holds and 64 MiB
more, however much has passed through."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from streamd.raft.chain import ChainPosition
from streamd.raft.messages import Entry, EntryKind
from streamd.storage import log_store
from streamd.storage.log_store import LogStore
from tests.storage.images import compact, open_log, read_all

MIB = 1024 * 1024
# What every log may take besides its entries.
MARGIN_BYTES = 64 * MIB
# As much is appended between two cuts, and as much is kept after each.
CUT_BYTES = 32 * MIB


def taken(directory: Path) -> int:
    """How much of the disk a log takes."""
    return sum(file.stat().st_size for file in (directory / "log").iterdir())


def held(log: LogStore) -> int:
    """How many bytes the entries of a log have."""
    return sum(len(entry.payload) for entry in read_all(log))


class Passing:
    """Lets entries of random bytes pass through a log, which is cut as a node cuts it."""

    def __init__(self, log: LogStore, entry_bytes: int) -> None:
        self._log = log
        self._entry_bytes = entry_bytes
        # Nothing in it is compressible, or twice there.
        self._bytes = Random(entry_bytes).randbytes(entry_bytes + 4096)
        self._checkpoint = log.last_index
        self._since = 0

    def append(self, total: int) -> None:
        """Append `total` bytes of entries, and free space after each cut."""
        for number in range(total // self._entry_bytes):
            at = number % 4096
            payload = self._bytes[at : at + self._entry_bytes]
            entry = Entry(self._log.last_index + 1, 1, EntryKind.COMMANDS, payload)
            self._log.append([entry], None)
            self._since += len(payload)
            if self._since >= CUT_BYTES:
                compact(self._log, self._checkpoint)
                self._checkpoint, self._since = self._log.last_index, 0
                while self._log.free_some():
                    pass


@pytest.mark.parametrize("entry_bytes", [15_000_000, 250_000])
def test_the_files_of_a_log_take_at_most_twice_what_it_holds(
    tmp_path: Path, entry_bytes: int
) -> None:
    log = open_log(tmp_path)
    Passing(log, entry_bytes).append(256 * MIB)
    kept = held(log)
    assert taken(tmp_path) <= 2 * kept + MARGIN_BYTES
    # All of it: what a log kept before is not forgiven by what it holds now.
    compact(log, log.last_index)
    while log.free_some():
        pass
    assert taken(tmp_path) <= MARGIN_BYTES
    log.close()


def test_space_that_an_earlier_release_left_is_freed_a_part_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_store, "_WASTE_BYTES", 8 * MIB)
    monkeypatch.setattr(log_store, "_FREED_BYTES", 8 * MIB)
    log = open_log(tmp_path)
    for _ in range(96):
        payload = Random(log.last_index).randbytes(MIB)
        log.append([Entry(log.last_index + 1, 1, EntryKind.COMMANDS, payload)], None)
    compact(log, log.last_index - 2)
    log.close()
    assert taken(tmp_path) > 80 * MIB
    log = open_log(tmp_path)
    sizes = [taken(tmp_path)]
    while log.free_some():
        sizes.append(taken(tmp_path))
    assert sizes[-1] <= 2 * held(log) + 16 * MIB
    assert len(sizes) > 3, "no call had to free everything"
    assert len(read_all(log)) == 2
    log.close()


def test_the_space_of_a_log_that_was_reset_is_freed(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    for _ in range(12):
        payload = Random(log.last_index).randbytes(12 * MIB)
        log.append([Entry(log.last_index + 1, 1, EntryKind.COMMANDS, payload)], None)
    log.reset(ChainPosition(5_000_000, 1))
    while log.free_some():
        pass
    assert taken(tmp_path) <= MARGIN_BYTES
    log.close()


def test_a_small_log_is_never_rewritten(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    Passing(log, 250_000).append(16 * MIB)
    compact(log, log.last_index - 1)
    before = {file.name for file in (tmp_path / "log").glob("*.ldb")}
    assert not log.free_some()
    assert {file.name for file in (tmp_path / "log").glob("*.ldb")} == before
    log.close()
