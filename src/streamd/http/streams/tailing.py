"""Tailing a stream by server-sent events (protocol section 5.8)."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from streamd.http.access.rates import PAUSE_S, begin_live, end_live, spend_out
from streamd.http.protocol.connections import Buffer, Channel
from streamd.http.protocol.messages import LateAnswer, LiveResponse, Parked, Request, Response
from streamd.http.protocol.routing import StreamRoute
from streamd.http.protocol.sse import (
    HEARTBEAT,
    MOST_HELD_BYTES,
    control_event,
    cut_character,
    data_event,
    data_event_pieces,
    whole_characters,
)
from streamd.http.sockets.outgoing import OutgoingFull
from streamd.http.streams.live import SseReader
from streamd.http.streams.service import TOO_MANY_READERS, Service, offset_gone
from streamd.node.reads import OffsetGone
from streamd.objectstore.errors import ColdError
from streamd.protocol.problems import Problem
from streamd.streams.chunks import OffsetMismatch, Window
from streamd.streams.content import is_text
from streamd.streams.etags import state_tag
from streamd.streams.model import Stream
from streamd.streams.offsets import Position

_HEAD = b"Content-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
_BASE64 = b"stream-sse-data-encoding: base64\r\n"
# One event's share of the stream while catching up.
_EVENT_BYTES = 64 * 1024


async def tail_by_sse(
    service: Service,
    request: Request,
    route: StreamRoute,
    stream: Stream,
    at: Position,
    echoed_cursor: int | None,
) -> Response | LiveResponse | LateAnswer:
    """GET with ``live=sse``: everything after `at`, then each change when it is made."""
    try:
        await service.node.reads.read(stream, Window(at, 1))
    except OffsetMismatch:
        raise Problem.INVALID_OFFSET.error("offset is not an offset of this stream") from None
    except OffsetGone as gone:
        return offset_gone(gone.earliest)
    held = b""
    if is_text(stream.content_type) and not (stream.closed and at == stream.tail):
        # A reader that got this far by events has not been sent a character cut here.
        held = cut_character(
            await service.node.reads.bytes_before(stream, at.record, MOST_HELD_BYTES)
        )
    if service.hub.full:
        return TOO_MANY_READERS
    if late := service.rates.too_many_readers(request):
        return late
    tail = _SseTail(service, request, route, stream.stream_id, at, held, echoed_cursor)
    # A reader that resumes learns whether the stream is still the one that it has an offset of.
    etag = state_tag(service.incarnation(stream.stream_id), stream.tail.token(), stream.closed)
    head = _HEAD + b"ETag: %b\r\n" % etag
    return LiveResponse(200, head if is_text(stream.content_type) else head + _BASE64, tail.run)


class _SseTail(SseReader):
    """One SSE response: alternates between catching up by reads and being parked in the hub. While
    its accounts owe for what was sent it is parked, too, but not in the hub."""

    __slots__ = (
        "_ends_at",
        "_pauses",
        "_request",
        "_route",
        "_seen",
        "_sent_at",
        "_service",
        "_told_tail",
    )

    def __init__(
        self,
        service: Service,
        request: Request,
        route: StreamRoute,
        stream_id: int,
        at: Position,
        held: bytes,
        echoed_cursor: int | None,
    ) -> None:
        stream = service.node.group.group_id, stream_id
        charge = self._charge if request.accounts else None
        super().__init__(stream, at, service.cursors.next(echoed_cursor), held, charge)
        self._service = service
        self._request = request
        self._route = route
        self._ends_at = trio.current_time() + service.server.sse_lifetime_ms / 1000
        self._ends_at = min(self._ends_at, service.authority.ends_s(request))
        self._seen = at
        self._sent_at = trio.current_time()
        self._told_tail = False
        self._pauses = False

    async def run(self, channel: Channel) -> Parked | None:
        """Write events until there are no more for now."""
        self.channel = channel
        self._service.hub.begin("sse")
        begin_live(self._request.accounts)
        return await self.go_on()

    async def go_on(self) -> Parked | None:
        """Write what the hub left to a task. Returns None when the stream ends or the lifetime is
        over."""
        is_parked = False
        try:
            await self.channel.flush()
            # Looked at last: nobody wakes a reader that is over only since it began to wait here.
            if (self._owes() or await self._catch_up()) and not self._is_over():
                is_parked = True
                return self._until_paid() if self._owes() else self._until_heartbeat()
            return None
        finally:
            if not is_parked:
                self._end()

    def _is_over(self) -> bool:
        service = self._service
        # Tokens may have changed since.
        self._ends_at = min(self._ends_at, service.authority.ends_s(self._request))
        is_late = trio.current_time() >= self._ends_at
        return self.finished or service.hub.draining or is_late

    def resume(self) -> Parked | None:
        """If only time has passed, send a heartbeat unless there were events. Readers that owe may
        be many, and need no task while they do."""
        if self._pauses and self._owes() and not self._is_over():
            return self._until_paid()
        is_current = not self.news and trio.current_time() < self._ends_at
        if is_current and (self.at != self._seen or self.channel.try_send(HEARTBEAT)):
            self._wait(self._service.server.sse_heartbeat_ms / 1000)
            return self
        self._service.hub.remove(self)
        return None

    def abandon(self) -> None:
        self._service.hub.remove(self)
        self._end()

    def _end(self) -> None:
        self._service.hub.end("sse")
        end_live(self._request.accounts)

    def _until_heartbeat(self) -> Parked:
        """Wait for changes."""
        self._pauses = False
        self._service.hub.add(self)
        self._wait(self._service.server.sse_heartbeat_ms / 1000)
        return self

    def _until_paid(self) -> Parked:
        """Read on after a pause."""
        now, heartbeat_s = trio.current_time(), self._service.server.sse_heartbeat_ms / 1000
        if now - self._sent_at >= heartbeat_s:
            self.channel.try_send(HEARTBEAT)
            self._sent_at = now
        self._wait(PAUSE_S)
        self._pauses = self.news = True
        return self

    def _wait(self, most_s: float) -> None:
        self.deadline = min(self._ends_at, trio.current_time() + most_s)
        self._seen = self.at

    def _charge(self, size: int) -> bool:
        """Charge what was sent. Returns whether it is owed."""
        spend_out(self._request.accounts, size)
        self._sent_at = trio.current_time()
        return self._owes()

    def _owes(self) -> bool:
        return self.charge is not None and self._service.rates.owes(self._request.accounts)

    async def _catch_up(self) -> bool:
        """Send everything up to the tail, or until something is owed. Returns False if there will
        never be more. That may take hours: it ends with the token, too."""
        while not self._is_over():
            stream = await self._service.node.reads.stream(self._route.key)
            if stream is None or stream.stream_id != self.stream[1] or stream.deleted:
                return False
            if self._told_tail and self.at == stream.tail and not stream.closed:
                return True
            try:
                window = Window(self.at, _EVENT_BYTES)
                found = await self._service.node.reads.read(stream, window)
            except (OffsetMismatch, OffsetGone, ColdError):
                return False  # The client learns why when it reconnects.
            if self._is_over():
                return False  # Its token may have ended during the read, before these records.
            up_to_date = found.end == stream.tail
            # Otherwise this loop would send nothing for ever.
            assert found.end > self.at or up_to_date, "a read before the tail finds records"
            self.at = found.end
            closed = up_to_date and stream.closed
            control = control_event(
                found.end, self._current_cursor(), up_to_date=up_to_date, closed=closed
            )
            self._told_tail = up_to_date
            parts, self.held = whole_characters(
                stream.content_type, self.held, found.parts, last=closed
            )
            if found.size > _EVENT_BYTES:
                if not await self._send_large(stream.content_type, parts, control):
                    return False
            else:
                event = data_event(stream.content_type, parts) if parts else b""
                await self.channel.send(event + control)
            if closed:
                return False
            if self.charge is not None and self.charge(found.size):
                return True
        return False

    async def _send_large(self, content_type: str, parts: Sequence[Buffer], control: bytes) -> bool:
        """Send an event a piece at a time. Returns False when too much is being sent already."""
        try:
            with self._service.outgoing.holding(parts, sum(map(len, parts)), self._request.client):
                for piece in data_event_pieces(content_type, parts):
                    await self.channel.send(piece)
                    # The socket may not have made this task wait.
                    await trio.lowlevel.checkpoint()
        except OutgoingFull:
            return False  # The client may continue from the last event when it reconnects.
        await self.channel.send(control)
        return True

    def _current_cursor(self) -> int:
        return max(self.cursor, self._service.cursors.next(None))
