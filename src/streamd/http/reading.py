"""Handlers that read: HEAD, catch-up, long-poll (protocol sections 5.5 to 5.7)."""

from __future__ import annotations

from struct import pack

import trio

from streamd.headers import IF_NONE_MATCH
from streamd.http import compression, fields
from streamd.http.conditions import named_tag
from streamd.http.fields import PIECE_BYTES, BadRequest, Live, ReadQuery
from streamd.http.live import Reader
from streamd.http.messages import Buffer, ClientGone, LiveResponse, Request, Response
from streamd.http.routing import StreamRoute
from streamd.http.service import NOT_FOUND, TOO_MANY_READERS, Service, offset_gone
from streamd.http.tailing import tail_by_sse
from streamd.node.reads import OffsetGone
from streamd.streams.chunks import OffsetMismatch, Slice
from streamd.streams.content import is_json
from streamd.streams.etags import range_tag, state_tag
from streamd.streams.model import Stream
from streamd.streams.offsets import Position

_NO_STORE = b"Cache-Control: no-store\r\n"
_CACHEABLE_S = 60
# Records with their lengths, for programs that need each record. Every length costs some work, so
# a large answer of tiny records would block the loop: hence a limit of its own.
FRAMED_TYPE = "application/vnd.streamd.records"
_FRAMED_BYTES = PIECE_BYTES
_CACHEABLE = b"Cache-Control: public, max-age=60, stale-while-revalidate=300\r\n"
_UP_TO_DATE = b"Stream-Up-To-Date: true\r\n"
_CLOSED = b"Stream-Closed: true\r\n"


