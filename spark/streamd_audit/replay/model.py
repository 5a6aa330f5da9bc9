"""One scope: streams that can influence one another, and what commands do to them.

Refusals are named as the protocol's sections name them. Times are log time, in milliseconds since
the epoch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from hashlib import sha256
from typing import Any, NamedTuple

from streamd_audit import commands
from streamd_audit.commands import (
    Append,
    BeginUpload,
    Create,
    Delete,
    IfMatch,
    Producer,
    PublishSnapshot,
    Settings,
    StorePart,
    Verified,
)
from streamd_audit.replay import heads
from streamd_audit.replay.heads import DropUpload, Due, Flushed, Read

APPENDED, CREATED, EXISTS = "appended", "created", "exists"
DUPLICATE, CLOSED, DELETED, DONE = "duplicate", "closed", "deleted", "done"
PUBLISHED, UPLOADING = "published", "uploading"
NOT_FOUND, GONE, BUCKET_NOT_FOUND = "not-found", "gone", "bucket-not-found"
PRECONDITION_FAILED, SETTINGS_DIFFER = "precondition-failed", "settings-differ"
IN_USE_BY_FORKS, STREAM_CLOSED = "in-use-by-forks", "stream-closed"
CONTENT_TYPE_DIFFERS, SEQ_REGRESSION = "content-type-differs", "seq-regression"
EPOCH_STALE, EPOCH_WITHOUT_RESTART = "epoch-stale", "epoch-without-restart"
SEQ_GAP = "seq-gap"
SOURCE_NOT_FOUND, SOURCE_GONE = "source-not-found", "source-gone"
FORK_OFFSET_INVALID = "fork-offset-invalid"
FORK_SUB_OFFSET_INVALID = "fork-sub-offset-invalid"
UPLOAD_LOST, SNAPSHOT_DIFFERS = "upload-lost", "snapshot-differs"
OFFSET_GONE, OFFSET_INVALID = "offset-gone", "offset-invalid"
OFFSET_BEYOND_TAIL = "offset-beyond-tail"
STALE, INVALID = "stale", "invalid"

DEFAULT_CONTENT_TYPE = "application/octet-stream"
_MAX_BYTE = 2**63 - 1
# How many of a stream's last appends are remembered, to say which one a state took otherwise.
_REMEMBERED = 64

Place = tuple[int, int]
"""Of a command in the log: index, position in its entry."""


class Refused(Exception):
    """A fork cannot be made; the argument says why."""


Ending = tuple[int, str, int, int]
"""What became of an append: index, result, records, bytes."""


class Numbered:
    """Something with an id: a stream, an upload, a blob.

    `born` is the command that made it; None for what was there before the log. `id` is None as
    long as nobody named it; `is_guessed` that a command named it and nothing contradicted. Ids
    rise, so it is above `floor`, the highest one that was named when the thing was made.
    """

    __slots__ = ("born", "floor", "id", "is_guessed")

    def __init__(self, born: Place | None, number: int | None) -> None:
        self.born = born
        self.id = number
        self.is_guessed = False
        self.floor = 0


class Upload(Numbered):
    """A snapshot's body that is coming in, for `stream`."""

    __slots__ = ("parts", "size", "stream", "touched_ms")

    def __init__(
        self, born: Place | None, number: int | None, stream: Stream | None, touched_ms: int
    ) -> None:
        super().__init__(born, number)
        self.stream = stream
        self.touched_ms = touched_ms
        self.parts = self.size = 0


class Published(NamedTuple):
    """A snapshot that stands for what lies before `record`, `byte`."""

    record: int
    byte: int
    size: int
    content_type: str
    digest: bytes
    blob: Numbered


