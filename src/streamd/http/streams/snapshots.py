"""Snapshots over HTTP: publish, find, read, delete (extensions section 2)."""

from __future__ import annotations

from functools import partial
from hashlib import blake2b

import trio
from msgspec.structs import replace

from streamd.auth import signed_urls
from streamd.http.protocol import fields
from streamd.http.protocol.connections import Channel, ClientGone, IncomingBody
from streamd.http.protocol.messages import LiveResponse, Request, Response
from streamd.http.protocol.refusals import error_response
from streamd.http.protocol.routing import LatestSnapshotRoute, SnapshotRoute
from streamd.http.sockets.fair_limits import LimitReached
from streamd.http.streams.service import GONE, NOT_FOUND, Service, offset_gone, quota_answer
from streamd.node.blobs import BlobGone, Upload, UploadRefused
from streamd.objectstore.errors import ColdError
from streamd.protocol.headers import CONTENT_TYPE
from streamd.protocol.problems import Problem
from streamd.streams.blobs import PART_BYTES
from streamd.streams.chunks import OffsetMismatch, Window
from streamd.streams.commands import Outcome, Result
from streamd.streams.content import DEFAULT_CONTENT_TYPE
from streamd.streams.model import Snapshot, Stream
from streamd.streams.offsets import Position
from streamd.streams.queries.foresight import foresee_snapshot
from streamd.streams.quotas import note_refusal

# A slow client may need minutes for a part. A shorter part is logged sooner: an upload without a
# new part for long is then known to have lost its node.
_PART_S = 15.0

_NO_SNAPSHOT = error_response(Problem.SNAPSHOT_NOT_FOUND)
_TOO_MANY_UPLOADS = error_response(Problem.TOO_MANY_UPLOADS)


class Sending:
    """What a response holds while it sends a blob and records: a slot and pins."""

    def __init__(self, service: Service, stream: Stream, client: str) -> None:
        """Raises `ProblemError` when too many responses, or too many of `client`, are under way."""
        self._slot = service.downloads.allotment(client)
        try:
            self._slot.hold(1)
        except LimitReached:
            raise Problem.TOO_MANY_DOWNLOADS.error() from None
        ids = {stream.stream_id, *(extent.stream_id for extent in stream.extents)}
        if stream.snapshot is not None:
            ids.add(stream.snapshot.blob_id)
        self._service = service
        self._pin = service.node.group.pins.hold(ids)

    def end(self) -> None:
        self._pin.release()
        self._slot.release()

    async def begin(self, stream: Stream) -> None:
        """Read the first bytes while an error can still be sent instead of the response.

        Raises a `ColdError`, after releasing everything.
        """
        try:
            if stream.snapshot is not None and stream.snapshot.size:
                await self._service.node.blobs.part(stream.snapshot.blob_id, 0)
            elif stream.earliest != stream.tail:
                await self._service.node.reads.read_pinned(stream, Window(stream.earliest, 1))
        except (BlobGone, OffsetMismatch):
            pass  # Sending will meet it again, and abort the body.
        except BaseException:
            self.end()
            raise

    async def send_blob(self, snapshot: Snapshot, channel: Channel) -> None:
        """Send a snapshot's bytes. Raises `ClientGone`, also when they cannot be read."""
        sent = number = 0
        while sent < snapshot.size:
            try:
                data = await self._service.node.blobs.part(snapshot.blob_id, number)
            except (BlobGone, ColdError) as error:
                raise ClientGone from error
            await channel.send(data)
            # Neither the read nor the send may have waited: let others run.
            await trio.lowlevel.checkpoint()
            assert data, "a blob has as many bytes as its snapshot says"
            sent += len(data)
            number += 1
        assert sent == snapshot.size, "the length in the head is that of the body"


# -- publishing -------------------------------------------------------------------------------


async def publish(service: Service, request: Request, route: SnapshotRoute) -> Response:
    """PUT: make the body the stream's snapshot at an offset (section 2.2)."""
    body = request.incoming
    assert body is not None, "the application asked for bodies in pieces"
    at = fields.snapshot_offset(route.offset)
    raw_type = request.headers.get(CONTENT_TYPE.key)
    content_type = fields.content_type(raw_type) if raw_type else DEFAULT_CONTENT_TYPE
    _check_size(service, body.length or 0)
    stream = await service.find(route.stream)
    if isinstance(stream, Response):
        return stream
    if refusal := _hopeless(stream, at):
        return refusal
    try:
        await _check_quota(service, route, at, body.length or 0)
    except UploadRefused as refused:
        return _publish_answer(refused.outcome)
    slot = service.uploads.allotment(request.client)
    try:
        slot.hold(1)
    except LimitReached:
        return _TOO_MANY_UPLOADS
    upload = Upload(service.node.group, service.node.lookup, route.stream.key, at)
    try:
        outcome = await _upload(service, request, route, body, upload, at, content_type)
    except UploadRefused as refused:
        outcome = refused.outcome
    finally:
        upload.close()
        slot.release()
    return _publish_answer(outcome)


async def _upload(
    service: Service,
    request: Request,
    route: SnapshotRoute,
    body: IncomingBody,
    upload: Upload,
    at: Position,
    content_type: str,
) -> Outcome:
    """Write the body to the log part by part, then publish it, unless the sender's credentials have
    ended meanwhile, or a quota refuses it: this may take hours. Raises `ProblemError`,
    `Unavailable`, `UploadRefused`."""
    digest = blake2b(digest_size=32)
    part = bytearray()
    size = 0
    cut_at = trio.current_time() + _PART_S
    while data := await body.receive():
        size += len(data)
        _check_size(service, size)
        digest.update(data)
        part += data
        if len(part) >= PART_BYTES or trio.current_time() >= cut_at:
            await _check_quota(service, route, at, size)
            await upload.add(bytes(part))
            part.clear()
            cut_at = trio.current_time() + _PART_S
            service.authority.admit_again(request)
    service.authority.admit_again(request)
    await _check_quota(service, route, at, size)
    return await upload.publish(content_type, size, digest.digest(), bytes(part))


