"""Tails: recent records in memory, sealed into chunks, bounded in bytes."""

from __future__ import annotations

from streamd.streams.chunks import Chunk
from streamd.streams.offsets import START, Position
from streamd.streams.tails import MERGE_BYTES, SEAL_BYTES, Tails


class Writer:
    """Appends records to one stream, one after another."""

    def __init__(self, tails: Tails, stream_id: int = 1, at: Position = START) -> None:
        self.tails, self.stream_id, self.at = tails, stream_id, at

    def append(self, size: int) -> None:
        data = bytes([65 + self.at.record % 26]) * size
        self.tails.append(self.stream_id, self.at, [(data, [size])])
        self.at = Position(self.at.record + 1, self.at.byte + size)


def flush(tails: Tails) -> list[tuple[int, Chunk, Chunk | None]]:
    stored = tails.begin_flush()
    tails.end_flush()
    return stored


def data_at(tails: Tails, stream_id: int, record: int) -> bytes | None:
    chunk = tails.find(stream_id, record)
    if chunk is None:
        return None
    assert chunk.start_record <= record < chunk.end_record
    return b"".join(chunk.buffers(0, chunk.size))


def test_records_are_found_before_and_after_they_are_stored() -> None:
    tails = Tails(1 << 20)
    writer = Writer(tails)
    writer.append(1)
    assert data_at(tails, 1, 0) == b"A"
    flush(tails)
    assert data_at(tails, 1, 0) == b"A"
    assert tails.find(1, 1) is None
    assert tails.find(2, 0) is None


def test_a_flush_stores_each_append_once() -> None:
    tails = Tails(1 << 20)
    writers = [Writer(tails, 1), Writer(tails, 2)]
    for writer in writers:
        writer.append(2)
        writer.append(3)
    stored = flush(tails)
    assert [(stream_id, chunk.data, old) for stream_id, chunk, old in stored] == [
        (1, b"AABBB", None),
        (2, b"AABBB", None),
    ]
    assert flush(tails) == []


def test_small_chunks_are_stored_again_with_the_next_records() -> None:
    tails = Tails(1 << 20)
    writer = Writer(tails)
    writer.append(1)
    [(_, first, _)] = flush(tails)
    writer.append(2)
    [(_, second, replaced)] = flush(tails)
    assert replaced is first
    assert (second.start_record, second.data, second.lengths) == (0, b"ABB", [1, 2])
    assert data_at(tails, 1, 0) == b"ABB"


def test_a_chunk_that_is_large_enough_is_stored_once() -> None:
    tails = Tails(1 << 20)
    writer = Writer(tails)
    writer.append(MERGE_BYTES)
    flush(tails)
    writer.append(1)
    [(_, chunk, replaced)] = flush(tails)
    assert replaced is None
    assert (chunk.start_record, chunk.start_byte) == (1, MERGE_BYTES)
    assert data_at(tails, 1, 0) == b"A" * MERGE_BYTES
    assert data_at(tails, 1, 1) == b"B"


