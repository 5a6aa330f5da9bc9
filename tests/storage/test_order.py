"""The order in which writes reach the disk, such that a power cut in between does no harm.

The tests record everything made durable as it happens: small files by their name, records of the
journal by its name, batches of LevelDB by their directory and whether they were synced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, TypeVar

import pytest

from streamd.raft.chain import ChainPosition
from streamd.raft.messages import HardState
from streamd.storage.errors import StorageFailed
from streamd.storage.files import read_checked
from streamd.storage.install import install
from tests.sim.persisting import PersistPoints
from tests.storage.images import entry, fill, open_log
from tests.storage.replicas import Replica
from tests.storage.test_install import lagging, receive

T = TypeVar("T")


class Batch(NamedTuple):
    database: str
    synced: bool


class Notes:
    """What reaches the disk, in order: names of renamed files, and batches. `look` is called before
    each step."""

    def __init__(self, look: Callable[[], None] = lambda: None) -> None:
        self.steps: list[str | Batch] = []
        self._look = look

    def persist(self, write: Callable[[], T]) -> T:
        self._look()
        return write()

    def overwrite(self, write: Callable[[], T], file: Path, at: int, content: bytes) -> T:
        return write()

    def sync(self, sync: Callable[[], T], file: Path) -> T:
        self._look()
        if file.name == "journal":
            self.steps.append(file.name)
        return sync()

    def persist_rows(self, write: Callable[[], T], database: Path, *, synced: bool) -> T:
        self._look()
        self.steps.append(Batch(database.name, synced))
        return write()

    def renamed(self, source: Path, target: Path) -> None:
        self.steps.append(target.name)


@contextmanager
def noted(notes: Notes) -> Iterator[PersistPoints]:
    points = PersistPoints()
    with points.installed(), points.of(notes):
        yield points


def test_a_vote_is_in_its_own_file_before_it_is_in_the_log(tmp_path: Path) -> None:
    """In the other order, a log damaged at that moment would be salvaged under the older vote, and
    the node could vote twice in one term."""
    notes = Notes()
    with noted(notes):
        log = open_log(tmp_path)
        notes.steps.clear()
        log.append([entry(1)], HardState(7, 3))
        assert notes.steps == ["vote", "journal"]
        notes.steps.clear()
        log.append([entry(2)], HardState(7, 3))
        assert notes.steps == ["journal"], "an unchanged vote costs no second write"
        log.close()


def test_where_the_log_begins_is_synced_before_its_first_entries_go(tmp_path: Path) -> None:
    """Unsynced, a power cut could keep the deletions and lose the beginning: a log with a hole."""
    notes = Notes()
    with noted(notes):
        log = open_log(tmp_path)
        fill(log, 15)
        log.close()
        log = open_log(tmp_path)  # which brings these to LevelDB
        fill(log, 5)
        notes.steps.clear()
        log.begin_cut(10)
        assert notes.steps == ["floor", Batch("log", True)]
        notes.steps.clear()
        assert log.cut()
        log.remove_cut()
        # So are these: every write is synced before the next one, or a torn one looks damaged.
        assert notes.steps == [Batch("log", True)]
        log.close()


def test_an_entry_that_is_replaced_lowers_the_floor_first(tmp_path: Path) -> None:
    notes = Notes()
    with noted(notes):
        log = open_log(tmp_path)
        fill(log, 5)
        log.sync_floor()
        notes.steps.clear()
        log.append([entry(4, term=2)], None)
        assert notes.steps == ["floor", "journal"]
        log.close()


def test_a_log_that_ends_before_the_state_records_its_loss_before_it_is_emptied(
    tmp_path: Path,
) -> None:
    """If it were noted afterwards, a crash in between would leave an empty log whose node votes;
    without the index, the node would vote again too soon."""
    lost: list[ChainPosition | None] = []
    notes = Notes(lambda: lost.append(read_checked(tmp_path / "lost", ChainPosition)))
    log = open_log(tmp_path, alone=False)
    fill(log, 5)
    log.close()
    with noted(notes):
        log = open_log(tmp_path, alone=False)
        notes.steps.clear()
        lost.clear()
        log.fit_to_state(9, 1)
        assert notes.steps[0] == "lost"
        assert Batch("log", True) in notes.steps
        emptied = len(lost) - notes.steps[::-1].index(Batch("log", True)) - 1
        assert lost[emptied] == ChainPosition(9)
        log.close()
    again = open_log(tmp_path, alone=False)
    assert again.lost_below == ChainPosition(9)
    again.close()


def test_a_loss_is_noted_before_the_damaged_log_is_replaced(tmp_path: Path) -> None:
    log = open_log(tmp_path, alone=False)
    fill(log, 30)
    log.close()
    (file,) = (tmp_path / "log").glob("*.log")
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    notes = Notes()
    with noted(notes):
        log = open_log(tmp_path, alone=False)
        log.close()
    names = [step for step in notes.steps if isinstance(step, str)]
    assert names.index("lost") < names.index("log.damaged") < names.index("log")
    assert read_checked(tmp_path / "lost", ChainPosition) == ChainPosition(30)


def test_the_old_state_stays_until_the_installation_marker_is_removed(tmp_path: Path) -> None:
    """While the marker is there, a crash repeats the installation, which needs every file that it
    moves aside."""
    sender = Replica(tmp_path / "sender")
    fill(sender.log, 25)
    sender.apply(5, {b"d%04d" % i: b"row" for i in range(20)}, term=4)
    replica = lagging(tmp_path / "receiver")
    meta = receive(sender, replica)
    places = replica.dir
    seen: list[tuple[bool, bool, bool]] = []
    notes = Notes(
        lambda: seen.append(
            (places.install_marker.exists(), places.incoming.exists(), places.state_old.exists())
        )
    )
    points = PersistPoints()
    with points.installed(), points.of(notes):
        install(places, replica.log, replica.state, meta)
    replica.close()
    sender.close()
    assert notes.steps[:3] == ["install", "state.old", "state"]
    marked = [(incoming, old) for marker, incoming, old in seen if marker]
    assert all(incoming or old for incoming, old in marked), "one whole state beside the new one"
    assert seen[-1] == (False, False, True), "the old state goes last"


def test_a_failed_write_leaves_the_vote_known_and_the_store_closed(tmp_path: Path) -> None:
    class Full(Notes):
        def sync(self, sync: Callable[[], T], file: Path) -> T:
            if file.name == "journal":
                raise OSError("no space left on device")
            return sync()

    points = PersistPoints()
    with points.installed():
        log = open_log(tmp_path)
        fill(log, 3)
        with points.of(Full()), pytest.raises(StorageFailed, match="no space left"):
            log.append([entry(4)], HardState(9, 2))
        with pytest.raises(StorageFailed, match="no space left"):
            log.append([entry(4)], HardState(9, 2))
        log.close()
    again = open_log(tmp_path)
    assert again.hard_state == HardState(9, 2)
    assert again.last_index in (3, 4), "it may have got as far as the disk"
    again.close()
