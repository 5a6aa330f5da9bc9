"""Attempts at one partition: repeated, concurrent, in other orders, and interrupted."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from pyspark.sql.types import StringType, StructType

from streamd.client import OutcomeUnknown, Unavailable, Unreachable
from streamd.spark.sink import task
from streamd.spark.sink.errors import BadRow, Fenced, NotWritten, RowsChanged
from streamd.spark.sink.writers import StreamWriter, Written
from tests.client.running import Shell
from tests.spark.sink.attempts import Row, Sink, Streams, new_sink
from tests.support.s3_proxy import Fault, S3Proxy
from tests.support.server_process import ServerProcess

pytestmark = pytest.mark.long

ALL = os.environ.get("AUDIT_TESTS") == "all"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many windows and requests for few rows."""
    monkeypatch.setattr(task, "WINDOW_ROWS", 120)
    monkeypatch.setattr(task, "REQUEST_BYTES", 400)


def rows_for(sink: Sink, count: int, streams: int = 3, start: int = 0) -> list[Row]:
    """Rows that are all different, for the streams of this sink in turn."""
    return [
        (f"{sink.sink_id}/s{number % streams}", b'{"n": %d}' % number)
        for number in range(start, start + count)
    ]


def by_stream(rows: Sequence[Row]) -> dict[str, list[object]]:
    found: dict[str, list[object]] = {}
    for stream, record in rows:
        found.setdefault(stream, []).append(json.loads(record))
    return found


def assert_holds(streams: Streams, rows: Sequence[Row], *, in_order: bool = True) -> None:
    """Every stream has its rows, each once, and no others."""
    for stream, expected in by_stream(rows).items():
        found = streams.messages(stream)
        if not in_order:
            found, expected = sorted(found, key=repr), sorted(expected, key=repr)
        assert found == expected


def broken_off(rows: Sequence[Row], after: int) -> Iterator[Row]:
    """Rows of a task that dies after so many of them."""
    yield from rows[:after]
    raise ConnectionResetError("killed")


@pytest.mark.usefixtures("small")
def test_rows_are_appended_in_order_to_the_streams_they_name(sink: Sink, streams: Streams) -> None:
    rows = rows_for(sink, 1000)
    assert sink.write(rows) == 0
    assert_holds(streams, rows)


@pytest.mark.usefixtures("small")
def test_a_task_that_is_run_twice_appends_once(sink: Sink, streams: Streams) -> None:
    rows = rows_for(sink, 1000)
    for _ in range(3):
        sink.write(rows)
    assert_holds(streams, rows)


@pytest.mark.usefixtures("small")
def test_a_task_that_died_midway_is_completed_by_its_retry(sink: Sink, streams: Streams) -> None:
    rows = rows_for(sink, 1000)
    for after in (70, 333, 1000):
        with pytest.raises(ConnectionResetError):
            sink.write(broken_off(rows, after))
    sink.write(rows)
    assert_holds(streams, rows)


@pytest.mark.usefixtures("small")
def test_rows_in_another_order_keep_the_order_of_the_first_attempt(
    sink: Sink, streams: Streams
) -> None:
    rows = rows_for(sink, 1000)
    with pytest.raises(ConnectionResetError):
        sink.write(broken_off(rows, 500))
    begun = {stream: streams.messages(stream) for stream in by_stream(rows)}
    assert any(begun.values())
    shuffled = random.Random(1).sample(rows, len(rows))
    sink.write(shuffled)
    assert_holds(streams, rows, in_order=False)
    for stream, messages in begun.items():
        assert streams.messages(stream)[: len(messages)] == messages


@pytest.mark.usefixtures("small")
def test_equal_rows_are_all_kept(sink: Sink, streams: Streams) -> None:
    rows = [(f"{sink.sink_id}/s{number % 2}", b"[%d]" % (number % 7)) for number in range(600)]
    with pytest.raises(ConnectionResetError):
        sink.write(broken_off(rows, 300))
    sink.write(random.Random(2).sample(rows, len(rows)))
    assert_holds(streams, rows, in_order=False)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("reordered", [False, True])
