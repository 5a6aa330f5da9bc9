"""Replays scopes one after the other, from rows that are sorted by scope and place."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import msgspec
import pyarrow as pa
from msgspec.structs import astuple

from streamd_audit.commands import Create
from streamd_audit.replay import buckets, compare, heads, results
from streamd_audit.replay.compare import Producers
from streamd_audit.replay.ids import Known, Numbered, Place
from streamd_audit.replay.model import LastRequest, Published, Stream, Upload
from streamd_audit.replay.quotas import History, Quotas
from streamd_audit.replay.scope import Scope
from streamd_audit.replay.stated import KINDS as OF_SUBSCRIPTIONS
from streamd_audit.replay.stated import Stated, fence_of, linked
from streamd_audit.rows import ProducerState, read_row
from streamd_audit.rows import Stream as StreamRow
from streamd_audit.rows import Upload as UploadRow
from streamd_audit.subscriptions import AddSubscriptionKey

# The kind of a scope's row: something in the state from which the log continues, a command,
# something in a state that the log leads to and not in the state before it, or the other way round.
BEFORE, COMMAND, AFTER, GONE = range(4)
# Where rows of the first state stand in their entry: first streams, then what belongs to them.
STATE_POSITIONS = {
    "subscription": -5, "named": -4, "stream": -3, "producer": -2, "upload": -1, "header": -1,
    "linked": -1, "pending": -1, "ended claims": -1, "subscription key": -1,
}  # fmt: skip

# A bundle of commands has the place of the first; `body` is the bundle, or a state's row. Only a
# command by itself has the `number` that it gives, or found no bucket.
COLUMNS = ("scope", "group", "op", "index", "position", "body", "number", "no_bucket")

# Tables of the output.
APPENDS, OUTCOMES, MADE, EVENTS, STREAMS, DIFFERENCES = range(6)
OUTPUT_ARROW = pa.schema(
    [
        ("table", pa.int32()),
        ("scope", pa.int64()),
        ("group", pa.int32()),
        ("key", pa.binary()),
        ("stream_id", pa.int64()),
        ("born_index", pa.int64()),
        ("born_position", pa.int32()),
        ("index", pa.int64()),
        ("position", pa.int32()),
        ("start_record", pa.int64()),
        ("start_byte", pa.int64()),
        ("records", pa.int64()),
        ("bytes", pa.int64()),
        ("digests", pa.binary()),
        ("text", pa.string()),
        ("detail", pa.binary()),
    ]
)
OUTPUT_DDL = (
    "table int, scope long, `group` int, key binary, stream_id long, born_index long, "
    "born_position int, index long, position int, start_record long, start_byte long, "
    "records long, bytes long, digests binary, text string, detail binary"
)
_NAMES = OUTPUT_ARROW.names
# Which columns a table fills; the others are null.
_FILLED = {
    APPENDS: "scope group key stream_id born_index born_position "
    "start_record start_byte records bytes digests detail",
    OUTCOMES: "scope group key index position text",
    MADE: "scope group key stream_id born_index born_position text",
    EVENTS: "scope group key index position records bytes",
    STREAMS: "scope group key stream_id born_index born_position "
    "start_record start_byte records bytes digests detail",
    # The position is the number of the state among those that are compared.
    DIFFERENCES: "scope group key stream_id index position text detail",
}


class StreamDetail(msgspec.Struct, array_like=True):
    """The parts of a stream that have no column of their own."""

    content_type: str
    created_ms: int
    last_write_ms: int
    touched_ms: int
    ttl_ms: int | None
    expires_at_ms: int | None
    closed: bool
    last_seq: str | None
    deleted: bool
    forks: int
    extents: tuple[tuple[int | None, int, int, int, int], ...]
    """Id if known, where it was made if in the log (index and position, else -1), where it ends."""
    earliest: tuple[int, int]
    snapshot_digest: bytes
    snapshot_size: int
    producers: dict[str, LastRequest]


class Appended(msgspec.Struct, array_like=True):
    """Appends to a stream, one after the other: by which entry, of how many records and bytes."""

    entries: list[int] = []
    records: list[int] = []
    sizes: list[int] = []


class _Appends:
    """Appends that share one row; the stream was `born` in the log, or has its id."""

    __slots__ = ("appended", "digests", "end", "start", "stream")

    def __init__(self, stream: Stream, start: tuple[int, int]) -> None:
        self.stream = stream
        self.start = start
        self.end = start
        self.appended = Appended()
        self.digests: list[bytes] = []


# After every place in a log.
_NOWHERE: Place = (2**63, 0)
# One row describes at most this many appends.
_MOST_APPENDS = 4096

DETAIL_ENCODER = msgspec.msgpack.Encoder()
decode_detail = msgspec.msgpack.Decoder(StreamDetail).decode
decode_appended = msgspec.msgpack.Decoder(Appended).decode
_in_order = itemgetter(0, 1, 2)


class Replay:
    """Feed it rows (`COLUMNS`), and take away what it found.

    `states` are the places (`Plan.places`) of the states of the `AFTER` and `GONE` rows, in order,
    and `versions` those of their patterns. `began` is what the state before the log says of
    patterns and generations (`Scope`).
    """

    def __init__(
        self,
        states: Sequence[Place] = (),
        bases: tuple[tuple[int, int], ...] = (),
        first_number: int = 1,
        history: History | None = None,
        began: tuple[int, int] = (0, 0),
        versions: Sequence[int] = (),
    ) -> None:
        self._states = [*states, _NOWHERE]
        self._began, self._versions = began, versions
        self._history = history or History()
        self._bases = bases
        self._first_number = first_number
        self._tables: dict[int, list[tuple[Any, ...]]] = {table: [] for table in _FILLED}
        self._at: tuple[int, int] | None = None
        self._begin(0, 0)

    def _begin(self, scope_id: int, group: int) -> None:
        self._scope_id, self._group = scope_id, group
        self._known = Known({}, set(), self._bases, self._first_number)
        quotas = Quotas(self._history)
        self._scope = Scope(self._known, self._made, self._ended, quotas, self._began)
        self._stated = Stated(self._scope.subscriptions)
        self._all_made: list[Numbered] = []
        self._by_id: dict[int, Stream] = {}
        self._waiting: list[heads.Step] = []
        self._appends: dict[bytes, _Appends] = {}
        self._place: Place = (0, 0)
        self._log_ms = 0
        self._event = 0
        # The rows of the state that was reached last.
        self._said: dict[bytes, StreamRow] = {}
        self._producers: dict[int, Producers] = {}
        self._key_of: dict[int, bytes] = {}
        self._next = 0
        self._next_index = self._states[0][0]

    def feed(self, row: tuple[Any, ...]) -> None:
        """Take the next row, a tuple of `COLUMNS`: by scope, and in a scope by place."""
        scope_id, group, op, index, position, body, number, no_bucket = row
        if self._at != (scope_id, group):
            if self._at is not None:
                self.finish()
            self._at = scope_id, group
            self._begin(scope_id, group)
        if self._waiting:
            self._apply_before((index, position))
        if op != COMMAND:
            if (index, position) > self._states[self._next]:
                self._reach((index, position))
            self._take_row(op, body)
            return
        if number is not None:
            self._known.numbers[index, position] = number
        if no_bucket:
            self._known.without_bucket.add((index, position))
        waiting = self._waiting
        has_more = bool(waiting)
        waiting += heads.unpack(body)
        if has_more:
            # Bundles of the streams of one scope interlock.
            waiting.sort(key=_in_order)

    def _apply_before(self, place: Place) -> None:
        """Apply everything that comes before the remaining rows."""
        waiting = self._waiting
        if waiting[-1][:2] < place:
            self._apply(waiting)
            waiting.clear()
        else:
            ready = bisect_left(waiting, place, key=lambda step: step[:2])
            self._apply(waiting[:ready])
            del waiting[:ready]

    def _apply(self, ready: Iterable[heads.Step]) -> None:
        scope = self._scope
        apply = scope.apply
        for index, position, _, term, log_ms, command, records, size, digests in ready:
            if index > self._next_index:
                self._reach((index, position))
            self._place = index, position
            self._log_ms = log_ms
            if type(command) is Create and not command.implicit_bucket:
                self._tell(buckets.ASKED, command.key)
            result = apply(index, position, term, log_ms, command, records, size, digests)
            if result is results.APPENDED or (result is results.CREATED and records):
                assert scope.stream is not None
                self._append(index, scope.stream, scope.start, records, size, digests)
            for event in scope.events:
                self._append(index, event.stream, event.start, 1, event.size, event.digests)
            if result is results.APPENDED:
                continue
            if scope.part is not None:
                self._tell_part(index, size, digests)
            self._note(command, result)

    def _append(
        self, index: int, stream: Stream, start: Place, records: int, size: int, digests: bytes
    ) -> None:
        known = self._appends.get(stream.key)
        if (
            known is None
            or known.stream is not stream
            or known.end != start
            or len(known.digests) >= _MOST_APPENDS
        ):
            if known is not None:
                self._tell_appends(known)
            known = self._appends[stream.key] = _Appends(stream, start)
        appended = known.appended
        appended.entries.append(index)
        appended.records.append(records)
        appended.sizes.append(size)
        known.digests.append(digests)
        known.end = start[0] + records, start[1] + size

    def _tell_appends(self, known: _Appends) -> None:
        stream, start, end = known.stream, known.start, known.end
        self._tables[APPENDS].append(
            (self._scope_id, self._group, stream.key, None if stream.is_guessed else stream.id,
             *(stream.born or (None, None)), *start, end[0] - start[0], end[1] - start[1],
             b"".join(known.digests), DETAIL_ENCODER.encode(known.appended))
        )  # fmt: skip

    def _tell_part(self, index: int, size: int, digests: bytes) -> None:
        """A part of a snapshot's body, as a record of its blob."""
        part = self._scope.part
        assert part is not None
        blob = part.blob
        appended = Appended([index], [1], [size])
        self._tables[APPENDS].append(
            (self._scope_id, self._group, b"", None if blob.is_guessed else blob.id,
             *(blob.born or (None, None)), part.number, part.byte, 1, size, digests,
             DETAIL_ENCODER.encode(appended))
        )  # fmt: skip

    def _note(self, command: heads.Command, result: str) -> None:
        # A subscription key is not a stream's key.
        key = b"" if isinstance(command, AddSubscriptionKey) else getattr(command, "key", b"")
        is_absent = self._scope.stream is None and type(command) is not Create
        if is_absent and result in (results.PRECONDITION_FAILED, results.BUCKET_NOT_FOUND):
            self._tell(buckets.ASKED, key)
        row = (self._scope_id, self._group, key, *self._place, result)
        self._tables[OUTCOMES].append(row)

    # -- what the scope tells -------------------------------------------------------------------

    def _made(self, thing: Numbered) -> None:
        self._all_made.append(thing)
        if isinstance(thing, Stream):
            self._tell(buckets.MADE, thing.key)

    def _ended(self, stream: Stream, place: Place, is_kept: bool) -> None:
        if is_kept:
            self._tell(buckets.HIDDEN, stream.key)
        else:
            self._tell(buckets.HIDDEN_REMOVED if stream.deleted else buckets.REMOVED, stream.key)

    def _tell(self, event: int, key: bytes) -> None:
        self._event += 1
        bucket, nul, _ = key.partition(b"\0")
        if nul:
            self._tables[EVENTS].append(
                (self._scope_id, self._group, bucket, *self._place, self._event * 8 + event,
                 self._log_ms)
            )  # fmt: skip

    # -- states -----------------------------------------------------------------------------------

    def _take_row(self, op: int, body: bytes) -> None:
        key, raw = heads.decode_row(body)
        row = read_row(key, raw)
        value = row.value
        if row.kind in OF_SUBSCRIPTIONS:
            self._stated.take(row, is_first=op == BEFORE, is_there=op != GONE)
            # Of a stream's links there are rows besides its own.
            self._scope.changed.update(
                [row.rest] if op != BEFORE and row.rest in self._said else []
            )
        elif isinstance(value, ProducerState):
            self._take_producer(op, row.numbers[0], row.rest.decode(errors="replace"), value)
        elif isinstance(value, StreamRow):
            if op == BEFORE:
                stream = stream_of(row.rest, value)
                subscriptions = self._scope.subscriptions
                stream.links = linked(value.links, subscriptions)
                stream.fence = fence_of(value.fence, subscriptions)
                self._by_id[value.stream_id] = stream
                self._scope.take(stream)
            else:
                self._scope.changed.add(row.rest)
            if op == GONE:
                self._said.pop(row.rest, None)
            else:
                self._said[row.rest] = value
                self._key_of[value.stream_id] = row.rest
        elif isinstance(value, UploadRow) and op == BEFORE:
            of = self._by_id.get(value.stream_id)
            upload = Upload(None, row.numbers[0], of, value.touched_ms)
            upload.parts, upload.size = value.parts, value.size
            self._scope.uploads.add(upload)

    def _take_producer(self, op: int, stream_id: int, name: str, row: ProducerState) -> None:
        of_stream = self._producers.setdefault(stream_id, {})
        if op == GONE:
            of_stream.pop(name, None)
        else:
            of_stream[name] = astuple(row)
        if op != BEFORE:
            key = self._key_of.get(stream_id)
            # Rows of a stream that was removed may stay for a while.
            if key is not None:
                self._scope.changed.add(key)
        elif stream_id in self._by_id:
            self._by_id[stream_id].producers[name] = astuple(row)

    def _reach(self, place: Place) -> None:
        """Compare the states before a place with what the log led to."""
        states, changed, stated = self._states, self._scope.changed, self._stated
        while (state := states[self._next]) < place:
            if not changed and not stated.is_changed:
                self._next = bisect_left(states, place, lo=self._next)
                break
            self._next += 1
            version = self._versions[self._next - 1] if self._versions else 0
            of_links = partial(stated.of_stream, version=version)
            of_streams = self._scope, self._said, self._producers, changed
            found = [
                *stated.differences(self._scope.streams),
                *compare.differences(*of_streams, of_links),
            ]
            self._tables[DIFFERENCES] += [
                (self._scope_id, self._group, one.key, one.stream_id,
                 state[0] if one.entry is None else one.entry, self._next - 1, one.kind,
                 DETAIL_ENCODER.encode((one.offset, one.expected, one.found)))
                for one in found
            ]  # fmt: skip
            changed.clear()
        self._next_index = states[self._next][0]

    def finish(self) -> None:
        """End the scope; call it after the last row."""
        if self._at is None:
            return
        self._apply(self._waiting)
        for known in self._appends.values():
            self._tell_appends(known)
        self._reach(_NOWHERE)
        self._at = None
        for thing in self._all_made:
            key = thing.key if isinstance(thing, Stream) else None
            self._tables[MADE].append(
                (
                    self._scope_id,
                    self._group,
                    key,
                    thing.id,
                    *thing.born,
                    "guessed" if thing.is_guessed else None,
                )  # type: ignore[misc]
            )
        for stream in self._scope.streams.values():
            self._tables[STREAMS].append(
                (self._scope_id, self._group, stream.key,
                 None if stream.is_guessed else stream.id, *(stream.born or (None, None)),
                 *stream.from_place, stream.records, stream.size, stream.hasher.digest(),
                 DETAIL_ENCODER.encode(_detail(stream)))
            )  # fmt: skip

    # -- output -----------------------------------------------------------------------------------

    def take(self, least: int = 1) -> Iterator[pa.RecordBatch]:
        """The rows found, of each table that has `least` rows."""
        for table, rows in self._tables.items():
            if len(rows) >= least:
                yield _batch(table, rows)
                rows.clear()

    def rows(self, table: int) -> list[tuple[Any, ...]]:
        """Rows found and not taken away, as tuples of the columns that the table fills."""
        return self._tables[table]


