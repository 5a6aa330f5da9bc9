"""A cluster's objects in a bucket, made by the server's own writers without a server.

A million entries through a node would be a million turns of its loop. Here the log is written as a
leader would have written it, applied by the machine, and flushed, archived and checkpointed by the
code that does so in a node; only the waiting is left out. The result cannot be distinguished from a
cluster's own folder.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import NamedTuple
from uuid import UUID

from streamd.backup.archive import SEGMENT_BYTES
from streamd.config.settings import ColdConfig
from streamd.objectstore.checkpoints import CheckpointOf, CheckpointWriter
from streamd.objectstore.ends import ArchiveEnd, make_end
from streamd.objectstore.names import NamedObject, cluster_folder
from streamd.objectstore.objects import ObjectStore
from streamd.objectstore.packs import PackWriter
from streamd.objectstore.segments import SegmentWriter
from streamd.raft.membership import bootstrap_entry
from streamd.raft.messages import Entry, EntryKind
from streamd.storage.raft_snapshots import HotRows, SnapshotMeta, SnapshotSource
from streamd.storage.state_store import StateStore
from streamd.streams import keys
from streamd.streams.chunks import Chunk
from streamd.streams.codec import Batch, encode_batch
from streamd.streams.commands import Append, Archived, Command, Create, FlushCold, NewSlice
from streamd.streams.machine import Machine
from streamd.streams.model import LogPosition, LogTree, ProducerStamp, Settings
from streamd.streams.state import State

MIB = 1024 * 1024
GROUP_ID = 0
_TERM = 1
_PIECE_BYTES = 16 * MIB
_SNAPSHOT_ID = 1
_BEGIN_MS = 1_760_000_000_000
_DAYS = 10
_DAY_MS = 86_400_000
_BUCKETS = 10
# How many streams are written to at a time, and how often each before another begins.
_ACTIVE = 64
_APPENDS = 100
_JSON = "application/json"
_RECORDS_OF_BATCH = 4
_UPLOADS = 4


class Shape(NamedTuple):
    """How much a bucket holds, and how many states of it there are. When `skewed`, one stream has
    half of all bytes."""

    megabytes: int
    entries: int
    skewed: bool = False
    states: int = 1


class Written(NamedTuple):
    """What was made: log entries up to `last_index`, and bytes of records in `packs` packs."""

    cluster_id: str
    last_index: int
    record_bytes: int
    packs: int


def write_bucket(store: ObjectStore, directory: Path, shape: Shape, *, seed: int = 1) -> Written:
    """Write a cluster's folder; the machine's rows are kept in `directory` meanwhile.

    Raises `ColdError`.
    """
    with _uploading(store) as uploads:
        cluster = _Cluster(directory, uploads, str(UUID(int=Random(seed).getrandbits(128))))
        try:
            for number, command in enumerate(_workload(shape, Random(seed)), 1):
                cluster.take(command)
                if number % -(-shape.entries // shape.states) == 0 and number < shape.entries:
                    cluster.checkpoint()
            return cluster.finish()
        finally:
            cluster.close()


class _Appended(NamedTuple):
    """The part of a stream that is in no pack yet."""

    stream_id: int
    start_record: int
    start_byte: int
    lengths: list[int]
    appends: list[int]
    parts: list[bytes]


class _Uploads:
    """Objects on their way to the store, a few at a time."""

    def __init__(self, store: ObjectStore, pool: ThreadPoolExecutor) -> None:
        self._store, self._pool = store, pool
        self._under_way: deque[Future[None]] = deque()

    def put(self, name: str, content: bytes) -> None:
        while len(self._under_way) >= _UPLOADS:
            self._under_way.popleft().result()
        self._under_way.append(self._pool.submit(self._store.put, name, content))

    def wait(self) -> None:
        while self._under_way:
            self._under_way.popleft().result()


@contextmanager
def _uploading(store: ObjectStore) -> Iterator[_Uploads]:
    with ThreadPoolExecutor(_UPLOADS) as pool:
        uploads = _Uploads(store, pool)
        yield uploads
        uploads.wait()


class _Cluster:
    """A log, the state that follows from it, and what both have in the store."""

    def __init__(self, directory: Path, uploads: _Uploads, cluster_id: str) -> None:
        self._uploads = uploads
        self._cluster_id = cluster_id
        self._folder = cluster_folder(cluster_id)
        self._rows = StateStore(directory)
        self._state = State(self._rows)
        self._machine = Machine(self._state)
        self._configuration = bootstrap_entry([1])
        self._place = LogPosition()
        self._now_ms = _BEGIN_MS
        self._segment = SegmentWriter(GROUP_ID, self._place, cluster_id, LogTree(1))
        self._hot: dict[bytes, _Appended] = {}
        self._hot_bytes = self._packs = self._record_bytes = 0
        self._pack_bytes = ColdConfig().pack_bytes
        self._add(self._configuration)
        self._machine.configure(1, _TERM, self._configuration.payload, ())
        self._add(Entry(2, _TERM, EntryKind.NOOP, b""))
        self._machine.apply(2, _TERM, 0, [])

    def take(self, command: tuple[int, Command]) -> None:
        """Commit a command so many ms after the one before; flush and archive what is due."""
        ms, asked = command
        self._now_ms += ms
        self._commit(asked)
        if isinstance(asked, Append) and asked.lengths:
            self._gather(asked)
        if self._hot_bytes >= self._pack_bytes:
            self._flush()
        if self._segment.entries_size >= SEGMENT_BYTES:
            self._archive()

    def checkpoint(self) -> None:
        """Flush and archive everything, and put a snapshot of the state."""
        self._flush()
        self._archive()
        self._store_state(drop_chunks=True)
        self._put_snapshot()

    def finish(self) -> Written:
        """Archive the rest, and put a snapshot of the state; a last run of records stays hot."""
        self._archive()
        self._store_state(drop_chunks=False)
        self._put_snapshot()
        archived = self._state.header.archived
        self._put(make_end(ArchiveEnd(self._cluster_id, GROUP_ID, archived)))
        return Written(self._cluster_id, self._place.index, self._record_bytes, self._packs)

    def close(self) -> None:
        self._rows.close()

    def _commit(self, command: Command) -> None:
        index = self._place.index + 1
        batch = Batch(self._now_ms, [command])
        self._add(Entry(index, _TERM, EntryKind.COMMANDS, encode_batch(batch)))
        self._machine.apply(index, _TERM, batch.now_ms, batch.commands)
        self._machine.take_changes()

    def _add(self, entry: Entry) -> None:
        self._segment.add(entry)
        self._place = self._segment.last

    def _put(self, made: NamedObject) -> None:
        self._uploads.put(self._folder + made.name, made.content)

    def _gather(self, command: Append) -> None:
        hot = self._hot.get(command.key)
        if hot is None:
            stream = self._state.streams.get(command.key)
            assert stream is not None
            record, byte = stream.records - len(command.lengths), stream.size - len(command.data)
            hot = self._hot[command.key] = _Appended(stream.stream_id, record, byte, [], [], [])
        hot.lengths.extend(command.lengths)
        hot.appends.append(len(command.lengths))
        hot.parts.append(command.data)
        self._hot_bytes += len(command.data)
        self._record_bytes += len(command.data)

    def _flush(self) -> None:
        self._packs += 1
        writer = PackWriter(GROUP_ID, _TERM, self._packs)
        slices = []
        for key, hot in self._hot.items():
            appends = hot.appends if len(hot.appends) != len(hot.lengths) else []
            data = b"".join(hot.parts)
            chunk = Chunk(hot.start_record, hot.start_byte, hot.lengths, appends, data)
            slices.append(NewSlice.of(key, writer.add(hot.stream_id, chunk)))
        self._hot, self._hot_bytes = {}, 0
        pack = writer.finish()
        name = self._folder + pack.name
        self._uploads.put(name, pack.content)
        self._commit(FlushCold(_TERM, self._packs, name, len(pack.content), slices))
        self._store_state(drop_chunks=True)

    def _store_state(self, *, drop_chunks: bool) -> None:
        """Leaves out chunks that are in the cold store: as a node evicts them, but before a disk
        has stored them."""
        rows = self._state.begin_flush()
        if drop_chunks:
            rows = [row for row in rows if row[0][:1] != keys.CHUNK]
        self._rows.write(rows)
        self._state.end_flush()

    def _archive(self) -> None:
        """Put the present segment, and record that in the log."""
        place, tree = self._next_segment()
        previous = self._state.header.archived
        self._commit(Archived(_TERM, previous, place, tree=tree))

    def _next_segment(self) -> tuple[LogPosition, LogTree | None]:
        """Put the present segment, and begin another after it; the place and the tree there."""
        place, tree = self._segment.last, self._segment.tree
        self._put(self._segment.finish())
        self._segment = SegmentWriter(GROUP_ID, place, self._cluster_id, tree)
        return place, tree

    def _put_snapshot(self) -> None:
        """Of the state as of the last entry, with the log up to it in the archive."""
        configuration, (place, _) = self._configuration.payload, self._next_segment()
        meta = SnapshotMeta(place.index, place.term, place.chain, configuration, _SNAPSHOT_ID)
        source = SnapshotSource(HotRows(self._rows.view()), meta, place.time_ms)
        writer = CheckpointWriter(
            CheckpointOf(
                self._cluster_id,
                GROUP_ID,
                place.index,
                place.term,
                place.chain,
                place.time_ms,
                _SNAPSHOT_ID,
                configuration,
            )
        )
        try:
            gathered, number, is_last = bytearray(), 0, False
            while not is_last:
                piece = source.piece(number)
                gathered += piece.rows
                number, is_last = number + 1, piece.is_last
                if is_last or len(gathered) >= _PIECE_BYTES:
                    self._put(writer.piece(bytes(gathered)))
                    gathered.clear()
        finally:
            source.close()
        self._uploads.wait()
        self._put(writer.manifest())


def _workload(shape: Shape, random: Random) -> Iterator[tuple[int, Command]]:
    """Commands, each with the milliseconds since the previous one: runs of agents, some dozens at a
    time, each in a stream that is closed at the end."""
    size = shape.megabytes * MIB // shape.entries
    pause_ms = _DAYS * _DAY_MS // shape.entries
    runs = [_run(random, number, size) for number in range(_ACTIVE)]
    large = _run(random, 0, size, bucket=b"large", appends=shape.entries)
    started = _ACTIVE
    for number in range(shape.entries):
        if shape.skewed and number % 2:
            yield pause_ms, next(large)
            continue
        place = random.randrange(_ACTIVE)
        command = next(runs[place], None)
        if command is None:
            runs[place] = _run(random, started, size)
            started += 1
            command = next(runs[place])
        yield pause_ms, command


def _run(
    random: Random, number: int, size: int, *, bucket: bytes = b"", appends: int = 0
) -> Iterator[Command]:
    """One agent's stream: its creation, its appends, the last of which closes it."""
    bucket = bucket or b"team-%d" % (number % _BUCKETS)
    key = keys.stream_key(bucket, b"runs/%06d" % number)
    yield Create(key, Settings(_JSON), implicit_bucket=True)
    last = (appends or _APPENDS) - 1
    producer = f"agent-{number}" if number % 2 else None
    for seq in range(last + 1):
        count = _RECORDS_OF_BATCH if seq % 8 == 7 else 1
        records = [_record(random, number, seq, size // count) for _ in range(count)]
        stamp = None if producer is None else ProducerStamp(producer, 0, seq)
        data = b"".join(records)
        yield Append(key, _JSON, data, list(map(len, records)), seq == last, producer=stamp)


def _record(random: Random, number: int, seq: int, size: int) -> bytes:
    """A JSON message of about that many bytes, as it is stored, half of which compresses away."""
    head = b'{"agent":"%06d","seq":%d,"text":"' % (number, seq)
    text = random.randbytes(max(1, (size - len(head) - 3) // 2)).hex().encode()
    return head + text + b'"},'
