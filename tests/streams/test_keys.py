"""The key space: keys sort as the values they encode."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamd.streams import keys

NUMBERS = st.integers(0, 2**64 - 2)
NAMES = st.binary(max_size=8)


def within(key: bytes, borders: tuple[bytes, bytes]) -> bool:
    start, stop = borders
    return start <= key < stop


def test_every_kind_of_row_has_its_letter() -> None:
    letters = [
        keys.HEADER,
        keys.BUCKET,
        keys.STREAM,
        keys.CHUNK,
        keys.PRODUCER,
        keys.EXPIRY,
        keys.GARBAGE,
    ]
    assert len(set(letters)) == len(letters)
    assert all(len(letter) == 1 for letter in letters)


@given(st.binary(min_size=1).filter(lambda name: b"\0" not in name), st.binary())
def test_the_bucket_can_be_parsed_from_any_stream_key(bucket: bytes, name: bytes) -> None:
    assert keys.bucket_of(keys.stream_key(bucket, name)) == bucket


def test_bucket_and_name_cannot_be_mistaken_for_another_pair() -> None:
    assert keys.stream_key(b"a", b"bc") != keys.stream_key(b"ab", b"c")


@given(NUMBERS, NUMBERS, NUMBERS, NUMBERS)
def test_chunks_are_ordered_by_stream_then_record(a: int, b: int, c: int, d: int) -> None:
    assert (keys.chunk_key(a, b) < keys.chunk_key(c, d)) == ((a, b) < (c, d))


@given(NUMBERS, NAMES, NUMBERS, NAMES)
def test_expiries_are_ordered_by_time(a: int, one: bytes, b: int, other: bytes) -> None:
    assert (keys.expiry_key(a, one) < keys.expiry_key(b, other)) == ((a, one) < (b, other))


@given(NUMBERS, NUMBERS, NUMBERS, st.text(max_size=4))
def test_the_range_of_a_stream_id_holds_its_rows_and_no_others(
    stream_id: int, other: int, record: int, producer: str
) -> None:
    chunks = keys.id_range(keys.CHUNK, stream_id)
    producers = keys.id_range(keys.PRODUCER, stream_id)
    assert within(keys.chunk_key(stream_id, record), chunks)
    assert within(keys.producer_key(stream_id, producer), producers)
    assert within(keys.chunk_key(other, record), chunks) == (other == stream_id)
    assert within(keys.producer_key(other, producer), producers) == (other == stream_id)


@given(NUMBERS, NUMBERS, NAMES)
def test_the_range_of_expiries_holds_the_due_streams(until_ms: int, at_ms: int, key: bytes) -> None:
    assert within(keys.expiry_key(at_ms, key), keys.expiry_range(until_ms)) == (at_ms <= until_ms)


@given(NUMBERS, NAMES)
def test_notes_name_their_subject(number: int, key: bytes) -> None:
    assert keys.key_in_expiry(keys.expiry_key(number, key)) == key
    assert keys.parse_id(keys.garbage_key(number)) == number
