"""What the audit takes from the log, in one pass over its segments.

A command is not a row by itself: a row costs Spark more than its command costs the model. Commands
about one stream travel in bundles; there is little of anything else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.types import StructType

from streamd_audit import log_order
from streamd_audit.commands import (
    AddLogKey,
    Append,
    Archived,
    Batch,
    Command,
    Create,
    CreateBucket,
    CreateToken,
    DeleteBucket,
    FlushCold,
    ForgetPacks,
    MoveSlices,
    OpenSession,
    Package,
    PublishSnapshot,
    RaiseLevel,
    RecordOperation,
    RenewIncarnations,
    RevokeToken,
    RotateToken,
    Scrubbed,
    SetLimits,
    StorePart,
    decode_configuration,
)
from streamd_audit.errors import UNKNOWN_FIELD, Damaged
from streamd_audit.frames import batches_of
from streamd_audit.log_order import Entries, Told
from streamd_audit.log_trees import PartMaker, SegmentPart
from streamd_audit.names import SegmentName
from streamd_audit.replay import buckets, heads
from streamd_audit.replay.headers import OfHeader
from streamd_audit.replay.heads import Bundle
from streamd_audit.segments import COMMANDS, CONFIGURATION, NOOP, Entry, read_head
from streamd_audit.sources.log import LogReader, LogSource
from streamd_audit.sources.log_columns import LogEntry, digests_of
from streamd_audit.sources.planning import Piece
from streamd_audit.store import Store
from streamd_audit.strict import check_known
from streamd_audit.subscriptions import PutSubscription

SCANNED_DDL = (
    "what int, `group` int, index long, position int, bucket string, stream string, "
    "other_bucket string, other_stream string, one long, two long, three long, object string, "
    "body binary"
)
_COLUMNS = tuple(part.split()[0].strip("`") for part in SCANNED_DDL.split(", "))

# What a row is. Commands about a stream, or about upload `one`, in a `Bundle`, by the place of the
# first of them; that a stream is forked off another; that it was to be given upload `one`; what
# happens (`one`) at `two` ms to the bucket that is the body; that node `one` opens a session, with
# nonce `two` in the place of session `three`; a package of node `one`, by the place of its first
# command, the rest of it as the body; that a pack of term `one` and number `two` was made, with
# `object` and `three` bytes, or without that it was forgotten; a command about limits, or about a
# token, at `two` ms, as the body; a command as the body that only the state's header shows.
BUNDLE, BUNDLE_OF_UPLOAD, FORK, PUBLISHED, OF_BUCKET, OPENED_SESSION, PACKAGE, PACK = range(8)
# Or the pattern of a subscription, as the body. The subscriptions of a group are together what has
# no names, and streams go with them as with a source.
LIMITS, TOKEN, HEADER, PATTERN = 8, 9, 10, 11
# And what comes together in one place: `log_order.Told`, sorted by `one` where that is a term; the
# `Joint` of a segment with entries from `index` to `two`; what is wrong with an object or an entry
# of it; the term (`one`), the chain (`two`) and the log's time (`three`) at an entry that was asked
# for; and of recoveries
# and the membership what `one` says, `CONFIGURED` with its payload, `RENEWED` to base `two`, or
# `BEGAN_ANEW`.
WRONG, RUN, NOOPS, SEGMENT, PROBLEM, PLACED, SETTING = range(12, 19)
# The part that a segment has of the tree over the log (`log_trees.SegmentPart`); and that rows of
# kind `one` are there.
TREE, KIND = 19, 20
CONFIGURED, RENEWED, BEGAN_ANEW = range(3)
_OF_TOLD = {log_order.WRONG: WRONG, log_order.RUN: RUN, log_order.NOOP: NOOPS}

# What streams have as a bucket and a name, of subscriptions.
OF_SUBSCRIPTIONS = "", ""

_NO_DATA = memoryview(b"")
_NO_NAMES = None, None
_LONG = 2**63

Row = tuple[Any, ...]

encode = msgspec.msgpack.Encoder().encode
decode_told = msgspec.msgpack.Decoder(Told).decode
decode_texts = msgspec.msgpack.Decoder(list[str]).decode
decode_header = msgspec.msgpack.Decoder(OfHeader).decode
decode_limits = msgspec.msgpack.Decoder(SetLimits).decode
decode_package = msgspec.msgpack.Decoder(Package).decode


class Joint(msgspec.Struct, array_like=True):
    """The chain, the term and the log's time before a segment's first entry, and at its last one,
    by its head; None if that cannot be read."""

    before: tuple[int, int, int] | None = None
    last: tuple[int, int, int] | None = None


decode_joint = msgspec.msgpack.Decoder(Joint).decode


class Scan(LogReader):
    """Reads segments as the source does, and makes rows of `SCANNED_DDL`.

    `places` are indexes of requested entries; a bundle ends with each. Of a group that `since` has
    only commands after that entry are taken. Of whole segments the part of the tree over the log is
    made, too, if there are `tree_places`, where it is asked for.
    """

    def __init__(
        self,
        options: Mapping[str, str],
        schema: StructType,
        places: Sequence[int],
        since: Mapping[int, int],
        tree_places: Collection[int] | None = None,
    ) -> None:
        super().__init__(options, schema)
        self.columns = frozenset(LogSource.COLUMNS)
        self._places = frozenset(places)
        self._since = since
        self._tree_places = None if tree_places is None else frozenset(tree_places)
        self._part: PartMaker | None = None

    def parts_of(self, name: str, size: int) -> int:
        # Each part of an object would decompress all that comes before it.
        return 1

    def batches(self, store: Store, pieces: Iterable[Piece]) -> Iterator[pa.RecordBatch]:
        self._runs = log_order.Runs()
        kinds: set[int] = set()
        for batch in super().batches(store, pieces):
            kinds.update(batch.column("what").unique().to_pylist())
            yield batch
        yield from batches_of(SCANNED_DDL, map(_told, self._runs.finish()))
        yield from batches_of(SCANNED_DDL, (_row(KIND, 0, None, one=kind) for kind in kinds))

    def _head(self, piece: Piece, name: SegmentName, content: bytes) -> Iterator[pa.RecordBatch]:
        self._part = None
        if piece.until is not None:
            return
        if self._tree_places is not None and piece.after < name.first:
            # What cannot be read of a segment is reported.
            with suppress(Damaged):
                self._part = PartMaker(piece.name, name, content, self._tree_places)
        joint = Joint()
        try:
            head = read_head(content)
            before, last = head.previous, head.last
            joint = Joint(
                (before.chain, before.term, before.time_ms), (last.chain, last.term, last.time_ms)
            )
        except Damaged:
            pass  # the entries are reported
        body = encode(joint)
        yield from batches_of(
            SCANNED_DDL,
            [_row(SEGMENT, name.group, name.first, two=name.last, object=piece.name, body=body)],
        )

    def _rows(
        self, piece: Piece, name: SegmentName, entries: list[LogEntry]
    ) -> Iterator[pa.RecordBatch]:
        since = self._since.get(name.group, 0)
        wanted = [entry for entry in entries if entry.index > since]
        order = _order(name.group, piece.name, wanted)
        rows = [_told(told) for told in self._runs.take(order)]
        begin = 0
        for at, entry in enumerate(wanted):
            if entry.problem is not None:
                problem = entry.problem.encode()
                rows.append(_row(PROBLEM, name.group, entry.index, object=piece.name, body=problem))
            if entry.index in self._places:
                term, chain, log_ms = entry.term, entry.chain, entry.log_ms
                rows.append(
                    _row(PLACED, name.group, entry.index, one=term, two=chain, three=log_ms)
                )
                rows += commands_of(name.group, wanted[begin : at + 1])
                begin = at + 1
        rows += commands_of(name.group, wanted[begin:])
        yield from batches_of(SCANNED_DDL, rows)

    def _end(
        self, piece: Piece, name: SegmentName, damaged: Damaged | None
    ) -> Iterator[pa.RecordBatch]:
        part, self._part = self._part, None
        if part is not None:
            yield from batches_of(SCANNED_DDL, [tree_row(name, piece, part.finish(damaged))])

    def _with_commands(self, entry: Entry) -> LogEntry:
        if self._part is not None:
            self._part.add(entry)
        found = super()._with_commands(entry)
        if found.problem is None:
            try:
                _check_known(entry, found)
            except Damaged as damaged:
                found.problem = self.told(damaged)
        return found

    def _problem(self, piece: Piece, name: SegmentName, damaged: Damaged) -> pa.RecordBatch:
        told = self.told(damaged, piece.name).encode()
        row = _row(PROBLEM, name.group, damaged.at, object=piece.name, body=told)
        return next(batches_of(SCANNED_DDL, [row]))


def _check_known(entry: Entry, found: LogEntry) -> None:
    """Raises `Damaged` if an entry says anything that the audit does not know."""
    index, payload = entry.index, entry.payload
    if entry.kind == COMMANDS:
        batch = Batch(entry.stamp_ms, found.commands, found.packages)
        check_known(batch, payload, "a batch of commands", index)
    elif entry.kind == CONFIGURATION:
        check_known(decode_configuration(payload, index), payload, "a configuration", index)
    elif entry.kind != NOOP or len(payload):
        told = f"entry {index} is of kind {entry.kind}, with {len(payload)} bytes"
        raise Damaged(UNKNOWN_FIELD, told, index)


def commands_of(group: int, entries: Iterable[LogEntry]) -> Iterator[Row]:
    """The commands of some consecutive entries."""
    bundles: defaultdict[bytes, Bundle] = defaultdict(list)
    for entry in entries:
        index, term, log_ms = entry.index, entry.term, entry.log_ms
        if entry.kind == CONFIGURATION:
            yield _row(SETTING, group, index, one=CONFIGURED, body=entry.payload)
        if entry.packages:
            for position, package in _packages(entry):
                body = encode(package)
                yield _row(PACKAGE, group, index, position, one=package.node_id, body=body)
        for position, command in enumerate(entry.commands):
            if type(command) is Append or type(command) is Create:
                data, lengths = command.data, command.lengths
                command.data = _NO_DATA
                digests = digests_of(data, lengths) if lengths else b""
                bundles[command.key].append(
                    (index, position, 0, term, log_ms, command, len(lengths), len(data), digests)
                )
                if type(command) is Append:
                    continue
            else:
                for key, step in _steps(entry, position, command):
                    if isinstance(key, bytes):
                        bundles[key].append(step)
                    else:
                        body = heads.pack([step])
                        yield _row(BUNDLE_OF_UPLOAD, group, index, position, one=key, body=body)
            yield from _facts(group, entry, position, command)
    for key, bundle in bundles.items():
        bucket, _, name = key.partition(b"\0")
        if (bucket and name) or key == heads.OF_SUBSCRIPTIONS:
            names = _text(bucket), _text(name)
            yield _row(BUNDLE, group, *bundle[0][:2], *names, body=heads.pack(bundle))


def _steps(
    entry: LogEntry, position: int, command: Command
) -> Iterator[tuple[bytes | int, heads.Step]]:
    """A rare command, by the streams or the upload it is about."""
    records, size, digests = 0, 0, b""
    if isinstance(command, StorePart | PublishSnapshot):
        # A part of a body is one record.
        size = len(command.data)
        records = min(size, 1)
        if size:
            digests = digests_of(command.data, [size])
        command.data = _NO_DATA
    for sub, (key, one) in enumerate(heads.cut(command)):
        yield (
            key,
            (entry.index, position, sub, entry.term, entry.log_ms, one, records, size, digests),
        )


def _facts(group: int, entry: LogEntry, position: int, command: Any) -> Iterator[Row]:
    """What a command says beyond one stream."""
    place = group, entry.index, position
    for key in heads.keys_in(command):
        tied = _names(key)
        if tied is not None:
            yield _row(FORK, *place, *tied, *OF_SUBSCRIPTIONS)
    match command:
        case Create() if command.settings.fork is not None:
            source = _names(command.settings.fork.source)
            if source is not None:
                bucket, stream = _names(command.key) or _NO_NAMES
                yield _row(FORK, *place, bucket, stream, source[0], source[1])
        case PutSubscription() if command.config.pattern:
            yield _row(PATTERN, *place, body=command.config.pattern.encode())
        case PublishSnapshot() if command.upload_id > 0:
            names = _names(command.key) or _NO_NAMES
            yield _row(PUBLISHED, *place, *names, one=command.upload_id)
        case CreateBucket() | DeleteBucket():
            is_made = isinstance(command, CreateBucket)
            event = buckets.BUCKET_CREATED if is_made else buckets.BUCKET_DELETED
            yield _row(OF_BUCKET, *place, one=event, two=entry.log_ms, body=command.name)
        case OpenSession():
            node, nonce, replaces = command.node_id, command.nonce, command.replaces
            yield _row(OPENED_SESSION, *place, one=node, two=nonce, three=replaces)
        case ForgetPacks():
            for term, number in command.packs:
                yield _row(PACK, *place, one=term, two=number)
        # One that a deposed leader proposed has no effect.
        case FlushCold() | MoveSlices() if command.term == entry.term:
            term, number, size = command.term, command.number, command.size
            yield _row(PACK, *place, one=term, two=number, three=size, object=command.name)
        case SetLimits():
            yield _row(LIMITS, *place, two=entry.log_ms, body=encode(command))
        case CreateToken() | RotateToken() | RevokeToken() | RecordOperation():
            yield _row(TOKEN, *place, two=entry.log_ms, body=encode(command))
        case RenewIncarnations():
            yield _row(SETTING, *place, one=RENEWED, two=command.base)
            yield _row(HEADER, *place, body=encode(command))
            yield _row(TOKEN, *place, two=entry.log_ms, body=encode(command))
        case AddLogKey() | RaiseLevel():
            yield _row(HEADER, *place, body=encode(command))
        # Nor have these.
        case Archived() | Scrubbed() if command.term == entry.term:
            yield _row(HEADER, *place, body=encode(command))
            if isinstance(command, Archived) and command.has_gap:
                yield _row(SETTING, *place, one=BEGAN_ANEW)
        case _:
            pass


def _packages(entry: LogEntry) -> Iterator[tuple[int, Package]]:
    """The packages of a batch, each with the position of its first command. The commands of
    packages come last, and packages may claim more commands than there are."""
    at = len(entry.commands) - sum(package.count for package in entry.packages)
    for package in entry.packages:
        begin, at = max(at, 0), at + package.count
        if at > begin:
            yield begin, package


def _order(group: int, name: str, entries: Sequence[LogEntry]) -> Entries:
    return Entries(
        group,
        name,
        [entry.index for entry in entries],
        [entry.term for entry in entries],
        [
            entry.stamp_ms if entry.stamp_ms is not None and entry.stamp_ms < _LONG else None
            for entry in entries
        ],
        [entry.chain for entry in entries],
        [at for at, entry in enumerate(entries) if entry.kind == NOOP],
    )


def tree_row(name: SegmentName, piece: Piece, part: SegmentPart) -> Row:
    return _row(TREE, name.group, name.first, object=piece.name, body=encode(part))


def _told(told: Told) -> Row:
    what = _OF_TOLD[told.what]
    term = told.first_term if what == NOOPS else None
    return _row(what, told.group, told.first, one=term, body=encode(told))


def _row(
    what: int,
    group: int,
    index: int | None,
    position: int | None = None,
    bucket: str | None = None,
    stream: str | None = None,
    other_bucket: str | None = None,
    other_stream: str | None = None,
    *,
    one: int | None = None,
    two: int | None = None,
    three: int | None = None,
    object: str | None = None,  # noqa: A002 - the column's name
    body: bytes | None = None,
) -> Row:
    return (
        what, group, index, position, bucket, stream, other_bucket, other_stream, one, two, three,
        object, body,
    )  # fmt: skip


def _names(key: bytes) -> tuple[str, str] | None:
    """Bucket and name in a stream's key."""
    bucket, nul, name = key.partition(b"\0")
    if not nul:
        return None
    return _text(bucket), _text(name)


def _text(name: bytes) -> str:
    return name.decode("utf-8", "replace")
