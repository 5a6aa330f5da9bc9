"""What one request may ask for takes time in proportion to its size, as a plain pass over the same
bytes does: ratios to such a pass in the same run, so that no busy machine decides."""

from __future__ import annotations

import time
from collections.abc import Callable
from random import Random

import pytest

from streamd.streams.chunks import AnyChunk, Chunk, Limit, OpenChunk, Window, read_chunk
from streamd.streams.content import InvalidJson, json_value, split_json
from streamd.streams.offsets import START, Position

MESSAGES = 1_000_000
BODY_BYTES = 8 * 1024 * 1024


def least_s(work: Callable[[], object], times: int = 3) -> float:
    """The least processor time of some runs: what disturbs a run only adds to it."""
    found = []
    for _ in range(times):
        began = time.thread_time()
        work()
        found.append(time.thread_time() - began)
    return min(found)


def sealed() -> Chunk:
    return Chunk(0, 0, [2] * MESSAGES, [MESSAGES], b"1," * MESSAGES)


def opened() -> OpenChunk:
    chunk = OpenChunk(START)
    chunk.add(b"1," * MESSAGES, [2] * MESSAGES)
    return chunk


@pytest.mark.parametrize("make", [sealed, opened])
def test_reads_in_an_append_of_a_million_messages_do_not_each_go_over_all(
    make: Callable[[], AnyChunk],
) -> None:
    chunk, random = make(), Random(7)
    limit = Limit(chunk.end_record, chunk.end_byte)
    places = [random.randrange(MESSAGES) for _ in range(100)]

    def read(record: int) -> None:
        at = Position(record, chunk.bytes_before(record))
        assert at.byte == 2 * record
        found = read_chunk(chunk, Window(at, 64), limit, at_least_one=True)
        assert found.size == min(64, chunk.end_byte - at.byte)

    read(MESSAGES - 1)
    one_pass = least_s(lambda: sum(chunk.lengths[:MESSAGES]))
    all_reads = least_s(lambda: list(map(read, places)))
    assert all_reads < 10 * one_pass, (all_reads, one_pass)


@pytest.mark.parametrize(
    ("message", "other"),
    [
        (rb"\ud800", rb"\u0041"),
        pytest.param(rb"\uDFFF\uD800", rb"\u0041\u0041", marks=pytest.mark.long),
        pytest.param(rb"\\\ud800", rb"\\\u0041", marks=pytest.mark.long),
    ],
)
def test_lone_surrogates_cost_little_more_than_other_escapes(message: bytes, other: bytes) -> None:
    count = BODY_BYTES // len(message)
    body, plain = b'"' + message * count + b'"', b'"' + other * count + b'"'
    assert json_value(body) == body
    assert least_s(lambda: json_value(body)) < 12 * least_s(lambda: json_value(plain))
    listed, plainly = b"[%b,%b]" % (body, body), b"[%b,%b]" % (plain, plain)
    assert split_json(listed).data == body + b"," + body + b","
    assert least_s(lambda: split_json(listed)) < 12 * least_s(lambda: split_json(plainly))


@pytest.mark.parametrize(
    "text",
    [
        rb'"\ud83d\ude00"', rb'"\ude00\ud83d"', rb'"\ud83d\ud83d\ude00\ude00"', rb'"\\ud800"',
        rb'"\\\ud800"', rb'"\\\\ud800\\"', rb'{"\ud800":"\\"}', rb'["\uD800",1, "\udc00"]',
    ],
)  # fmt: skip
def test_surrogates_and_backslashes_stay_as_they_were_sent(text: bytes) -> None:
    assert json_value(text) == text


@pytest.mark.parametrize(
    "text",
    [
        rb'"\ud800', rb'"\ud80"', rb'"\ud8zz"', rb'"\ud800\"', rb'\\"\ud800"', rb'"\ud800"\\',
        rb'["\ud800"\\]', rb'{"\ud800"\\:1}', rb'["\ud800",\\1]', rb'"\x\ud800"', b'"\\ud800\n"',
    ],
)  # fmt: skip
def test_broken_json_with_surrogates_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidJson):
        json_value(text)
