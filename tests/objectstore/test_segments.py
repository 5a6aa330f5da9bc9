"""Segments of the log: committed entries, proved by their chain and by the segment before."""

from __future__ import annotations

import tracemalloc
from random import Random
from struct import pack

import pytest
import zstandard
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from streamd.config.checks import MAX_COLD_BODY_BYTES
from streamd.objectstore.errors import ColdRefused, ObjectCorrupt
from streamd.objectstore.framing import Head
from streamd.objectstore.names import SegmentName, check_digest
from streamd.objectstore.segments import (
    HEAD_BYTES,
    MAX_ENTRY_BYTES,
    SegmentWriter,
    cluster_of_segment,
    read_segment_head,
)
from streamd.raft.chain import chain
from streamd.raft.messages import Entry, EntryKind
from streamd.streams.codec import Batch, encode_batch
from streamd.streams.commands import Append
from streamd.streams.content import MAX_MESSAGES, split_body
from streamd.streams.model import LogPosition
from tests.objectstore.damage import cut, flipped
from tests.support.segments import entries_of

BEGINNING = LogPosition()
CLUSTER = "7d0c3a52-0f6e-4f3c-9d0a-2b7f1f0c6a11"


def _batch(now_ms: int, data: bytes) -> bytes:
    return encode_batch(Batch(now_ms, [Append(b"b\0s", "text/plain", data, [len(data)])]))


def _log(first_index: int, count: int, random: Random) -> list[Entry]:
    """Entries with growing terms and times; each seventh holds no commands."""
    entries = []
    term, now_ms = 1, 1_000
    for index in range(first_index, first_index + count):
        term += random.random() < 0.1
        now_ms += random.randrange(10)
        if index % 7 == 0:
            entries.append(Entry(index, term, EntryKind.NOOP, b""))
        else:
            payload = _batch(now_ms, random.randbytes(random.randrange(100)))
            entries.append(Entry(index, term, EntryKind.COMMANDS, payload))
    return entries


def _segment(entries: list[Entry], previous: LogPosition = BEGINNING) -> SegmentWriter:
    writer = SegmentWriter(0, previous, CLUSTER)
    for entry in entries:
        writer.add(entry)
    return writer


@given(st.integers(0, 2**60), st.integers(1, 60), st.integers(0, 2**32 - 1), st.randoms())
def test_decoding_returns_what_was_written_in_order(
    index: int, count: int, link: int, random: Random
) -> None:
    entries = _log(index + 1, count, random)
    segment = _segment(entries, LogPosition(index, 1, link, 500)).finish()
    assert list(entries_of(segment.content)) == entries


def test_the_head_alone_names_the_entries_and_times_of_a_segment() -> None:
    entries = [
        Entry(4, 2, EntryKind.COMMANDS, _batch(1_000, b"a")),
        Entry(5, 2, EntryKind.COMMANDS, _batch(1_700, b"b")),
        Entry(6, 3, EntryKind.NOOP, b""),
    ]
    previous = LogPosition(3, 1, 77, 900)
    segment = _segment(entries, previous).finish()
    head = read_segment_head(segment.content[:HEAD_BYTES])
    assert head.previous == previous
    assert (head.first_index, head.first_term, head.first_time_ms) == (4, 2, 1_000)
    assert (head.last.index, head.last.term, head.last.time_ms) == (6, 3, 1_700)
    link = 77
    for entry in entries:
        link = chain(link, 0, entry)
    assert head.last.chain == link


def test_an_entry_without_commands_has_the_time_of_those_before_it() -> None:
    segment = _segment([Entry(1, 1, EntryKind.NOOP, b"")], LogPosition(0, 0, 0, 123)).finish()
    head = read_segment_head(segment.content)
    assert (head.first_time_ms, head.last.time_ms) == (123, 123)


def test_consecutive_segments_match_in_position_and_chain() -> None:
    entries = _log(1, 40, Random(1))
    first = _segment(entries[:25])
    second = _segment(entries[25:], first.last)
    assert read_segment_head(second.finish().content).previous == first.last
    assert read_segment_head(first.finish().content).last == first.last
    assert second.last == _segment(entries).last, "cut elsewhere, the chain ends alike"


def test_the_name_gives_the_entries_of_a_segment_and_proves_its_content() -> None:
    segment = _segment(_log(1, 20, Random(2))).finish()
    name = SegmentName.parse(segment.name)
    assert name is not None
    assert (name.group_id, name.first_index, name.last_index) == (0, 1, 20)
    check_digest(segment.name, segment.content)


def test_every_flipped_bit_is_noticed_without_the_name() -> None:
    for damaged in flipped(_segment(_log(1, 4, Random(3))).finish().content):
        with pytest.raises(ObjectCorrupt):
            list(entries_of(damaged))


