"""Checkpoints: manifests and pieces (docs/formats.md, "Checkpoints")."""

from __future__ import annotations

from typing import Annotated

import msgspec
import zstandard
from crc32c import crc32c

from streamd_audit import strict
from streamd_audit.errors import (
    BAD_ZSTD,
    BODY_CRC,
    CONTRADICTION,
    MISNAMED,
    TOO_LARGE,
    TOO_LONG,
    Damaged,
)
from streamd_audit.framing import (
    MAX_OBJECT_BYTES,
    Buffer,
    Decoder,
    Head,
    check_part,
    decompressor,
    zstd_frame_size,
)
from streamd_audit.names import ManifestName, PieceName

# No writer puts more rows into a piece, counted uncompressed; a forged head may claim more.
MAX_PIECE_BYTES = 32 * 1024 * 1024

_LARGEST = 2**63 - 1

_PIECE = Head(b"SDSP", "QQIIII", "a piece's head")
_MANIFEST = Head(b"SDSM", "II", "a manifest's head")


class SnapshotOf(msgspec.Struct, array_like=True, frozen=True):
    """The log up to entry `index`: its term, the chain there, the log's time in milliseconds since
    the epoch, and the membership as the payload of a configuration's entry."""

    cluster: str
    group: int
    index: int
    term: int
    chain: int
    time_ms: int
    snapshot_id: int
    configuration: bytes


class PieceRef(msgspec.Struct, array_like=True, frozen=True):
    """A piece's object: SHA-256 in hexadecimal, its size, and that of its rows; in bytes."""

    digest: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
    size: Annotated[int, msgspec.Meta(ge=0, le=MAX_OBJECT_BYTES)]
    rows_bytes: Annotated[int, msgspec.Meta(ge=0, le=MAX_PIECE_BYTES)]


class Manifest(msgspec.Struct, array_like=True, frozen=True):
    of: SnapshotOf
    pieces: list[PieceRef]

    def piece_name(self, number: int) -> str:
        """The name of a piece below the cluster's folder."""
        of, digest = self.of, self.pieces[number].digest
        return (
            f"pieces/{of.group:08x}/{of.index:016x}-{of.snapshot_id:016x}-{number:08x}-"
            f"{digest}.piece"
        )


class PieceHead(msgspec.Struct, frozen=True):
    snapshot_id: int
    number: int
    rows_bytes: int
    rows_crc: int
    body_bytes: int
    body_crc: int


_decode_manifest: Decoder[Manifest] = Decoder(Manifest, "a manifest")


def read_manifest(content: Buffer) -> Manifest:
    """Raises `Damaged`."""
    size, crc = _MANIFEST.unpack(content)
    encoded = memoryview(content)[_MANIFEST.size :]
    check_part(encoded, size, crc, "a manifest")
    found = _decode_manifest(encoded)
    of = found.of
    if max(of.group, of.index, of.term, of.chain, of.time_ms) > _LARGEST:
        raise Damaged(CONTRADICTION, "a manifest has a number beyond 63 bits")
    return found


def check_manifest_known(content: Buffer, manifest: Manifest) -> None:
    """Raises `Damaged` if the content of a manifest says more than `manifest`, read from it."""
    strict.check_known(manifest, bytes(content)[_MANIFEST.size :], "a manifest")


def check_manifest_name(name: ManifestName, manifest: Manifest) -> None:
    """Raises `Damaged` unless a manifest's name agrees with its content."""
    of = manifest.of
    _check_said(
        "(group, index, snapshot)",
        (of.group, of.index, of.snapshot_id),
        (name.group, name.index, name.snapshot_id),
    )


def read_piece_head(content: Buffer) -> PieceHead:
    """Raises `Damaged`."""
    return PieceHead(*_PIECE.unpack(content))


def check_piece_name(name: PieceName, head: PieceHead) -> None:
    """Raises `Damaged` unless a piece's name agrees with its head."""
    _check_said(
        "(snapshot, number)", (head.snapshot_id, head.number), (name.snapshot_id, name.number)
    )


def read_piece(content: Buffer) -> bytes:
    """The rows of a whole piece, which may begin and end inside a row. Raises `Damaged`.

    The digest in the manifest tells whether it is the right piece.
    """
    head = read_piece_head(content)
    body = memoryview(content)[_PIECE.size :]
    check_part(body, head.body_bytes, head.body_crc, "a piece")
    if head.rows_bytes > MAX_PIECE_BYTES:
        raise Damaged(TOO_LARGE, f"a piece says it has {head.rows_bytes} bytes of rows")
    if zstd_frame_size(body) != len(body):
        raise Damaged(TOO_LONG, "there is more in a piece than its rows")
    try:
        # First, because a frame that lies about its size costs memory as soon as it is opened.
        found = zstandard.frame_content_size(body)
        if found != head.rows_bytes:
            raise Damaged(
                CONTRADICTION, f"a piece's frame says {found} bytes, its head {head.rows_bytes}"
            )
        rows = decompressor().decompress(body)
    except zstandard.ZstdError as error:
        raise Damaged(BAD_ZSTD, f"a piece cannot be decompressed: {error}") from error
    crc = crc32c(rows)
    if len(rows) != head.rows_bytes or crc != head.rows_crc:
        raise Damaged(BODY_CRC, f"a piece's rows have CRC-32C {crc:08x}, not {head.rows_crc:08x}")
    return rows


def _check_said(what: str, found: object, said: object) -> None:
    if found != said:
        raise Damaged(MISNAMED, f"{what} is {found}, the name says {said}")
