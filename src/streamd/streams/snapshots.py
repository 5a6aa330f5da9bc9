"""Snapshots that applications publish of a stream, and the bytes that they make superfluous
(extensions section 2).

A body arrives as an upload, part by part; one small command makes it the snapshot. A blob has an
id of its own, from the counter of the streams, and is shared by the forks that inherit it. It is
removed when nothing refers to it.
"""

from __future__ import annotations

from streamd.streams import keys, quotas
from streamd.streams.chunks import AnyChunk
from streamd.streams.commands import (
    BeginUpload,
    DropUploads,
    Outcome,
    PublishSnapshot,
    Result,
    StorePart,
)
from streamd.streams.model import Blob, Snapshot, Stream, Upload, Verdict, VerifiedPosition
from streamd.streams.offsets import Position
from streamd.streams.state import State


def begin_upload(state: State, stream: Stream, command: BeginUpload, now_ms: int) -> Outcome:
    """Begin an upload, unless a snapshot at its offset would be refused, or exists."""
    refusal = _refusal(state, stream, Position(*command.at), command.finding)
    if refusal is not None:
        return _answer(refusal, stream)
    upload_id = _next_id(state)
    state.uploads.put(keys.number(upload_id), Upload(stream.stream_id, now_ms))
    outcome = Outcome.of(Result.UPLOADING, stream)
    outcome.upload_id = upload_id
    return outcome


def store_part(state: State, command: StorePart, now_ms: int) -> Outcome:
    """Add the next part of an upload."""
    key = keys.number(command.upload_id)
    upload = state.uploads.get(key)
    if upload is None or upload.parts != command.number:
        return Outcome(Result.UPLOAD_LOST)
    state.store_part(command.upload_id, command.number, command.data)
    upload.parts += 1
    upload.size += len(command.data)
    upload.touched_ms = now_ms
    state.uploads.put(key, upload)
    return Outcome(Result.UPLOADING, upload_id=command.upload_id)


def publish(state: State, stream: Stream, command: PublishSnapshot, now_ms: int) -> Outcome:
    """Make an upload, or the command's own data, the snapshot of a stream.

    The upload ends whatever the outcome, unless the command must be made again.
    """
    at = Position(*command.at)
    refusal = _refusal(state, stream, at, command.finding)
    if refusal is Result.STALE:
        return _answer(refusal, stream)
    upload = _take_upload(state, command.upload_id)
    if refusal is Result.SNAPSHOT_DIFFERS and _is_published(stream, command):
        refusal = Result.PUBLISHED
    if refusal is None and at.record < 0:
        # The finding was made up: no row has a record before the first.
        refusal = Result.INVALID
    if refusal is None:
        refusal = _incomplete(stream, command, upload)
    quotas.count(state, command.key, stream)
    kept = quotas.kept(stream)
    if refusal is None:
        more = _kept_with(stream, command.size, at) - kept
        refusal = quotas.refusal(state, command.key, stream, more)
    if refusal is not None:
        if upload is not None:
            state.discard_blob(command.upload_id)
        return _answer(refusal, stream)
    _replace(state, stream, command, at, upload)
    quotas.settle(state, command.key, stream, kept)
    if stream.ttl_ms is not None:
        stream.touched_ms = now_ms
    state.streams.put(command.key, stream)
    return _answer(Result.PUBLISHED, stream)


def drop_uploads(state: State, command: DropUploads, now_ms: int) -> Outcome:
    """Forget uploads that have been idle."""
    for upload_id in command.ids:
        upload = state.uploads.get(keys.number(upload_id))
        if upload is not None and now_ms - upload.touched_ms >= command.idle_ms:
            _take_upload(state, upload_id)
            state.discard_blob(upload_id)
    return Outcome(Result.DONE)


def inherit(state: State, source: Stream, fork: Stream) -> None:
    """Give a fork its source's snapshot, so that its readers can bootstrap too."""
    if source.snapshot is not None:
        fork.snapshot = source.snapshot
        _refer(state, source.snapshot.blob_id, 1)


def release(state: State, stream: Stream) -> None:
    """Take a stream's snapshot away, because the stream itself ends."""
    if stream.snapshot is not None:
        _refer(state, stream.snapshot.blob_id, -1)
        stream.snapshot = None


def _refusal(
    state: State, stream: Stream, at: Position, finding: VerifiedPosition | None
) -> Result | None:
    """Why there can be no new snapshot at an offset; None if there can be."""
    snapshot = stream.snapshot
    if snapshot is not None and at.record < snapshot.record:
        return Result.OFFSET_GONE
    if snapshot is not None and at == snapshot.position:
        return Result.SNAPSHOT_DIFFERS
    if at.record > stream.records:
        return Result.OFFSET_BEYOND_TAIL
    if at.record == stream.records:
        return None if at == stream.tail else Result.OFFSET_INVALID
    if (
        finding is None
        or finding.stream_id != stream.stream_id
        or finding.verdict is Verdict.NOTHING
    ):
        return Result.STALE
    return None if finding.verdict is Verdict.BOUNDARY else Result.OFFSET_INVALID


