"""The audit's decoders and the server's read the same objects alike, and find the same damage."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from struct import pack
from typing import Any, NamedTuple

import msgspec
import pytest

from streamd.codec import Batch, decode_batch, encode_batch
from streamd.cold import packs as server_packs
from streamd.cold.ends import ArchiveEnd, make_end, read_end
from streamd.cold.errors import ColdError
from streamd.cold.segments import LogPlace, SegmentWriter, cluster_of_segment, placed_entries_of
from streamd.cold.snapshots import SnapshotOf, SnapshotWriter, read_manifest, read_piece
from streamd.raft.membership import bootstrap_entry
from streamd.raft.messages import Entry, EntryKind
from streamd.storage.snapshots import whole_rows
from streamd.streams.chunks import Chunk
from streamd.streams.commands import Append, Create
from streamd.streams.model import ProducerStamp, Settings
from streamd.streams.sessions import PackageStamp
from streamd_audit import commands, ends, names, packs, rows, segments, snapshots
from streamd_audit.errors import (
    CHAIN,
    TOO_SHORT,
    Damaged,
)
from streamd_audit.framing import check_digest, digest_of
from streamd_audit.store import open_store
from tests.cold.damage import cut, flipped
from tests.releases.record import HERE

RELEASES = sorted(file.stem for file in HERE.glob("*.json"))
CLUSTER = "1f0c4a57-6b1e-4f6e-9d0a-3c2b1a000001"
OTHER = "1f0c4a57-6b1e-4f6e-9d0a-3c2b1a000002"
NOW_MS = 1_700_000_000_000


# -- what both read ------------------------------------------------------------------------------


def a_log() -> list[Entry]:
    first = bootstrap_entry([1])
    stamped = ProducerStamp("p", 0, 3)
    batches = [
        Batch(NOW_MS, [Create(b"b\0s", Settings("text/plain"), implicit_bucket=True)]),
        Batch(NOW_MS + 5, [Append(b"b\0s", "text/plain", b"one-two", [3, 4])]),
        Batch(
            NOW_MS + 9,
            [Append(b"b\0s", "text/plain", b"x" * 30, [30], producer=stamped)],
            [PackageStamp(2, 7, 1, 0, 1)],
        ),
    ]
    entries = [first, Entry(2, 2, EntryKind.NOOP, b"")]
    for batch in batches:
        entries.append(Entry(len(entries) + 1, 2, EntryKind.COMMANDS, encode_batch(batch)))
    return entries


def a_segment(cluster: str = CLUSTER) -> bytes:
    writer = SegmentWriter(3, LogPlace(), cluster)
    for entry in a_log():
        writer.add(entry)
    return writer.finish().content


def a_pack() -> bytes:
    writer = server_packs.PackWriter(3, term=2, number=1)
    writer.add(7, Chunk(4, 20, [2, 3], [], b"aabbb"))
    writer.add(9, Chunk(0, 0, [1, 1, 1], [3], b"xyz"))
    return writer.finish().content


def a_snapshot() -> tuple[bytes, list[bytes]]:
    of = SnapshotOf(CLUSTER, 3, 5, 2, 0x1234, NOW_MS, 99, a_log()[0].payload)
    writer = SnapshotWriter(of)
    pieces = [writer.piece(b"\0\0\0\2\0\0\0\3xkval"), writer.piece(b"rest of the rows" * 9)]
    return writer.manifest().content, [piece.content for piece in pieces]


def a_manifest() -> bytes:
    return a_snapshot()[0]


def a_piece() -> bytes:
    return a_snapshot()[1][1]


def an_end() -> bytes:
    return make_end(ArchiveEnd(CLUSTER, 3, LogPlace(5, 2, 0x1234, NOW_MS))).content


class Kind(NamedTuple):
    """One of the formats: an example, and what each of the two decoders makes of its bytes."""

    example: Callable[[], bytes]
    server: Callable[[bytes], Any]
    audit: Callable[[bytes], Any]


def server_piece(content: bytes) -> Any:
    """The server reads a piece only as its manifest names it: judge it by its own digest."""
    manifest = read_manifest(a_manifest())
    refs = list(manifest.pieces)
    refs[1] = msgspec.structs.replace(refs[1], digest=digest_of(content))
    return read_piece(msgspec.structs.replace(manifest, pieces=refs), 1, content)


def audit_piece(content: bytes) -> Any:
    name = names.parse(snapshots.read_manifest(a_manifest()).piece_name(1))
    assert isinstance(name, names.PieceName)
    snapshots.check_piece_name(name, snapshots.read_piece_head(content))
    return snapshots.read_piece(content)


def server_segment(content: bytes) -> Any:
    found = [
        (entry.index, entry.term, int(entry.kind), place.chain, place.time_ms, entry.payload)
        for entry, place in placed_entries_of(content)
    ]
    return found, cluster_of_segment(content)


def audit_segment(content: bytes) -> Any:
    found = []
    for entry in segments.read_entries(content):
        if not entry.is_linked:
            raise Damaged(CHAIN, "", entry.index)
        place = (entry.index, entry.term, entry.kind, entry.chain, entry.time_ms)
        found.append((*place, bytes(entry.payload)))
    return found, segments.read_cluster(content)


def server_pack(content: bytes) -> Any:
    return [
        (msgspec.structs.astuple(ref), msgspec.structs.astuple(chunk))
        for ref, chunk in server_packs.chunks_of(content)
    ]


def audit_pack(content: bytes) -> Any:
    return [
        (msgspec.structs.astuple(ref), (*msgspec.structs.astuple(one.chunk)[:4],
                                        bytes(one.chunk.data)))
        for ref, one in packs.check_pack(content)
    ]  # fmt: skip


KINDS = {
    "segment": Kind(a_segment, server_segment, audit_segment),
    "pack": Kind(a_pack, server_pack, audit_pack),
    "piece": Kind(a_piece, server_piece, audit_piece),
    "manifest": Kind(a_manifest, lambda raw: as_lists(read_manifest(raw)),
                     lambda raw: as_lists(snapshots.read_manifest(raw))),
    "end": Kind(an_end, lambda raw: as_lists(read_end(raw)),
                lambda raw: as_lists(ends.read_end(raw))),
}  # fmt: skip
kinds = pytest.mark.parametrize("kind", KINDS)


def as_lists(value: Any) -> Any:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(value))


def said_of(read: Callable[[bytes], Any], content: bytes) -> Any:
    """What a decoder makes of bytes; None when it finds them damaged."""
    try:
        return read(content)
    except (ColdError, Damaged):
        return None


# -- the same of what is whole -------------------------------------------------------------------


@kinds
def test_both_read_what_was_written(kind: str) -> None:
    example, server, audit = KINDS[kind]
    expected = server(example())
    assert audit(example()) == expected


@kinds
def test_both_notice_every_flipped_bit(kind: str) -> None:
    example, server, audit = KINDS[kind]
    whole = server(example())
    for damaged in flipped(example()):
        found = said_of(server, damaged)
        # Releases do not look at the name of the cluster; that the segment has one, the audit does.
        assert found is None or found[0] == whole[0]
        assert said_of(audit, damaged) is None


@kinds
def test_both_notice_every_cut(kind: str) -> None:
    example, server, audit = KINDS[kind]
    for damaged in cut(example()):
        assert said_of(server, damaged) is None
        assert said_of(audit, damaged) is None


@pytest.fixture(scope="module", params=RELEASES)
def released(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cold store that a server of a release left."""
    directory = tmp_path_factory.mktemp("release")
    with tarfile.open(HERE / f"{request.param}.tar.xz") as archive:
        archive.extractall(directory, filter="data")
    return directory / "data" / "cold"