class Stream(Numbered):
    """A stream as the log leads to it.

    `records` and `size` are the tail, a fork's prefix included; `segments` say which streams'
    records are that prefix. `hasher` takes the digests of the records from `from_place` on.
    `cold` is the place before which records are in packs, as far as the log tells.
    """

    __slots__ = (
        "closed",
        "closed_by",
        "cold",
        "content_type",
        "created_ms",
        "deleted",
        "expires_at",
        "expires_at_ms",
        "forks",
        "from_place",
        "hasher",
        "is_hot",
        "key",
        "last_seq",
        "last_write_ms",
        "producers",
        "records",
        "refused",
        "segments",
        "settings",
        "size",
        "snapshot",
        "taken",
        "touched_ms",
        "ttl_ms",
    )

    def __init__(
        self,
        key: bytes,
        settings: Settings,
        now_ms: int,
        born: Place | None,
        number: int | None,
    ) -> None:
        super().__init__(born, number)
        self.key = key
        self.settings = settings
        self.content_type = settings.content_type or DEFAULT_CONTENT_TYPE
        self.created_ms = self.last_write_ms = self.touched_ms = now_ms
        self.ttl_ms = settings.ttl_ms
        self.expires_at = settings.expires_at
        self.expires_at_ms = settings.expires_at_ms
        self.records = self.size = self.forks = 0
        self.from_place = (0, 0)
        self.closed = self.deleted = self.is_hot = False
        self.closed_by: Producer | None = None
        self.last_seq: str | None = None
        self.segments: tuple[tuple[Stream | int, int, int], ...] = ()
        self.snapshot: Published | None = None
        self.cold = (0, 0)
        self.producers: dict[str, tuple[int, int, int, int]] = {}
        self.hasher = sha256()
        self.refused: deque[Ending] = deque(maxlen=_REMEMBERED)
        self.taken: deque[Ending] = deque(maxlen=_REMEMBERED)

    def is_over(self, now_ms: int) -> bool:
        """Whether the stream's window or end has passed."""
        if self.ttl_ms is not None:
            return self.touched_ms + self.ttl_ms <= now_ms
        return self.expires_at_ms is not None and self.expires_at_ms <= now_ms

    @property
    def earliest(self) -> tuple[int, int]:
        return (0, 0) if self.snapshot is None else self.snapshot[:2]

    @property
    def fork_point(self) -> tuple[int, int]:
        return self.segments[-1][1:] if self.segments else (0, 0)


def media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def _is_json(content_type: str) -> bool:
    return media_type(content_type) == "application/json"


def _asked_type(settings: Settings) -> str | None:
    if settings.content_type is not None:
        return media_type(settings.content_type)
    return None if settings.fork is not None else DEFAULT_CONTENT_TYPE


def _same(one: Settings, other: Settings) -> bool:
    """Whether a repeated PUT asks for what is there (protocol section 5.1)."""
    return (
        _asked_type(one) == _asked_type(other)
        and one.ttl_ms == other.ttl_ms
        and one.expires_at_ms == other.expires_at_ms
        and one.fork == other.fork
    )


class Known:
    """What a scope cannot find out by itself.

    `numbers` are the ids that commands give to what they make, if they make something; a scope
    whose commands are not in it guesses. `without_bucket` are commands that met no bucket.
    `bases` are what recoveries added to the ids in ETags: (index, base), rising. `first_number` is
    the first id that the log gives.
    """

    def __init__(
        self,
        numbers: dict[Place, int] | None = None,
        without_bucket: set[Place] | None = None,
        bases: tuple[tuple[int, int], ...] = (),
        first_number: int = 1,
    ) -> None:
        self.numbers = {} if numbers is None else numbers
        self.without_bucket = set() if without_bucket is None else without_bucket
        self.bases = bases
        self.first_number = first_number

    def base(self, index: int) -> int:
        found = 0
        for since, base in self.bases:
            if since > index:
                break
            found = base
        return found


