"""What the state machine stores about a stream, a producer, a bucket, and about itself.

None of these values can be part of a cycle, so the garbage collector need not walk the tens of
thousands of them that the cache holds (``gc=False``).
"""

from __future__ import annotations

from enum import Enum

import msgspec

from streamd.proofs.tree import HASH_BYTES
from streamd.streams.cold.scrubs import Scrub
from streamd.streams.content import DEFAULT_CONTENT_TYPE, media_type
from streamd.streams.fencing.fences import StreamFence
from streamd.streams.log_keys import LogKey
from streamd.streams.offsets import START, Position
from streamd.streams.subscriptions.model import Link


class ForkRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a client asked for when it created a fork; None for what it left out.

    `source` is a stream key. `offset` and `sub_offset` are kept as asked, not as resolved: a
    repeated PUT must compare equal even after the source has grown.
    """

    source: bytes
    offset: tuple[int, int] | None = None
    sub_offset: int = 0


class Settings(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The configuration that a PUT asks for, compared when it is repeated (protocol section 5.1).

    `ttl_ms` is the sliding window; `expires_at` is the RFC 3339 text as given, and `expires_at_ms`
    the time that it names, in milliseconds since the epoch. At most one of the two is set. With
    `write_fence` the stream takes fenced writes only under the present claim of a subscription.
    """

    content_type: str | None = None
    ttl_ms: int | None = None
    expires_at: str | None = None
    expires_at_ms: int | None = None
    fork: ForkRequest | None = None
    write_fence: bool = False

    def asks_same(self, other: Settings) -> bool:
        """Whether a repeated PUT with the `other` asks for the same stream."""
        return (
            self._media_type() == other._media_type()
            and self.ttl_ms == other.ttl_ms
            and self.expires_at_ms == other.expires_at_ms
            and self.fork == other.fork
            and self.write_fence == other.write_fence
        )

    def _media_type(self) -> str | None:
        """A fork that names no type inherits it; any other stream gets the default."""
        if self.content_type is not None:
            return media_type(self.content_type)
        return None if self.fork is not None else DEFAULT_CONTENT_TYPE


