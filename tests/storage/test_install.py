"""A Raft snapshot replaces state and log atomically, whenever the power fails."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import Any, TypeVar

import pytest

from streamd.raft.chain import ChainPosition
from streamd.raft.messages import HardState
from streamd.storage import files
from streamd.storage.errors import StorageError, StorageFailed
from streamd.storage.incoming import SnapshotSink
from streamd.storage.install import install, recover_install
from streamd.storage.log_evidence import LogEvidence
from streamd.storage.raft_snapshots import SnapshotMeta
from streamd.storage.state_store import StateStore
from tests.storage.images import copy_of, entry, fill
from tests.storage.replicas import Replica

ALL = (b"", b"\xff" * 9)
SENT = {b"d%04d" % i: Random(i).randbytes(30_000) for i in range(100)}


@pytest.fixture
def sender(tmp_path: Path):  # type: ignore[no-untyped-def]
    """A replica at entry 30, the last ones of term 4."""
    replica = Replica(tmp_path / "sender")
    fill(replica.log, 25)
    replica.apply(5, SENT, term=4)
    yield replica
    replica.close()


def receive(sender: Replica, receiver: Replica) -> SnapshotMeta:
    source, sink = sender.snapshot(), SnapshotSink(receiver.dir.incoming)
    wanted = sink.begin(source.meta)
    while not sink.is_complete:
        wanted = sink.take(source.piece(wanted))
    source.close()
    return sink.finish()


def lagging(path: Path) -> Replica:
    """A replica at entry 6 of another history, its log reaching beyond entry 30."""
    replica = Replica(path)
    replica.apply(6, {b"d0001": b"old", b"old": b"row"})
    fill(replica.log, 34, term=2)
    replica.log.sync_floor()
    replica.log.append([], HardState(5, 3))
    return replica


def assert_installed(replica: Replica, sender: Replica) -> None:
    assert replica.state.scan(*ALL, limit=9999) == sender.state.scan(*ALL, limit=9999)
    log = replica.log
    assert (log.first_index, log.last_index, log.position(30)) == (31, 30, sender.log.position(30))
    assert log.hard_state == HardState(5, 3)
    assert log.lost_below is None
    assert not replica.dir.install_marker.exists()
    assert not replica.dir.incoming.exists()
    assert not replica.dir.state_old.exists()


def assert_as_before(replica: Replica) -> None:
    assert replica.header.applied_index == 6
    assert replica.state.get(b"old") == b"row"
    assert (replica.log.first_index, replica.log.last_index) == (1, 40)
    assert replica.log.hard_state == HardState(5, 3)


def test_open_stores_continue_with_the_installed_raft_snapshot(
    sender: Replica, tmp_path: Path
) -> None:
    replica = lagging(tmp_path / "receiver")
    install(replica.dir, replica.log, replica.state, receive(sender, replica))
    assert_installed(replica, sender)
    more = [entry(31, term=5), entry(32, term=5)]
    replica.log.append(more, HardState(5, 0))
    replica.state.write([(b"new", b"row")])
    replica.close()
    again = Replica(tmp_path / "receiver")
    assert again.recovered is None
    assert again.state.get(b"new") == b"row"
    assert again.log.entries(31, 33, 1 << 20) == more
    again.close()


def test_an_empty_node_starts_from_a_raft_snapshot(sender: Replica, tmp_path: Path) -> None:
    replica = Replica(tmp_path / "receiver")
    replica.log.append([], HardState(5, 3))
    install(replica.dir, replica.log, replica.state, receive(sender, replica))
    assert_installed(replica, sender)
    replica.close()


def test_an_installed_raft_snapshot_can_be_sent_to_another_node(
    sender: Replica, tmp_path: Path
) -> None:
    middle, last = lagging(tmp_path / "middle"), lagging(tmp_path / "last")
    install(middle.dir, middle.log, middle.state, receive(sender, middle))
    install(last.dir, last.log, last.state, receive(middle, last))
    assert_installed(last, sender)
    middle.close()
    last.close()


def test_a_raft_snapshot_never_replaces_entries_that_may_be_acknowledged(
    sender: Replica, tmp_path: Path
) -> None:
    replica = Replica(tmp_path / "receiver")
    fill(replica.log, 25)
    fill(replica.log, 10, term=4)
    meta = receive(sender, replica)
    with pytest.raises(AssertionError):
        install(replica.dir, replica.log, replica.state, meta)
    assert replica.log.last_index == 35
    replica.close()


# -- power cuts -----------------------------------------------------------------------------------

T = TypeVar("T")


class PowerCuts:
    """Copies the directory before and after each change of what is on disk."""

    def __init__(self, directory: Path, images: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.images: list[Path] = []
        self._directory, self._to = directory, images
        for owner, name in (
            (os, "rename"),
            (os, "fdatasync"),
            (os, "fsync"),
            (Path, "unlink"),
            (shutil, "rmtree"),
        ):
            monkeypatch.setattr(owner, name, self._watched(getattr(owner, name)))

    def image(self) -> None:
        to = self._to / str(len(self.images))
        self.images.append(to)
        to.mkdir(parents=True)
        for each in self._directory.rglob("*"):
            if each.name != "LOCK":
                target = to / each.relative_to(self._directory)
                target.mkdir() if each.is_dir() else target.write_bytes(each.read_bytes())

    def _watched(self, call: Callable[..., T]) -> Callable[..., T]:
        def watched(*args: Any, **kwargs: Any) -> T:
            self.image()
            result = call(*args, **kwargs)
            self.image()
            return result

        return watched


def test_a_power_cut_at_any_step_leaves_all_of_the_raft_snapshot_or_nothing(
    sender: Replica, tmp_path: Path
) -> None:
    replica = lagging(tmp_path / "receiver")
    meta = receive(sender, replica)
    with pytest.MonkeyPatch.context() as patches:
        cuts = PowerCuts(tmp_path / "receiver", tmp_path / "cut", patches)
        install(replica.dir, replica.log, replica.state, meta)
    replica.close()

    outcomes = []
    for image in cuts.images:
        again = Replica(image)
        if again.header.applied_index == 6:
            assert again.recovered is None
            assert_as_before(again)
            # The received pieces survive either way: they can be installed now.
            outcomes.append("before")
        else:
            assert_installed(again, sender)
            outcomes.append("completed" if again.recovered else "installed")
        again.close()
    assert outcomes == sorted(outcomes, key=["before", "completed", "installed"].index)
    assert set(outcomes) == {"before", "completed", "installed"}
    assert outcomes.count("completed") >= 8


def test_a_power_cut_at_any_step_of_the_recovery_is_recovered_from(
    sender: Replica, tmp_path: Path
) -> None:
    replica = lagging(tmp_path / "receiver")
    meta = receive(sender, replica)
    files.write_checked(replica.dir.install_marker, meta)
    copy = copy_of(tmp_path / "receiver", tmp_path / "copy")
    replica.close()

    with pytest.MonkeyPatch.context() as patches:
        cuts = PowerCuts(copy, tmp_path / "cut", patches)
        recovered = Replica(copy)
    assert_installed(recovered, sender)
    recovered.close()
    for image in cuts.images:
        again = Replica(image)
        assert_installed(again, sender)
        again.close()


@pytest.mark.parametrize(
    "floor", [ChainPosition(), ChainPosition(40, 2, 0xBAD), ChainPosition(30, 4, 0xBAD)]
)
def test_a_marked_installation_ignores_the_floor_of_the_old_log(
    floor: ChainPosition, sender: Replica, tmp_path: Path
) -> None:
    replica = lagging(tmp_path / "receiver")
    meta = receive(sender, replica)
    replica.close()
    files.write_checked(replica.dir.install_marker, meta)
    LogEvidence(replica.dir.floor).note_floor(floor)
    again = Replica(tmp_path / "receiver", alone=True)
    assert_installed(again, sender)
    again.close()


def test_a_log_truncated_after_the_installation_may_not_vote(
    sender: Replica, tmp_path: Path
) -> None:
    replica = lagging(tmp_path / "receiver")
    before = copy_of(tmp_path / "receiver" / "log", tmp_path / "log before")
    install(replica.dir, replica.log, replica.state, receive(sender, replica))
    replica.log.append([entry(31, term=5)], HardState(5, 3))
    replica.close()
    shutil.rmtree(replica.dir.log)
    before.rename(replica.dir.log)
    shutil.rmtree(replica.dir.state)
    with pytest.raises(StorageError):
        Replica(tmp_path / "receiver", alone=True)


def test_a_damaged_marker_is_refused(sender: Replica, tmp_path: Path) -> None:
    replica = lagging(tmp_path / "receiver")
    files.write_checked(replica.dir.install_marker, receive(sender, replica))
    replica.close()
    marker = replica.dir.install_marker
    marker.write_bytes(marker.read_bytes()[:-1])
    with pytest.raises(StorageError, match="install is damaged"):
        recover_install(replica.dir)


def test_a_complete_raft_snapshot_without_a_marker_is_not_installed(
    sender: Replica, tmp_path: Path
) -> None:
    replica = lagging(tmp_path / "receiver")
    receive(sender, replica)
    replica.close()
    again = Replica(tmp_path / "receiver")
    assert_as_before(again)
    again.close()


# -- swapping the state under its users -----------------------------------------------------------


def test_a_swap_waits_for_calls_under_way_and_later_ones_see_the_new_state(tmp_path: Path) -> None:
    store, other = StateStore(tmp_path / "state"), StateStore(tmp_path / "other")
    store.write([(b"a", b"old")])
    other.write([(b"a", b"new")])
    other.close()
    swapped = Event()

    def replace() -> None:
        (tmp_path / "state").rename(tmp_path / "gone")
        (tmp_path / "other").rename(tmp_path / "state")
        swapped.set()

    view = store.view()
    swapping = Thread(target=store.swap, args=(replace,))
    with view.rows(b"") as rows:
        swapping.start()
        assert next(rows) == (b"a", b"old")
        assert not swapped.is_set()
    swapping.join()
    assert store.get(b"a") == b"new"
    view.close()
    store.close()


def test_readers_in_many_threads_live_through_swaps(tmp_path: Path) -> None:
    store = StateStore(tmp_path / "state")
    store.write([(b"%03d" % i, b"x" * 1000) for i in range(500)])
    done, read = Event(), []

    def keep_reading() -> None:
        while not done.is_set():
            read.append(len(store.scan(b"", b"\xff", limit=999)))

    readers = [Thread(target=keep_reading) for _ in range(3)]
    for reader in readers:
        reader.start()
    for _ in range(20):
        store.swap(lambda: None)
    done.set()
    for reader in readers:
        reader.join()
    assert set(read) == {500}
    store.close()


def test_the_store_refuses_all_calls_after_a_failed_swap(tmp_path: Path) -> None:
    store = StateStore(tmp_path / "state")

    def replace() -> None:
        raise OSError("no such disk")

    with pytest.raises(StorageFailed, match="no such disk"):
        store.swap(replace)
    with pytest.raises(StorageFailed, match="no such disk"):
        store.get(b"a")
    store.close()