class Scope:
    """Applies commands to the streams of one scope, in the order of the log.

    `made` hears of all that takes an id, `ended` of streams whose row goes or that only their
    forks keep.
    """

    def __init__(
        self,
        known: Known,
        made: Callable[[Numbered], None],
        ended: Callable[[Stream, Place, bool], None],
    ) -> None:
        self._known = known
        self._made = made
        self._ended = ended
        self.streams: dict[bytes, Stream] = {}
        self._uploads: list[Upload] = []
        self._guessed: set[int] = set()
        self._highest = known.first_number - 1
        self._index = self._position = self._term = self._now_ms = 0
        self._records = self._size = 0
        self._digests = b""
        # Where the last append that was accepted begins.
        self.start = (0, 0)
        self.stream: Stream | None = None
        self._handlers: dict[type, Callable[[Any], str]] = {
            Append: self._append,
            Create: self._create,
            Delete: self._delete,
            Read: self._read,
            Due: self._due,
            Flushed: self._flushed,
            BeginUpload: self._begin_upload,
            StorePart: self._store_part,
            PublishSnapshot: self._publish,
            DropUpload: self._drop_upload,
        }

    def apply(
        self,
        index: int,
        position: int,
        term: int,
        log_ms: int,
        command: heads.Command,
        records: int,
        size: int,
        digests: bytes,
    ) -> str:
        """What becomes of a command with `records` of together `size` bytes.

        `stream` is then the stream that it reached, and `start` where its records begin, if it
        has any and they were taken.
        """
        self._index, self._position, self._term = index, position, term
        if log_ms > self._now_ms:
            self._now_ms = log_ms
        self._records, self._size, self._digests = records, size, digests
        self.stream = None
        return self._handlers[type(command)](command)

    # -- what commands say of ids -------------------------------------------------------------

    def _new(self, thing: Numbered) -> None:
        assert thing.born is not None
        thing.id = self._known.numbers.get(thing.born)
        thing.floor = self._highest
        self._made(thing)

    def _is(self, thing: Numbered, claimed: int) -> bool:
        """Whether a thing has the id that a command says; who does not know believes it once."""
        if thing.id is not None:
            return thing.id == claimed
        if claimed <= thing.floor or claimed in self._guessed:
            return False
        self.believe(thing, claimed)
        return True

    def believe(self, thing: Numbered, claimed: int) -> None:
        thing.id = claimed
        thing.is_guessed = True
        self._guessed.add(claimed)
        self._highest = max(self._highest, claimed)

    def _holds(self, condition: IfMatch | None, stream: Stream) -> bool:
        if condition is None or condition.versions is None:
            return True
        base = self._known.base(self._index)
        return any(
            (one.record, one.byte, one.closed) == (stream.records, stream.size, stream.closed)
            and self._is(stream, one.incarnation - base)
            for one in condition.versions
        )

    def _living(self, key: bytes) -> Stream | str:
        stream = self.streams.get(key)
        if stream is None:
            return NOT_FOUND
        self.stream = stream
        if stream.deleted:
            return GONE
        if stream.is_over(self._now_ms):
            self._end(stream)
            return NOT_FOUND
        return stream

    def _absent(self, why: str, key: bytes, condition: IfMatch | None) -> str:
        if condition is None:
            return why
        if b"\0" not in key:
            return INVALID
        absent = (self._index, self._position) in self._known.without_bucket
        return BUCKET_NOT_FOUND if absent else PRECONDITION_FAILED

    # -- appends (protocol sections 5.2 and 5.3) ------------------------------------------------

    def _append(self, command: Append) -> str:
        stream = self.streams.get(command.key)
        if stream is None or stream.deleted or stream.is_over(self._now_ms):
            return self._absent(str(self._living(command.key)), command.key, command.if_match)
        self.stream = stream
        records, producer = self._records, command.producer
        result = self._refusal(stream, command)
        if result is not None:
            if records:
                stream.refused.append((self._index, result, records, self._size))
            return result
        if command.seq is not None:
            stream.last_seq = command.seq
        if records:
            self._add(stream)
            stream.last_write_ms = self._now_ms
            stream.taken.append((self._index, APPENDED, records, self._size))
        if command.close:
            stream.closed = True
            stream.closed_by = producer
        stream.touched_ms = self._now_ms if stream.ttl_ms is not None else stream.touched_ms
        if producer is not None:
            stream.producers[producer.producer_id] = (
                producer.epoch,
                producer.seq,
                stream.records,
                stream.size,
            )
        return APPENDED if records else CLOSED

    def _refusal(self, stream: Stream, command: Append) -> str | None:
        producer = command.producer
        if producer is not None:
            known = stream.producers.get(producer.producer_id)
            found = _producer_refusal(known, producer)
            if found is not None:
                return found
        if stream.closed:
            if command.close and not self._records and producer is None:
                return CLOSED if self._holds(command.if_match, stream) else PRECONDITION_FAILED
            return STREAM_CLOSED
        if (
            self._records
            and command.content_type != stream.content_type
            and media_type(command.content_type) != media_type(stream.content_type)
        ):
            return CONTENT_TYPE_DIFFERS
        last = stream.last_seq
        if last is not None and command.seq is not None and command.seq <= last:
            return SEQ_REGRESSION
        if command.if_match is not None and not self._holds(command.if_match, stream):
            return PRECONDITION_FAILED
        return None

    def _add(self, stream: Stream) -> None:
        if not stream.is_hot:
            self._heat(stream)
        self.start = (stream.records, stream.size)
        stream.records += self._records
        stream.size += self._size
        stream.hasher.update(self._digests)

    # -- creating (protocol section 5.1) ----------------------------------------------------------

    def _create(self, command: Create) -> str:
        key = command.key
        if b"\0" not in key:
            return INVALID
        place = self._index, self._position
        if not command.implicit_bucket and place in self._known.without_bucket:
            return BUCKET_NOT_FOUND
        existing = self.streams.get(key)
        if existing is not None and not existing.deleted and existing.is_over(self._now_ms):
            self._end(existing)
            existing = self.streams.get(key)
        if existing is not None:
            self.stream = existing
            return self._create_again(command, existing)
        stream = Stream(key, command.settings, self._now_ms, place, None)
        if command.settings.fork is not None:
            try:
                source, at = self._anchor(command)
            except Refused as refusal:
                return str(refusal)
        if command.if_match is not None:
            return PRECONDITION_FAILED
        if command.settings.fork is not None:
            _attach(stream, source, at)
        self._new(stream)
        self.stream = self.streams[key] = stream
        if self._records:
            self._add(stream)
        stream.closed = command.closed
        return CREATED

    def _create_again(self, command: Create, existing: Stream) -> str:
        if existing.deleted:
            return IN_USE_BY_FORKS
        if existing.closed != command.closed or not _same(existing.settings, command.settings):
            return SETTINGS_DIFFER
        return EXISTS if self._holds(command.if_match, existing) else PRECONDITION_FAILED

    def _anchor(self, command: Create) -> tuple[Stream, tuple[int, int]]:
        """Where a fork leaves its source. Raises `Refused`."""
        request = command.settings.fork
        assert request is not None
        source = self.streams.get(request.source)
        if source is None:
            raise Refused(SOURCE_NOT_FOUND)
        if source.deleted:
            raise Refused(SOURCE_GONE)
        if source.is_over(self._now_ms):
            raise Refused(SOURCE_NOT_FOUND)
        asked = command.settings.content_type or source.content_type
        if media_type(asked) != media_type(source.content_type):
            raise Refused(CONTENT_TYPE_DIFFERS)
        if command.cut_as is not None and _is_json(command.cut_as) != _is_json(source.content_type):
            raise Refused(STALE)
        tail = source.records, source.size
        at = tail if request.offset is None else request.offset
        if at[0] < source.earliest[0]:
            raise Refused(OFFSET_GONE)
        if at[0] > tail[0] or at[1] > tail[1]:
            raise Refused(FORK_OFFSET_INVALID)
        if at != tail:
            return source, self._found(source, at, request.sub_offset, command.verified)
        if request.sub_offset:
            raise Refused(FORK_SUB_OFFSET_INVALID)
        return source, at

    def _found(
        self, source: Stream, at: tuple[int, int], sub_offset: int, found: Verified | None
    ) -> tuple[int, int]:
        if found is None:
            # Of a release before nodes brought what they found: what it asked for, it got.
            if sub_offset or at[0] == source.records:
                raise Refused(FORK_OFFSET_INVALID)
            return at
        if found.record > source.records or found.verdict == commands.NOTHING:
            raise Refused(STALE)
        if not self._is(source, found.stream_id):
            raise Refused(STALE)
        if found.verdict == commands.NO_BOUNDARY:
            raise Refused(FORK_OFFSET_INVALID)
        if found.verdict == commands.BEYOND_APPEND:
            raise Refused(FORK_SUB_OFFSET_INVALID)
        if found.record < 0 or not 0 <= found.byte <= _MAX_BYTE:
            raise Refused(INVALID)
        return found.record, found.byte

    # -- ending (protocol sections 5.4 and 4.2) ---------------------------------------------------

    def _delete(self, command: Delete) -> str:
        stream = self._living(command.key)
        if isinstance(stream, str):
            return self._absent(stream, command.key, command.if_match)
        if not self._holds(command.if_match, stream):
            return PRECONDITION_FAILED
        self._end(stream)
        return DELETED

    def _end(self, stream: Stream) -> None:
        """Take a stream from its clients; while forks read its bytes it stays."""
        stream.snapshot = None
        if stream.forks:
            stream.deleted = True
            self._ended(stream, (self._index, self._position), True)
            return
        while True:
            del self.streams[stream.key]
            self._ended(stream, (self._index, self._position), False)
            fork = stream.settings.fork
            if fork is None:
                return
            source = self.streams.get(fork.source)
            if source is None:
                return
            source.forks -= 1
            if source.forks:
                return
            if not source.deleted:
                _trim(source)
                return
            stream = source

    def _read(self, command: Read) -> str:
        stream = self.streams.get(command.key)
        if stream is None or stream.deleted or not self._is(stream, command.stream_id):
            return DONE
        if not stream.is_over(command.at_ms) and command.at_ms > stream.touched_ms:
            stream.touched_ms = command.at_ms
        return DONE

    def _due(self, command: Due) -> str:
        stream = self.streams.get(command.key)
        if stream is not None and not stream.deleted and stream.is_over(self._now_ms):
            self._end(stream)
        return DONE

    # -- snapshots (docs/snapshots-and-bootstrap.md) ----------------------------------------------

    def _begin_upload(self, command: BeginUpload) -> str:
        stream = self._living(command.key)
        if isinstance(stream, str):
            return stream
        refusal = self._unpublishable(stream, command.at, command.verified)
        if refusal is not None:
            return refusal
        upload = Upload((self._index, self._position), None, stream, self._now_ms)
        self._new(upload)
        self._uploads.append(upload)
        return UPLOADING

    def add_upload(self, upload: Upload) -> None:
        """Take one that was under way before the log begins."""
        self._uploads.append(upload)

    def _find_upload(self, number: int) -> Upload | None:
        found = next((one for one in self._uploads if one.id == number), None)
        if found is None:
            unnamed = (one for one in self._uploads if one.id is None)
            found = next((one for one in unnamed if self._is(one, number)), None)
        return found

    def _store_part(self, command: StorePart) -> str:
        if command.upload_id < 0:
            return INVALID
        upload = self._find_upload(command.upload_id)
        if upload is None or upload.parts != command.number:
            return UPLOAD_LOST
        upload.parts += 1
        upload.size += self._size
        upload.touched_ms = self._now_ms
        return UPLOADING

    def _publish(self, command: PublishSnapshot) -> str:
        if command.upload_id < 0:
            return INVALID
        stream = self._living(command.key)
        if isinstance(stream, str):
            self._take_upload(command.upload_id)
            return stream
        refusal = self._unpublishable(stream, command.at, command.verified)
        if refusal == STALE:
            return STALE
        upload = self._take_upload(command.upload_id)
        known = stream.snapshot
        if refusal == SNAPSHOT_DIFFERS and known is not None:
            asked = command.size, command.content_type, command.digest
            return PUBLISHED if known[2:5] == asked else SNAPSHOT_DIFFERS
        if refusal is None and command.at[0] < 0:
            refusal = INVALID
        if refusal is None:
            refusal = self._incomplete(stream, command, upload)
        if refusal is not None:
            return refusal
        blob: Numbered | None = upload
        if blob is None:
            blob = Numbered((self._index, self._position), None)
            self._new(blob)
        stream.snapshot = Published(
            *command.at, command.size, command.content_type, command.digest, blob
        )
        _trim(stream)
        if stream.ttl_ms is not None:
            stream.touched_ms = self._now_ms
        return PUBLISHED

    def _unpublishable(
        self, stream: Stream, at: tuple[int, int], found: Verified | None
    ) -> str | None:
        """Why there can be no new snapshot at an offset; None when there can."""
        snapshot = stream.snapshot
        if snapshot is not None:
            if at[0] < snapshot.record:
                return OFFSET_GONE
            if at == snapshot[:2]:
                return SNAPSHOT_DIFFERS
        if at[0] > stream.records:
            return OFFSET_BEYOND_TAIL
        if at[0] == stream.records:
            return None if at[1] == stream.size else OFFSET_INVALID
        if found is None:
            return None if at[0] >= 0 else OFFSET_INVALID
        if found.verdict == commands.NOTHING or not self._is(stream, found.stream_id):
            return STALE
        return None if found.verdict == commands.BOUNDARY else OFFSET_INVALID

    def _incomplete(
        self, stream: Stream, command: PublishSnapshot, upload: Upload | None
    ) -> str | None:
        if not command.upload_id:
            return None if self._size == command.size else UPLOAD_LOST
        if upload is None or upload.size != command.size:
            return UPLOAD_LOST
        return None if upload.stream is stream else NOT_FOUND

    def _take_upload(self, number: int) -> Upload | None:
        found = self._find_upload(number) if number else None
        if found is not None:
            self._uploads.remove(found)
        return found

    def _drop_upload(self, command: DropUpload) -> str:
        upload = self._find_upload(command.upload_id)
        if upload is not None and self._now_ms - upload.touched_ms >= command.idle_ms:
            self._uploads.remove(upload)
        return DONE

    # -- the cold store (docs/cold-store.md) ------------------------------------------------------

    def _flushed(self, command: Flushed) -> str:
        stream = self.streams.get(command.key)
        if stream is None or command.term != self._term:
            return STALE
        if not self._is(stream, command.stream_id) or not stream.is_hot:
            return STALE
        if stream.cold != (command.start_record, command.start_byte):
            return STALE
        end = command.end_record
        if not command.start_record < end <= stream.records or command.end_byte > stream.size:
            return STALE
        self.stream = stream
        _cool(stream, (end, command.end_byte))
        return DONE

    def _heat(self, stream: Stream) -> None:
        cold = max(stream.cold, stream.fork_point)
        stream.cold = cold if stream.forks else max(cold, stream.earliest)
        stream.is_hot = True