class ProducerStamp(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One request of an idempotent producer (protocol section 5.2.1).

    The stream counts the producer if it is `counted`: all members of the cluster understood that
    when the request came.
    """

    producer_id: str
    epoch: int
    seq: int
    counted: bool = False

    @property
    def uncounted(self) -> ProducerStamp:
        """The request itself, which is the same however often and from wherever it comes."""
        return ProducerStamp(self.producer_id, self.epoch, self.seq)


class ProducerState(msgspec.Struct, array_like=True, gc=False):
    """The last request of a producer that took effect, and the tail that it led to.

    `touched_ms` is the log time of that request, 0 for a producer that its stream does not count.
    One that `is_bound` has written under a claim, and only claims may use its id
    (`fencing.write_fences`).
    """

    epoch: int
    seq: int
    record: int
    byte: int
    touched_ms: int = 0
    is_bound: bool = False


class Verdict(Enum):
    """The result of looking up a position in old records."""

    # The position was not in the stream at the time, or the stream did not exist.
    NOTHING = 0
    BOUNDARY = 1
    NO_BOUNDARY = 2
    # It is a boundary, but a sub-offset from there reaches past the append that follows.
    BEYOND_APPEND = 3


class VerifiedPosition(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What the node that received a request found in old records of stream `stream_id`.

    Records never change, so a finding stays true, and the machine need not read them itself.
    `record` and `byte` are the place that a sub-offset led to, or the position itself.
    """

    stream_id: int = 0
    verdict: Verdict = Verdict.NOTHING
    record: int = 0
    byte: int = 0


class Extent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A range of an ancestor's records that a fork inherits.

    It ends before record `end_record`, at byte `end_byte`; when the fork was cut inside a
    record, `end_byte` lies inside record ``end_record - 1`` of the ancestor.
    """

    stream_id: int
    end_record: int
    end_byte: int


class Snapshot(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What an application published in place of a stream's content before `record`, `byte`.

    `blob_id` names its bytes, which forks of the stream share; `size` is their number, and `digest`
    tells whether other bytes are the same (extensions section 2).
    """

    record: int
    byte: int
    blob_id: int
    size: int
    content_type: str
    digest: bytes

    @property
    def position(self) -> Position:
        return Position(self.record, self.byte)


class Upload(msgspec.Struct, array_like=True, gc=False):
    """A blob that is still arriving, for a stream id: this many parts and bytes have arrived."""

    stream_id: int
    touched_ms: int
    parts: int = 0
    size: int = 0


class Blob(msgspec.Struct, array_like=True, gc=False):
    """How many streams have a blob as their snapshot; its parts are the records of its id.

    `cold` and `hot_at_ms` are as in `Stream`.
    """

    references: int
    records: int = 0
    size: int = 0
    cold: Position = START
    hot_at_ms: int | None = None

    @property
    def cold_from(self) -> Position:
        return self.cold


class Stream(msgspec.Struct, array_like=True, gc=False):
    """A stream's metadata. Times are log time, in milliseconds since the epoch.

    `stream_id` is never used twice: a stream that is deleted and created again shows nothing of its
    former content. `records` and `size` are the tail, inherited prefix included. `forks` counts the
    streams forked from this one; while there are any, deleting it only sets `deleted`, so that they
    can still read its bytes. Readers no longer get anything before the `snapshot`.

    `cold` is the position before which all of the stream's own records are in the cold store. While
    there are others, `hot_at_ms` is a time since which there have been some.

    `kept_from` is the byte from which the stream's own records are kept; None if its bucket does
    not count its bytes yet (`quotas`). `producers` is how many producers are counted (`producers`).

    `links` are those to subscriptions, in the order of their numbers (`subscriptions.links`). An
    append need not look at them if `watched` is `Header.pattern_version`. `fence` is empty unless
    the stream takes fenced writes.
    """

    stream_id: int
    settings: Settings
    content_type: str
    created_ms: int
    last_write_ms: int
    touched_ms: int
    ttl_ms: int | None = None
    expires_at: str | None = None
    expires_at_ms: int | None = None
    records: int = 0
    size: int = 0
    closed: bool = False
    closed_by: ProducerStamp | None = None
    last_seq: str | None = None
    extents: tuple[Extent, ...] = ()
    forks: int = 0
    deleted: bool = False
    sweep_at_ms: int | None = None
    snapshot: Snapshot | None = None
    cold: Position = START
    hot_at_ms: int | None = None
    kept_from: int | None = None
    producers: int = 0
    links: tuple[Link, ...] = ()
    watched: int = 0
    fence: StreamFence = StreamFence()

    @property
    def cold_from(self) -> Position:
        """Where this stream's records in the cold store end, or will begin."""
        # Forks may read what the stream's own readers no longer can.
        return max(Position(*self.cold), self.fork_point if self.forks else self.kept_start)

    @property
    def earliest(self) -> Position:
        """The first position that can still be read. Only a snapshot moves it, but nothing else
        may ask the snapshot where the records begin."""
        return START if self.snapshot is None else self.snapshot.position

    @property
    def kept_start(self) -> Position:
        """Where the stream's own records begin, as far as they can still be read."""
        return max(self.fork_point, self.earliest)

    @property
    def tail(self) -> Position:
        return Position(self.records, self.size)

    def version(self, incarnation_base: int = 0) -> Version:
        """What `If-Match` compares. A fork's version is its own: it never equals its source's."""
        incarnation = incarnation_base + self.stream_id
        return Version(incarnation, self.records, self.size, self.closed)

    @property
    def fork_point(self) -> Position:
        """Where the stream's own records begin."""
        if not self.extents:
            return Position(0, 0)
        last = self.extents[-1]
        return Position(last.end_record, last.end_byte)

    def expiry_ms(self, touched_ms: int = 0) -> int | None:
        """When the stream ends unless renewed; `touched_ms` is an access not yet in the log."""
        if self.ttl_ms is not None:
            return max(self.touched_ms, touched_ms) + self.ttl_ms
        return self.expires_at_ms

    def expired(self, now_ms: int, touched_ms: int = 0) -> bool:
        expiry_ms = self.expiry_ms(touched_ms)
        return expiry_ms is not None and expiry_ms <= now_ms


class Version(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The content of an ETag: a stream's incarnation, its tail, and whether it is closed.

    The incarnation is the stream's id plus `Header.incarnation_base`.
    """

    incarnation: int
    record: int
    byte: int
    closed: bool


class IfMatch(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A write's condition (RFC 9110 section 13.1.1): the stream must be in one of the `versions`.

    None stands for ``*``: any state will do, as long as the stream exists.
    """

    versions: tuple[Version, ...] | None = None

    def holds(self, stream: Stream, incarnation_base: int) -> bool:
        return self.versions is None or stream.version(incarnation_base) in self.versions


class Bucket(msgspec.Struct, array_like=True, gc=False):
    """A namespace of streams.

    `streams` counts all streams that have a row, `hidden` those of them that were deleted and are
    kept only for their forks. `size` is how many bytes `counted` of the streams keep (`quotas`).
    """

    created_ms: int
    streams: int = 0
    hidden: int = 0
    size: int = 0
    counted: int = 0


class SliceRef(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A slice as its pack has it: whole records of one stream id, and their place in the pack.

    Records and bytes count from the stream's beginning. `offset` and `length` are those of the
    slice in the pack, its head included, and `crc` is the checksum that it begins with. `digest` is
    that of the chunk: a replica compares it with its own copy of the records before it evicts them.
    """

    stream_id: int
    start_record: int
    start_byte: int
    end_record: int
    end_byte: int
    offset: int
    length: int
    crc: int
    digest: bytes

    @property
    def start(self) -> Position:
        return Position(self.start_record, self.start_byte)

    @property
    def end(self) -> Position:
        return Position(self.end_record, self.end_byte)


class ColdSlice(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A slice as the state has it: its records are in the `number`-th pack of `term`.

    The row's key has the stream id and the record before which the slice ends. The rest is as in
    `SliceRef`.
    """

    start_record: int
    start_byte: int
    end_byte: int
    term: int
    number: int
    offset: int
    length: int
    crc: int
    digest: bytes

    @classmethod
    def of(cls, ref: SliceRef, term: int, number: int) -> ColdSlice:
        """The row of a slice in the `number`-th pack of `term`."""
        return cls(
            start_record=ref.start_record,
            start_byte=ref.start_byte,
            end_byte=ref.end_byte,
            term=term,
            number=number,
            offset=ref.offset,
            length=ref.length,
            crc=ref.crc,
            digest=ref.digest,
        )

    def ref(self, stream_id: int, end_record: int) -> SliceRef:
        """The slice as its pack has it; the arguments are those of the row's key."""
        return SliceRef(
            stream_id=stream_id,
            start_record=self.start_record,
            start_byte=self.start_byte,
            end_record=end_record,
            end_byte=self.end_byte,
            offset=self.offset,
            length=self.length,
            crc=self.crc,
            digest=self.digest,
        )


class Pack(msgspec.Struct, array_like=True, gc=False):
    """An object with slices: its name in the store, with its cluster's folder; its size; and how
    many of its bytes slices still refer to. When there are none left it is dead, since log entry
    `dead_index` and log time `dead_ms`, which only readers of the format use.
    """

    name: str
    size: int
    live: int
    dead_index: int = 0
    dead_ms: int = 0


class LogPosition(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An entry of the archived log: its index and term, the chain of checksums up to it, and the
    log's time as of it, in milliseconds since the epoch. All 0 before the first entry.

    The chain is the archive's own, from its first entry on. A node whose log begins after a Raft
    snapshot has another chain.
    """

    index: int = 0
    term: int = 0
    chain: int = 0
    time_ms: int = 0


class LogTree(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The hash tree over the archived log (`proofs.tree`), up to a position of which the holder
    knows: `nodes` are the roots of its perfect subtrees, the largest first.

    Its first leaf is entry `first_index`; 0 if there is no tree.
    """

    first_index: int = 0
    nodes: tuple[bytes, ...] = ()

    def size_at(self, index: int) -> int:
        """How many leaves it has when entry `index` is the last one."""
        return index - self.first_index + 1

    def fits(self, index: int) -> bool:
        """Whether there is such a tree whose last leaf is entry `index`."""
        return (
            0 < self.first_index <= index
            and len(self.nodes) == self.size_at(index).bit_count()
            and all(len(node) == HASH_BYTES for node in self.nodes)
        )


class Header(msgspec.Struct, array_like=True, gc=False):
    """What describes the state as a whole, written in the same batch as every change to it.

    `applied_index` and `applied_term` name the last log entry whose effects are in the state;
    replay starts after it. `log_ms` is the latest time stamped into an applied entry.
    `next_stream_id` is the next id of a stream or a blob.
    `configuration` is the group's membership as of `applied_index`, encoded as in the log.
    `hot_bytes` counts the bytes that are not in the cold store, over all streams and blobs;
    `flushed_bytes` all that were ever flushed; `cold_bytes` the live bytes in packs.
    `archived` is how far, by the log's account, the log is in the archive.
    `incarnation_base` tells this history from those that it may contradict: a restore, and the
    recovery of a lost majority, abandon entries, so the same stream id and tail may come to mean
    other bytes. It is 0 for group 0 of a cluster that had neither.
    `scrub` is how far the leaders' reading of all objects has come, and its alarms.
    `counts` says whether buckets count the bytes of new streams: since the first quota was set.
    `tree` is the hash tree over the archived log, whose last leaf is entry `archived.index`, and
    `log_keys` are the keys that sign its heads, in the order in which they were added.
    `features` is the feature level: the highest log format that a command has permitted.
    `pattern_version` rises when a subscription with a pattern is made, and when any is deleted;
    `generation_floor` is the highest generation of a deleted subscription, above which those of new
    ones begin.
    """

    applied_index: int = 0
    applied_term: int = 0
    log_ms: int = 0
    next_stream_id: int = 1
    streams: int = 0
    configuration: bytes = b""
    hot_bytes: int = 0
    flushed_bytes: int = 0
    cold_bytes: int = 0
    archived: LogPosition = LogPosition()
    incarnation_base: int = 0
    scrub: Scrub = Scrub()
    counts: bool = False
    tree: LogTree = LogTree()
    log_keys: tuple[LogKey, ...] = ()
    features: int = 0
    pattern_version: int = 0
    generation_floor: int = 0

    def become_another(self, base: int) -> None:
        """Become the header of another cluster, whose history goes on from here: `base` is its
        `incarnation_base`, and it has signed nothing yet."""
        self.incarnation_base, self.tree, self.log_keys = base, LogTree(), ()