async def _check_quota(service: Service, route: SnapshotRoute, at: Position, size: int) -> None:
    """Raises `UploadRefused` if a quota refuses a snapshot of at least `size` bytes, before they
    are in the log. The machine has the last word. Raises `Unavailable`."""
    group = service.node.group
    foreseen = partial(foresee_snapshot, group.machine, route.stream.key, at, size)
    if foreseen(group.now_ms()) is None:
        return
    # This node's state may be old.
    await service.catch_up()
    outcome = foreseen(group.now_ms())
    if outcome is not None:
        note_refusal(group.state, outcome.result)
        raise UploadRefused(outcome)


def _check_size(service: Service, size: int) -> None:
    limit = service.server.max_snapshot_bytes
    if size > limit:
        message = f"the snapshot exceeds {limit} bytes (server.max_snapshot_bytes)"
        raise Problem.SNAPSHOT_TOO_LARGE.error(message)


def _hopeless(stream: Stream, at: Position) -> Response | None:
    """The refusal of an offset that can be known to fail before the body has arrived. The machine
    has the final say."""
    if at.record < stream.earliest.record:
        return offset_gone(stream.earliest)
    return _beyond_tail(stream.tail) if at.record > stream.records else None


def _publish_answer(outcome: Outcome) -> Response:
    match outcome.result:
        case Result.PUBLISHED:
            head = b"Stream-Snapshot-Offset: %b\r\nStream-Next-Offset: %b\r\n" % (
                outcome.earliest.token(),
                outcome.tail.token(),
            )
            return Response(204, head)
        case Result.OFFSET_GONE:
            return offset_gone(outcome.earliest)
        case Result.OFFSET_INVALID:
            message = "the offset is not between two messages of the stream"
            return error_response(Problem.INVALID_OFFSET, message)
        case Result.OFFSET_BEYOND_TAIL:
            return _beyond_tail(outcome.tail)
        case Result.SNAPSHOT_DIFFERS:
            return error_response(Problem.SNAPSHOT_EXISTS)
        case Result.UPLOAD_LOST:
            return error_response(Problem.UPLOAD_LOST)
        case Result.NOT_FOUND:
            return NOT_FOUND
        case Result.GONE:
            return GONE
        case _:
            return quota_answer(outcome)


def _beyond_tail(tail: Position) -> Response:
    head = b"Stream-Next-Offset: %b\r\n" % tail.token()
    return error_response(Problem.OFFSET_BEYOND_TAIL, head=head)


# -- reading ----------------------------------------------------------------------------------


async def latest(service: Service, request: Request, route: LatestSnapshotRoute) -> Response:
    """GET without an offset: redirect to the latest snapshot (section 2.3)."""
    stream = await service.find(route.stream)
    if isinstance(stream, Response):
        return stream
    snapshot = stream.snapshot
    if snapshot is None:
        return _NO_SNAPSHOT
    location = b"%b/snapshot/%b" % (route.stream.path, snapshot.position.token())
    signed = signed_urls.value_in(request.query)
    if signed is not None:
        # Signed for a prefix, it holds there, too.
        location += b"?%b=%b" % (signed_urls.PARAMETER, signed)
    return Response(307, b"Location: %b\r\n" % location + _head(stream, snapshot))


async def read(service: Service, request: Request, route: SnapshotRoute) -> Response | LiveResponse:
    """GET: the bytes of the snapshot at an offset (section 2.5)."""
    stream = await service.find(route.stream)
    if isinstance(stream, Response):
        return stream
    snapshot = stream.snapshot
    if snapshot is None or snapshot.position.token() != route.offset:
        return _NO_SNAPSHOT
    head = b"Content-Type: %b\r\n" % snapshot.content_type.encode() + _head(stream, snapshot)
    if request.method == "HEAD":
        return Response(200, head)
    service.touch(route.stream, stream)
    stream = replace(stream)
    sending = Sending(service, stream, request.client)
    await sending.begin(stream)

    async def run(channel: Channel) -> None:
        try:
            await sending.send_blob(snapshot, channel)
        finally:
            sending.end()

    return LiveResponse(200, head, run, snapshot.size, sending.end)


def _head(stream: Stream, snapshot: Snapshot) -> bytes:
    """The headers with the snapshot's offset, from which a client reads on."""
    at = snapshot.position.token()
    at_tail = snapshot.position == stream.tail
    head = (
        b"Stream-Snapshot-Offset: %b\r\nStream-Next-Offset: %b\r\nStream-Up-To-Date: %b\r\n"
        b"Cache-Control: no-store\r\n" % (at, at, b"true" if at_tail else b"false")
    )
    return head + b"Stream-Closed: true\r\n" if at_tail and stream.closed else head


async def delete(service: Service, request: Request, route: SnapshotRoute) -> Response:
    """DELETE: always refused, because the stream needs its only snapshot (section 2.6)."""
    stream = await service.find(route.stream)
    if isinstance(stream, Response):
        return stream
    if stream.snapshot is None or stream.snapshot.position.token() != route.offset:
        return _NO_SNAPSHOT
    return error_response(Problem.SNAPSHOT_IN_USE)
