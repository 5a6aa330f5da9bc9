"""What buckets count, compared after every command with what the rows of the state keep."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from streamd.streams import keys
from streamd.streams.chunks import Chunk
from streamd.streams.commands import (
    Append,
    Command,
    Create,
    CreateBucket,
    Delete,
    DeleteBucket,
    PublishSnapshot,
    Result,
    SetLimits,
    Sweep,
    Touch,
)
from streamd.streams.limits import Limits
from streamd.streams.model import Bucket, ForkRequest, ProducerStamp, Settings, Stream
from tests.streams.driver import TEXT, Driver

BUCKETS = ["bucket-1", "bucket-2"]
KEYS = st.builds(
    lambda bucket, name: keys.stream_key(bucket.encode(), name),
    st.sampled_from(BUCKETS),
    st.sampled_from([b"a", b"b", b"c"]),
)
BODIES = st.sampled_from([0, 1, 5, 9]).map(lambda size: b"x" * size)
QUOTA = st.sampled_from([None, None, None, 0, 20, 200])
LIMITS = st.none() | st.builds(
    Limits, max_bytes=QUOTA, max_streams=st.sampled_from([None, None, 2, 5]), max_stream_bytes=QUOTA
)
FULL = {Result.BUCKET_FULL, Result.STREAM_FULL, Result.TOO_MANY_STREAMS}


def rows_of(driver: Driver, letter: bytes, kind: Any) -> dict[bytes, Any]:
    rows = driver.store.rows
    return {
        row[1:]: msgspec.msgpack.decode(rows[row], type=kind) for row in rows if row[:1] == letter
    }


def recount(driver: Driver) -> dict[bytes, tuple[int, int]]:
    """By bucket: how many of its streams are counted, and the bytes that they keep.

    Kept are all own records but those that a note gives up for removal, and snapshots.
    """
    driver.flush()
    given_up: Counter[int] = Counter()
    for note in driver.store.rows:
        if note[:1] == keys.TRIM:
            stream_id = keys.stream_id_in(note)
            given_up[stream_id] = max(given_up[stream_id], keys.parse_number(note))
    lengths: dict[int, dict[int, int]] = defaultdict(dict)
    for row, chunk in rows_of(driver, keys.CHUNK, Chunk).items():
        stream_id = keys.number_of(row[:8])
        lengths[stream_id] |= dict(enumerate(chunk.lengths, start=chunk.start_record))
    found: dict[bytes, tuple[int, int]] = {}
    for key, stream in rows_of(driver, keys.STREAM, Stream).items():
        if stream.kept_from is None:
            continue
        own = lengths[stream.stream_id]
        size = sum(own[record] for record in own if record >= given_up[stream.stream_id])
        size += stream.snapshot.size if stream.snapshot else 0
        streams, before = found.get(keys.bucket_of(key), (0, 0))
        found[keys.bucket_of(key)] = streams + 1, before + size
    return found


class Counting(RuleBasedStateMachine):
    """Commands of clients and of the leader, with quotas that change."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = Driver()
        self.sequence = 0

    def do(self, command: Command) -> Result:
        return self.driver.do(command).result

    @initialize(streams=st.lists(st.tuples(KEYS, BODIES)))
    def begin_to_count(self, streams: list[tuple[bytes, bytes]]) -> None:
        """Some streams are older than the first quota."""
        for key, body in streams:
            self.create(key, body, None)
        self.do(SetLimits("bucket", "none", Limits(max_bytes=1)))

    @rule(key=KEYS, body=BODIES, ttl_ms=st.sampled_from([None, None, 50]))
    def create(self, key: bytes, body: bytes, ttl_ms: int | None) -> None:
        lengths = [len(body)] if body else []
        asked = Settings(TEXT, ttl_ms)
        self.do(Create(key, asked, data=body, lengths=lengths, implicit_bucket=True))

    def some_key(self, data: st.DataObject) -> bytes:
        """Usually that of a stream that exists."""
        there = [row[1:] for row in sorted(self.driver.store.rows) if row[:1] == keys.STREAM]
        return data.draw(st.sampled_from(there) if there else KEYS)

    @rule(key=KEYS, body=BODIES, data=st.data())
    def fork(self, key: bytes, body: bytes, data: st.DataObject) -> None:
        source = self.some_key(data)
        stream = self.driver.state.streams.get(source)
        at = None
        if stream is not None and not stream.deleted:
            at = data.draw(st.none() | st.sampled_from(self.boundaries(stream)))
        request = ForkRequest(source, at)
        finding = self.driver.find_anchor(request)
        lengths = [len(body)] if body else []
        asked = Settings(fork=request)
        self.do(Create(key, asked, False, body, lengths, True, finding=finding))

    @rule(key=KEYS, bodies=st.lists(BODIES.filter(bool), min_size=1), by=st.booleans())
    def append(self, key: bytes, bodies: list[bytes], by: bool) -> None:
        """A producer's append, or a run of plain ones in one entry."""
        if by:
            stamp = ProducerStamp("p", self.sequence, 0)
            self.sequence += 1
            self.do(Append(key, TEXT, b"".join(bodies), [*map(len, bodies)], producer=stamp))
        else:
            self.driver.entry(*(Append(key, TEXT, body, [len(body)]) for body in bodies))

    @rule(key=KEYS)
    def close(self, key: bytes) -> None:
        assert self.do(Append(key, "", b"", [], close=True)) not in FULL

    @rule(body=BODIES, data=st.data())
    def publish(self, body: bytes, data: st.DataObject) -> None:
        key = self.some_key(data)
        stream = self.driver.state.streams.get(key)
        if stream is None or stream.deleted:
            return
        at = data.draw(st.sampled_from(self.boundaries(stream)))
        finding = self.driver.find_boundary(key, at)
        self.do(PublishSnapshot(key, at, TEXT, len(body), b"digest", 0, body, finding))

    def boundaries(self, stream: Stream) -> list[Any]:
        found = [stream.earliest]
        while found[-1] != stream.tail:
            found.append(self.driver.read(stream, found[-1], max_bytes=1).end)
        return found

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        assert self.do(Delete(self.some_key(data))) not in FULL

    @rule(bucket=st.sampled_from(BUCKETS))
    def delete_and_create_bucket(self, bucket: str) -> None:
        self.do(DeleteBucket(bucket.encode()))
        self.do(CreateBucket(bucket.encode()))

    @rule(due=st.lists(KEYS), more_ms=st.sampled_from([0, 30, 60]))
    def sweep(self, due: list[bytes], more_ms: int) -> None:
        self.driver.now_ms += more_ms
        self.do(Sweep(due))

    @rule(key=KEYS)
    def touch(self, key: bytes) -> None:
        stream = self.driver.state.streams.get(key)
        if stream is not None:
            self.do(Touch([(key, stream.stream_id, self.driver.now_ms)]))

    @rule(name=st.sampled_from([*BUCKETS, "*"]), limits=LIMITS)
    def set_limits(self, name: str, limits: Limits | None) -> None:
        self.do(SetLimits("bucket", name, limits))

    @rule()
    def move_to_the_cold_store(self) -> None:
        self.driver.flush()
        self.do(self.driver.gather())

    @rule()
    def restart(self) -> None:
        self.driver.flush()
        self.driver.reopen()

    @invariant()
    def buckets_count_what_their_streams_keep(self) -> None:
        expected = recount(self.driver)
        for name, bucket in rows_of(self.driver, keys.BUCKET, Bucket).items():
            assert (bucket.counted, bucket.size) == expected.get(name, (0, 0)), name
            assert bucket.counted <= bucket.streams


class CountingForLonger(Counting):
    """The same, with more examples."""


TestCounting = Counting.TestCase
TestCounting.settings = settings(max_examples=50, stateful_step_count=50, deadline=None)
TestCountingForLonger = pytest.mark.long(CountingForLonger.TestCase)
TestCountingForLonger.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
