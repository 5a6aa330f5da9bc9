"""Tailing a stream by server-sent events (protocol section 5.8)."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from streamd.http.fields import BadRequest
from streamd.http.live import SseReader
from streamd.http.messages import (
    Buffer,
    Channel,
    ClientGone,
    LiveResponse,
    Request,
    Response,
)
from streamd.http.outgoing import OutgoingFull
from streamd.http.routing import StreamRoute
from streamd.http.service import TOO_MANY_READERS, Service, offset_gone
from streamd.http.sse import (
    HEARTBEAT,
    MOST_HELD_BYTES,
    control_event,
    cut_character,
    data_event,
    data_event_pieces,
    whole_characters,
)
from streamd.node.reads import OffsetGone
from streamd.objectstore.errors import ColdError
from streamd.streams.chunks import OffsetMismatch
from streamd.streams.content import is_text
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
) -> Response | LiveResponse:
    """GET with ``live=sse``: everything after `at`, then each change as it is made."""
    try:
        await service.node.reads.read(stream, at, 1)
    except OffsetMismatch:
        raise BadRequest("INVALID_OFFSET", "offset is not an offset of this stream") from None
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
    tail = _SseTail(service, request.client, route, stream.stream_id, at, held, echoed_cursor)
    return LiveResponse(200, _HEAD if is_text(stream.content_type) else _HEAD + _BASE64, tail.run)


class _SseTail:
    """One SSE response: alternates between catching up by reads and parking in the hub."""

    def __init__(
        self,
        service: Service,
        client: str,
        route: StreamRoute,
        stream_id: int,
        at: Position,
        held: bytes,
        echoed_cursor: int | None,
    ) -> None:
        self._service = service
        self._client = client
        self._route = route
        self._stream_id = stream_id
        self._at = at
        self._held = held
        self._cursor = service.cursors.next(echoed_cursor)
        self._told_tail = False
        self._finished = False

    async def run(self, channel: Channel) -> None:
        """Write events until the stream ends, the client leaves or the lifetime is over."""
        server = self._service.server
        ends_at = trio.current_time() + server.sse_lifetime_ms / 1000
        heartbeat_s = server.sse_heartbeat_ms / 1000
        hub = self._service.hub
        with hub.reading("sse"):
            while trio.current_time() < ends_at and not hub.draining:
                if not await self._catch_up(channel):
                    return
                deadline = min(ends_at, trio.current_time() + heartbeat_s)
                if not await self._park(channel, deadline):
                    await channel.send(HEARTBEAT)
                if self._finished:
                    return

    async def _catch_up(self, channel: Channel) -> bool:
        """Send everything up to the tail. Returns False if there will never be more."""
        while True:
            stream = await self._service.node.reads.stream(self._route.key)
            if stream is None or stream.stream_id != self._stream_id or stream.deleted:
                return False
            if self._told_tail and self._at == stream.tail and not stream.closed:
                return True
            try:
                found = await self._service.node.reads.read(stream, self._at, _EVENT_BYTES)
            except (OffsetMismatch, OffsetGone, ColdError):
                return False  # The client learns why when it reconnects.
            up_to_date = found.end == stream.tail
            # Otherwise this loop would send nothing for ever.
            assert found.end > self._at or up_to_date, "a read before the tail finds records"
            self._at = found.end
            closed = up_to_date and stream.closed
            control = control_event(
                found.end, self._current_cursor(), up_to_date=up_to_date, closed=closed
            )
            self._told_tail = up_to_date
            parts, self._held = whole_characters(
                stream.content_type, self._held, found.parts, last=closed
            )
            if found.size > _EVENT_BYTES:
                if not await self._send_large(channel, stream.content_type, parts, control):
                    return False
            else:
                event = data_event(stream.content_type, parts) if parts else b""
                await channel.send(event + control)
            if closed:
                return False

    async def _send_large(
        self, channel: Channel, content_type: str, parts: Sequence[Buffer], control: bytes
    ) -> bool:
        """Send an event a piece at a time. Returns False when too much is being sent already."""
        try:
            with self._service.outgoing.holding(parts, sum(map(len, parts)), self._client):
                for piece in data_event_pieces(content_type, parts):
                    await channel.send(piece)
                    # The socket may not have made this task wait.
                    await trio.lowlevel.checkpoint()
        except OutgoingFull:
            return False  # The client may continue from the last event when it reconnects.
        await channel.send(control)
        return True

    async def _park(self, channel: Channel, deadline: float) -> bool:
        """Wait at the tail, served by the hub. Returns False when only time has passed."""
        hub = self._service.hub
        stream = self._service.node.group.group_id, self._stream_id
        reader = SseReader(stream, channel, self._at, self._cursor, self._held)
        hub.add(reader)
        try:
            stayed = await reader.park(channel, deadline)
        finally:
            hub.remove(reader)
        if not stayed:
            raise ClientGone
        heard = reader.at != self._at
        self._at, self._held = reader.at, reader.held
        self._finished = reader.finished
        await channel.flush()
        return heard or reader.news

    def _current_cursor(self) -> int:
        return max(self._cursor, self._service.cursors.next(None))
