"""What all readers share: which streams, from where to where, and in which columns."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, NamedTuple

import pyarrow as pa
from pyspark.sql import types as T

from streamd.client.core.retrying import RETRY_FOR_S
from streamd.spark import options as given
from streamd.spark.columns import OFFSET, RECORD, STREAM, Columns
from streamd.spark.errors import TooManyStreams
from streamd.spark.options import BadOption, Options, Stores
from streamd.spark.planning import PARTITION_BYTES, Part
from streamd.spark.remote import Remote, Servers
from streamd.spark.streams import MAX_STREAMS, Described, Range, Rules, Streams, as_position, read
from streamd.spark.values import infer, parse
from streamd.streams.content import is_json
from streamd.streams.offsets import START, Position

NOW = "now"
COMMON = (*given.WHERE, *given.WHICH, "on_trimmed", "on_deleted", "mode", "partition_bytes")

# A schema is inferred from this many records of this many streams.
_SAMPLED_RECORDS = 1000
_SAMPLED_STREAMS = 16
_MOST_BYTES = 1 << 40
# The options that `streamd_audit.store` takes.
_REACHED_BY = given.STORE[2:]


class Place(NamedTuple):
    """Servers or a store. Small enough to be sent with every task."""

    servers: Servers | None
    stores: Stores | None

    def open(self, turn: int = 0, *, met: bool = False) -> Streams:
        """Open the streams for task number `turn`; tasks are spread over the nodes. `met` goes to
        `client_of`."""
        if self.servers is not None:
            return Remote(self.servers, turn, met=met)
        # A reader of servers needs no client for S3, which takes long to import.
        from streamd.spark.stored import stored_in

        assert self.stores is not None
        return stored_in(self.stores, fresh=not met)


def place_of(options: Options) -> Place:
    """Raises `BadOption`."""
    chosen = [name for name in ("url", "store") if name in options]
    if len(chosen) != 1:
        raise BadOption(
            "say where the streams are with option url, servers separated by commas, "
            "or with option store, a DIRECTORY or s3://BUCKET/PREFIX"
            + (", not with both" if chosen else "")
        )
    stray = given.STORE if chosen == ["url"] else given.SERVER
    for name in stray:
        if name in options:
            raise BadOption(f"option {name} cannot be combined with option {chosen[0]}")
    if chosen == ["url"]:
        retry_for_s = given.seconds(options, "retry_for_s")
        servers = Servers(
            tuple(given.urls(options)),
            given.text(options, "cacert"),
            RETRY_FOR_S if retry_for_s is None else retry_for_s,
            given.text(options, "token"),
        )
        return Place(servers, None)
    stores = Stores(
        given.text(options, "store") or "",
        given.text(options, "cluster"),
        tuple((name, options[name]) for name in _REACHED_BY if name in options),
    )
    return Place(None, stores)


class Which(NamedTuple):
    """The streams to read: `names`, or those of a bucket that begin with `prefix`."""

    names: tuple[str, ...] = ()
    bucket: str | None = None
    prefix: str = ""

    def __str__(self) -> str:
        if self.bucket is not None:
            return f"bucket {self.bucket}" + (f", prefix {self.prefix}" if self.prefix else "")
        first, *others = self.names
        return f"stream {first}" + (f" and {len(others)} more" if others else "")

    def described(self, streams: Streams) -> Iterator[Described]:
        """Raises `StreamMissing`, `TooManyStreams`."""
        if self.bucket is None:
            yield from streams.describe(self.names)
            return
        for count, each in enumerate(streams.listed(self.bucket, self.prefix)):
            if count == MAX_STREAMS:
                raise TooManyStreams(
                    f"more than {MAX_STREAMS} streams of {self.bucket} begin with "
                    f"'{self.prefix}': a longer prefix selects fewer"
                )
            yield each


class Request(NamedTuple):
    """The options of a query that reads."""

    place: Place
    which: Which
    rules: Rules
    failfast: bool
    partition_bytes: int


def request_of(options: Options) -> Request:
    """The options that all readers share. Raises `BadOption`."""
    size = given.whole_number(options, "partition_bytes", least=1, most=_MOST_BYTES)
    return Request(
        place_of(options),
        _which(options),
        Rules(
            given.choice(options, "on_trimmed", ("fail", "snapshot")) == "snapshot",
            given.choice(options, "on_deleted", ("fail", "skip")) == "skip",
        ),
        given.choice(options, "mode", ("permissive", "failfast")) == "failfast",
        size or PARTITION_BYTES,
    )


def _which(options: Options) -> Which:
    chosen = [name for name in ("stream", "streams", "bucket") if name in options]
    if len(chosen) != 1:
        raise BadOption(
            "name what to read with exactly one of the options stream (one name), "
            "streams (a JSON array of names) and bucket"
            + (f", not with {' and '.join(chosen)}" if chosen else "")
        )
    if chosen != ["bucket"] and "prefix" in options:
        raise BadOption(f"option prefix goes with option bucket, not with {chosen[0]}")
    if chosen == ["stream"]:
        return Which((given.stream_name(given.text(options, "stream") or "", "stream"),))
    if chosen == ["streams"]:
        return Which(tuple(given.stream_names(options, "streams")))
    bucket = given.text(options, "bucket") or ""
    if "/" in bucket:
        raise BadOption(f"option bucket is '{bucket}'; it must be the name of one, without a slash")
    return Which(bucket=bucket, prefix=options.get("prefix", ""))


class Edge(NamedTuple):
    """Where reading begins or ends: the same word for all streams, or an offset for some."""

    word: str
    offsets: dict[str, Position] = {}  # noqa: RUF012 - never changed


def edge_of(options: Options, name: str, words: tuple[str, ...], which: Which) -> Edge:
    """An option that is one of `words` (the first by default), an offset, or a JSON object of
    offsets by stream. Raises `BadOption`."""
    value = given.text(options, name)
    if value is None or value in words:
        return Edge(value or words[0])
    if value.lstrip().startswith("{"):
        return Edge(words[0], _offsets(value, name, which))
    position = as_position(value)
    if position is None:
        raise BadOption(
            f"option {name} is '{value}'; it must be {', '.join(words)}, an offset such as "
            "0000000000000012_0000000000004096, or a JSON object of offsets by stream"
        )
    if len(which.names) != 1:
        raise BadOption(
            f"option {name} is an offset, which belongs to one stream: give several streams theirs "
            'with a JSON object such as {"agents/a": "0000000000000012_0000000000004096"}'
        )
    return Edge(words[0], {which.names[0]: position})


def _offsets(value: str, option: str, which: Which) -> dict[str, Position]:
    try:
        found = json.loads(value)
    except ValueError as error:
        raise BadOption(f"option {option} is not JSON: {error}") from None
    offsets = {}
    for written, token in found.items():
        name = given.stream_name(written, option)
        position = as_position(token) if isinstance(token, str) else None
        if position is None:
            raise BadOption(f"option {option} has '{token}' for {written}, which is not an offset")
        bucket, _, below = name.partition("/")
        if name not in which.names and not (
            bucket == which.bucket and below.startswith(which.prefix)
        ):
            raise BadOption(f"option {option} has an offset of {written}, which is not read")
        offsets[name] = position
    return offsets


def verified(streams: Streams, name: str, at: Position, option: str) -> Position:
    """An offset from the user, if it belongs to the stream. Raises `BadOption`, `Trimmed`."""
    found = START if at == START else streams.boundary(name, at.record)
    if found != at:
        raise BadOption(
            f"option {option} has {at.token().decode()} for {name}, which is not an offset of it"
        )
    return at


def schema_of(request: Request) -> T.StructType:
    """The columns of the streams: `record` as the JSON has it, or binary if one of them is not
    JSON. Raises `BadOption` if there is nothing to infer it from."""
    streams = request.place.open()
    described = list(request.which.described(streams))
    record: T.DataType = T.BinaryType()
    if all(is_json(each.content_type) for each in described):
        messages = sample(streams, described)
        if not messages:
            raise BadOption(
                "there is no message to infer a schema from: give one, such as "
                ".schema('stream string, offset string, record struct<agent: string>')"
            )
        record = infer(messages)
    return T.StructType(
        [
            T.StructField(STREAM, T.StringType()),
            T.StructField(OFFSET, T.StringType()),
            T.StructField(RECORD, record),
        ]
    )


def sample(streams: Streams, described: Iterable[Described]) -> list[Any]:
    """The first messages of the first streams that have some, parsed."""
    found: list[Any] = []
    filled = (each for each in described if each.tail != START)
    for each in islice(filled, _SAMPLED_STREAMS):
        left = _SAMPLED_RECORDS // _SAMPLED_STREAMS
        whole = Range(each.name, each.incarnation, 0, each.tail.record, each.tail.byte)
        wanted = streams.located(whole)
        for piece in read(streams, wanted, Rules(skip_trimmed=True, skip_deleted=True)):
            piece = piece.cut(left)
            start = 0
            for length in piece.lengths.tolist():
                found.append(parse(piece.data[start : start + length - 1]))
                start += length
            left -= len(piece.lengths)
            if not left:
                break
    return found


def batches(request: Request, columns: Columns, part: Part) -> Iterator[pa.RecordBatch]:
    """The batches that a task reads."""
    streams = request.place.open(part.number, met=True)
    for wanted in part.ranges:
        for piece in read(streams, wanted, request.rules):
            yield columns.batch(wanted.name, piece)


def ranges(
    found: Iterable[tuple[Described, Position]],
) -> Iterator[Range]:
    """The range between a position and the tail of each stream."""
    for each, start in found:
        if start.record < each.tail.record:
            size = each.tail.byte - start.byte
            yield Range(each.name, each.incarnation, start.record, each.tail.record, size)