def _producer_refusal(known: tuple[int, int, int, int] | None, stamp: Producer) -> str | None:
    """Protocol section 5.2.1; None for a request that is new and next in order."""
    if known is None or stamp.epoch > known[0]:
        if stamp.seq == 0:
            return None
        return SEQ_GAP if known is None else EPOCH_WITHOUT_RESTART
    if stamp.epoch < known[0]:
        return EPOCH_STALE
    if stamp.seq == known[1] + 1:
        return None
    return SEQ_GAP if stamp.seq > known[1] else DUPLICATE


def _attach(fork: Stream, source: Stream, at: tuple[int, int]) -> None:
    """Let a new stream begin with the records of its source before `at`."""
    segments = [one for one in source.segments if one[1] < at[0]]
    if at[0]:
        home = next((one[0] for one in source.segments if at[0] <= one[1]), source)
        segments.append((home, *at))
    fork.segments = tuple(segments)
    fork.records, fork.size = at
    fork.from_place = at
    settings = fork.settings
    if settings.content_type is None:
        fork.content_type = source.content_type
    if settings.ttl_ms is None and settings.expires_at_ms is None:
        fork.ttl_ms = source.ttl_ms
        fork.expires_at, fork.expires_at_ms = source.expires_at, source.expires_at_ms
    fork.snapshot = source.snapshot
    source.forks += 1


def _trim(stream: Stream) -> None:
    """Give back what lies before the snapshot, unless forks may read it."""
    if stream.snapshot is not None and not stream.forks and stream.earliest > stream.cold:
        _cool(stream, max(stream.earliest, stream.fork_point))


def _cool(stream: Stream, to: tuple[int, int]) -> None:
    if stream.is_hot:
        stream.is_hot = to[0] < stream.records
    stream.cold = to
