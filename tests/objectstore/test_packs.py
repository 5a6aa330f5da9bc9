"""Packs: each slice can be read by its reference alone, and no damage goes unnoticed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.objectstore.errors import ObjectCorrupt
from streamd.objectstore.names import PackName, check_digest
from streamd.objectstore.packs import PackWriter, decode_slice, read_pack
from streamd.streams.chunks import Chunk
from tests.objectstore.damage import cut, flipped
from tests.support.packs import chunks_of


@st.composite
def chunks(draw: st.DrawFn) -> Chunk:
    records = draw(st.lists(st.binary(max_size=40), min_size=1, max_size=8))
    lengths = [len(record) for record in records]
    appends = draw(st.sampled_from([[], [len(records)]]))
    start = draw(st.tuples(st.integers(0, 2**40), st.integers(0, 2**50)))
    return Chunk(*start, lengths, appends, b"".join(records))


ids = st.integers(1, 2**63)


def _small() -> PackWriter:
    writer = PackWriter(0, term=3, number=1)
    writer.add(7, Chunk(4, 20, [2, 3], [], b"aabbb"))
    writer.add(9, Chunk(0, 0, [1, 1, 1], [3], b"xyz"))
    return writer


@given(st.lists(st.tuples(ids, chunks()), max_size=12))
def test_decoding_returns_what_was_written_in_order(slices: list[tuple[int, Chunk]]) -> None:
    writer = PackWriter(1, term=5, number=2)
    refs = [writer.add(stream_id, chunk) for stream_id, chunk in slices]
    pack = writer.finish()
    assert len(pack.content) == writer.size
    assert read_pack(pack.content) == (1, 5, 2, refs)
    assert [(ref.stream_id, chunk) for ref, chunk in chunks_of(pack.content)] == slices


@given(st.lists(st.tuples(ids, chunks()), min_size=1, max_size=12))
def test_a_slice_needs_only_its_own_bytes(slices: list[tuple[int, Chunk]]) -> None:
    writer = PackWriter(0, term=1, number=0)
    refs = [writer.add(stream_id, chunk) for stream_id, chunk in slices]
    content = writer.finish().content
    for ref, (stream_id, chunk) in zip(refs, slices, strict=True):
        part = content[ref.offset : ref.offset + ref.length]
        assert decode_slice(ref, part) == chunk
        assert ref.stream_id == stream_id
        assert (ref.end_record, ref.end_byte) == (chunk.end_record, chunk.end_byte)


def test_the_name_identifies_the_pack_and_proves_its_content() -> None:
    pack = _small().finish()
    name = PackName.parse(pack.name)
    assert name is not None
    assert (name.group_id, name.term, name.number) == (0, 3, 1)
    check_digest(pack.name, pack.content)


def test_the_same_slices_make_the_same_pack() -> None:
    assert _small().finish() == _small().finish()


def test_every_flipped_bit_is_noticed_without_the_name() -> None:
    for damaged in flipped(_small().finish().content):
        with pytest.raises(ObjectCorrupt):
            list(chunks_of(damaged))


def test_a_pack_cut_short_or_grown_is_noticed() -> None:
    for damaged in cut(_small().finish().content):
        with pytest.raises(ObjectCorrupt):
            list(chunks_of(damaged))


def test_every_flipped_bit_of_a_slice_is_noticed() -> None:
    pack = _small().finish()
    for ref in pack.slices:
        part = pack.content[ref.offset : ref.offset + ref.length]
        for damaged in [*flipped(part), *cut(part)]:
            with pytest.raises(ObjectCorrupt):
                decode_slice(ref, damaged)


def test_a_valid_slice_of_another_stream_or_position_is_noticed() -> None:
    pack = _small().finish()
    other = PackWriter(0, term=3, number=2)
    other.add(8, Chunk(4, 20, [2, 3], [], b"aabbb"))
    other.add(7, Chunk(5, 20, [2, 3], [], b"aabbb"))
    wanted, found = pack.slices[0], other.finish()
    for ref in found.slices:
        with pytest.raises(ObjectCorrupt):
            decode_slice(wanted, found.content[ref.offset : ref.offset + ref.length])


def test_a_damaged_pack_does_not_match_the_digest_in_its_name() -> None:
    pack = _small().finish()
    with pytest.raises(ObjectCorrupt, match="digest"):
        check_digest(pack.name, pack.content + b"\0")
