"""Handlers that read: HEAD, catch-up, long-poll (protocol sections 5.5 to 5.7)."""

from __future__ import annotations

from collections.abc import Callable
from struct import pack
from typing import TypeVar, cast

import trio

from streamd.http.access.rates import begin_live, charge_answer, end_live
from streamd.http.protocol import compression, fields
from streamd.http.protocol.connections import Buffer
from streamd.http.protocol.fields import Live, ReadQuery, named_tag
from streamd.http.protocol.messages import LiveResponse, Parked, Request, Response
from streamd.http.protocol.routing import StreamRoute
from streamd.http.streams import fenced_writes
from streamd.http.streams.live import Reader
from streamd.http.streams.recent_answers import Key
from streamd.http.streams.service import NOT_FOUND, TOO_MANY_READERS, Service, offset_gone
from streamd.http.streams.tailing import tail_by_sse
from streamd.node.reads import OffsetGone
from streamd.protocol.headers import IF_NONE_MATCH
from streamd.protocol.problems import Problem
from streamd.streams.chunks import OffsetMismatch, Slice
from streamd.streams.content import is_json
from streamd.streams.etags import range_tag, state_tag
from streamd.streams.fencing import seals
from streamd.streams.model import Stream
from streamd.streams.offsets import Position

# An answer, or None where it is possible that there is none yet.
Answered = TypeVar("Answered", Response, Response | None)
_NO_STORE = b"Cache-Control: no-store\r\n"
_CACHEABLE_S = 60
# Records with their lengths, for programs that need each record.
FRAMED_TYPE = "application/vnd.streamd.records"
_CACHEABLE = b"Cache-Control: %b, max-age=60, stale-while-revalidate=300\r\n"
_UP_TO_DATE = b"Stream-Up-To-Date: true\r\n"
_CLOSED = b"Stream-Closed: true\r\n"


def begin_head(service: Service, request: Request, route: StreamRoute) -> Response | None:
    """HEAD: metadata only. None leaves it to `head`."""
    query = fields.read_query(request.query)
    if query.record is not None:
        return None
    stream = service.find_now(route, local=query.local)
    if not isinstance(stream, Stream):
        return stream
    response = _metadata(service, request, stream)
    is_conditional = IF_NONE_MATCH.key in request.headers
    is_lasting = stream.ttl_ms is None and stream.expires_at_ms is None
    # A seal comes of the end of a claim, of which the stream knows nothing yet.
    if is_lasting and not stream.settings.write_fence and not is_conditional:
        response.shows = route.key
    return response


async def head(service: Service, request: Request, route: StreamRoute) -> Response:
    """HEAD: metadata only. The one read that does not renew a sliding window."""
    query = fields.read_query(request.query)
    stream = await service.find(route, local=query.local)
    if isinstance(stream, Response):
        return stream
    response = _metadata(service, request, stream)
    if query.record is not None and response.status == 200:
        at = await _boundary(service, stream, query.record)
        if isinstance(at, Response):
            return at
        response.head += _first_offset(at)
    return response


def _metadata(service: Service, request: Request, stream: Stream) -> Response:
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
    if stream.settings.write_fence:
        seal = seals.view(service.node.group.state, stream).seal
        head += fenced_writes.FENCED + fenced_writes.seal_head(seal)
    return Response(200, head)


def begin_read(service: Service, request: Request, route: StreamRoute) -> Response | Parked | None:
    """GET of records in memory, and long-poll. None leaves it to `read`."""
    query = fields.read_query(request.query)
    if query.live is Live.SSE or query.record is not None or query.framed or query.proof:
        return None
    stream = service.find_now(route, local=query.local)
    if not isinstance(stream, Stream):
        return stream
    if query.local and _is_past_tail(query, stream):
        return None
    if query.at is None and query.live is None:
        service.touch(route, stream)
        return _now(stream)
    at = _start(query, stream)
    if query.live is not None and at == stream.tail:
        service.touch(route, stream)
        return _wait_at_tail(service, request, route, stream, query)
    key = _answer_key(service, request, stream, at, query)
    if key is not None and (known := service.answers.get(key)) is not None:
        return known
    response = _read_now(service, request, stream, at, query)
    if response is not None:
        service.touch(route, stream)
        if key is not None:
            response.shows = route.key
            service.answers.keep(key, response)
    return response


