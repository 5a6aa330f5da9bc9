"""``spark.readStream.format("streamd")``: Structured Streaming from offsets of the protocol.

The checkpoint has, for each stream, its incarnation and the offset up to which it was read. A
micro-batch reads from the offsets of the last one to those that `latestOffset` chose, and the same
records when it is repeated: records never change. A stream that is not in the checkpoint is read
from its start, and so is one that was deleted and created again, which its incarnation shows.

Spark calls every source in Python by the name of its own class, and has no place for its metrics.
What it shows of each micro-batch besides offsets is the answer of `reportLatestOffset`, which
nothing reads: so the source's name and metrics are there.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from streamd.spark import options as given
from streamd.spark.columns import Columns
from streamd.spark.errors import StreamMissing, Trimmed
from streamd.spark.options import BadOption, Options
from streamd.spark.planning import Part, plan
from streamd.spark.reading import (
    COMMON,
    NOW,
    Request,
    batches,
    edge_of,
    ranges,
    request_of,
    verified,
)
from streamd.spark.streams import Described, Streams
from streamd.streams.offsets import START, Position, parse_offset
from streamd_audit.one_line import one_line

_MOST = 1 << 53
MAX_RECORDS, MAX_BYTES = "max_records_per_batch", "max_bytes_per_batch"
OPTIONS = (*COMMON, "starting_offset", MAX_RECORDS, MAX_BYTES)

Checkpoint = Mapping[str, Any]


@one_line
class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives as long as the query in a process of the driver; each task has a copy."""

    def __init__(self, options: Options, schema: T.StructType) -> None:
        given.check_names(options, OPTIONS, "spark.readStream.format('streamd')")
        self._request = request_of(options)
        if self._request.place.stores is not None:
            raise BadOption("a store has no live streams: option store is for spark.read")
        self._columns = Columns(schema, failfast=self._request.failfast)
        self._starting = edge_of(options, "starting_offset", ("-1", NOW), self._request.which)
        self._limit = _limit(options)
        # With the trigger AvailableNow: the streams as they were when the query began.
        self._target: list[Described] | None = None
        # What Spark shows of the micro-batch that was planned last.
        self._progress: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:
        streams = self._streams()
        found = {}
        for each in self._described(streams):
            at = self._starting.offsets.get(each.name)
            if at is not None:
                found[each.name] = _noted(each, verified(streams, each.name, at, "starting_offset"))
            elif self._starting.word == NOW:
                found[each.name] = _noted(each, each.tail)
        return found

    def getDefaultReadLimit(self) -> ReadLimit:
        return self._limit

    def prepareForTriggerAvailableNow(self) -> None:
        self._target = self._described(self._streams())

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Where the next micro-batch ends. Raises `StreamMissing`, `TooManyStreams`, `Trimmed`."""
        streams = self._streams()
        latest = self._described(streams) if self._target is None else self._target
        begun = {each.name: _begun(each, start) for each in latest}
        pending = [(each, begun[each.name]) for each in latest if begun[each.name] < each.tail]
        ends = {each.name: each.tail for each in latest}
        if not isinstance(limit, ReadAllAvailable):
            ends |= _Share(streams, limit, skip_trimmed=self._request.rules.skip_trimmed).of(
                pending
            )
        self._progress = _progress(self._request, latest, begun, ends)
        return {each.name: _noted(each, ends[each.name]) for each in latest}

    def reportLatestOffset(self) -> dict[str, Any] | None:
        return self._progress

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        found = [_from_checkpoint(name, noted) for name, noted in sorted(end.items())]
        return plan(
            self._streams(),
            ranges((each, _begun(each, start)) for each in found),
            self._request.partition_bytes,
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, Part)
        return batches(self._request, self._columns, partition)

    def _streams(self) -> Streams:
        return self._request.place.open()

    def _described(self, streams: Streams) -> list[Described]:
        if self._request.which.bucket is not None or not self._request.rules.skip_deleted:
            return sorted(self._request.which.described(streams))
        found: list[Described] = []
        for name in self._request.which.names:
            try:
                found += streams.describe([name])
            except StreamMissing:
                continue
        return sorted(found)


def _limit(options: Options) -> ReadLimit:
    records = given.whole_number(options, MAX_RECORDS, least=1, most=_MOST)
    size = given.whole_number(options, MAX_BYTES, least=1, most=_MOST)
    if records is not None and size is not None:
        raise BadOption(f"options {MAX_RECORDS} and {MAX_BYTES} cannot be combined")
    if records is not None:
        return ReadMaxRows(records)
    return ReadAllAvailable() if size is None else ReadMaxBytes(size)


# -- the checkpoint -----------------------------------------------------------------------------


def _noted(each: Described, at: Position) -> dict[str, str]:
    return {"incarnation": each.incarnation, "offset": at.token().decode()}


def _from_checkpoint(name: str, noted: Mapping[str, str]) -> Described:
    tail = parse_offset(noted["offset"].encode())
    if tail is None:
        raise ValueError(f"the checkpoint has {noted!r} for {name}, which is not an offset")
    return Described(name, "", noted["incarnation"], tail)


def _begun(each: Described, checkpoint: Checkpoint) -> Position:
    """How far the query has read a stream, by its checkpoint."""
    noted = checkpoint.get(each.name)
    if noted is None or noted["incarnation"] != each.incarnation:
        return START
    return _from_checkpoint(each.name, noted).tail


def _progress(
    request: Request,
    latest: list[Described],
    begun: Mapping[str, Position],
    ends: Mapping[str, Position],
) -> dict[str, Any]:
    """What Spark shows of a micro-batch that takes from each stream what is between `begun` and
    `ends`."""
    records, size = _distance(begun, ends)
    lag_records, lag_size = _distance(ends, {each.name: each.tail for each in latest})
    return {
        "source": f"streamd: {request.which}, at {request.place.servers}",
        "streams": len(latest),
        "records": records,
        "bytes": size,
        "lag_records": lag_records,
        "lag_bytes": lag_size,
        "tails": {each.name: _noted(each, each.tail) for each in latest},
    }


def _distance(starts: Mapping[str, Position], ends: Mapping[str, Position]) -> tuple[int, int]:
    """The records, and the bytes, between the positions of some streams."""
    records = sum(end.record - starts[name].record for name, end in ends.items())
    return records, sum(end.byte - starts[name].byte for name, end in ends.items())


# -- the limit of a micro-batch -----------------------------------------------------------------


class _Share:
    """Divides a micro-batch's limit among streams: a stream with little to read leaves the rest of
    its share to the others, and each gets its turn."""

    def __init__(self, streams: Streams, limit: ReadLimit, *, skip_trimmed: bool) -> None:
        self._streams = streams
        self._skip_trimmed = skip_trimmed
        match limit:
            case ReadMaxRows(max_rows=most):
                self._left, self._unit = most, 0
            case ReadMaxBytes(max_bytes=most):
                self._left, self._unit = most, 1
            case _:
                raise BadOption(f"unknown kind of read limit: {type(limit).__name__}")

    def of(self, pending: list[tuple[Described, Position]]) -> dict[str, Position]:
        """Where each stream's part ends."""
        # Those with less than their share come first, and leave the rest of it. Chance orders the
        # others: when not each of them can have something, none waits for ever.
        random.shuffle(pending)
        share = self._left // max(len(pending), 1) + 1
        pending.sort(key=lambda one: min(self._amount(one), share))
        ends = {}
        for place, (each, start) in enumerate(pending):
            fair = -(-self._left // (len(pending) - place))
            ends[each.name] = end = self._end(each, start, fair) if self._left > 0 else start
            self._left -= end[self._unit] - start[self._unit]
        return ends

    def _amount(self, one: tuple[Described, Position]) -> int:
        each, start = one
        return each.tail[self._unit] - start[self._unit]

    def _end(self, each: Described, start: Position, most: int) -> Position:
        """Where at most so much of a stream ends; at least one record is read."""
        try:
            return self._within(each, start, most)
        except Trimmed as trimmed:
            if not self._skip_trimmed:
                raise
            return min(self._within(each, trimmed.earliest, most), each.tail)

    def _within(self, each: Described, start: Position, most: int) -> Position:
        if self._amount((each, start)) <= most:
            return each.tail
        if self._unit == 0:
            return self._streams.boundary(each.name, start.record + most)
        # Nothing is found by bytes, so the last record that begins within the limit is found by
        # number.
        low, high = start, each.tail
        while high.record - low.record > 1:
            share = (start.byte + most - low.byte) / (high.byte - low.byte)
            step = int((high.record - low.record) * share)
            middle = low.record + min(max(step, 1), high.record - low.record - 1)
            at = self._streams.boundary(each.name, middle)
            if at.byte - start.byte > most:
                high = at
            else:
                low = at
                if most - (at.byte - start.byte) < most // 8:
                    break
        return low if low != start else high
