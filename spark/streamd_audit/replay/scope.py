"""What commands do to the streams of one scope.

Times are log time, in milliseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from streamd_audit.commands import (
    Append,
    BeginUpload,
    Condition,
    Create,
    Delete,
    EndProducers,
    PublishSnapshot,
    StorePart,
)
from streamd_audit.replay import heads
from streamd_audit.replay.forks import Refused, anchor
from streamd_audit.replay.heads import DropUpload, Due, Flushed, Read
from streamd_audit.replay.ids import Ids, Known, Numbered, Place
from streamd_audit.replay.model import (
    Published,
    Stream,
    Upload,
    media_type,
    same_request,
)  # fmt: skip
from streamd_audit.replay.quotas import Quotas
from streamd_audit.replay.results import (
    APPENDED,
    BUCKET_NOT_FOUND,
    CLOSED,
    CONTENT_TYPE_DIFFERS,
    CREATED,
    DELETED,
    DONE,
    EXISTS,
    GONE,
    IN_USE_BY_FORKS,
    INVALID,
    NOT_FOUND,
    PRECONDITION_FAILED,
    PUBLISHED,
    SEQ_REGRESSION,
    SETTINGS_DIFFER,
    SNAPSHOT_DIFFERS,
    STALE,
    STREAM_CLOSED,
    TOO_MANY_PRODUCERS,
    UPLOAD_LOST,
    UPLOADING,
    WRITE_OUT_OF_SCOPE,
)  # fmt: skip
from streamd_audit.replay.snapshots import Part, Uploads, incomplete, unpublishable
from streamd_audit.replay.subscriptions import Event, Subscriptions
from streamd_audit.sources.log_columns import digests_of


class Scope:
    """Applies commands to the streams of one scope, in the order of the log.

    `made` is called for everything that takes an id, `ended` for streams whose row goes or that
    only their forks keep. `began` are the version of the patterns and the floor of generations in
    the state before the log. `events` are the records of wakes that the last command had written.
    """

    def __init__(
        self,
        known: Known,
        made: Callable[[Numbered], None],
        ended: Callable[[Stream, Place, bool], None],
        quotas: Quotas,
        began: tuple[int, int] = (0, 0),
    ) -> None:
        self._known = known
        self.ids = Ids(known, made)
        self._ended = ended
        self.quotas = quotas
        self.streams: dict[bytes, Stream] = {}
        # The keys of streams that a command may have changed, or may have ended.
        self.changed: set[bytes] = set()
        self.subscriptions = Subscriptions(self, *began, self.changed)
        self.events: list[Event] = []
        self.uploads = Uploads(self.ids)
        self._index = self._position = self._term = self._now_ms = 0
        self._records = self._size = 0
        self._digests = b""
        # Where the last append that was accepted begins.
        self.start = (0, 0)
        self.stream: Stream | None = None
        # What the last command stored of a snapshot's body.
        self.part: Part | None = None
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
            EndProducers: self._end_producers,
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
        """The outcome of a command with `records` of together `size` bytes.

        `stream` is then the stream that it reached, and `start` where its records begin, if it has
        any and they were accepted.
        """
        self._index, self._position, self._term = index, position, term
        if log_ms > self._now_ms:
            self._now_ms = log_ms
        self._records, self._size, self._digests = records, size, digests
        self.quotas.move_to((index, position))
        self.stream = self.part = None
        self.events.clear()
        handler = self._handlers.get(type(command))
        if self.subscriptions.is_here or handler is None:
            self.subscriptions.move_to((index, position), self._known.base(index), self._now_ms)
        if handler is None:
            return self.subscriptions.apply(command)  # type: ignore[arg-type]
        key = getattr(command, "key", None)
        if key is not None:
            self.changed.add(key)
        return handler(command)

    # -- what commands expect ------------------------------------------------------------------

    def _holds(self, condition: Condition | None, stream: Stream) -> bool:
        if condition is None or condition.versions is None:
            return True
        base = self._known.base(self._index)
        return any(
            (one.record, one.byte, one.closed) == (stream.records, stream.size, stream.closed)
            and self.ids.match(stream, one.incarnation - base)
            for one in condition.versions
        )

    def _living(self, key: bytes) -> Stream | str:
        stream = self.streams.get(key)
        if stream is None:
            return NOT_FOUND
        self.stream = stream
        return GONE if stream.deleted else self.living(key) or NOT_FOUND

    def _absent(self, why: str, key: bytes, condition: Condition | None) -> str:
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
            why = str(self._living(command.key))
            if command.fence is not None and command.fence.is_alone:
                return WRITE_OUT_OF_SCOPE
            return self._absent(why, command.key, command.condition)
        self.stream = stream
        records, producer = self._records, command.producer
        result = self._refusal(stream, command)
        if result is not None:
            if records:
                stream.refused.append((self._index, result, records, self._size))
            return result
        if command.seq is not None:
            stream.last_seq = command.seq
        subscriptions, is_looked_at = self.subscriptions, False
        is_fenced = stream.settings.write_fence
        if subscriptions.is_here and (records or is_fenced):
            is_looked_at = subscriptions.links.look(stream)
        if is_fenced:
            subscriptions.fences.settle(stream)
        if records:
            self._add(stream)
            stream.last_write_ms = self._now_ms
            stream.taken.append((self._index, APPENDED, records, self._size))
        if command.close:
            stream.closed = True
            stream.closed_by = None if producer is None else producer.uncounted
        stream.touched_ms = self._now_ms if stream.ttl_ms is not None else stream.touched_ms
        if producer is not None:
            stream.remember(producer, self._now_ms, is_fenced and command.fence is not None)
        if is_fenced and command.fence is not None:
            subscriptions.fences.write(stream, command.fence)
        if is_looked_at and records:
            # Last, because the event of a wake may be appended to this stream.
            subscriptions.appended(stream)
        return APPENDED if records else CLOSED

    def _refusal(self, stream: Stream, command: Append) -> str | None:
        producer = command.producer
        is_fenced = stream.settings.write_fence
        if is_fenced or command.fence is not None:
            found = self.subscriptions.fences.refusal(stream, command, self._now_ms)
            if found is not None:
                return found
        if producer is not None:
            found = stream.producer_refusal(producer)
            if found is not None:
                return found
        if stream.closed:
            if command.close and not self._records and producer is None:
                return CLOSED if self._holds(command.condition, stream) else PRECONDITION_FAILED
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
        if command.condition is not None and not self._holds(command.condition, stream):
            return PRECONDITION_FAILED
        if producer is not None and stream.is_one_too_many(producer):
            return TOO_MANY_PRODUCERS
        return self.quotas.refusal(stream, self._size) if self._records else None

    def _end_producers(self, command: EndProducers) -> str:
        stream = self.streams.get(command.key)
        if stream is not None:
            stream.end_idle(command.producer_ids, self._now_ms)
        return DONE

    def _add(self, stream: Stream) -> None:
        self.start = stream.append(self._records, self._size, self._digests, self._now_ms)
        self.quotas.grow(stream, self._size)

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
                source, at = anchor(command, self.streams, self.ids, self._now_ms)
            except Refused as refusal:
                return str(refusal)
        if command.condition is not None:
            return PRECONDITION_FAILED
        is_fork = command.settings.fork is not None
        inherited = source.snapshot.size if is_fork and source.snapshot is not None else 0
        full = self.quotas.refusal_to_create(key, inherited + bool(self._records) * self._size)
        if full is not None:
            return full
        if is_fork:
            stream.attach(source, at)
            self.changed.add(source.key)
        self.ids.give(stream)
        self.stream = stream
        self.take(stream)
        has_subscriptions = bool(self.subscriptions.by_id)
        if has_subscriptions:
            self.subscriptions.links.refresh(stream)
        if self._records:
            self._add(stream)
        stream.closed = command.closed
        stream.schedule_sweep()
        if has_subscriptions:
            self.subscriptions.created(stream, self._records > 0)
        return CREATED

    def take(self, stream: Stream) -> None:
        """Take a stream that was made, or that the state before the log has."""
        self.streams[stream.key] = stream
        self.quotas.take(stream)

    def _create_again(self, command: Create, existing: Stream) -> str:
        if existing.deleted:
            return IN_USE_BY_FORKS
        if existing.closed != command.closed or not same_request(
            existing.settings, command.settings
        ):
            return SETTINGS_DIFFER
        return EXISTS if self._holds(command.condition, existing) else PRECONDITION_FAILED

    # -- ending (protocol sections 5.4 and 4.2) ---------------------------------------------------

    def _delete(self, command: Delete) -> str:
        stream = self._living(command.key)
        if isinstance(stream, str):
            return self._absent(stream, command.key, command.condition)
        if not self._holds(command.condition, stream):
            return PRECONDITION_FAILED
        self._end(stream)
        return DELETED

    def _end(self, stream: Stream) -> None:
        """Hide a stream from its clients; while forks read its bytes it stays."""
        self.subscriptions.ended(stream)
        kept = stream.kept
        stream.snapshot = stream.sweep_at_ms = None
        if stream.forks:
            self.quotas.settle(stream, kept)
            stream.deleted = True
            self._ended(stream, (self._index, self._position), True)
            return
        while True:
            del self.streams[stream.key]
            self.quotas.remove(stream, kept)
            self._ended(stream, (self._index, self._position), False)
            fork = stream.settings.fork
            if fork is None:
                return
            source = self.streams.get(fork.source)
            if source is None:
                return
            self.changed.add(source.key)
            source.forks -= 1
            if source.forks:
                return
            kept = source.kept
            if not source.deleted:
                source.trim(self._now_ms)
                self.quotas.settle(source, kept)
                return
            stream = source

    def _read(self, command: Read) -> str:
        stream = self.streams.get(command.key)
        if stream is None or stream.deleted or not self.ids.match(stream, command.stream_id):
            return DONE
        if not stream.is_over(command.at_ms) and command.at_ms > stream.touched_ms:
            stream.touched_ms = command.at_ms
        return DONE

    def _due(self, command: Due) -> str:
        stream = self.streams.get(command.key)
        if stream is None:
            return DONE
        self.quotas.count(stream)
        if stream.sweep_at_ms is None:
            return DONE
        if stream.is_over(self._now_ms):
            self._end(stream)
        elif stream.sweep_at_ms <= self._now_ms:
            stream.schedule_sweep()
        return DONE

    # -- snapshots (docs/snapshots-design.md) ------------------------------------------------------

    def _begin_upload(self, command: BeginUpload) -> str:
        stream = self._living(command.key)
        if isinstance(stream, str):
            return stream
        refusal = unpublishable(self.ids, stream, command.at, command.verified)
        if refusal is not None:
            return refusal
        upload = Upload((self._index, self._position), None, stream, self._now_ms)
        self.ids.give(upload)
        self.uploads.add(upload)
        return UPLOADING

    def _store_part(self, command: StorePart) -> str:
        if command.upload_id < 0:
            return INVALID
        upload = self.uploads.find(command.upload_id)
        if upload is None or upload.parts != command.number:
            return UPLOAD_LOST
        self.part = Part(upload, upload.parts, upload.size)
        upload.parts += 1
        upload.size += self._size
        upload.touched_ms = self._now_ms
        return UPLOADING

    def _publish(self, command: PublishSnapshot) -> str:
        if command.upload_id < 0:
            return INVALID
        stream = self._living(command.key)
        if isinstance(stream, str):
            self.uploads.take(command.upload_id)
            return stream
        refusal = unpublishable(self.ids, stream, command.at, command.verified)
        if refusal == STALE:
            return STALE
        upload = self.uploads.take(command.upload_id)
        self.quotas.count(stream)
        known = stream.snapshot
        if refusal == SNAPSHOT_DIFFERS and known is not None:
            asked = command.size, command.content_type, command.digest
            return PUBLISHED if known[2:5] == asked else SNAPSHOT_DIFFERS
        if refusal is None and command.at[0] < 0:
            refusal = INVALID
        if refusal is None:
            refusal = incomplete(stream, command, upload, self._size)
        kept = stream.kept
        if refusal is None:
            first = stream.kept_from if stream.forks else max(stream.fork_point, command.at)[1]
            more = stream.size - (first or 0) + command.size - kept
            refusal = self.quotas.refusal(stream, more)
        if refusal is not None:
            return refusal
        blob: Numbered | None = upload
        if blob is None:
            blob = Numbered((self._index, self._position), None)
            self.ids.give(blob)
            self.part = Part(blob, 0, 0) if self._records else None
        stream.snapshot = Published(
            *command.at, command.size, command.content_type, command.digest, blob
        )
        stream.trim(self._now_ms)
        self.quotas.settle(stream, kept)
        if stream.ttl_ms is not None:
            stream.touched_ms = self._now_ms
        return PUBLISHED

    def _drop_upload(self, command: DropUpload) -> str:
        upload = self.uploads.find(command.upload_id)
        if upload is not None and self._now_ms - upload.touched_ms >= command.idle_ms:
            self.uploads.remove(upload)
        return DONE

    # -- the cold store (docs/cold-store.md) ------------------------------------------------------

    def _flushed(self, command: Flushed) -> str:
        stream = self.streams.get(command.key)
        if stream is None or command.term != self._term:
            return STALE
        if not self.ids.match(stream, command.stream_id):
            return STALE
        start = command.start_record, command.start_byte
        end = command.end_record, command.end_byte
        if not stream.may_cool(start, end):
            return STALE
        self.stream = stream
        stream.cool(end, self._now_ms)
        return DONE

    # -- for subscriptions ------------------------------------------------------------------------

    def living(self, key: bytes) -> Stream | None:
        """A stream that can be used now; one that has expired ends."""
        stream = self.streams.get(key)
        if stream is None or stream.deleted:
            return None
        if stream.is_over(self._now_ms):
            self.changed.add(key)
            self._end(stream)
            return None
        return stream

    def append_event(self, stream: Stream, record: bytes) -> None:
        """Append the event of a wake."""
        self.changed.add(stream.key)
        digests = digests_of(record, [len(record)])
        start = stream.append(1, len(record), digests, self._now_ms)
        self.quotas.grow(stream, len(record))
        stream.last_write_ms = self._now_ms
        if stream.ttl_ms is not None:
            stream.touched_ms = self._now_ms
        self.events.append(Event(stream, start, len(record), digests))
