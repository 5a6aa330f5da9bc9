"""``spark.read.format("streamd")`` from real servers."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import types as T
from pyspark.sql.datasource import CaseInsensitiveDict

from streamd.spark import reading, register
from streamd.spark.errors import BadRecord, StreamMissing, TooManyStreams, Trimmed
from streamd.spark.options import BadOption
from streamd.spark.source import StreamdSource
from tests.spark.streams import BYTES, Writer
from tests.spark.test_values import FITTING, MISFITS
from tests.support.ports import unused_port
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long

RUNS = [{"agent": f"agent-{n % 3}", "cost": n / 4, "n": n} for n in range(3000)]


Load = Callable[..., DataFrame]


@pytest.fixture
def load(spark: SparkSession, server: ServerProcess) -> Load:
    """Streams as a frame, by the options given."""
    register(spark)

    def load(schema: str | None = None, **options: Any) -> DataFrame:
        reader = spark.read.format("streamd").options(url=server.url)
        if schema is not None:
            reader = reader.schema(schema)
        return reader.options(**options).load()

    return load


@pytest.fixture(scope="module")
def runs(writer: Writer) -> list[str]:
    return writer.filled("runs/all", RUNS)


def rows(frame: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict(recursive=True) for row in frame.collect()]


Ask = Callable[..., list[dict[str, Any]]]
N = T.StructType().add("record", T.StructType().add("n", "integer"))
TEXT = T.StructType().add("record", "string")
NAME = T.StructType().add("stream", "string")


@pytest.fixture
def ask(server: ServerProcess) -> Ask:
    """The same rows without Spark, which takes seconds for each query: the reader is asked as it
    would be, and whatever goes to tasks is sent through pickle. `then` is run in between."""

    def ask(
        schema: T.StructType | None = None, then: Callable[[], object] = int, **options: Any
    ) -> list[dict[str, Any]]:
        given = {"url": server.url, **{name: str(value) for name, value in options.items()}}
        source = StreamdSource(CaseInsensitiveDict(given))
        reader = source.reader(schema or source.schema())
        planned = pickle.dumps((reader, reader.partitions()))
        then()
        reader, parts = pickle.loads(planned)
        return [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]

    return ask


# -- what is read -----------------------------------------------------------------------------


def test_json_messages_get_a_column_for_each_field(load: Load, runs: list[str]) -> None:
    frame = load(stream="runs/all")
    assert frame.schema.simpleString() == (
        "struct<stream:string,offset:string,record:struct<agent:string,cost:double,n:bigint>>"
    )
    found = rows(frame.orderBy("offset"))
    assert [row["record"] for row in found] == RUNS
    assert {row["stream"] for row in found} == {"runs/all"}
    assert found[0]["offset"] == "0000000000000000_0000000000000000"
    assert [row["offset"] for row in found][500::500] == runs[:-1]


def test_a_large_stream_is_read_by_many_tasks_each_record_once(
    load: Load, server: ServerProcess, runs: list[str]
) -> None:
    """Each of them skips a node that is down."""
    several = f"http://127.0.0.1:{unused_port()},{server.url}"
    frame = load("record struct<n: int>", stream="runs/all", partition_bytes=20_000, url=several)
    assert frame.rdd.getNumPartitions() == 8
    assert sorted(row.record.n for row in frame.collect()) == list(range(3000))


def test_offsets_limit_a_read_at_both_ends(ask: Ask, runs: list[str]) -> None:
    found = ask(
        N,
        stream="runs/all",
        starting_offset=runs[0],
        ending_offset=json.dumps({"/v1/stream/runs/all": runs[2]}),
    )
    assert [row["record"]["n"] for row in found] == list(range(500, 1500))


def test_byte_records_are_separate_rows(ask: Ask, writer: Writer) -> None:
    contents = [bytes([n]) * (n % 7 + 1) for n in range(40)]
    writer.create("files/bytes", BYTES)
    offsets = [writer.send("files/bytes", content, BYTES) for content in contents]
    found = ask(stream="files/bytes", partition_bytes=20)
    assert [row["record"] for row in found] == contents
    assert [row["offset"] for row in found[1:]] == offsets[:-1]


def test_streams_are_selected_by_prefix_or_by_names(ask: Ask, writer: Writer) -> None:
    names = ["parts/run-1", "parts/run-2", "parts/run-2/deep", "parts/other"]
    for name in names:
        writer.create(name)
        writer.append(name, {"of": name}, {"of": name})
    writer.create("alone")
    writer.append("alone", {"of": "alone"})

    def found(**options: str) -> list[str]:
        return sorted(row["stream"] for row in ask(NAME, **options))

    assert found(bucket="parts") == sorted(names * 2)
    assert found(bucket="parts", prefix="run-") == sorted(names[:3] * 2)
    chosen = json.dumps(["parts/other", "alone"])
    assert found(streams=chosen) == ["alone", "parts/other", "parts/other"]


def test_a_given_schema_is_used(ask: Ask, runs: list[str]) -> None:
    raw = T.StructType().add("record", "binary").add("offset", "string")
    first, *_ = ask(raw, stream="runs/all")
    begin = "0000000000000000_0000000000000000"
    assert first == {"record": json.dumps(RUNS[0]).encode(), "offset": begin}
    found = [row["record"] for row in ask(TEXT, stream="runs/all")]
    assert found == [json.dumps(run) for run in RUNS]


TYPES = """record struct<
    flag: boolean, tiny: tinyint, whole: bigint, real: double, exact: decimal(10,2), text: string,
    day: date, moment: timestamp, bytes: binary, list: array<int>, map: map<string, double>,
    inner: struct<deep: array<struct<x: int>>>>"""


def test_json_becomes_the_types_of_the_schema(load: Load, writer: Writer) -> None:
    writer.create("types/mixed")
    writer.append("types/mixed", FITTING, MISFITS, "no object")
    fits, misfits, none = [
        json.loads(row.json)
        for row in load(TYPES, stream="types/mixed")
        .selectExpr("to_json(struct(record), map('ignoreNullFields', 'false')) as json")
        .collect()
    ]
    assert fits["record"] == {
        **FITTING,
        "real": 2.0,
        "inner": {"deep": [{"x": 1}, None]},
        "moment": "2026-11-22T03:06:07.500Z",
    }
    assert misfits["record"] == {
        **dict.fromkeys(FITTING),
        "text": '{"a": 1}',
        "list": [1, None],
        "inner": {"deep": [{"x": None}]},
    }
    assert none["record"] is None


# -- trimmed and absent streams -----------------------------------------------------------------


def test_a_trimmed_stream_is_an_error_or_by_option_read_from_its_snapshot(
    ask: Ask, writer: Writer
) -> None:
    offsets = writer.filled("gone/trimmed", RUNS[:100], 10)
    writer.publish("gone/trimmed", offsets[3], b"{}")

    def found(**options: str) -> list[int]:
        return [row["record"]["n"] for row in ask(N, stream="gone/trimmed", **options)]

    with pytest.raises(Trimmed, match=f"gone/trimmed begins at {offsets[3]}.*on_trimmed"):
        found()
    assert found(starting_offset=offsets[3]) == list(range(40, 100))
    assert found(on_trimmed="snapshot") == list(range(40, 100))


def test_an_absent_stream_is_named(ask: Ask) -> None:
    with pytest.raises(StreamMissing, match="there is no stream gone/nowhere"):
        ask(stream="gone/nowhere")
    with pytest.raises(StreamMissing, match="there is no bucket nowhere"):
        ask(NAME, bucket="nowhere")
    with pytest.raises(BadOption, match="option bucket is 'b'; servers list buckets of 4 to 64"):
        ask(NAME, bucket="b")


def test_a_stream_recreated_during_a_read_is_not_mixed_with_the_old_one(
    ask: Ask, writer: Writer
) -> None:
    writer.filled("gone/again", RUNS[:10])

    def recreate() -> None:
        writer.delete("gone/again")
        writer.filled("gone/again", RUNS[100:200])

    with pytest.raises(StreamMissing, match="gone/again was deleted, and another made"):
        ask(N, recreate, stream="gone/again")
    assert ask(N, recreate, stream="gone/again", on_deleted="skip") == []


def test_a_read_waits_for_a_killed_server(tmp_path: Path, ask: Ask) -> None:
    with ServerProcess(tmp_path / "killed") as killed:
        writer = Writer(killed.url)
        writer.filled("runs/all", RUNS)
        writer.close()

        def restart() -> None:
            killed.kill()
            killed.start()  # and does not answer yet

        found = ask(N, restart, stream="runs/all", url=killed.url, partition_bytes=20_000)
    assert [row["record"]["n"] for row in found] == list(range(3000))


def test_a_prefix_of_too_many_streams_is_refused(
    ask: Ask, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("many/1", "many/2", "many/3"):
        writer.create(name)
    monkeypatch.setattr(reading, "MAX_STREAMS", 2)
    with pytest.raises(TooManyStreams, match="more than 2 streams of many begin with ''"):
        ask(NAME, bucket="many")
    assert ask(NAME, bucket="many", prefix="2") == []


def test_an_offset_of_another_stream_is_refused(ask: Ask, runs: list[str]) -> None:
    wrong = "0000000000000001_0000000000000001"
    with pytest.raises(BadOption, match=f"{wrong} for runs/all, which is not an offset of it"):
        ask(N, stream="runs/all", starting_offset=wrong)


def test_an_option_error_reaches_the_user(load: Load) -> None:
    with pytest.raises(AnalysisException, match="has no option straem; its options are access_key"):
        load(straem="runs/all")


def test_an_empty_json_stream_needs_a_schema(ask: Ask, writer: Writer) -> None:
    writer.create("types/empty")
    with pytest.raises(BadOption, match="no message to infer a schema from"):
        ask(stream="types/empty")
    assert ask(TEXT, stream="types/empty") == []


def test_a_schema_for_a_stream_that_is_not_json_is_refused(ask: Ask, writer: Writer) -> None:
    writer.create("files/text", "text/plain")
    writer.send("files/text", b"caf\xe9", "text/plain")
    writer.send("files/text", b"tea", "text/plain")
    with pytest.raises(BadRecord, match="files/text is text/plain, not JSON"):
        ask(N, stream="files/text")
    assert ask(TEXT, stream="files/text") == [{"record": None}, {"record": "tea"}]
    with pytest.raises(BadRecord, match="0000000000000000 of files/text is not UTF-8"):
        ask(TEXT, stream="files/text", mode="failfast")
