"""The machine's state: tables and tails over a key-value store.

Changes gather in memory and are stored a batch at a time, together with the index of the last
applied entry; the Raft log replays what a crash loses of them. Nothing here grows with the number
of streams: an idle stream is only a few keys in the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, get_args

import msgspec

from streamd.streams import keys
from streamd.streams.blobs import Parts
from streamd.streams.checks import is_applicable
from streamd.streams.commands import (
    Append,
    BeginUpload,
    Command,
    Create,
    Delete,
    DropSlices,
    FlushCold,
    MoveSlices,
    PublishSnapshot,
    Sweep,
    Touch,
)
from streamd.streams.etags import incarnation_base
from streamd.streams.fencing.fences import EndedClaims
from streamd.streams.limits import LimitsTable
from streamd.streams.model import (
    Blob,
    Bucket,
    ColdSlice,
    Header,
    Pack,
    ProducerState,
    Stream,
    Upload,
)
from streamd.streams.offsets import Position
from streamd.streams.operations.records import OperationRecords, abandon
from streamd.streams.sessions import WriteSession
from streamd.streams.subscriptions.commands import (
    AcknowledgeWake,
    ClaimWake,
    EndDelivery,
    EndLeases,
    LinkStreams,
    PutSubscription,
    ReleaseWake,
    UnlinkStream,
    WakeSubscription,
)
from streamd.streams.subscriptions.records import SubscriptionRecords
from streamd.streams.tables import KeyValue, Table
from streamd.streams.tails import Tails
from streamd.streams.tokens import Tokens

_STREAM_LIMIT = 50_000
_PRODUCER_LIMIT = 50_000
_BUCKET_LIMIT = 10_000
_BLOB_LIMIT = 10_000
_SLICE_LIMIT = 10_000
_PACK_LIMIT = 10_000
_SESSION_LIMIT = 1_000
_ENDED_LIMIT = 10_000
TAIL_LIMIT_BYTES = 96 * 1024 * 1024
# The rough memory cost of a table's change while it waits to be stored.
_ROW_BYTES = 300

_ENCODER = msgspec.msgpack.Encoder()
_UPLOAD_DECODER = msgspec.msgpack.Decoder(Upload)
_HEADER_DECODER = msgspec.msgpack.Decoder(Header)

# A row's numbers have 64 bits. Only counts from false claims in commands can come near.
_MOST = 2**63 - 1

Item = tuple[bytes, bytes | None]


def storable(count: int) -> int:
    """A count of bytes, limited to what a row can hold: a command may have made it up."""
    return min(max(count, -_MOST), _MOST)


class State:
    """Everything that the machine knows, as of `header.applied_index`."""

    def __init__(
        self, store: KeyValue, *, group_id: int = 0, tail_limit_bytes: int = TAIL_LIMIT_BYTES
    ) -> None:
        """`tail_limit_bytes` is how much stored data stays in memory for readers."""
        self._store = store
        self._group_id = group_id
        self._tail_limit_bytes = tail_limit_bytes
        self.flushes = 0
        self.load()

    def load(self) -> None:
        """Start from the store, forgetting everything else."""
        store = self._store
        raw = store.get(keys.HEADER)
        self.header = (
            Header(incarnation_base=incarnation_base(self._group_id))
            if raw is None
            else _HEADER_DECODER.decode(raw)
        )
        self.stored_index = self.header.applied_index
        # A read ahead for the former state must not bring it back.
        self.flushes += 1
        self.streams = Table(Stream, keys.STREAM, store.get, _STREAM_LIMIT)
        self.producers = Table(ProducerState, b"", store.get, _PRODUCER_LIMIT)
        self.buckets = Table(Bucket, keys.BUCKET, store.get, _BUCKET_LIMIT)
        self.uploads = Table(Upload, keys.UPLOAD, store.get, _BLOB_LIMIT)
        self.blobs = Table(Blob, keys.BLOB, store.get, _BLOB_LIMIT)
        self.slices = Table(ColdSlice, keys.SLICE, store.get, _SLICE_LIMIT)
        self.packs = Table(Pack, keys.PACK, store.get, _PACK_LIMIT)
        self.sessions = Table(WriteSession, keys.SESSION, store.get, _SESSION_LIMIT)
        self.ended_claims = Table(EndedClaims, keys.ENDED_CLAIMS, store.get, _ENDED_LIMIT)
        self.tokens = Tokens(store)
        self.limits = LimitsTable(store)
        self.operations = OperationRecords(store)
        self.subscriptions = SubscriptionRecords(store)
        self._tables = (
            self.streams,
            self.producers,
            self.buckets,
            self.uploads,
            self.blobs,
            self.slices,
            self.packs,
            self.sessions,
            self.ended_claims,
        )
        self._loaded_ahead: dict[bytes, Table[Any]] = {
            keys.STREAM: self.streams,
            keys.BLOB: self.blobs,
            keys.SLICE: self.slices,
        }
        # Streams that were seen to have many producers: for the leader, and no part of the state.
        self.crowded: set[bytes] = set()
        self.parts = Parts()
        self.tails = Tails(self._tail_limit_bytes)
        self._rows: dict[bytes, bytes | None] = {}
        self._appended_bytes = 0
        self._flushing_index = 0

    # -- changes ------------------------------------------------------------------------------

    def become_another(self, base: int) -> None:
        """Become the state of another cluster, with that `Header.incarnation_base`."""
        self.header.become_another(base)
        abandon(self.operations, self.header.log_ms)
        self.subscriptions.forget_keys()

    def append(
        self, key: bytes, stream: Stream, appends: Sequence[tuple[bytes, list[int]]]
    ) -> None:
        """Add the records of appends, each with its data and the lengths of its records, at the
        stream's tail and move the tail."""
        if stream.hot_at_ms is None:
            self.heat(key, stream)
        self.tails.append(stream.stream_id, stream.tail, appends)
        size = 0
        for data, lengths in appends:
            stream.records += len(lengths)
            size += len(data)
        stream.size += size
        self.header.hot_bytes += size
        self._appended_bytes += size

    def change_bucket(
        self, name: bytes, *, streams: int = 0, hidden: int = 0, size: int = 0, counted: int = 0
    ) -> None:
        """Change the counts of a bucket that has streams."""
        bucket = self.buckets.get(name)
        assert bucket is not None, "a bucket stays while it has streams"
        bucket.streams += streams
        bucket.hidden += hidden
        bucket.size = storable(bucket.size + size)
        bucket.counted += counted
        self.buckets.put(name, bucket)

    def heat(self, owner: bytes, what: Stream | Blob) -> None:
        """Count the bytes of a stream or blob that are not in the cold store; more will follow."""
        what.cold = what.cold_from
        self.header.hot_bytes = storable(self.header.hot_bytes + what.size - what.cold.byte)
        self._note_hot(owner, what)

    def cool(self, owner: bytes, what: Stream | Blob, to: Position) -> None:
        """Stop counting the bytes before `to` as hot."""
        if what.hot_at_ms is not None:
            self.header.hot_bytes = storable(self.header.hot_bytes - to.byte + what.cold.byte)
            self._rows[keys.hot_key(what.hot_at_ms, owner)] = None
            what.hot_at_ms = None
            if to.record < what.records:
                self._note_hot(owner, what)
        what.cold = to

    def _note_hot(self, owner: bytes, what: Stream | Blob) -> None:
        what.hot_at_ms = self.header.log_ms
        self._rows[keys.hot_key(what.hot_at_ms, owner)] = b""

    def schedule_sweep(self, key: bytes, stream: Stream) -> None:
        """Check the stream when it may have expired, if ever; a renewal alone moves nothing."""
        self.cancel_sweep(key, stream)
        at_ms = stream.expiry_ms()
        if at_ms is not None:
            stream.sweep_at_ms = at_ms = min(at_ms, keys.LAST_MS)
            self._rows[keys.expiry_key(at_ms, key)] = b""

    def cancel_sweep(self, key: bytes, stream: Stream) -> None:
        if stream.sweep_at_ms is not None:
            self._rows[keys.expiry_key(stream.sweep_at_ms, key)] = None
            stream.sweep_at_ms = None

    def discard(self, stream_id: int) -> None:
        """Leave the records and producers of a stream id to the background removal."""
        self.tails.drop(stream_id)
        self._rows[keys.garbage_key(stream_id)] = b""

    def trim(self, key: bytes, stream: Stream) -> None:
        """Leave the records before `stream.earliest` to the background removal, unless forks may
        still read them. To be called by whatever moves `earliest`, and when the last fork ends."""
        earliest = stream.earliest
        if not earliest.record or stream.forks:
            return
        self._rows[keys.trim_key(stream.stream_id, earliest.record)] = b""
        if earliest > stream.cold:
            self.cool(key, stream, stream.kept_start)

    def store_part(self, blob_id: int, number: int, data: bytes) -> None:
        """Add a part to a blob."""
        self.parts.put(blob_id, number, data)
        self._appended_bytes += len(data)

    def discard_blob(self, blob_id: int) -> None:
        """Leave a blob's parts to the background removal; readers in progress may finish."""
        self._rows[keys.garbage_key(blob_id)] = b""

    def discard_subscription(self, number: int) -> None:
        """Leave the rows about a subscription's streams to the background removal."""
        self._rows[keys.garbage_key(number)] = b""

    # -- reads --------------------------------------------------------------------------------

    def missing(self, commands: Iterable[Command]) -> Iterator[bytes]:
        """Rows that commands will read and that are not in memory, to load them first."""
        looked_for = b""
        for command in commands:
            # Most are appends to the stream of the one before.
            if type(command) is Append and command.key == looked_for:
                continue
            for looked_for in stream_keys(command):
                if looked_for not in self.streams:
                    yield keys.STREAM + looked_for
            if type(command) in _WITH_OTHER_ROWS and is_applicable(command):
                yield from self._missing_besides(command)
            elif type(command) in _WITH_WAKES:
                yield from self._missing_wake_streams(command)

    def _missing_besides(self, command: Command) -> Iterator[bytes]:
        for row in _other_rows(command):
            if row[1:] not in self._loaded_ahead[row[:1]]:
                yield row

    def _missing_wake_streams(self, command: Command) -> Iterator[bytes]:
        records = self.subscriptions
        match command:
            case EndLeases(numbers=numbers):
                found = [records.get(number) for number in numbers]
            case _:
                assert isinstance(command, _OfOneWake), command
                found = [records.by_id(command.subscription_id)]
        for one in found:
            if one is not None and one.config.wake_key and one.config.wake_key not in self.streams:
                yield keys.STREAM + one.config.wake_key

    def install(self, row: bytes, raw: bytes | None) -> None:
        """Add a row that was read from the store; `raw` is None if the store lacks it."""
        self._loaded_ahead[row[:1]].install(row[1:], raw)

    # -- storing ------------------------------------------------------------------------------

    @property
    def unstored_bytes(self) -> int:
        """About how much memory the unstored changes take."""
        tables = len(self.streams.dirty) + len(self.producers.dirty) + len(self.slices.dirty)
        rows = len(self._rows) + self.subscriptions.unstored
        return self._appended_bytes + (tables + rows) * _ROW_BYTES

    @property
    def unstored(self) -> bool:
        return self.header.applied_index > self.stored_index

    def begin_flush(self) -> list[Item]:
        """All changes as one batch for the store; call `end_flush` once it is written."""
        items: list[Item] = []
        for stream_id, chunk, replaced in self.tails.begin_flush():
            if replaced is not None:
                items.append((keys.chunk_key(stream_id, replaced.end_record), None))
            items.append((keys.chunk_key(stream_id, chunk.end_record), _ENCODER.encode(chunk)))
        for table in self._tables:
            items.extend(table.begin_flush())
        items.extend(self.tokens.begin_flush())
        items.extend(self.limits.begin_flush())
        items.extend(self.operations.begin_flush())
        items.extend(self.subscriptions.begin_flush())
        items.extend(self.parts.begin_flush())
        items.extend(self._rows.items())
        items.append((keys.HEADER, _ENCODER.encode(self.header)))
        self._rows = {}
        self._appended_bytes = 0
        self._flushing_index = self.header.applied_index
        return items

    def end_flush(self) -> None:
        self.stored_index = self._flushing_index
        self.flushes += 1
        self.tails.end_flush()
        self.parts.end_flush()
        self.subscriptions.rows.end_flush()
        for table in self._tables:
            table.end_flush()