def _read_now(
    service: Service, request: Request, stream: Stream, at: Position, query: ReadQuery
) -> Response | None:
    """As `_catch_up`, or None if that must wait."""
    try:
        found = service.node.reads.read_now(stream, query.window(at))
    except (OffsetMismatch, OffsetGone):
        return None
    if found is None or (_may_shrink(stream, found) and compression.asked_for(request)):
        return None
    return _slice(service, request, stream, at, query, found)


def _answer_key(
    service: Service, request: Request, stream: Stream, at: Position, query: ReadQuery
) -> Key | None:
    """The key of the answer to a read in `Service.answers`; None if it depends on more: on the
    clock, or on what the client has."""
    if (
        query.live is not None
        or stream.ttl_ms is not None
        or stream.expires_at_ms is not None
        or at.record < stream.earliest.record
        or IF_NONE_MATCH.key in request.headers
    ):
        return None
    incarnation = service.incarnation(stream.stream_id)
    return incarnation, stream.records, stream.size, stream.closed, query


async def read(
    service: Service, request: Request, route: StreamRoute
) -> Response | LiveResponse | Parked:
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
    at = _start(query, stream)
    if query.record is not None:
        found = await _boundary(service, stream, query.record)
        if isinstance(found, Response):
            return found
        at = found
    if query.proof:
        return await _prove(service, route, stream, at)
    if query.live is Live.SSE:
        return await tail_by_sse(service, request, route, stream, at, query.cursor)
    if query.live is Live.LONG_POLL and at == stream.tail:
        return _wait_at_tail(service, request, route, stream, query)
    if query.live is None and query.at is None:
        return _now(stream)
    return await _catch_up(service, request, stream, at, query)


async def _prove(service: Service, route: StreamRoute, stream: Stream, at: Position) -> Response:
    """A proof of the record at an offset."""
    prover = service.node.prover
    if prover is None:
        raise Problem.NO_COLD_STORE.error()
    try:
        proof = await prover.prove(route.key, stream, at)
    except OffsetMismatch:
        raise Problem.INVALID_OFFSET.error("offset is not an offset of this stream") from None
    except OffsetGone as gone:
        return offset_gone(gone.earliest)
    return Response(200, b"Content-Type: application/json\r\n" + _NO_STORE, proof)


def _wait_at_tail(
    service: Service, request: Request, route: StreamRoute, stream: Stream, query: ReadQuery
) -> Response | Parked:
    """Long-poll at the tail."""
    if stream.closed:
        return Response(204, _tail_head(stream.tail, b"") + _CLOSED)
    if service.hub.full:
        return TOO_MANY_READERS
    if late := service.rates.too_many_readers(request):
        return late
    return LongPoll(service, request, route, stream, query)


def _start(query: ReadQuery, stream: Stream) -> Position:
    """Where a read begins. An offset past the tail reads as the tail (decision 005)."""
    return stream.tail if query.at is None else min(query.at, stream.tail)


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
    try:
        found = await service.node.reads.read(stream, query.window(at))
    except OffsetMismatch:
        raise Problem.INVALID_OFFSET.error("offset is not an offset of this stream") from None
    except OffsetGone as gone:
        return offset_gone(gone.earliest)
    response = _slice(service, request, stream, at, query, found)
    if response.status == 200 and _may_shrink(stream, found):
        await service.compressor.compress(request, response)
    return response


def _may_shrink(stream: Stream, found: Slice) -> bool:
    """Whether to compress what was found for clients that accept it."""
    return found.size > compression.LEAST_BYTES and compression.pays(stream.content_type)