def find_boundary(stream: Stream, chunk: AnyChunk, at: Position) -> VerifiedPosition:
    """Whether a record of the chunk begins at `at`."""
    skipped = chunk.bytes_before(at.record - chunk.start_record)
    if chunk.start_byte + skipped != at.byte:
        return VerifiedPosition(stream.stream_id, Verdict.NO_BOUNDARY)
    return VerifiedPosition(stream.stream_id, Verdict.BOUNDARY, *at)


def _is_published(stream: Stream, command: PublishSnapshot) -> bool:
    """Whether a snapshot at the same offset is the one that a command would publish."""
    snapshot = stream.snapshot
    return snapshot is not None and (snapshot.content_type, snapshot.size, snapshot.digest) == (
        command.content_type,
        command.size,
        command.digest,
    )


def _incomplete(stream: Stream, command: PublishSnapshot, upload: Upload | None) -> Result | None:
    """What is wrong with the bytes to publish, if anything is."""
    if not command.upload_id:
        return None if len(command.data) == command.size else Result.UPLOAD_LOST
    if upload is None or upload.size != command.size:
        return Result.UPLOAD_LOST
    # The stream may have been deleted and created again while the body arrived.
    return None if upload.stream_id == stream.stream_id else Result.NOT_FOUND


def judge(state: State, stream: Stream, command: PublishSnapshot) -> Outcome | None:
    """The outcome of publishing a command's own data, if it changes nothing.

    None if it may, or if the command must be made again.
    """
    at = Position(*command.at)
    refusal = _refusal(state, stream, at, command.finding)
    if refusal is Result.STALE:
        return None
    if refusal is Result.SNAPSHOT_DIFFERS and _is_published(stream, command):
        refusal = Result.PUBLISHED
    if refusal is None:
        refusal = refusal_by_quota(state, command.key, stream, at, command.size)
    return None if refusal is None else _answer(refusal, stream)


def refusal_by_quota(
    state: State, key: bytes, stream: Stream, at: Position, size: int
) -> Result | None:
    """Why a stream that is counted may not get another snapshot of `size` bytes; None if it may."""
    if stream.snapshot is not None and at == stream.snapshot.position:
        return None
    more = _kept_with(stream, size, at) - quotas.kept(stream)
    return quotas.refusal(state, key, stream, more)


def _kept_with(stream: Stream, size: int, at: Position) -> int:
    """How many bytes a stream would keep with a snapshot of `size` bytes."""
    first = stream.kept_from if stream.forks else max(stream.fork_point, at).byte
    return stream.size - (first or 0) + size


def _replace(
    state: State, stream: Stream, command: PublishSnapshot, at: Position, upload: Upload | None
) -> None:
    blob_id, parts = command.upload_id, upload.parts if upload is not None else 0
    if not blob_id:
        blob_id = _next_id(state)
        if command.data:
            state.store_part(blob_id, 0, command.data)
            parts = 1
    blob = Blob(1, parts, command.size)
    if blob.size:
        state.heat(keys.blob_owner(blob_id), blob)
    state.blobs.put(keys.number(blob_id), blob)
    release(state, stream)
    stream.snapshot = Snapshot(
        at.record, at.byte, blob_id, command.size, command.content_type, command.digest
    )
    state.trim(command.key, stream)


def _refer(state: State, blob_id: int, change: int) -> None:
    """Count a reference to a blob, or one less; a blob without any is removed."""
    key = keys.number(blob_id)
    blob = state.blobs.get(key)
    assert blob is not None, "a blob stays while a stream refers to it"
    blob.references += change
    if blob.references:
        state.blobs.put(key, blob)
        return
    state.cool(keys.blob_owner(blob_id), blob, Position(blob.records, blob.size))
    state.blobs.delete(key)
    state.discard_blob(blob_id)


def _take_upload(state: State, upload_id: int) -> Upload | None:
    key = keys.number(upload_id)
    upload = state.uploads.get(key) if upload_id else None
    if upload is not None:
        state.uploads.delete(key)
    return upload


def _next_id(state: State) -> int:
    found = state.header.next_stream_id
    state.header.next_stream_id += 1
    return found


def _answer(result: Result, stream: Stream) -> Outcome:
    outcome = Outcome.of(result, stream)
    outcome.earliest = stream.earliest
    return outcome
