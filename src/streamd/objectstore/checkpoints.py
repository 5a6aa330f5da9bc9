"""Checkpoints: states in the object store, as pieces and a manifest that makes them a whole.

A piece is some of the state's rows, compressed. The manifest, written last, names all pieces with
their digests, and the state that they form. Pieces without a manifest mean nothing: their writer
was interrupted.

::

    piece      magic, version, number, size and CRC-32C of rows and body; zstd frame
    manifest   magic, version, size and CRC-32C; the manifest
"""

from __future__ import annotations

from typing import Annotated

import msgspec
import zstandard
from crc32c import crc32c

from streamd.objectstore.errors import ObjectCorrupt
from streamd.objectstore.framing import Head, ValueObject, check_body
from streamd.objectstore.names import (
    ManifestName,
    NamedObject,
    PieceName,
    check_digest,
    digest_of,
)
from streamd.objectstore.objects import MAX_OBJECT_BYTES
from streamd.streams.model import LogPosition

VERSION = 1
# The most bytes of rows in a piece, before compression.
MAX_PIECE_BYTES = 32 * 1024 * 1024

_PIECE = Head(b"SDSP", VERSION, "QQIIII", "a piece of a checkpoint")
_LEVEL = 3


class CheckpointOf(msgspec.Struct, frozen=True, array_like=True):
    """The state in a checkpoint: that of a group as of entry `index`.

    `chain` is the log's checksum there, `time_ms` the log's time, in milliseconds since the
    epoch. `snapshot_id` tells it from other checkpoints, including others of the same index;
    `configuration` is the membership as the state has it.
    """

    cluster_id: str
    group_id: int
    index: int
    term: int
    chain: int
    time_ms: int
    snapshot_id: int
    configuration: bytes

    @property
    def position(self) -> LogPosition:
        """The last entry that the state has applied."""
        return LogPosition(self.index, self.term, self.chain, self.time_ms)


class PieceRef(msgspec.Struct, frozen=True, array_like=True):
    """A piece's object: its digest, in hexadecimal, its size, and the size of the rows in it."""

    digest: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
    size: Annotated[int, msgspec.Meta(ge=0, le=MAX_OBJECT_BYTES)]
    rows_size: Annotated[int, msgspec.Meta(ge=0, le=MAX_PIECE_BYTES)]


class Manifest(msgspec.Struct, frozen=True, array_like=True):
    """A whole checkpoint: its pieces in order."""

    of: CheckpointOf
    pieces: list[PieceRef]

    def piece_name(self, number: int) -> str:
        of = self.of
        digest = self.pieces[number].digest
        return str(PieceName(of.group_id, of.index, of.snapshot_id, number, digest))


_MANIFEST = ValueObject(
    b"SDSM", VERSION, "a checkpoint's manifest", msgspec.msgpack.Decoder(Manifest)
)


class CheckpointWriter:
    """Makes a checkpoint's objects, one at a time; each is put before the next is made."""

    def __init__(self, of: CheckpointOf) -> None:
        self._of = of
        self._pieces: list[PieceRef] = []

    def piece(self, rows: bytes) -> NamedObject:
        """The next piece, with the next rows or parts of rows."""
        if len(rows) > MAX_PIECE_BYTES:
            raise ValueError(f"{len(rows)} bytes are too many for a piece")
        number = len(self._pieces)
        body = zstandard.ZstdCompressor(level=_LEVEL).compress(rows)
        head = _PIECE.pack(
            self._of.snapshot_id, number, len(rows), crc32c(rows), len(body), crc32c(body)
        )
        content = head + body
        digest = digest_of(content)
        self._pieces.append(PieceRef(digest, len(content), len(rows)))
        of = self._of
        name = PieceName(of.group_id, of.index, of.snapshot_id, number, digest)
        return NamedObject(str(name), content)

    def manifest(self) -> NamedObject:
        """The manifest, to put when all pieces are stored."""
        return make_manifest(Manifest(self._of, self._pieces))


def make_manifest(manifest: Manifest) -> NamedObject:
    """The object of a manifest."""
    of, content = manifest.of, _MANIFEST.pack(manifest)
    name = ManifestName(of.group_id, of.index, of.snapshot_id, digest_of(content))
    return NamedObject(str(name), content)


def read_manifest(content: bytes) -> Manifest:
    """Raises `ObjectCorrupt`, and `ColdRefused` for a manifest of a later version."""
    return _MANIFEST.unpack(content)


def read_piece(manifest: Manifest, number: int, content: bytes) -> bytes:
    """The rows of a piece. Raises `ObjectCorrupt` for any other object."""
    check_digest(manifest.piece_name(number), content)
    snapshot_id, stored_number, rows_size, rows_crc, body_size, body_crc = _PIECE.unpack(content)
    body = memoryview(content)[_PIECE.size :]
    if (snapshot_id, stored_number) != (manifest.of.snapshot_id, number):
        raise ObjectCorrupt("the piece belongs to another checkpoint, or has another number")
    check_body(body, body_size, body_crc, "a piece of a checkpoint")
    if rows_size > MAX_PIECE_BYTES:
        raise ObjectCorrupt(f"a piece of a checkpoint claims {rows_size} bytes of rows")
    try:
        # The decompressor allocates what the frame claims before it reads any of it.
        if zstandard.frame_content_size(body) != rows_size:
            raise ObjectCorrupt("a piece of a checkpoint does not have the length in its head")
        rows = zstandard.ZstdDecompressor().decompress(body)
    except zstandard.ZstdError as error:
        raise ObjectCorrupt("a piece of a checkpoint cannot be decompressed") from error
    if len(rows) != rows_size or crc32c(rows) != rows_crc:
        raise ObjectCorrupt("the rows of a piece of a checkpoint do not match their checksum")
    return rows