def test_a_large_tail_is_sealed_as_it_grows() -> None:
    tails = Tails(1 << 30)
    writer = Writer(tails)
    for _ in range(5):
        writer.append(SEAL_BYTES // 2)
    chunks = [chunk for _, chunk, _ in flush(tails)]
    assert [(chunk.start_record, chunk.end_record) for chunk in chunks] == [(0, 2), (2, 4), (4, 5)]
    for record in range(5):
        found = tails.find(1, record)
        assert found is not None
        assert found.start_record <= record < found.end_record


def test_appends_of_one_entry_are_sealed_as_they_grow() -> None:
    tails, half = Tails(1 << 24), SEAL_BYTES // 2
    tails.append(1, START, [(bytes([65 + n]) * half, [half]) for n in range(5)])
    found = [tails.find(1, record) for record in range(5)]
    assert [chunk and chunk.start_record for chunk in found] == [0, 0, 2, 2, 4]
    assert tails.size == 5 * half


def test_appends_during_a_flush_belong_to_the_next() -> None:
    tails = Tails(1 << 20)
    writer = Writer(tails)
    writer.append(1)
    tails.begin_flush()
    writer.append(1)
    assert data_at(tails, 1, 0) == b"A"
    assert data_at(tails, 1, 1) == b"B"
    tails.end_flush()
    [(_, chunk, replaced)] = flush(tails)
    assert chunk.data == b"AB"
    assert replaced is not None


def test_stored_tails_leave_memory_in_order_of_their_last_write() -> None:
    tails = Tails(100)
    for stream_id in (1, 2, 3):
        Writer(tails, stream_id).append(50)
    assert tails.size == 150, "what is not stored cannot be let go of"
    flush(tails)
    assert tails.size == 100
    assert 1 not in tails
    assert data_at(tails, 2, 0) == data_at(tails, 3, 0) == b"A" * 50


def test_a_write_makes_a_stream_the_last_to_leave_memory() -> None:
    tails = Tails(100)
    writers = [Writer(tails, stream_id) for stream_id in (1, 2)]
    for writer in writers:
        writer.append(50)
    flush(tails)
    writers[0].append(10)
    flush(tails)
    assert 1 in tails
    assert 2 not in tails
    assert tails.size == 60


def test_nothing_leaves_memory_during_a_flush() -> None:
    tails = Tails(10)
    Writer(tails, 1).append(50)
    tails.begin_flush()
    tails.install(2, [Chunk(0, 0, [20], [], b"x" * 20)])
    assert data_at(tails, 1, 0) is not None
    tails.end_flush()
    assert tails.size == 0


def test_a_chunk_sealed_during_a_flush_waits_for_the_next() -> None:
    tails = Tails(10)
    writer = Writer(tails)
    writer.append(50)
    tails.begin_flush()
    writer.append(SEAL_BYTES)
    tails.end_flush()
    assert tails.find(1, 0) is None
    assert data_at(tails, 1, 1) == b"B" * SEAL_BYTES
    [(_, chunk, _)] = flush(tails)
    assert (chunk.start_record, chunk.size) == (1, SEAL_BYTES)
    assert 1 not in tails


def test_an_open_tail_outlives_its_stored_chunks() -> None:
    tails = Tails(10)
    writer = Writer(tails)
    writer.append(50)
    tails.begin_flush()
    writer.append(5)
    tails.end_flush()
    assert tails.find(1, 0) is None
    assert data_at(tails, 1, 1) == b"B" * 5
    [(_, chunk, replaced)] = flush(tails)
    assert (chunk.start_record, chunk.start_byte, replaced) == (1, 50, None)


def test_chunks_from_the_store_can_be_appended_to() -> None:
    tails = Tails(1 << 20)
    loaded = Chunk(3, 30, [10], [], b"x" * 10)
    tails.install(1, [loaded])
    assert data_at(tails, 1, 3) == b"x" * 10
    assert tails.find(1, 2) is None
    Writer(tails, 1, Position(4, 40)).append(1)
    [(_, chunk, replaced)] = flush(tails)
    assert replaced is loaded
    assert chunk.data == b"x" * 10 + b"E"


def test_chunks_from_the_store_do_not_displace_what_is_in_memory() -> None:
    tails = Tails(1 << 20)
    Writer(tails).append(1)
    tails.install(1, [Chunk(0, 0, [1], [], b"?")])
    tails.install(2, [])
    assert data_at(tails, 1, 0) == b"A"
    assert 2 not in tails


def test_a_removed_stream_leaves_nothing_to_store() -> None:
    tails = Tails(1 << 30)
    writer = Writer(tails)
    writer.append(SEAL_BYTES)
    writer.append(1)
    tails.drop(1)
    tails.drop(2)
    assert tails.size == 0
    assert tails.find(1, 0) is None
    assert flush(tails) == []
