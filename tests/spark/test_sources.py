"""The data sources read a bucket as the server's own decoders do."""

from __future__ import annotations

import re
from hashlib import sha256
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest
from pyspark.sql import DataFrame, SparkSession

from streamd.objectstore.names import SegmentName
from streamd.objectstore.segments import read_entries
from streamd.raft.messages import Entry, EntryKind
from streamd.streams import keys
from streamd.streams.codec import decode_batch
from streamd.streams.commands import Append
from streamd_audit.sources import SOURCES, register
from streamd_audit.sources.source import BucketSource
from tests.spark.buckets import Clean
from tests.support.packs import chunks_of

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    register(spark)
    return spark


class Reads:
    """Reads sources of one clean bucket."""

    def __init__(self, session: SparkSession, clean: Clean) -> None:
        self._session = session
        self.clean = clean

    def __call__(self, name: str, schema: str | None = None, **options: str) -> DataFrame:
        minio = self.clean.place.minio
        reader = self._session.read.format(name).options(
            store=self.clean.place.url,
            endpoint=minio.endpoint,
            access_key=minio.access_key_id,
            secret_key=minio.secret_access_key,
            **options,
        )
        return (reader if schema is None else reader.schema(schema)).load()

    def objects(self, folder: str) -> dict[str, bytes]:
        """The objects of one kind, by their whole names, in order."""
        prefix = f"{self.clean.cluster_id}/{folder}"
        return {
            name: content
            for name, content in sorted(self.clean.objects.items())
            if name.startswith(prefix)
        }


@pytest.fixture(scope="module")
def read(session: SparkSession, rich: Clean) -> Reads:
    return Reads(session, rich)


def archived(read: Reads) -> dict[int, Entry]:
    return {
        entry.index: entry
        for content in read.objects("log/").values()
        for entry, _ in read_entries(content)
    }


def test_the_log_has_a_row_for_each_command_of_each_archived_entry(read: Reads) -> None:
    rows = read("streamd_log").orderBy("index", "position").collect()
    found: list[tuple[object, ...]] = []
    expected: list[tuple[object, ...]] = []
    for index, entry in sorted(archived(read).items()):
        if entry.kind != EntryKind.COMMANDS:
            expected.append((index, entry.term, None, EntryKind(entry.kind).name.lower(), None))
            continue
        batch = decode_batch(entry.payload)
        for command in batch.commands:
            kind = type(command).__struct_config__.tag
            data = getattr(command, "data", None)
            expected.append((index, entry.term, batch.now_ms, kind, data))
    for row in rows:
        payload = None if row.payload is None else bytes(row.payload)
        found.append((row["index"], row.term, row.stamp_ms, row.kind, payload))
        assert row.problem is None
        assert row.cluster == read.clean.cluster_id
    assert found == expected


def test_appends_name_their_stream_records_and_producer(read: Reads) -> None:
    commands = [
        command
        for _, entry in sorted(archived(read).items())
        if entry.kind == EntryKind.COMMANDS
        for command in decode_batch(entry.payload).commands
        if isinstance(command, Append)
    ]
    rows = read("streamd_log").filter("kind = 'append'").orderBy("index", "position").collect()
    assert len(rows) == len(commands) > 20
    assert any(command.producer is not None for command in commands)
    assert any(len(command.lengths) > 1 for command in commands)
    for row, command in zip(rows, commands, strict=True):
        assert f"{row.bucket}\0{row.stream}".encode() == command.key
        assert row.lengths == command.lengths
        assert (row.records, row.bytes) == (len(command.lengths), len(command.data))
        assert (row.close, row.seq) == (command.close, command.seq)
        stamp = command.producer
        assert row.producer == (stamp and (stamp.producer_id, stamp.epoch, stamp.seq))
        assert bytes(row.digests) == digests(command.data, command.lengths)
        head = msgspec.msgpack.decode(bytes(row.head))
        data, head[3] = head[3], command.data
        assert data == b""
        assert head == msgspec.msgpack.decode(msgspec.msgpack.encode(command))


def digests(data: bytes, lengths: list[int]) -> bytes:
    ends = [sum(lengths[:count]) for count in range(len(lengths) + 1)]
    return b"".join(sha256(data[start:end]).digest()[:16] for start, end in pairwise(ends))


def test_slices_hold_the_records_of_their_packs(read: Reads) -> None:
    expected = {
        (name, number): (ref, chunk)
        for name, content in read.objects("packs/").items()
        for number, (ref, chunk) in enumerate(chunks_of(content))
    }
    rows = read("streamd_slices").collect()
    assert {(row.object, row.slice) for row in rows} == set(expected)
    for row in rows:
        ref, chunk = expected[row.object, row.slice]
        assert (row.stream_id, row.start_record, row.end_record) == (
            ref.stream_id, ref.start_record, ref.end_record,
        )  # fmt: skip
        assert (row.offset, row.length, row.crc) == (ref.offset, ref.length, ref.crc)
        assert bytes(row.records_digest) == ref.digest
        assert bytes(row.payload) == chunk.data
        assert row.lengths == chunk.lengths
        assert row.appends == (chunk.appends or [1] * len(chunk.lengths))
        assert bytes(row.digests) == digests(chunk.data, chunk.lengths)
        assert (row.crc_ok, row.pack_sha256_ok, row.problem) == (True, True, None)


def test_packs_segments_and_manifests_are_whole(read: Reads) -> None:
    for source, folder in (
        ("streamd_packs", "packs/"),
        ("streamd_segments", "log/"),
        ("streamd_manifests", "snapshots/"),
    ):
        rows = read(source).collect()
        expected = {name: len(content) for name, content in read.objects(folder).items()}
        assert {row.object: row["size"] for row in rows} == expected, source
        assert all(row.sha256_ok and row.problem is None for row in rows), source


def test_segments_name_their_entries_and_are_one_chain(read: Reads) -> None:
    rows = read("streamd_segments").orderBy("first_index").collect()
    named = [SegmentName.parse(name.partition("/")[2]) for name in read.objects("log/")]
    assert [(row.first_index, row.last_index) for row in rows] == [
        (name.first_index, name.last_index) for name in named if name is not None
    ]
    for row, later in pairwise(rows):
        assert (row.last_chain, row.last_ms) == (later.previous_chain, later.previous_ms)
        assert row.crc_ok
        assert row.chain_ok


def test_a_state_has_a_row_for_each_stream_slice_and_pack(read: Reads) -> None:
    state = read("streamd_state").persist()
    newest = state.agg({"index": "max"}).collect()[0][0]
    assert newest == read("streamd_manifests").agg({"index": "max"}).collect()[0][0]
    assert state.filter("problem is not null").count() == 0
    slices = state.filter("kind = 'slice'")
    assert slices.count() > 3
    on = ["stream_id", "end_record", "pack_term", "pack_number", "offset", "length", "crc"]
    assert slices.join(read("streamd_slices"), on).count() == slices.count()
    for row in state.filter("kind = 'stream'").collect():
        assert bytes(row.key) == keys.STREAM + f"{row.bucket}\0{row.stream}".encode()
        assert row.records is not None
        assert row.closed is not None


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.name())
def test_the_page_on_sources_has_every_column_with_its_type(source: type[BucketSource]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "spark-cold-store.md").read_text()
    section = page.partition(f"### {source.name()}\n")[2].partition("\n### ")[0]
    found = re.findall(r"^\| `(\w+)` \| `([^`]+)` \|", section, re.MULTILINE)
    assert found == list(source.COLUMNS.items())
