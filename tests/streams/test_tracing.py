"""A trace finds the command that appended a record, among all that a log has.

It is compared with the outcomes of the whole log, which the machine computed from everything.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterator
from copy import copy
from typing import NamedTuple

import pytest

from streamd.streams.codec import Batch, encode_batch
from streamd.streams.commands import Append, Command, Create, Delete, Result, SetLimits
from streamd.streams.limits import Limits
from streamd.streams.model import Settings, Stream
from streamd.streams.queries.tracing import Trace
from tests.spark.random_log import RandomLog
from tests.streams.driver import TEXT, Driver, key
from tests.support.seeds import one_each

ENTRIES = 300
SEGMENT = 30


class Place(NamedTuple):
    """A record of a command, by the index of the entry and the command's number."""

    entry: int
    number: int
    record: int


def living(log: RandomLog) -> Iterator[tuple[bytes, Stream]]:
    """The streams at the log's end that own records."""
    for name in log.keys:
        stream = log.driver.state.streams.get(name)
        if stream is not None and stream.records > stream.fork_point.record:
            yield name, stream


def appended(log: RandomLog, stream: Stream, record: int) -> Place:
    """Where the log appended a record that a stream owns."""
    for entry in log.log:
        outcomes = zip(entry.commands, log.outcomes[entry.index], strict=True)
        for number, (command, outcome) in enumerate(outcomes):
            if not isinstance(command, Append | Create) or outcome.incarnation != stream.stream_id:
                continue
            begin = outcome.tail.record - len(command.lengths)
            is_done = outcome.result in (Result.APPENDED, Result.CREATED)
            if is_done and begin <= record < outcome.tail.record:
                return Place(entry.index, number, record - begin)
    raise AssertionError(f"nothing appended record {record} of stream {stream.stream_id}")


def found(log: RandomLog, trace: Trace, begin: int = 1) -> Place | None:
    """What a trace of the log from an entry on finds."""
    for entry in log.log[begin - 1 :]:
        batch = Batch(entry.now_ms, list(entry.commands), list(entry.packages))
        command = trace.apply(entry.index, 1, entry.now_ms, encode_batch(batch))
        if command is not None:
            return Place(entry.index, command.number, command.record)
    return None


def trace_of(name: bytes, stream: Stream, record: int) -> Trace:
    return Trace(name, copy(stream), record, 0)


@pytest.mark.parametrize("seed", one_each(30, 3, [3996584904]))
def test_each_record_of_each_stream_is_found(seed: int) -> None:
    log = RandomLog(seed, ENTRIES)
    records = 0
    for name, stream in living(log):
        for record in range(stream.fork_point.record, stream.records):
            expected = appended(log, stream, record)
            assert found(log, trace_of(name, stream, record)) == expected, (name, record)
            records += 1
    assert records > 20


@pytest.mark.parametrize("seed", one_each(20, 3))
def test_a_trace_may_begin_with_the_rows_of_a_state(seed: int) -> None:
    """Those that matter are few of all rows, which come in pieces."""
    log = RandomLog(seed, ENTRIES)
    log.driver.flush()
    rows, begin = list(log.driver.store.rows.items()), len(log.log)
    log.lives(50)
    early = late = 0
    for name, stream in living(log):
        for record in range(stream.fork_point.record, stream.records):
            trace = trace_of(name, stream, record)
            trace.load(rows[::2])
            trace.load(rows[1::2])
            if trace.begins_before_record():
                assert found(log, trace, begin + 1) == appended(log, stream, record)
                late += 1
            else:
                is_created_later = stream.created_ms >= log.log[begin].now_ms
                assert is_created_later or appended(log, stream, record).entry <= begin
                early += 1
    assert early + late  # How many of each there are depends on the seed.


@pytest.mark.parametrize("seed", one_each(20, 3))
def test_a_trace_may_begin_shortly_before_the_stream(seed: int) -> None:
    """Sessions that were opened before that are guessed, from the first of their packages."""
    log = RandomLog(seed, ENTRIES)
    right = wrong = 0
    for name, stream in living(log):
        begin = next(e.index for e in log.log if e.now_ms >= stream.created_ms)
        begin = max(1, begin - SEGMENT)  # Packages are sent again soon after the first time.
        for record in range(stream.fork_point.record, stream.records):
            is_right = found(log, trace_of(name, stream, record), begin) == appended(
                log, stream, record
            )
            right, wrong = right + is_right, wrong + (not is_right)
    assert right > 20 * wrong


def test_a_record_that_a_quota_moved_is_found_in_the_wrong_place() -> None:
    """What the caller sees by the bytes: an append that a quota refused counts here."""
    driver = Driver()
    log: list[tuple[int, bytes]] = []

    def enter(*commands: Command) -> None:
        driver.entry(*commands)
        log.append((driver.state.header.applied_index, encode_batch(Batch(0, list(commands)))))

    enter(Create(key("s"), Settings(TEXT), implicit_bucket=True))
    enter(SetLimits("bucket", "b", Limits(max_stream_bytes=2)))
    enter(Append(key("s"), TEXT, b"long", [4]))
    enter(Append(key("s"), TEXT, b"ok", [2]))
    stream = driver.state.streams.get(key("s"))
    assert stream is not None
    assert stream.records == 1
    trace = Trace(key("s"), copy(stream), 0, 0)
    places = [trace.apply(index, 1, driver.now_ms, payload) for index, payload in log]
    command = next(place for place in places if place is not None)
    assert command.data == b"long"


def test_a_fork_may_end_in_a_trace_without_its_source_and_its_snapshot() -> None:
    """Which happens if the trace is wrong about it."""
    driver = Driver()
    driver.create("source")
    driver.append(b"one", "source")
    driver.fork("s", "source")
    driver.append(b"two", "s")
    stream = driver.state.streams.get(key("s"))
    assert stream is not None
    driver.publish(b"a snapshot", stream.tail, "s")
    driver.fork("fork", "s")
    driver.flush()
    trace = Trace(key("s"), copy(stream), 2, 0)
    trace.load(driver.store.rows.items())
    assert trace.begins_before_record()
    commands: list[Command] = [Delete(key("s")), Append(key("s"), TEXT, b"three", [5])]
    assert trace.apply(100, 1, driver.now_ms, encode_batch(Batch(0, commands))) is None


def test_memory_does_not_grow_with_the_records() -> None:
    """Of 64 MiB that are appended, no more are kept than wait to be stored."""
    driver = Driver()
    driver.create("s")
    stream = driver.state.streams.get(key("s"))
    assert stream is not None
    trace = Trace(key("s"), copy(stream), 10_000, 0)
    create = Create(key("s"), Settings(TEXT), implicit_bucket=True)
    trace.apply(1, 1, driver.now_ms, encode_batch(Batch(0, [create])))
    payload = encode_batch(Batch(0, [Append(key("s"), TEXT, bytes(1 << 20), [1 << 20])]))
    tracemalloc.start()
    try:
        for index in range(2, 66):
            assert trace.apply(index, 1, driver.now_ms, payload) is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 24 << 20