async def head(service: Service, request: Request, route: StreamRoute) -> Response:
    """HEAD: metadata only. The one read that does not renew a sliding window."""
    query = fields.read_query(request.query)
    stream = await service.find(route, local=query.local)
    if isinstance(stream, Response):
        return stream
    tail = stream.tail.token()
    etag = state_tag(service.incarnation(stream.stream_id), tail, stream.closed)
    asked = request.headers.get(IF_NONE_MATCH.key)
    if asked is not None and (named := named_tag(asked, etag)) is not None:
        return Response(304, b"ETag: %b\r\n" % named + _NO_STORE)
    head = b"Content-Type: %b\r\nStream-Next-Offset: %b\r\nETag: %b\r\n%b" % (
        stream.content_type.encode(),
        tail,
        etag,
        _NO_STORE,
    )
    if stream.ttl_ms is not None:
        head += b"Stream-TTL: %d\r\n" % (stream.ttl_ms // 1000)
    if stream.expires_at is not None:
        head += b"Stream-Expires-At: %b\r\n" % stream.expires_at.encode()
    if stream.snapshot is not None:
        head += b"Stream-Snapshot-Offset: %b\r\n" % stream.snapshot.position.token()
    if stream.closed:
        head += _CLOSED
    if query.record is not None:
        at = await _boundary(service, stream, query.record)
        if isinstance(at, Response):
            return at
        head += _first_offset(at)
    return Response(200, head)


async def read(service: Service, request: Request, route: StreamRoute) -> Response | LiveResponse:
    """GET: catch-up, long-poll or SSE, by the query."""
    query = fields.read_query(request.query)
    stream = await service.find(route, local=query.local)
    if query.local and isinstance(stream, Stream) and _is_past_tail(query, stream):
        # The offset may come from another node, whose state is later. Answering with this node's
        # older tail would make the reader read the same records twice.
        stream = await service.find(route)
    if isinstance(stream, Response):
        return stream
    service.touch(route, stream)
    # An offset past the tail reads as the tail (decision 005).
    at = stream.tail if query.at is None else min(query.at, stream.tail)
    if query.record is not None:
        found = await _boundary(service, stream, query.record)
        if isinstance(found, Response):
            return found
        at = found
    if query.live is Live.SSE:
        return await tail_by_sse(service, request, route, stream, at, query.cursor)
    if query.live is Live.LONG_POLL:
        if at == stream.tail and not stream.closed:
            return await _wait_for_change(service, request, route, stream, at, query)
        if at == stream.tail:
            return Response(204, _tail_head(stream.tail, b"") + _CLOSED)
    elif query.at is None:
        return _now(stream)
    return await _catch_up(service, request, stream, at, query)


async def _boundary(service: Service, stream: Stream, record: int) -> Position | Response:
    """The offset at which a record begins, or the error if it cannot be read."""
    try:
        return await service.node.reads.boundary(stream, record)
    except OffsetMismatch:
        # Removed during the lookup: the stream was deleted, or trimmed.
        return NOT_FOUND
    except OffsetGone as gone:
        return offset_gone(gone.earliest)


def _first_offset(at: Position) -> bytes:
    return b"Stream-First-Offset: %b\r\n" % at.token()


def _is_past_tail(query: ReadQuery, stream: Stream) -> bool:
    return query.at is not None and query.at > stream.tail


def _now(stream: Stream) -> Response:
    """``offset=now``: the tail's offset, which no cache may keep (section 6)."""
    head = b"Content-Type: %b\r\nStream-Next-Offset: %b\r\n" % (
        stream.content_type.encode(),
        stream.tail.token(),
    )
    if stream.closed:
        head += _CLOSED
    body = b"[]" if is_json(stream.content_type) else b""
    return Response(200, head + _UP_TO_DATE + _NO_STORE, body)


async def _catch_up(
    service: Service, request: Request, stream: Stream, at: Position, query: ReadQuery
) -> Response:
    lengths: list[int] | None = [] if query.framed else None
    most = min(query.max_bytes, _FRAMED_BYTES) if query.framed else query.max_bytes
    try:
        found = await service.node.reads.read(stream, at, most, lengths)
    except OffsetMismatch:
        raise BadRequest("INVALID_OFFSET", "offset is not an offset of this stream") from None
    except OffsetGone as gone:
        return offset_gone(gone.earliest)
    up_to_date = found.end == stream.tail
    closed = up_to_date and stream.closed
    etag = range_tag(service.incarnation(stream.stream_id), at, found.end, closed)
    caching = _caching(service, stream, found)
    pays = found.size > compression.LEAST_BYTES and compression.pays(stream.content_type)
    if pays:
        caching += compression.VARY
    asked = request.headers.get(IF_NONE_MATCH.key)
    if asked is not None and (named := named_tag(asked, etag)) is not None:
        return Response(304, b"ETag: %b\r\n" % named + caching)
    content_type = stream.content_type.encode()
    head = b"Content-Type: %b\r\nStream-Next-Offset: %b\r\nETag: %b\r\n" % (
        content_type if lengths is None else FRAMED_TYPE.encode(),
        found.end.token(),
        etag,
    )
    if lengths is not None:
        first = Position(found.end.record - len(lengths), found.end.byte - found.size)
        head += b"Stream-Content-Type: %b\r\n%b" % (content_type, _first_offset(first))
    elif query.record is not None:
        head += _first_offset(at)
    if up_to_date:
        head += _UP_TO_DATE
    if closed:
        head += _CLOSED
    elif query.live is not None:
        head += b"Stream-Cursor: %d\r\n" % service.cursors.next(query.cursor)
    body = body_of(stream, found) if lengths is None else _framed(found, lengths)
    response = Response(200, head + caching, body)
    if pays:
        await service.compressor.compress(request, response)
    return response


def body_of(stream: Stream, found: Slice) -> Buffer | list[Buffer]:
    """A slice as a body: JSON messages in brackets, other records as they are stored."""
    if not is_json(stream.content_type):
        return found.parts or b""
    if not found.parts:
        return b"[]"
    *parts, last = found.parts
    return [b"[", *parts, memoryview(last)[:-1], b"]"]


def _framed(found: Slice, lengths: list[int]) -> list[Buffer]:
    """The number of records, their lengths, and the records as stored: a JSON message has a comma
    after it, which its length and the offsets count."""
    return [pack(f">{len(lengths) + 1}I", len(lengths), *lengths), *found.parts]


def _caching(service: Service, stream: Stream, found: Slice) -> bytes:
    """Section 8: written bytes never change, so caches may keep them; but not the tail, and not
    beyond the stream's expiry."""
    if not found.size:
        return _NO_STORE
    expiry_ms = stream.expiry_ms()
    if expiry_ms is None:
        return _CACHEABLE
    left_s = (expiry_ms - service.node.group.now_ms()) // 1000
    return b"Cache-Control: public, max-age=%d\r\n" % max(0, min(_CACHEABLE_S, left_s))


def _tail_head(at: Position, cursor: bytes) -> bytes:
    return b"Stream-Next-Offset: %b\r\n%b" % (at.token(), cursor) + _UP_TO_DATE + _NO_STORE


async def _wait_for_change(
    service: Service,
    request: Request,
    route: StreamRoute,
    stream: Stream,
    at: Position,
    query: ReadQuery,
) -> Response:
    """Long-poll at the tail (section 5.7): wait for records, the close, the deletion or the
    timeout."""
    wait_ms = service.server.long_poll_timeout_ms
    if query.timeout_ms is not None:
        wait_ms = min(wait_ms, query.timeout_ms)
    if service.hub.full:
        return TOO_MANY_READERS
    reader = Reader((service.node.group.group_id, stream.stream_id), at)
    with service.hub.reading("long-poll"):
        service.hub.add(reader)
        try:
            stayed = await reader.park(request.channel, trio.current_time() + wait_ms / 1000)
        finally:
            service.hub.remove(reader)
    if not stayed:
        raise ClientGone
    current = await service.find(route, local=query.local)
    if isinstance(current, Response):
        return current
    if current.stream_id != stream.stream_id:
        return NOT_FOUND
    if current.tail != at:
        return await _catch_up(service, request, current, at, query)
    if current.closed:
        return Response(204, _tail_head(at, b"") + _CLOSED)
    cursor = b"Stream-Cursor: %d\r\n" % service.cursors.next(query.cursor)
    return Response(204, _tail_head(at, cursor))
