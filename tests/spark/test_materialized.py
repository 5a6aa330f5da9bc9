"""``format("streamd_materialized")``: tables of State Protocol streams from a real server."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as T
from pyspark.sql.datasource import CaseInsensitiveDict

from streamd.spark import register
from streamd.spark.errors import BadRecord, Trimmed
from streamd.spark.materialized import MaterializedSource
from streamd.spark.options import BadOption
from tests.spark.streams import BYTES, Writer
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long

Table = dict[tuple[str, str], Any]
VALUES = T.StructType().add("type", "string").add("key", "string").add("value", "string")


@pytest.fixture
def table(server: ServerProcess) -> Callable[..., Table]:
    """The values of a table by type and key, read as a task would."""

    def table(stream: str, schema: T.StructType = VALUES, **options: str) -> Table:
        given = {"url": server.url, "stream": stream, **options}
        reader = MaterializedSource(CaseInsensitiveDict(given)).reader(schema)
        reader, parts = pickle.loads(pickle.dumps((reader, reader.partitions())))
        rows = [row for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
        return {(row["type"], row["key"]): row["value"] for row in rows}

    return table


def put(kind: str, key: str, value: Any, operation: str = "insert") -> dict[str, Any]:
    return {"type": kind, "key": key, "value": value, "headers": {"operation": operation}}


def gone(kind: str, key: str) -> dict[str, Any]:
    return {"type": kind, "key": key, "headers": {"operation": "delete"}}


RESET = {"headers": {"control": "reset"}}


def test_a_stream_is_read_as_its_table(
    spark: SparkSession, server: ServerProcess, writer: Writer
) -> None:
    writer.create("state/users")
    writer.append("state/users", put("user", "1", {"name": "Kim", "age": 7}))
    at = writer.append("state/users", put("user", "2", {"name": "Lee"}), put("team", "1", {"n": 1}))
    writer.append("state/users", put("user", "1", {"name": "Kim", "age": 8}, "update"))
    writer.append("state/users", gone("user", "2"), {"headers": {"control": "up-to-date"}})
    register(spark)
    frame = spark.read.format("streamd_materialized").option("url", server.url)
    users = frame.option("stream", "state/users").option("type", "user").load()
    assert users.schema.simpleString() == (
        "struct<stream:string,type:string,key:string,value:struct<name:string,age:bigint>,"
        "offset:string>"
    )
    [kim] = users.collect()
    assert kim.value.asDict() == {"name": "Kim", "age": 8}
    assert (kim.stream, kim.type, kim.key) == ("state/users", "user", "1")
    assert kim.offset.startswith("0000000000000003_")
    earlier = frame.option("ending_offset", at).load().orderBy("key")
    assert [(row.key, row.value.age) for row in earlier.collect()] == [("1", 7), ("2", None)]


def test_the_last_event_of_each_key_decides_for_any_history(
    table: Callable[..., Table], writer: Writer
) -> None:
    """More keys than one request has, at each of some offsets; seed 5."""
    random = Random(5)
    events: list[dict[str, Any]] = []
    for number in range(30_000):
        kind, key = random.choice("ab"), str(random.randrange(5000))
        if random.random() < 0.2:
            events.append(gone(kind, key))
        elif number == 9000:
            events.append(RESET)
        else:
            events.append(put(kind, key, {"n": number, "pad": "x" * 50}, "update"))
    offsets = writer.filled("state/random", events, 2000)
    for count in (2, 7, 15):
        expected: Table = {}
        for event in events[: count * 2000]:
            if event is RESET:
                expected.clear()
            elif event["headers"]["operation"] == "delete":
                expected.pop((event["type"], event["key"]), None)
            else:
                expected[event["type"], event["key"]] = json.dumps(event["value"])
        assert table("state/random", ending_offset=offsets[count - 1]) == expected
    only = table("state/random", type="a")
    assert only == {name: value for name, value in expected.items() if name[0] == "a"}


def test_values_are_kept_digit_for_digit_and_null_is_a_value(
    table: Callable[..., Table], writer: Writer
) -> None:
    writer.create("state/exact")
    body = b'[{"key":"k","type":"t","value":1.10e2,"headers":{"operation":"insert"}}]'
    writer.send("state/exact", body, "application/json")
    writer.append("state/exact", put("t", "none", None), put("t", "odd", "\ud83d"))
    assert table("state/exact") == {("t", "k"): "1.10e2", ("t", "none"): None, ("t", "odd"): "?"}


@pytest.mark.parametrize(
    "wrong",
    [
        "text",
        {"type": "t", "key": "k", "value": 1},
        {"type": "t", "value": 1, "headers": {"operation": "insert"}},
        {"type": "t", "key": 7, "value": 1, "headers": {"operation": "insert"}},
        {"type": "t", "key": "k", "headers": {"operation": "update"}},
        {"type": "t", "key": "k", "value": 1, "headers": {"operation": "upsert"}},
    ],
)
def test_a_malformed_event_is_skipped_or_ends_the_query_by_mode(
    table: Callable[..., Table], writer: Writer, wrong: Any
) -> None:
    writer.create("state/wrong")
    try:
        at = writer.append("state/wrong", put("t", "k", "before"))
        writer.append("state/wrong", wrong, put("t", "other", "after"))
        assert table("state/wrong") == {("t", "k"): "before", ("t", "other"): "after"}
        with pytest.raises(BadRecord, match=f"record {at} of state/wrong is not an event"):
            table("state/wrong", mode="failfast")
    finally:
        writer.delete("state/wrong")


def test_a_trimmed_table_begins_with_a_snapshot_of_events(
    table: Callable[..., Table], writer: Writer
) -> None:
    writer.create("state/trimmed")
    early = writer.append("state/trimmed", put("t", "1", 1))
    at = writer.append("state/trimmed", put("t", "2", 2), gone("t", "1"))
    writer.append("state/trimmed", put("t", "3", 3))
    snapshot = json.dumps([put("t", "2", 2)]).encode()
    writer.publish("state/trimmed", at, snapshot)
    with pytest.raises(Trimmed, match=f"state/trimmed begins at {at}"):
        table("state/trimmed")
    assert table("state/trimmed", on_trimmed="snapshot") == {("t", "2"): "2", ("t", "3"): "3"}
    at_snapshot = table("state/trimmed", on_trimmed="snapshot", ending_offset=at)
    assert at_snapshot == {("t", "2"): "2"}
    with pytest.raises(Trimmed):
        table("state/trimmed", on_trimmed="snapshot", ending_offset=early)


def test_a_snapshot_that_is_not_a_list_of_events_cannot_begin_a_table(
    table: Callable[..., Table], writer: Writer
) -> None:
    writer.create("state/opaque")
    at = writer.append("state/opaque", put("t", "1", 1))
    writer.publish("state/opaque", at, b"opaque", "text/plain")
    writer.append("state/opaque", put("t", "2", 2))
    with pytest.raises(BadRecord, match="snapshot of state/opaque is not a JSON array of events"):
        table("state/opaque", on_trimmed="snapshot")


def test_a_stream_that_cannot_be_a_table_is_named(
    table: Callable[..., Table], writer: Writer
) -> None:
    writer.create("state/bytes", BYTES)
    with pytest.raises(BadRecord, match="state/bytes is application/octet-stream, and a table's"):
        table("state/bytes")
    with pytest.raises(BadOption, match="has no option starting_offset"):
        table("state/bytes", starting_offset="-1")
    with pytest.raises(BadOption, match="there is no column name in a table"):
        table("state/bytes", T.StructType().add("name", "string"))