def test_a_segment_cut_short_or_grown_is_noticed() -> None:
    for damaged in cut(_segment(_log(1, 4, Random(4))).finish().content):
        with pytest.raises(ObjectCorrupt):
            list(entries_of(damaged))


def test_the_head_of_one_segment_on_the_body_of_another_is_noticed() -> None:
    one = _segment(_log(1, 4, Random(5))).finish().content
    other = _segment(_log(1, 4, Random(6))).finish().content
    with pytest.raises(ObjectCorrupt):
        list(entries_of(one[:HEAD_BYTES] + other[HEAD_BYTES:]))


def test_a_segment_with_another_previous_position_breaks_the_chain() -> None:
    entries = _log(1, 4, Random(7))
    segment = _segment(entries, LogPosition(0, 0, 1, 0)).finish().content
    assert read_segment_head(segment).last != _segment(entries).last


def of_an_older_version(content: bytes) -> bytes:
    """The segment as 0.1.0 wrote it before segments named their cluster."""
    named = len(CLUSTER) + 9
    body = content[HEAD_BYTES:-named]
    head = Head(b"SDLG", 1, "IQQIQQQQQIQQQI", "a log segment")
    fields = head.unpack(content)[:-2]
    return head.pack(*fields, len(body), crc32c(body)) + body


def test_a_segment_names_its_cluster_unless_an_older_version_wrote_it() -> None:
    entries = _log(1, 30, Random(1))
    content = _segment(entries).finish().content
    assert cluster_of_segment(content) == CLUSTER
    older = of_an_older_version(content)
    assert cluster_of_segment(older) is None
    assert list(entries_of(older)) == entries


def test_an_older_reader_skips_the_clusters_name() -> None:
    content = _segment(_log(1, 30, Random(1))).finish().content
    whole = zstandard.ZstdDecompressor().stream_reader(content[HEAD_BYTES:]).readall()
    assert len(whole) == read_segment_head(content).entries_size


def test_a_segment_with_a_gap_is_not_written() -> None:
    writer = _segment(_log(1, 3, Random(8)))
    with pytest.raises(ValueError, match="entry 5 does not follow entry 3"):
        writer.add(Entry(5, 9, EntryKind.NOOP, b""))


def test_memory_holds_only_the_compressed_entries() -> None:
    writer = SegmentWriter(0, BEGINNING, CLUSTER)
    payload = _batch(1, b"the same again and again " * 4_000)
    for index in range(1, 301):
        writer.add(Entry(index, 1, EntryKind.COMMANDS, payload))
    assert writer.entries_size > 30_000_000
    assert len(writer.finish().content) < 1_000_000


def _hostile(length: int, content: bytes) -> bytes:
    """A segment of one entry that claims so many bytes."""
    entry = pack(">QBII", 1, EntryKind.NOOP, 0, length) + content
    body = zstandard.ZstdCompressor().compress(entry)
    head = Head(b"SDLG", 1, "IQQIQQQQQIQQQI", "a log segment").pack(
        *(0, 0, 0, 0, 0), *(1, 0), *(1, 1, 0, 0), 2**40, len(body), crc32c(body)
    )
    return head + body


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (_hostile(MAX_ENTRY_BYTES, b"not as much"), "shorter than its head"),
        (_hostile(MAX_ENTRY_BYTES + 1, bytes(MAX_ENTRY_BYTES + 1)), "claims 67108865 bytes"),
        (_hostile(2**32 - 1, b"not as much"), "claims 4294967295 bytes"),
    ],
)
def test_an_impossibly_large_entry_takes_no_memory(content: bytes, message: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(ObjectCorrupt, match=message):
            list(entries_of(content))
        assert tracemalloc.get_traced_memory()[1] < 16 * 1024 * 1024
    finally:
        tracemalloc.stop()


def test_the_largest_entry_is_read_back_and_a_larger_one_is_refused() -> None:
    largest = Entry(1, 1, EntryKind.NOOP, bytes(MAX_ENTRY_BYTES))
    assert list(entries_of(_segment([largest]).finish().content)) == [largest]
    with pytest.raises(ColdRefused, match="exceeds the limit for one object"):
        _segment([Entry(1, 1, EntryKind.NOOP, bytes(MAX_ENTRY_BYTES + 1))])


def test_the_largest_append_fits_into_an_entry() -> None:
    """The largest number of messages has the largest overhead."""
    left = MAX_COLD_BODY_BYTES - 2 * MAX_MESSAGES - 2
    body = b"[" + b"1," * (MAX_MESSAGES - 1) + b'"%b"]' % (b"x" * left)
    records = split_body("application/json", body)
    assert len(records.lengths) == MAX_MESSAGES
    appended = Append(b"b\0" + b"s" * 2048, "application/json", records.data, records.lengths)
    assert len(encode_batch(Batch(2**60, [appended]))) < MAX_ENTRY_BYTES - 2 * 1024 * 1024