def _batch(table: int, rows: list[tuple[Any, ...]]) -> pa.RecordBatch:
    filled = dict(zip(_FILLED[table].split(), zip(*rows, strict=True), strict=True))
    arrays = []
    for field in OUTPUT_ARROW:
        if field.name == "table":
            arrays.append(pa.array([table] * len(rows), type=field.type))
        elif field.name in filled:
            arrays.append(pa.array(filled[field.name], type=field.type))
        else:
            arrays.append(pa.nulls(len(rows), type=field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=OUTPUT_ARROW)


# The fields of a state's row that the replay has under the same names, and with the same values.
_KEPT_ALIKE = {*StreamRow.__struct_fields__}.intersection(Stream.__slots__) - {
    "extents", "fence", "links", "producers", "snapshot",
}  # fmt: skip


def stream_of(key: bytes, row: StreamRow) -> Stream:
    """A stream as a state has it."""
    stream = Stream(key, row.settings, row.created_ms, None, row.stream_id)
    for name in _KEPT_ALIKE:
        setattr(stream, name, getattr(row, name))
    stream.extents = tuple(astuple(extent) for extent in row.extents)
    stream.from_place = row.records, row.size
    stream.counted = row.producers
    known = row.snapshot
    if known is not None:
        stream.snapshot = Published(
            known.record, known.byte, known.size, known.content_type, known.digest,
            Numbered(None, known.blob_id),
        )  # fmt: skip
    return stream


def _detail(stream: Stream) -> StreamDetail:
    known = stream.snapshot
    return StreamDetail(
        stream.content_type,
        stream.created_ms,
        stream.last_write_ms,
        stream.touched_ms,
        stream.ttl_ms,
        stream.expires_at_ms,
        stream.closed,
        stream.last_seq,
        stream.deleted,
        stream.forks,
        tuple(
            (home, -1, -1, record, byte)
            if isinstance(home, int)
            else (None if home.is_guessed else home.id, *(home.born or (-1, -1)), record, byte)
            for home, record, byte in stream.extents
        ),
        stream.earliest,
        b"" if known is None else known.digest,
        0 if known is None else known.size,
        stream.producers,
    )
