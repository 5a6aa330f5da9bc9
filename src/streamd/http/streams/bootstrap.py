"""Bootstrap: the snapshot and every message after it, in one response (extensions section 3)."""

from __future__ import annotations

from collections.abc import Iterator
from secrets import token_hex

import trio
from msgspec.structs import replace

from streamd.auth import signed_urls
from streamd.http.access.rates import spend_out
from streamd.http.protocol.connections import Buffer, Channel, ClientGone
from streamd.http.protocol.fields import parse_query
from streamd.http.protocol.messages import LiveResponse, Request, Response
from streamd.http.protocol.routing import BootstrapRoute
from streamd.http.streams.service import Service
from streamd.http.streams.snapshots import Sending
from streamd.objectstore.errors import ColdError
from streamd.protocol.problems import Problem
from streamd.streams.chunks import OffsetMismatch, Slice, Window
from streamd.streams.content import DEFAULT_CONTENT_TYPE, JSON_SEPARATOR, is_json
from streamd.streams.model import Stream

# How much is read at once, and written at once: even tiny messages must not block the loop.
_READ_BYTES = 512 * 1024
_WRITE_BYTES = 64 * 1024
_WRITE_MESSAGES = 500


async def bootstrap(
    service: Service, request: Request, route: BootstrapRoute
) -> Response | LiveResponse:
    """GET: sends the stream up to the tail that it had when the response began."""
    if request.query and parse_query(request.query).keys() - {signed_urls.PARAMETER}:
        message = "bootstrap takes no query parameters; read live from Stream-Next-Offset"
        raise Problem.INVALID_REQUEST.error(message)
    stream = await service.find(route.stream)
    if isinstance(stream, Response):
        return stream
    boundary = _boundary()
    head = _head(stream, boundary)
    if request.method == "HEAD":
        return Response(200, head)
    service.touch(route.stream, stream)
    # A copy, because the machine changes its own: tail and snapshot must stay as they are now.
    stream = replace(stream)
    sending = Sending(service, stream, request.client)
    size = stream.tail.byte - stream.earliest.byte
    spend_out(request.accounts, size + (stream.snapshot.size if stream.snapshot else 0))
    response = _Bootstrap(service, stream, boundary, sending)
    await response.begin()
    return LiveResponse(200, head, response.run, abandon=sending.end)


def _boundary() -> bytes:
    """A line that occurs in no part.

    The parts cannot be searched for it, because they are read while they are sent. But all of them
    were stored before the boundary was drawn, so no client can have put it into one, and 192 bits
    from the system do not repeat by chance. A predictable generator would not do: a writer that
    foresees a boundary can store one message that reads as two.
    """
    return b"streamd-" + token_hex(24).encode()


def _head(stream: Stream, boundary: bytes) -> bytes:
    head = (
        b"Content-Type: multipart/mixed; boundary=%b\r\nStream-Snapshot-Offset: %b\r\n"
        b"Stream-Next-Offset: %b\r\nStream-Up-To-Date: true\r\nCache-Control: no-store\r\n"
        % (
            boundary,
            b"-1" if stream.snapshot is None else stream.snapshot.position.token(),
            stream.tail.token(),
        )
    )
    return head + b"Stream-Closed: true\r\n" if stream.closed else head


class _Bootstrap:
    """One response under way, for the state that the stream had when it began."""

    def __init__(self, service: Service, stream: Stream, boundary: bytes, sending: Sending) -> None:
        self._service = service
        self._stream = stream
        self._boundary = boundary
        self._sending = sending

    async def begin(self) -> None:
        """Read the first bytes. Raises a `ColdError` when they cannot be read."""
        await self._sending.begin(self._stream)

    async def run(self, channel: Channel) -> None:
        """Send the response. Raises `ClientGone`, also when the stream is deleted meanwhile or old
        bytes cannot be read: the client then sees a body without an end."""
        try:
            await self._send_snapshot(channel)
            await self._send_messages(channel)
            await channel.send(b"\r\n--%b--\r\n" % self._boundary)
        finally:
            self._sending.end()

    def _part_head(self, content_type: str) -> bytes:
        """What precedes the bytes of each part; the first part lacks the leading CRLF."""
        return b"\r\n--%b\r\nContent-Type: %b\r\n\r\n" % (self._boundary, content_type.encode())

    async def _send_snapshot(self, channel: Channel) -> None:
        snapshot = self._stream.snapshot
        content_type = DEFAULT_CONTENT_TYPE if snapshot is None else snapshot.content_type
        await channel.send(self._part_head(content_type)[2:])
        if snapshot is not None:
            await self._sending.send_blob(snapshot, channel)

    async def _send_messages(self, channel: Channel) -> None:
        stream = self._stream
        part_head = self._part_head(stream.content_type)
        # Each JSON message is stored with a comma after it.
        trailing = len(JSON_SEPARATOR) if is_json(stream.content_type) else 0
        at = stream.earliest
        while at != stream.tail:
            try:
                found = await self._service.node.reads.read_pinned(stream, Window(at, _READ_BYTES))
            except (OffsetMismatch, ColdError) as error:
                raise ClientGone from error
            for piece in _pieces(found, part_head, trailing):
                await channel.send(piece)
                # Perhaps neither the read nor the send had to wait: let other tasks run.
                await trio.lowlevel.checkpoint()
            at = found.end


def _pieces(found: Slice, part_head: bytes, trailing: int) -> Iterator[bytes]:
    """Records as parts, joined into pieces worth a write."""
    lengths = iter(found.lengths())
    gathered: list[Buffer] = []
    size = 0
    for buffer in found.parts:
        view = memoryview(buffer)
        start = 0
        while start < len(view):
            end = start + next(lengths)
            gathered += (part_head, view[start : end - trailing])
            size += end - start
            start = end
            if size >= _WRITE_BYTES or len(gathered) >= 2 * _WRITE_MESSAGES:
                yield b"".join(gathered)
                gathered, size = [], 0
    if gathered:
        yield b"".join(gathered)