def _slice(
    service: Service,
    request: Request,
    stream: Stream,
    at: Position,
    query: ReadQuery,
    found: Slice,
) -> Response:
    """The answer with the records found at `at`, or that the client has them."""
    up_to_date = found.end == stream.tail
    closed = up_to_date and stream.closed
    etag = range_tag(service.incarnation(stream.stream_id), at, found.end, closed)
    caching = _caching(service, stream, found)
    caching += service.vary[_may_shrink(stream, found)]
    asked = request.headers.get(IF_NONE_MATCH.key)
    if asked is not None and (named := named_tag(asked, etag)) is not None:
        return Response(304, b"ETag: %b\r\n" % named + caching)
    content_type = stream.content_type.encode()
    lengths = found.lengths() if query.framed else None
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
    return Response(200, head + caching, body)


def body_of(stream: Stream, found: Slice) -> Buffer | list[Buffer]:
    """A slice as a body: JSON messages in brackets, other records without a change."""
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
        return _CACHEABLE % service.authority.caching
    left_s = (expiry_ms - service.node.group.now_ms()) // 1000
    age_s = max(0, min(_CACHEABLE_S, left_s))
    return b"Cache-Control: %b, max-age=%d\r\n" % (service.authority.caching, age_s)


def _tail_head(at: Position, cursor: bytes) -> bytes:
    return b"Stream-Next-Offset: %b\r\n%b" % (at.token(), cursor) + _UP_TO_DATE + _NO_STORE


class LongPoll(Reader):
    """A long-poll at the tail (section 5.7): waits for records, the close, the deletion or the
    timeout."""

    __slots__ = ("_query", "_route", "_service", "request")

    def __init__(
        self,
        service: Service,
        request: Request,
        route: StreamRoute,
        stream: Stream,
        query: ReadQuery,
    ) -> None:
        super().__init__((service.node.group.group_id, stream.stream_id), stream.tail)
        self._service = service
        self.request = request
        self._route = route
        self._query = query
        wait_ms = service.server.long_poll_timeout_ms
        if query.timeout_ms is not None:
            wait_ms = min(wait_ms, query.timeout_ms)
        self.deadline = trio.current_time() + wait_ms / 1000
        self.deadline = min(self.deadline, service.authority.ends_s(request))
        service.hub.begin("long-poll")
        begin_live(request.accounts)
        service.hub.add(self)

    def park(self, wake: Callable[[Parked], None]) -> None:
        super().park(wake)
        if self.news:
            # They came before, and nothing else tells of them.
            wake(self)

    def resume(self) -> Response | None:
        self.abandon()
        current = self._service.find_now(self._route, local=self._query.local)
        if current is None:
            return None
        return self._charged(
            self._without_records(current)
            or _read_now(self._service, self.request, cast("Stream", current), self.at, self._query)
        )

    async def go_on(self) -> Response:
        current = await self._service.find(self._route, local=self._query.local)
        found = self._without_records(current)
        if found is None:
            stream = cast("Stream", current)
            found = await _catch_up(self._service, self.request, stream, self.at, self._query)
            # Its token may have ended during the read, before the records were appended.
            self._service.authority.admit_again(self.request)
        return self._charged(found)

    def _charged(self, found: Answered) -> Answered:
        """An answer, once it is charged to the reader's accounts."""
        if found is not None and self.request.accounts:
            charge_answer(self.request, found)
        return found

    def abandon(self) -> None:
        self._service.hub.remove(self)
        self._service.hub.end("long-poll")
        end_live(self.request.accounts)

    def _without_records(self, current: Stream | Response) -> Response | None:
        """The answer if there are no records to be read. Raises `ProblemError` if the reader's
        token has ended."""
        self._service.authority.admit_again(self.request)
        if isinstance(current, Response):
            return current
        if current.stream_id != self.stream[1]:
            return NOT_FOUND
        if current.tail != self.at:
            return None
        if current.closed:
            return Response(204, _tail_head(self.at, b"") + _CLOSED)
        cursor = b"Stream-Cursor: %d\r\n" % self._service.cursors.next(self._query.cursor)
        return Response(204, _tail_head(self.at, cursor))
