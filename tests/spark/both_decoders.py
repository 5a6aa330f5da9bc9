"""An object as the server's decoders read it, and as the audit's do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import astuple, replace

from streamd.objectstore import names as server_names
from streamd.objectstore import packs as server_packs
from streamd.objectstore.checkpoints import (
    CheckpointOf,
    CheckpointWriter,
    Manifest,
    PieceRef,
    read_manifest,
    read_piece,
)
from streamd.objectstore.ends import ArchiveEnd, make_end, read_end
from streamd.objectstore.errors import ColdError
from streamd.objectstore.names import NamedObject
from streamd.objectstore.segments import (
    SegmentWriter,
    cluster_of_segment,
    named_fields,
    read_entries,
)
from streamd.raft.membership import bootstrap_entry
from streamd.raft.messages import Entry, EntryKind
from streamd.streams.chunks import Chunk
from streamd.streams.model import LogPosition
from streamd_audit import checkpoints, ends, names, packs, segments
from streamd_audit.errors import CHAIN, CONTRADICTION, Damaged
from streamd_audit.framing import check_digest
from tests.spark.every_command import NOW_MS, every_command
from tests.support.packs import chunks_of

CLUSTER = "1f0c4a57-6b1e-4f6e-9d0a-3c2b1a000001"


class Format(NamedTuple):
    """One of the formats, with the server's and the audit's decoder to plain values."""

    example: Callable[[], NamedObject]
    server: Callable[[bytes], Any]
    audit: Callable[[bytes], Any]


def plain(value: Any) -> Any:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value))


def judged(read: Callable[..., Any], *arguments: Any) -> Any:
    """What a decoder reads; None when it finds the bytes damaged."""
    try:
        return read(*arguments)
    except (ColdError, Damaged):
        return None


# -- segments ------------------------------------------------------------------------------------


def a_log() -> list[Entry]:
    return [
        bootstrap_entry([1, 2, 3], ((1, "127.0.0.1:1", "http://127.0.0.1:2"),)),
        Entry(2, 2, EntryKind.NOOP, b""),
        *(Entry(3 + at, 2, EntryKind.COMMANDS, one) for at, one in enumerate(every_command())),
    ]


def a_segment() -> NamedObject:
    writer = SegmentWriter(3, LogPosition(), CLUSTER)
    for entry in a_log()[:5]:
        writer.add(entry)
    return writer.finish()


def server_segment(content: bytes) -> Any:
    entries = [
        (entry.index, entry.term, int(entry.kind), place.chain, place.time_ms, entry.payload)
        for entry, place in read_entries(content)
    ]
    return entries, cluster_of_segment(content)


def audit_segment(content: bytes) -> Any:
    entries = []
    for entry in segments.read_entries(content):
        if not entry.is_linked:
            raise Damaged(CHAIN, f"entry {entry.index} breaks the chain", entry.index)
        place = (entry.index, entry.term, entry.kind, entry.chain, entry.time_ms)
        entries.append((*place, bytes(entry.payload)))
    return entries, segments.read_cluster(content)


# -- packs ---------------------------------------------------------------------------------------


def a_pack() -> NamedObject:
    writer = server_packs.PackWriter(3, term=2, number=1)
    writer.add(7, Chunk(4, 20, [2, 3], [], b"aabbb"))
    writer.add(9, Chunk(0, 0, [1, 1, 1], [3], b"xyz"))
    pack = writer.finish()
    return NamedObject(pack.name, pack.content)


def server_pack(content: bytes) -> Any:
    return [
        (astuple(ref), astuple(chunk)) for ref, chunk in chunks_of(content)
    ]  # fmt: skip


def audit_pack(content: bytes) -> Any:
    found = []
    for ref, one in packs.check_pack(content):
        *fields, data = astuple(one.chunk)
        found.append((astuple(ref), (*fields, bytes(data))))
    return found


# -- states --------------------------------------------------------------------------------------

_OF = CheckpointOf(CLUSTER, 3, 5, 2, 0x1234, NOW_MS, 99, a_log()[0].payload)


def a_manifest() -> NamedObject:
    return _snapshot()[0]


def a_piece() -> NamedObject:
    return _snapshot()[1]


def _snapshot() -> tuple[NamedObject, NamedObject]:
    writer = CheckpointWriter(_OF)
    writer.piece(b"\0\0\0\2\0\0\0\3xkval")
    piece = writer.piece(b"rest of the rows" * 9)
    return writer.manifest(), piece


def server_piece(content: bytes) -> Any:
    """The server reads a piece only as a manifest names it: here by its own hash and head."""
    head = checkpoints.read_piece_head(content)
    ref = PieceRef(server_names.digest_of(content), len(content), 0)
    if head.number > 1000:
        raise Damaged(CONTRADICTION, "no manifest here has so many pieces")
    manifest = Manifest(replace(_OF, snapshot_id=head.snapshot_id), [ref] * (head.number + 1))
    return head.snapshot_id, head.number, read_piece(manifest, head.number, content)


def audit_piece(content: bytes) -> Any:
    head = checkpoints.read_piece_head(content)
    if head.number > 1000:
        raise Damaged(CONTRADICTION, "no manifest here has so many pieces")
    return head.snapshot_id, head.number, checkpoints.read_piece(content)


# -- ends ----------------------------------------------------------------------------------------


def an_end() -> NamedObject:
    return make_end(ArchiveEnd(CLUSTER, 3, LogPosition(5, 2, 0x1234, NOW_MS)))


def server_end(content: bytes) -> Any:
    end = read_end(content)
    return plain((end.cluster_id, end.group_id, named_fields(end.position)))


FORMATS = {
    "segment": Format(a_segment, server_segment, audit_segment),
    "pack": Format(a_pack, server_pack, audit_pack),
    "piece": Format(a_piece, server_piece, audit_piece),
    "manifest": Format(
        a_manifest,
        lambda content: plain(read_manifest(content)),
        lambda content: plain(checkpoints.read_manifest(content)),
    ),
    "end": Format(
        an_end,
        server_end,
        lambda content: plain(ends.read_end(content)),
    ),
}


# -- objects under their names -------------------------------------------------------------------


def server_object(name: str, content: bytes) -> Any:
    """An object, by its name below the cluster's folder, its hash included."""
    server_names.check_digest(name, content)
    return FORMATS[name.rpartition(".")[2]].server(content)


def audit_object(name: str, content: bytes) -> Any:
    """As `server_object`; the name's numbers must be the content's besides."""
    check_digest(name, content)
    match names.parse(name):
        case names.PackName() as pack:
            packs.check_name(pack, packs.read_head(content))
        case names.SegmentName() as segment:
            segments.check_name(segment, segments.read_head(content))
        case names.PieceName() as piece:
            checkpoints.check_piece_name(piece, checkpoints.read_piece_head(content))
        case names.ManifestName() as manifest:
            checkpoints.check_manifest_name(manifest, checkpoints.read_manifest(content))
        case names.EndName() as end:
            ends.check_name(end, ends.read_end(content))
        case other:
            raise AssertionError(f"{name} is {other}")
    return FORMATS[name.rpartition(".")[2]].audit(content)
