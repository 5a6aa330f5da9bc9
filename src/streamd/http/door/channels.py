"""The channel of live responses over HTTP/1.1."""

from __future__ import annotations

from streamd.http.protocol.connections import Buffer
from streamd.http.sockets.transports import Transport
from streamd.process.metrics import Metrics


class Chunks:
    """Frames data as chunks of chunked bodies. An event for many readers is framed once."""

    def __init__(self) -> None:
        self._data: Buffer = b""
        self._chunk = b""

    def of(self, data: Buffer) -> bytes:
        """`data` as a chunk. An empty one would end the body (RFC 9112 section 7.1), so empty data
        gives no chunk."""
        if not data:
            return b""
        if data is not self._data:
            self._data = data
            self._chunk = b"".join((b"%x\r\n" % len(data), data, b"\r\n"))
        return self._chunk


class WireChannel:
    """The `Channel` of one connection: the hub writes events straight to its socket.

    It `is_open` while a live response has begun and not ended.

    Two tasks may then have bytes for it. One rule keeps their order: bytes that do not fit into the
    socket go to `_left`, all later bytes follow them there, and only the connection's own task
    takes them out, by `flush`.
    """

    __slots__ = (
        "_chunked", "_chunks", "_left", "_metrics", "_pending_head", "_transport", "is_open",
    )  # fmt: skip

    def __init__(self, transport: Transport, chunks: Chunks, metrics: Metrics) -> None:
        self._transport = transport
        self._chunks = chunks
        self._metrics = metrics
        self._chunked = False
        self._left = b""
        self._pending_head = b""
        self.is_open = False

    def begin(self, head: bytes, *, chunked: bool) -> None:
        """Begin a response; its head goes out with the first piece."""
        self._pending_head = head
        self._chunked = chunked
        self.is_open = True

    async def end(self) -> None:
        """End the response. Raises `ClientGone`."""
        end = self._pending_head + (b"0\r\n\r\n" if self._chunked else b"")
        self._pending_head = b""
        await self.flush()
        if end:
            await self._transport.send((end,))
        self.is_open = False

    def _framed(self, data: Buffer) -> bytes:
        """A piece in wire format, after the head if it is the first."""
        framed = self._chunks.of(data) if self._chunked else bytes(data)
        if self._pending_head:
            framed, self._pending_head = self._pending_head + framed, b""
        self._metrics.bytes_out += len(framed)
        return framed

    def piece(self, data: bytes) -> tuple[int, bytes] | None:
        descriptor = self._transport.descriptor
        if self._left or descriptor is None:
            return None
        return descriptor, self._framed(data)

    def keep(self, rest: bytes) -> None:
        self._left = rest

    def try_send(self, data: bytes) -> bool:
        framed = self._framed(data)
        if self._left:
            self._left += framed
            return False
        sent = self._transport.send_now(framed)
        if sent == len(framed):
            return True
        self._left = framed[sent:]
        return False

    async def flush(self) -> None:
        if self._left:
            left, self._left = self._left, b""
            await self._transport.send((left,))

    async def send(self, data: Buffer) -> None:
        await self.flush()
        await self._transport.send((self._framed(data),))

    async def wait_disconnected(self) -> None:
        await self._transport.wait_disconnected()
