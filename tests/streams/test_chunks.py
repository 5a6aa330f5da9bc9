"""Chunks: runs of records, open or sealed, and what can be read from them."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.streams.chunks import (
    AnyChunk,
    Chunk,
    Limit,
    OffsetMismatch,
    OpenChunk,
    Window,
    append_at,
    gathered,
    read_chunk,
)
from streamd.streams.offsets import Position

BASE = Position(10, 1000)
FAR = Limit(1 << 40, 1 << 40)
PLENTY = 1 << 40

# Appends as lists of record sizes.
APPENDS = st.lists(st.lists(st.integers(1, 6), min_size=1, max_size=4), min_size=1, max_size=6)


def letters(size: int, start: int = 0) -> bytes:
    return bytes(ord("a") + (start + i) % 26 for i in range(size))


def opened(appends: list[list[int]], base: Position = BASE) -> OpenChunk:
    chunk = OpenChunk(base)
    for lengths in appends:
        chunk.add(letters(sum(lengths), chunk.size), list(lengths))
    return chunk


@pytest.fixture(params=["open", "sealed"])
def chunk(request: pytest.FixtureRequest) -> AnyChunk:
    """Records a, bcd | ef | g: the bars are between appends."""
    chunk = opened([[1, 3], [2], [1]])
    return chunk.sealed() if request.param == "sealed" else chunk


def read(
    chunk: AnyChunk,
    at: Position,
    max_bytes: int = PLENTY,
    limit: Limit = FAR,
    at_least_one: bool = True,
) -> tuple[bytes, Position]:
    found = read_chunk(chunk, Window(at, max_bytes), limit, at_least_one=at_least_one)
    data = b"".join(found.parts)
    assert len(data) == found.size == found.end.byte - at.byte
    return data, found.end


def test_a_chunk_knows_where_it_ends(chunk: AnyChunk) -> None:
    assert (chunk.end_record, chunk.end_byte, chunk.size) == (14, 1007, 7)


def test_a_read_of_the_whole_chunk(chunk: AnyChunk) -> None:
    assert read(chunk, BASE) == (b"abcdefg", Position(14, 1007))


def test_a_read_from_the_middle_of_a_chunk(chunk: AnyChunk) -> None:
    assert read(chunk, Position(11, 1001)) == (b"bcdefg", Position(14, 1007))
    assert read(chunk, Position(13, 1006)) == (b"g", Position(14, 1007))


@pytest.mark.parametrize(
    ("max_bytes", "data", "end"),
    [
        (1, b"a", (11, 1001)),
        (3, b"a", (11, 1001)),
        (4, b"abcd", (12, 1004)),
        (5, b"abcd", (12, 1004)),
        (6, b"abcdef", (13, 1006)),
        (7, b"abcdefg", (14, 1007)),
    ],
)
def test_only_whole_records_are_read(
    chunk: AnyChunk, max_bytes: int, data: bytes, end: tuple[int, int]
) -> None:
    assert read(chunk, BASE, max_bytes) == (data, end)


@pytest.mark.parametrize("fits", [1, 1023, 1024, 1025, 2047, 2048, 2999])
def test_many_small_records_are_read_as_far_as_they_fit(fits: int) -> None:
    chunk = opened([[2] * 3000])
    data, end = read(chunk, BASE, 2 * fits + 1)
    assert (len(data), end) == (2 * fits, Position(BASE.record + fits, BASE.byte + 2 * fits))


def test_as_many_records_are_read_as_a_limit_inside_the_last_one_allows() -> None:
    """The records before the limit fit, and what is left of the last one does not."""
    chunk = opened([[2] * 1023 + [9]])
    limit = Limit(BASE.record + 1024, BASE.byte + 2 * 1023 + 5)
    data, end = read(chunk, BASE, 2 * 1023 + 4, limit)
    assert (len(data), end) == (2 * 1023, Position(BASE.record + 1023, BASE.byte + 2 * 1023))


def test_the_first_record_is_read_whatever_its_size(chunk: AnyChunk) -> None:
    assert read(chunk, Position(11, 1001), max_bytes=1) == (b"bcd", Position(12, 1004))


def test_a_record_that_does_not_fit_can_be_left_out(chunk: AnyChunk) -> None:
    at = Position(11, 1001)
    assert read(chunk, at, max_bytes=2, at_least_one=False) == (b"", at)


@pytest.mark.parametrize(
    ("limit", "data"),
    [
        (Limit(12, 1004), b"abcd"),
        (Limit(12, 1003), b"abc"),
        (Limit(11, 1001), b"a"),
        (Limit(14, 1007), b"abcdefg"),
    ],
)
def test_a_limit_may_be_inside_a_record(chunk: AnyChunk, limit: Limit, data: bytes) -> None:
    assert read(chunk, BASE, limit=limit) == (data, Position(*limit))


def test_a_limit_inside_a_record_shortens_it_for_the_reader(chunk: AnyChunk) -> None:
    assert read(chunk, BASE, max_bytes=3, limit=Limit(12, 1003)) == (b"abc", Position(12, 1003))
    assert read(chunk, BASE, max_bytes=2, limit=Limit(12, 1003)) == (b"a", Position(11, 1001))


@pytest.mark.parametrize("at", [(10, 1002), (11, 1000), (11, 1005), (12, 1003), (13, 1005)])
def test_a_byte_position_outside_of_its_record_is_noticed(
    chunk: AnyChunk, at: tuple[int, int]
) -> None:
    with pytest.raises(OffsetMismatch):
        read(chunk, Position(*at))
    with pytest.raises(OffsetMismatch):
        append_at(chunk, Position(*at))


@pytest.mark.parametrize("byte", [1002, 1003, 1004])
def test_a_read_from_inside_a_record_begins_with_it(chunk: AnyChunk, byte: int) -> None:
    found = read_chunk(chunk, Window(Position(11, byte), PLENTY), FAR, at_least_one=True)
    assert (b"".join(found.parts), found.end, found.size) == (b"bcdefg", (14, 1007), 6)
    assert found.lengths() == [3, 2, 1]


@pytest.mark.parametrize("byte", [1002, 1003])
def test_a_read_from_inside_a_record_that_a_fork_cut(chunk: AnyChunk, byte: int) -> None:
    found = read_chunk(
        chunk, Window(Position(11, byte), PLENTY), Limit(12, 1003), at_least_one=True
    )
    assert (b"".join(found.parts), found.end, found.size) == (b"bc", (12, 1003), 2)
    assert found.lengths() == [2]
    with pytest.raises(OffsetMismatch):
        read(chunk, Position(11, 1004), limit=Limit(12, 1003))


@pytest.mark.parametrize("at", [(10, 1001), (11, 1002), (11, 1004)])
def test_no_append_begins_inside_a_record(chunk: AnyChunk, at: tuple[int, int]) -> None:
    with pytest.raises(OffsetMismatch):
        append_at(chunk, Position(*at))


def test_the_append_that_begins_at_a_record(chunk: AnyChunk) -> None:
    assert append_at(chunk, BASE) == [1, 3]
    assert append_at(chunk, Position(12, 1004)) == [2]
    assert append_at(chunk, Position(13, 1006)) == [1]


def test_from_inside_an_append_the_rest_of_it_is_found(chunk: AnyChunk) -> None:
    assert append_at(chunk, Position(11, 1001)) == [3]


def test_appends_of_one_record_each_take_no_room() -> None:
    chunk = opened([[2], [3], [1]])
    assert chunk.appends == []
    assert append_at(chunk, Position(11, 1002)) == [3]


def test_parts_are_not_copied_while_the_chunk_is_open() -> None:
    part = b"x" * 100
    chunk = OpenChunk(BASE)
    chunk.add(part, [100])
    [found] = read_chunk(chunk, Window(BASE, PLENTY), FAR, at_least_one=True).parts
    assert found is part


def test_a_whole_sealed_chunk_is_not_copied() -> None:
    chunk = opened([[3], [4]]).sealed()
    [found] = read_chunk(chunk, Window(BASE, PLENTY), FAR, at_least_one=True).parts
    assert found is chunk.data


@given(APPENDS)
def test_a_stored_chunk_is_decoded_unchanged(appends: list[list[int]]) -> None:
    chunk = opened(appends).sealed()
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(chunk), type=Chunk) == chunk


@given(APPENDS, st.data())
def test_two_merged_chunks_equal_one_chunk(appends: list[list[int]], data: st.DataObject) -> None:
    whole = opened(appends).sealed()
    cut = data.draw(st.integers(1, len(appends)))
    first = opened(appends[:cut])
    second = OpenChunk(Position(first.end_record, first.end_byte))
    for lengths in appends[cut:]:
        second.add(letters(sum(lengths), first.size + second.size), list(lengths))
    if not second.lengths:
        return
    merged = first.sealed().merged(second.sealed())
    assert merged.data == whole.data
    assert merged.lengths == whole.lengths
    at = BASE
    for length in whole.lengths:
        assert append_at(merged, at) == append_at(whole, at)
        at = Position(at.record + 1, at.byte + length)


@given(APPENDS, st.integers(1, 12))
def test_consecutive_reads_make_the_whole(appends: list[list[int]], max_bytes: int) -> None:
    chunk = opened(appends)
    for source in (chunk, chunk.sealed()):
        at, found = BASE, b""
        while at.record < source.end_record:
            piece, end = read(source, at, max_bytes)
            assert end > at
            assert len(piece) <= max_bytes or end.record == at.record + 1
            found, at = found + piece, end
        assert found == letters(source.size)


@given(APPENDS, st.data())
def test_any_range_of_an_open_chunk_equals_that_of_the_sealed_one(
    appends: list[list[int]], data: st.DataObject
) -> None:
    chunk = opened(appends)
    start = data.draw(st.integers(0, chunk.size))
    stop = data.draw(st.integers(start, chunk.size))
    assert b"".join(chunk.buffers(start, stop)) == letters(chunk.size)[start:stop]
    assert b"".join(chunk.sealed().buffers(start, stop)) == letters(chunk.size)[start:stop]


# -- the same records in other chunks -----------------------------------------------------------


@st.composite
def cut_twice(draw: st.DrawFn) -> tuple[list[Chunk], list[Chunk]]:
    """The same appends in two sequences of chunks."""
    appends = draw(APPENDS)
    whole = opened(appends).sealed()

    def chunks() -> list[Chunk]:
        inner = st.integers(1, len(appends) - 1) if len(appends) > 1 else st.nothing()
        ends = sorted({*draw(st.sets(inner)), len(appends)})
        found: list[Chunk] = []
        base = BASE
        for start, end in zip([0, *ends[:-1]], ends, strict=True):
            chunk = opened(appends[start:end], base).sealed()
            chunk.data = b"".join(whole.buffers(base.byte - BASE.byte, chunk.end_byte - BASE.byte))
            found.append(chunk)
            base = Position(chunk.end_record, chunk.end_byte)
        return found

    return chunks(), chunks()


@given(cut_twice())
def test_a_digest_does_not_depend_on_the_borders_of_chunks(
    cuts: tuple[list[Chunk], list[Chunk]],
) -> None:
    one, other = cuts
    for chunk in one:
        found = gathered(other, chunk.start_record, chunk.end_record)
        assert found is not None
        assert found.data == chunk.data
        assert found.digest() == chunk.digest()


@given(cut_twice())
def test_records_are_gathered_from_several_chunks(cuts: tuple[list[Chunk], list[Chunk]]) -> None:
    chunks, _ = cuts
    first, last = chunks[0], chunks[-1]
    whole = gathered(chunks, first.start_record, last.end_record)
    assert whole is not None
    assert (whole.start_byte, whole.end_byte) == (first.start_byte, last.end_byte)
    for chunk in chunks:
        again = gathered([whole], chunk.start_record, chunk.end_record)
        assert again is not None
        assert again.digest() == chunk.digest()


def test_records_with_a_gap_are_not_gathered() -> None:
    chunks = [opened([[1], [2]]).sealed(), opened([[3]], Position(13, 1005)).sealed()]
    assert gathered(chunks, 10, 14) is None, "a gap"
    assert gathered(chunks, 9, 12) is None
    assert gathered(chunks, 13, 15) is None
    assert gathered([], 10, 11) is None
    assert gathered(chunks, 11, 12) is not None


@pytest.mark.parametrize(
    "other",
    [
        Chunk(11, 1000, [1, 3], [2], b"abcd"),
        Chunk(10, 1001, [1, 3], [2], b"abcd"),
        Chunk(10, 1000, [2, 2], [2], b"abcd"),
        Chunk(10, 1000, [1, 3], [], b"abcd"),
        Chunk(10, 1000, [1, 3], [2], b"abce"),
    ],
)
def test_a_digest_depends_on_positions_borders_and_bytes(other: Chunk) -> None:
    assert Chunk(10, 1000, [1, 3], [2], b"abcd").digest() != other.digest()


def test_appends_of_one_record_each_may_be_left_out() -> None:
    assert Chunk(0, 0, [1, 1], [1, 1], b"ab").digest() == Chunk(0, 0, [1, 1], [], b"ab").digest()


def test_chunks_of_many_records_are_found_by_their_records_however_many_are_read() -> None:
    """Where their records begin is remembered for a few of them; the others are counted again."""
    lengths = [1 + number % 3 for number in range(3000)]
    chunks = [
        Chunk(0, 0, [start, *lengths], [], bytes(start + sum(lengths))) for start in range(1, 41)
    ]
    for start, chunk in [*enumerate(chunks, 1)] * 2:
        for count in (1, 1024, 1025, 2048, 3001):
            assert chunk.bytes_before(count) == start + sum(lengths[: count - 1])