def objects(at: Path) -> Iterator[tuple[names.ObjectName, str, bytes]]:
    """All objects of the only cluster, each found to be what its name digests."""
    store = open_store(str(at))
    for page in store.list():
        for name, size in page:
            content = store.read(name)
            assert len(content) == size
            parsed = names.parse(names.split(name)[1])
            assert parsed is not None, name
            check_digest(name, content)
            yield parsed, names.split(name)[1], content


def test_the_log_of_a_release_is_read_alike(released: Path) -> None:
    entries = 0
    for name, _, content in objects(released):
        if not isinstance(name, names.SegmentName):
            continue
        segments.check_name(name, segments.read_head(content[: segments.HEAD_BYTES]))
        expected = server_segment(content)
        assert audit_segment(content) == expected
        for index, _, kind, _, _, payload in expected[0]:
            entries += 1
            if kind == segments.COMMANDS:
                batch = commands.decode_batch(payload, index)
                assert as_lists(batch.commands) == as_lists(decode_batch(payload).commands)
            elif kind == segments.CONFIGURATION:
                assert commands.decode_configuration(payload).members()
    assert entries > 100


def test_the_packs_of_a_release_are_read_alike(released: Path) -> None:
    slices = 0
    for name, _, content in objects(released):
        if isinstance(name, names.PackName):
            packs.check_name(name, packs.read_head(content))
            expected = server_pack(content)
            slices += len(expected)
            assert audit_pack(content) == expected
    assert slices > 10


def test_the_state_of_a_release_is_read_alike(released: Path) -> None:
    found = {path: (name, content) for name, path, content in objects(released)}
    (manifest,) = [
        content for name, content in found.values() if isinstance(name, names.ManifestName)
    ]
    expected, audited = read_manifest(manifest), snapshots.read_manifest(manifest)
    assert as_lists(expected) == as_lists(audited)
    numbers = range(len(audited.pieces))
    stored = [found[audited.piece_name(number)][1] for number in numbers]
    pieces = [read_piece(expected, number, stored[number]) for number in numbers]
    assert [snapshots.read_piece(content) for content in stored] == pieces
    in_rows = [(key, bytes(value)) for key, value in rows.split_rows(pieces)]
    assert in_rows == [row[:2] for row in whole_rows(b"".join(pieces))]
    decoded = [rows.read_row(key, value) for key, value in in_rows]
    assert {"header", "bucket", "stream", "producer", "slice", "pack"} <= {
        row.kind for row in decoded
    }
    for row, (_, value) in zip(decoded, in_rows, strict=True):
        if row.value is not None:
            # What an earlier release did not know of is at its default, at the end.
            shape = as_lists(row.value)
            before = msgspec.msgpack.decode(value)
            assert shape[: len(before)] == before
    (header,) = [row.value for row in decoded if isinstance(row.value, rows.Header)]
    assert header.applied_index == audited.of.index


def test_rows_go_over_from_one_piece_into_the_next() -> None:
    whole = b"".join(
        pack(">II", len(key), len(value)) + key + value
        for key, value in ((b"a", b"1" * 40), (b"bb", b""), (b"c", b"3" * 7))
    )
    for size in (1, 7, 9, 50, 1000):
        parts = [whole[at : at + size] for at in range(0, len(whole), size)]
        found = [(key, bytes(value)) for key, value in rows.split_rows(parts)]
        assert found == [(b"a", b"1" * 40), (b"bb", b""), (b"c", b"3" * 7)]
    with pytest.raises(Damaged, match=TOO_SHORT):
        list(rows.split_rows([whole[:-1]]))