def due_for_sweep(store: KeyValue, now_ms: int, limit: int) -> list[bytes]:
    """Keys of up to `limit` streams that may have expired by `now_ms`. Blocks."""
    start, stop = keys.expiry_range(now_ms)
    return [keys.key_in_expiry(key) for key, _ in store.scan(start, stop, limit=limit)]


def idle_uploads(store: KeyValue, until_ms: int, limit: int) -> list[int]:
    """Ids of uploads, among the `limit` oldest, to which nothing was added since `until_ms`.

    Blocks.
    """
    start, stop = keys.UPLOAD, keys.end_of(keys.UPLOAD)
    return [
        keys.parse_id(row)
        for row, value in store.scan(start, stop, limit=limit)
        if _UPLOAD_DECODER.decode(value).touched_ms <= until_ms
    ]


def load_rows(
    store: KeyValue, wanted: Sequence[bytes], prefix: bytes = keys.STREAM
) -> dict[bytes, bytes | None]:
    """Read rows of a table, ahead of the commands that will ask for them. Blocks."""
    rows = store.get_many([prefix + key for key in wanted])
    return dict(zip(wanted, rows, strict=True))


def stream_keys(command: Command) -> list[bytes]:
    """The streams that a command will look at, so that they can be loaded before it is applied."""
    match command:
        case Append(key=key) | Delete(key=key) | BeginUpload(key=key) | PublishSnapshot(key=key):
            return [key]
        case Create(key=key, settings=settings):
            return [key] if settings.fork is None else [key, settings.fork.source]
        case Touch(reads=reads):
            return [key for key, _, _ in reads]
        case Sweep(keys=due):
            return due
        case FlushCold(slices=slices):
            return [each.owner for each in slices if keys.blob_in_owner(each.owner) is None]
        case PutSubscription(keys=named) | LinkStreams(keys=named):
            return named
        case UnlinkStream(key=key):
            return [key]
        case AcknowledgeWake(acks=acks) | EndDelivery(acks=acks):
            return [ack.key for ack in acks]
        case _:
            return []


_WITH_OTHER_ROWS = frozenset((FlushCold, DropSlices, MoveSlices))
_OfOneWake = WakeSubscription | ClaimWake | AcknowledgeWake | ReleaseWake
_WITH_WAKES = frozenset((*get_args(_OfOneWake), EndLeases))


def _other_rows(command: Command) -> Iterator[bytes]:
    """Rows besides those of streams that a command will look at, if there are many."""
    match command:
        case FlushCold(slices=slices):
            blobs = (keys.blob_in_owner(each.owner) for each in slices)
            yield from (keys.BLOB + blob for blob in blobs if blob is not None)
        case DropSlices(stream_id=stream_id, end_records=ends):
            yield from (keys.slice_key(stream_id, end) for end in ends)
        case _:
            assert isinstance(command, MoveSlices), command
            for each in command.slices:
                yield keys.slice_key(each.stream_id, each.end_record)
