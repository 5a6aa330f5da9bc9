"""Checkpoints: complete with their manifest, nothing without it, no damage unnoticed."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec
import pytest
import zstandard
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from streamd.objectstore.checkpoints import (
    CheckpointOf,
    CheckpointWriter,
    Manifest,
    PieceRef,
    read_manifest,
    read_piece,
)
from streamd.objectstore.errors import ObjectCorrupt
from streamd.objectstore.framing import Head
from streamd.objectstore.names import ManifestName, PieceName, check_digest, digest_of
from tests.objectstore.damage import cut, flipped

OF = CheckpointOf("c1", 0, 42, 3, 0xABCD, 1_700_000_000_000, 99, b"configuration")


@given(st.lists(st.binary(max_size=300), max_size=6))
def test_decoding_returns_what_was_written_in_order(pieces: list[bytes]) -> None:
    writer = CheckpointWriter(OF)
    objects = [writer.piece(rows) for rows in pieces]
    made = writer.manifest()
    manifest = read_manifest(made.content)
    assert manifest.of == OF
    assert [manifest.piece_name(number) for number in range(len(pieces))] == [
        piece.name for piece in objects
    ]
    assert [
        read_piece(manifest, number, piece.content) for number, piece in enumerate(objects)
    ] == pieces


def test_a_name_identifies_its_object_and_proves_the_content() -> None:
    writer = CheckpointWriter(OF)
    piece, manifest = writer.piece(b"rows"), writer.manifest()
    of_piece, of_manifest = PieceName.parse(piece.name), ManifestName.parse(manifest.name)
    assert of_piece is not None
    assert of_manifest is not None
    assert (of_piece.log_index, of_piece.snapshot_id, of_piece.number) == (42, 99, 0)
    assert (of_manifest.log_index, of_manifest.snapshot_id) == (42, 99)
    check_digest(piece.name, piece.content)
    check_digest(manifest.name, manifest.content)


def test_every_flipped_bit_of_a_manifest_is_noticed() -> None:
    writer = CheckpointWriter(OF)
    writer.piece(b"rows")
    made = writer.manifest().content
    for damaged in [*flipped(made), *cut(made)]:
        with pytest.raises(ObjectCorrupt):
            read_manifest(damaged)


def test_every_flipped_bit_of_a_piece_is_noticed() -> None:
    writer = CheckpointWriter(OF)
    piece = writer.piece(b"some rows of the state")
    manifest = read_manifest(writer.manifest().content)
    for damaged in [*flipped(piece.content), *cut(piece.content)]:
        with pytest.raises(ObjectCorrupt):
            read_piece(manifest, 0, damaged)


def test_a_piece_is_not_accepted_in_the_place_of_another() -> None:
    writer = CheckpointWriter(OF)
    first, _ = writer.piece(b"same"), writer.piece(b"same")
    manifest = read_manifest(writer.manifest().content)
    with pytest.raises(ObjectCorrupt):
        read_piece(manifest, 1, first.content)


def test_a_piece_larger_than_its_head_says_takes_no_memory() -> None:
    body = zstandard.ZstdCompressor().compress(bytes(256 * 1024 * 1024))
    head = Head(b"SDSP", 1, "QQIIII", "a piece").pack(
        OF.snapshot_id, 0, 100, crc32c(bytes(100)), len(body), crc32c(body)
    )
    piece = head + body
    manifest = Manifest(OF, [PieceRef(digest_of(piece), len(piece), 100)])
    tracemalloc.start()
    try:
        with pytest.raises(ObjectCorrupt):
            read_piece(manifest, 0, piece)
        assert tracemalloc.get_traced_memory()[1] < 64 * 1024 * 1024
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "piece",
    [
        ("../../../another/object", 100, 100),
        ("a" * 64, 2**62, 100),
        ("a" * 64, -1, 100),
        ("a" * 64, 100, 2**62),
    ],
)
def test_a_manifest_with_an_impossible_piece_is_damaged(piece: tuple[Any, ...]) -> None:
    encoded = msgspec.msgpack.encode((OF, [piece]))
    head = Head(b"SDSM", 1, "II", "a manifest").pack(len(encoded), crc32c(encoded))
    with pytest.raises(ObjectCorrupt):
        read_manifest(head + encoded)