def test_speculative_twins_append_once(sink: Sink, streams: Streams, reordered: bool) -> None:
    rows = rows_for(sink, 1500)
    orders = [rows, random.Random(3).sample(rows, len(rows)) if reordered else rows]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(sink.write, orders))
    assert_holds(streams, rows, in_order=not reordered)


@pytest.mark.usefixtures("small")
def test_a_zombie_of_an_older_batch_is_fenced_and_changes_nothing(
    sink: Sink, streams: Streams
) -> None:
    first, second = rows_for(sink, 300), rows_for(sink, 300, start=300)
    sink.write(first, epoch=4)
    sink.write(second, epoch=5)
    with pytest.raises(Fenced, match=f"batch 4 of sink {sink.sink_id} is over, batch 5 has begun"):
        sink.write(first, epoch=4)
    with pytest.raises(Fenced):
        sink.write(rows_for(sink, 10, start=900), epoch=4)
    assert_holds(streams, first + second)


@pytest.mark.usefixtures("small")
def test_a_zombie_that_knows_its_plan_changes_nothing(sink: Sink, streams: Streams) -> None:
    """It wakes between its entry in the journal and its first append, two batches later; one of its
    streams has had no rows since, so only the plan holds it back."""
    first = rows_for(sink, 100, streams=2)
    second = rows_for(sink, 100, streams=1, start=100)

    def slow() -> Iterator[Row]:
        yield from first
        sink.write(first, epoch=0)  # a twin
        sink.write(second, epoch=1)

    with pytest.raises(Fenced):
        sink.write(slow(), epoch=0)
    assert_holds(streams, first + second)


@pytest.mark.usefixtures("small")
def test_batches_follow_each_other_and_begin_at_sequence_0(sink: Sink, streams: Streams) -> None:
    every: list[Row] = []
    for epoch in range(4):
        rows = rows_for(sink, 200, start=200 * epoch)
        every += rows
        sink.write(rows, epoch=epoch)
        sink.write(rows, epoch=epoch)
    assert_holds(streams, every)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("change", [lambda rows: rows[:-1], lambda rows: [*rows, rows[0]]])
def test_a_retry_with_other_rows_is_refused(
    sink: Sink, streams: Streams, change: Callable[[list[Row]], list[Row]]
) -> None:
    rows = rows_for(sink, 500)
    sink.write(rows, partition=7, epoch=3)
    with pytest.raises(RowsChanged, match="batch 3, partition 7"):
        sink.write(change(rows), partition=7, epoch=3)
    assert_holds(streams, rows)


@pytest.mark.usefixtures("small")
def test_a_batch_does_not_continue_in_other_partitions(sink: Sink, streams: Streams) -> None:
    """Partition 0 had every other row and died; of three, partition 2 is given some of them."""
    rows = rows_for(sink, 600)
    with pytest.raises(ConnectionResetError):
        sink.write(broken_off(rows[::2], 200), partition=0, epoch=6)
    begun = {stream: streams.messages(stream) for stream in by_stream(rows)}
    with pytest.raises(RowsChanged, match="was in another partition when an earlier run"):
        sink.restarted().write(rows[::3], partition=2, epoch=6)
    assert {stream: streams.messages(stream) for stream in by_stream(rows)} == begun
    again = sink.restarted()
    again.write(rows[::2], partition=0, epoch=6)
    again.write(rows[1::2], partition=1, epoch=6)
    assert_holds(streams, rows, in_order=False)


@pytest.mark.usefixtures("small")
def test_equal_rows_in_two_partitions_are_allowed_by_an_option(
    sink: Sink, streams: Streams
) -> None:
    rows = [(f"{sink.sink_id}/s", b'"tick"')] * 50
    sink.write(rows, partition=0)
    with pytest.raises(RowsChanged, match="option partitions"):
        sink.restarted().write(rows, partition=1)
    sink.restarted(same_partitions=True).write(rows, partition=1)
    assert_holds(streams, rows * 2)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("seed", range(40 if ALL else 5))
