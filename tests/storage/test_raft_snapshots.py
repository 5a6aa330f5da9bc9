"""A Raft snapshot is sent in pieces: consistent, checked, and resumed where it stopped."""

from __future__ import annotations

from pathlib import Path
from random import Random

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamd.storage.incoming import SnapshotDamaged, SnapshotSink
from streamd.storage.raft_snapshots import (
    PIECE_BYTES,
    SnapshotMeta,
    SnapshotPiece,
    SnapshotSource,
    SnapshotUnavailable,
)
from streamd.storage.state_store import StateStore, open_state_database
from tests.storage.images import copy_of
from tests.storage.replicas import Replica

ALL = (b"", b"\xff" * 9)


def rows_in(directory: Path) -> list[tuple[bytes, bytes]]:
    db = open_state_database(directory)
    with db.iterator() as rows:
        found = list(rows)
    db.close()
    return found


def transfer(source: SnapshotSource, sink: SnapshotSink) -> int:
    """Send every piece that is still wanted. Returns the number of the first one sent."""
    began = wanted = sink.begin(source.meta)
    while not sink.is_complete:
        wanted = sink.take(source.piece(wanted))
    return began


@pytest.fixture
def sender(tmp_path: Path):  # type: ignore[no-untyped-def]
    """A replica with rows of all sizes, one of them several pieces long."""
    replica = Replica(tmp_path / "sender")
    random = Random(4)
    replica.apply(40, {b"d%04d" % i: random.randbytes(50_000) for i in range(100)})
    replica.apply(5, {b"m": random.randbytes(5 * PIECE_BYTES // 2), b"s": b"", b"z" * 300: b"last"})
    yield replica
    replica.close()


def test_the_received_rows_are_the_stored_rows(sender: Replica, tmp_path: Path) -> None:
    source = sender.snapshot()
    sink = SnapshotSink(tmp_path / "incoming")
    assert transfer(source, sink) == 0
    assert sink.finish() == source.meta
    assert rows_in(tmp_path / "incoming") == sender.state.scan(*ALL, limit=9999)
    source.close()


def test_a_raft_snapshot_names_its_entry(sender: Replica) -> None:
    source = sender.snapshot(snapshot_id=2**64 - 1)
    place = sender.log.position(45)
    assert source.meta == SnapshotMeta(45, place.term, place.chain, sender.configuration, 2**64 - 1)
    source.close()


def test_a_raft_snapshot_does_not_change_while_the_state_does(
    sender: Replica, tmp_path: Path
) -> None:
    source = sender.snapshot()
    before = sender.state.scan(*ALL, limit=9999)
    sink = SnapshotSink(tmp_path / "incoming")
    sink.take(source.piece(sink.begin(source.meta)))
    sender.apply(3, {b"d0000": b"changed", b"d0099": b"changed", b"zz": b"new"})
    sender.state.delete_range(b"d", b"e", max_keys=99)
    transfer(source, sink)
    sink.finish()
    assert rows_in(tmp_path / "incoming") == before
    source.close()


def test_no_piece_exceeds_its_limit(sender: Replica) -> None:
    source = sender.snapshot()
    pieces = [source.piece(0)]
    while not pieces[-1].is_last:
        pieces.append(source.piece(len(pieces)))
    assert [piece.number for piece in pieces] == list(range(len(pieces)))
    sizes = [len(piece.rows) for piece in pieces]
    assert max(sizes) == PIECE_BYTES
    assert len(sizes) <= sum(sizes) // PIECE_BYTES + 3
    source.close()


def test_a_piece_may_be_requested_again_but_not_before_its_turn(sender: Replica) -> None:
    source = sender.snapshot()
    first = source.piece(0)
    second = source.piece(1)
    assert source.piece(0) == first
    assert source.piece(1) == second
    for number in (-1, 3, 10**6):
        with pytest.raises(SnapshotUnavailable):
            source.piece(number)
    source.close()


def test_an_empty_state_has_no_raft_snapshot(tmp_path: Path) -> None:
    replica = Replica(tmp_path)
    with pytest.raises(SnapshotUnavailable):
        replica.snapshot()
    replica.close()


def test_a_replaced_state_yields_no_more_pieces(sender: Replica, tmp_path: Path) -> None:
    source = sender.snapshot()
    source.piece(0)
    sender.state.swap(lambda: None)
    with pytest.raises(SnapshotUnavailable):
        source.piece(1)
    source.close()
    source.close()


# -- receiving ------------------------------------------------------------------------------------


def test_pieces_out_of_turn_change_nothing(sender: Replica, tmp_path: Path) -> None:
    source = sender.snapshot()
    sink = SnapshotSink(tmp_path / "incoming")
    sink.begin(source.meta)
    first, second = source.piece(0), source.piece(1)
    assert sink.take(second) == 0
    assert sink.take(first) == 1
    assert sink.take(first) == 1
    assert sink.take(second) == 2
    transfer(source, sink)
    sink.finish()
    assert rows_in(tmp_path / "incoming") == sender.state.scan(*ALL, limit=9999)
    source.close()


def test_a_transfer_resumes_where_the_connection_broke(sender: Replica, tmp_path: Path) -> None:
    source = sender.snapshot()
    sink = SnapshotSink(tmp_path / "incoming")
    for _ in range(3):  # the third is the middle of the large row
        sink.take(source.piece(sink.begin(source.meta)))
    assert transfer(source, sink) == 3
    sink.finish()
    assert rows_in(tmp_path / "incoming") == sender.state.scan(*ALL, limit=9999)
    source.close()


def test_a_transfer_continues_after_a_crash_at_every_piece(sender: Replica, tmp_path: Path) -> None:
    source = sender.snapshot()
    sink = SnapshotSink(tmp_path / "incoming")
    expected = sender.state.scan(*ALL, limit=9999)
    wanted, resumed_at = sink.begin(source.meta), set()
    while not sink.is_complete:
        wanted = sink.take(source.piece(wanted))
        image = copy_of(tmp_path / "incoming", tmp_path / "image")
        again = SnapshotSink(image)
        began = again.begin(source.meta)
        assert again.is_complete == sink.is_complete
        # A row of several pieces is sent again from its beginning.
        assert wanted - 2 <= began <= wanted
        resumed_at.add(began)
        assert transfer(source, again) == began
        again.finish()
        assert rows_in(image) == expected
    assert len(resumed_at) >= 4
    sink.close()
    source.close()


def test_another_raft_snapshot_of_the_same_entry_starts_over(
    sender: Replica, tmp_path: Path
) -> None:
    one, other = sender.snapshot(snapshot_id=1), sender.snapshot(snapshot_id=2)
    sink = SnapshotSink(tmp_path / "incoming")
    for _ in range(2):
        sink.take(one.piece(sink.begin(one.meta)))
    assert transfer(other, sink) == 0
    sink.close()
    again = SnapshotSink(tmp_path / "incoming")
    assert again.begin(one.meta) == 0
    again.close()
    one.close()
    other.close()


def test_a_piece_of_another_raft_snapshot_is_refused(sender: Replica, tmp_path: Path) -> None:
    one, other = sender.snapshot(snapshot_id=1), sender.snapshot(snapshot_id=2)
    sink = SnapshotSink(tmp_path / "incoming")
    sink.begin(one.meta)
    with pytest.raises(SnapshotDamaged):
        sink.take(other.piece(0))
    assert sink.take(one.piece(0)) == 1
    sink.close()
    one.close()
    other.close()


def test_unreadable_pieces_are_received_again(sender: Replica, tmp_path: Path) -> None:
    source = sender.snapshot()
    sink = SnapshotSink(tmp_path / "incoming")
    sink.take(source.piece(sink.begin(source.meta)))
    sink.close()
    (tmp_path / "incoming" / "CURRENT").unlink()
    again = SnapshotSink(tmp_path / "incoming")
    assert transfer(source, again) == 0
    again.finish()
    assert rows_in(tmp_path / "incoming") == sender.state.scan(*ALL, limit=9999)
    source.close()


def test_a_changed_piece_is_refused(sender: Replica, tmp_path: Path) -> None:
    source = sender.snapshot()
    sink = SnapshotSink(tmp_path / "incoming")
    sink.begin(source.meta)
    piece = source.piece(0)

    @settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
    @given(st.integers(0, len(piece.rows) - 1), st.integers(0, 7))
    def flip(place: int, bit: int) -> None:
        rows = bytearray(piece.rows)
        rows[place] ^= 1 << bit
        with pytest.raises(SnapshotDamaged):
            sink.take(msgspec.structs.replace(piece, rows=bytes(rows)))

    flip()
    for changed in (
        SnapshotPiece(0, piece.crc, piece.rows, True),
        SnapshotPiece(0, piece.crc, piece.rows[:-1], False),
        SnapshotPiece(0, piece.crc ^ 1, piece.rows, False),
        SnapshotPiece(0, source.piece(1).crc, source.piece(1).rows, False),
    ):
        with pytest.raises(SnapshotDamaged):
            sink.take(changed)
    assert sink.take(piece) == 1
    sink.close()
    source.close()


def test_a_state_other_than_the_announced_one_is_discarded(sender: Replica, tmp_path: Path) -> None:
    source = sender.snapshot()
    source.meta = msgspec.structs.replace(source.meta, index=44)
    sink = SnapshotSink(tmp_path / "incoming")
    transfer(source, sink)
    with pytest.raises(SnapshotDamaged, match="announced as of entry 44, but is of 45"):
        sink.finish()
    assert not (tmp_path / "incoming").exists()
    assert sink.begin(source.meta) == 0
    sink.discard()
    source.close()


def test_a_damaged_table_of_the_sender_fails_the_transfer(tmp_path: Path) -> None:
    replica = Replica(tmp_path / "sender")
    replica.apply(2, {b"d%04d" % i: Random(i).randbytes(9000) for i in range(300)})
    replica.close()
    StateStore(tmp_path / "sender" / "state").close()
    for table in (tmp_path / "sender" / "state").glob("*.ldb"):
        content = bytearray(table.read_bytes())
        content[len(content) // 3] ^= 0x40
        table.write_bytes(content)
    replica = Replica(tmp_path / "sender")
    source = replica.snapshot()
    sink = SnapshotSink(tmp_path / "incoming")
    with pytest.raises(Exception, match="corrupt"):
        transfer(source, sink)
    assert not sink.is_complete
    sink.close()
    source.close()
    replica.close()