def test_each_row_is_stored_once_whatever_fails_and_is_retried(
    seed: int, proxy: S3Proxy, streams: Streams
) -> None:
    """Requests and answers are lost, tasks die midway and have twins, rows come in any order,
    drivers restart, and zombies of older batches wake up."""
    seeded = random.Random(seed)
    sink = new_sink(proxy.endpoint, retry_for_s=0.0)
    batches = [rows_for(sink, 300, streams=4, start=300 * epoch) for epoch in range(3)]
    for epoch, rows in enumerate(batches):
        for partition in range(2):
            is_done = False
            while not is_done:
                if seeded.random() < 0.7:
                    proxy.fail(seeded.choice(["POST", "POST", "HEAD", "GET"]), _any_fault(seeded))
                if seeded.random() < 0.2:
                    sink = sink.restarted()
                if epoch and seeded.random() < 0.3:
                    older = seeded.randrange(epoch)
                    _attempt(sink, batches[older][partition::2], partition, older, seeded)
                parts = [rows[partition::2]] * seeded.choice([1, 1, 2])
                tries = [partial(_attempt, sink, part, partition, epoch) for part in parts]
                seeds = [random.Random(seeded.random()) for _ in tries]
                with ThreadPoolExecutor(len(tries)) as pool:
                    is_done = any(pool.map(lambda one, its: one(its), tries, seeds))
    assert_holds(streams, [row for rows in batches for row in rows], in_order=False)
    assert sum(proxy.done.values()) > seed, "faults befell it"


def _any_fault(seeded: random.Random) -> Fault:
    faults = [Fault.REPLY_LOST, Fault.BAD_GATEWAY, Fault.RESET_IN_BODY, Fault.TWICE]
    return seeded.choice(faults)


def _attempt(
    sink: Sink, rows: Sequence[Row], partition: int, epoch: int, seeded: random.Random
) -> bool:
    """One attempt, with rows in some order, which may be broken off; whether it succeeded."""
    order = list(rows) if seeded.random() < 0.5 else seeded.sample(rows, len(rows))
    dies = seeded.random() < 0.3
    try:
        sink.write(
            broken_off(order, seeded.randrange(len(order))) if dies else order,
            partition=partition,
            epoch=epoch,
        )
    except (OutcomeUnknown, Unavailable, Unreachable, ConnectionResetError, Fenced):
        return False
    return True


def test_bytes_are_framed_and_kept_apart(sink: Sink, streams: Streams) -> None:
    """A thousand records by two posts of frames, and not by a thousand posts."""
    name = f"{sink.sink_id}/bytes"
    streams.create(name, "application/octet-stream")
    records = [b"\0%d\xff" % number for number in range(1000)]
    sink.write([(name, record) for record in records])
    assert streams.content(name) == b"".join(records)
    assert streams.records(name) == 1000


def test_a_record_that_is_an_array_is_one_message(sink: Sink, streams: Streams) -> None:
    name = f"{sink.sink_id}/arrays"
    sink.write([(name, b"[1, 2]"), (name, b" [] "), (name, b'"a"')])
    assert streams.messages(name) == [[1, 2], [], "a"]


def test_a_stream_outside_of_buckets_takes_bytes_one_by_one(sink: Sink, streams: Streams) -> None:
    name = sink.sink_id
    streams.create(name, "text/plain")
    sink.write([(name, b"a"), (name, b"b")])
    assert (streams.content(name), streams.records(name)) == (b"ab", 2)


def test_a_malformed_json_record_is_refused_before_anything_is_written(
    sink: Sink, streams: Streams
) -> None:
    rows = rows_for(sink, 20)
    for bad in (b"1, 2", b"1], [2", b"{", b"", b"\xff"):
        with pytest.raises(BadRow, match="is a stream of JSON"):
            sink.write([*rows, (rows[0][0], bad)])
    assert_holds(streams, rows[:0])
    assert streams.messages(rows[0][0]) == []


def test_an_absent_stream_is_created_if_requested(sink: Sink, streams: Streams) -> None:
    name = f"{sink.sink_id}/absent"
    with pytest.raises(NotWritten, match=r"STREAM_NOT_FOUND.*option create=true makes it"):
        sink.restarted(create=None).write([(name, b"1")])
    assert streams.ask("HEAD", f"/v1/stream/{name}")[0] == 404
    sink.restarted(create="text/plain").write([(name, b"1")])
    status, headers, _ = streams.ask("HEAD", f"/v1/stream/{name}")
    assert (status, headers["content-type"]) == (200, "text/plain")


def test_rows_for_a_closed_stream_are_an_error_or_skipped(sink: Sink, streams: Streams) -> None:
    name, other = f"{sink.sink_id}/closed", f"{sink.sink_id}/open"
    rows = [(name, b"1"), (other, b"2"), (name, b"3")]
    streams.create(name)
    streams.close(name)
    with pytest.raises(NotWritten, match=r"closed: 409 STREAM_CLOSED"):
        sink.write(rows)
    assert sink.restarted(skip_closed=True).write(rows) == 2
    assert (streams.messages(name), streams.messages(other)) == ([], [2])


def test_the_driver_logs_how_many_rows_were_skipped(capsys: pytest.CaptureFixture[str]) -> None:
    schema = StructType().add("stream", StringType()).add("record", StringType())
    writer = StreamWriter({"url": "http://h"}, schema, overwrite=False)
    writer.commit([Written(3, 0), Written(3, 0)], 3)
    assert capsys.readouterr().err == ""
    writer.commit([Written(4, 2), Written(4, 5)], 4)
    assert "skipped 7 rows" in capsys.readouterr().err


def test_a_recreated_stream_is_written_with_its_present_type(sink: Sink, streams: Streams) -> None:
    name = f"{sink.sink_id}/again"
    streams.create(name)
    sink.write([(name, b"1")])
    streams.ask("DELETE", f"/v1/stream/{name}")
    streams.create(name, "text/plain")
    with pytest.raises(NotWritten, match="CONTENT_TYPE_MISMATCH"):
        sink.write([(name, b"2")], epoch=1)
    sink.write([(name, b"2")], epoch=1)
    assert streams.content(name) == b"2"


def test_the_journals_of_a_sink_are_listed_and_deleted_by_its_id(
    sink_server: ServerProcess, streams: Streams
) -> None:
    """As docs/spark-streams.md describes for abandoned queries, and for no others."""
    sink = new_sink(sink_server.url)
    other = Sink(sink.settings, f"{sink.sink_id}2", sink.run)
    rows = rows_for(sink, 10)
    for one, partition in ((sink, 0), (sink, 11), (other, 0)):
        one.write(rows, partition=partition)
    shell = Shell(sink_server.url)
    journals = shell("list", "spark-sink", "--prefix", f"{sink.sink_id}.").decode().split()
    assert journals == [f"spark-sink/{sink.sink_id}.{partition}" for partition in (0, 11)]
    for name in journals:
        assert shell.run("delete", name).returncode == 0
    left = shell("list", "spark-sink", "--prefix", sink.sink_id).decode().split()
    assert left == [f"spark-sink/{other.sink_id}.0"]
    sink.write(rows, epoch=1)
    assert_holds(streams, rows * 4)


def test_a_journal_keeps_little_of_finished_batches(
    sink: Sink, streams: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streamd.spark.sink.plan.MOST_STALE_BYTES", 2000)
    every: list[Row] = []
    for epoch in range(12):
        rows = rows_for(sink, 20, start=20 * epoch)
        every += rows
        sink.write(rows, epoch=epoch)
    journal = f"/spark-sink/{sink.sink_id}.0"
    status, headers, _ = streams.ask("GET", f"{journal}?offset=-1")
    earliest = headers["stream-earliest-offset"]
    _, headers, _ = streams.ask("HEAD", journal)
    kept = int(headers["stream-next-offset"][17:]) - int(earliest[17:])
    assert status == 410
    assert kept < 4000
    sink.write(rows, epoch=11)
    assert_holds(streams, every)
