"""Connections to clients: a bare socket, which is fast, or any Trio stream, such as TLS."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, Protocol

import trio

from streamd.http.protocol.connections import Buffer, ClientGone

RECEIVE_BYTES = 64 * 1024
# How much a client may send ahead during its live response.
_MAX_AHEAD_BYTES = 64 * 1024
_JOIN_BYTES = 256 * 1024
_MAX_GATHERED = 64
# How much a client must receive in each write timeout. Streams get pieces of this size, because
# they report no progress within a send, and TLS copies what it sends.
SEND_BYTES = 64 * 1024
_LINGER_S = 5.0
_LINGER_BYTES = 64 * 1024 * 1024


class ReadAhead:
    """Wraps the Trio stream `inner`, from which the bytes `ahead` have already been read."""

    def __init__(self, inner: Any, ahead: bytes) -> None:
        self._inner = inner
        self._ahead = ahead

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        if self._ahead:
            data, self._ahead = self._ahead, b""
            await trio.lowlevel.checkpoint()
            return data
        return bytes(await self._inner.receive_some(max_bytes))


class Transport(Protocol):
    """Bytes to and from one client."""

    async def receive(self) -> bytes:
        """The next bytes; empty once the client has sent everything or disconnected."""

    @property
    def descriptor(self) -> int | None:
        """The socket's, if bytes may be written to it unencrypted."""

    def send_now(self, data: bytes) -> int:
        """Write without waiting; returns the number of bytes written."""

    async def send(self, parts: Sequence[Buffer]) -> None:
        """Write all parts. Raises `ClientGone`, also when the client receives less than
        `SEND_BYTES`, or than the rest, in the write timeout."""

    async def wait_disconnected(self) -> None:
        """Return once the client has disconnected; what it sends meanwhile is kept for
        `receive`."""

    def stream(self, ahead: bytes) -> Any:
        """The connection as a Trio stream that begins with `ahead`, for another server; after that
        only `close` may be called here."""

    async def linger(self) -> None:
        """Close the sending side and let the client read: a close with unread input would reset
        the connection, and the client would lose the last response."""

    async def close(self) -> None:
        """Close at once."""


class SocketTransport:
    """A non-blocking socket, used directly: Trio waits only when the socket would block."""

    def __init__(self, sock: socket.socket, write_timeout_s: float) -> None:
        self._sock = sock
        self.descriptor: int | None = sock.fileno()
        self._write_timeout_s = write_timeout_s
        self._ahead = b""

    def fileno(self) -> int:
        return self._sock.fileno()

    async def wait_readable(self) -> None:
        """Wait until `receive_now` may have something."""
        if not self._ahead:
            await trio.lowlevel.wait_readable(self._sock)

    def receive_now(self) -> bytes | None:
        """The bytes that are there, as `Transport.receive` says, or None if there are none yet."""
        if self._ahead:
            data, self._ahead = self._ahead, b""
            return data
        try:
            return self._sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            return b""

    async def receive(self) -> bytes:
        """The next bytes, as `Transport.receive` says."""
        while True:
            await self.wait_readable()
            data = self.receive_now()
            if data is not None:
                return data

    def send_now(self, data: bytes) -> int:
        try:
            return self._sock.send(data)
        except OSError:
            return 0

    async def send(self, parts: Sequence[Buffer]) -> None:
        """Write all parts, as `Transport.send` says; the limit restarts with each `SEND_BYTES`."""
        left = _gathered(parts)
        taken, due = SEND_BYTES, 0.0
        while left:
            try:
                sent = self._sock.send(left[0]) if len(left) == 1 else self._sock.sendmsg(left)
            except BlockingIOError:
                if taken >= SEND_BYTES:
                    taken, due = 0, trio.current_time() + self._write_timeout_s
                await self._wait_writable(due)
                continue
            except OSError as error:
                raise ClientGone from error
            taken += sent
            left = _without(left, sent)

    async def _wait_writable(self, due: float) -> None:
        with trio.move_on_at(due):
            await trio.lowlevel.wait_writable(self._sock)
            return
        raise ClientGone

    async def wait_disconnected(self) -> None:
        """As `Transport.wait_disconnected`. A client that sends too much meanwhile is no longer
        read, so its disconnection goes unnoticed until the response ends."""
        while len(self._ahead) < _MAX_AHEAD_BYTES:
            await trio.lowlevel.wait_readable(self._sock)
            try:
                data = self._sock.recv(RECEIVE_BYTES)
            except BlockingIOError:
                continue
            except OSError:
                return
            if not data:
                return
            self._ahead += data
        await trio.sleep_forever()

    def stream(self, ahead: bytes) -> Any:
        plain = trio.SocketStream(trio.socket.from_stdlib_socket(self._sock))
        return ReadAhead(plain, ahead + self._ahead)

    async def linger(self) -> None:
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            return
        await _discard(self)

    def close_now(self) -> None:
        """Close at once."""
        trio.lowlevel.notify_closing(self._sock)
        self.descriptor = None  # The system gives its number to another.
        self._sock.close()

    async def close(self) -> None:
        self.close_now()


class StreamTransport:
    """Any Trio stream."""

    descriptor = None

    def __init__(self, stream: trio.abc.Stream, write_timeout_s: float) -> None:
        self._stream = stream
        self._write_timeout_s = write_timeout_s
        self._ahead = b""

    async def receive(self) -> bytes:
        if self._ahead:
            data, self._ahead = self._ahead, b""
            return data
        try:
            return bytes(await self._stream.receive_some(RECEIVE_BYTES))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return b""

    def send_now(self, data: bytes) -> int:
        return 0

    async def send(self, parts: Sequence[Buffer]) -> None:
        for part in _gathered(parts):
            for start in range(0, len(part), SEND_BYTES):
                await self._send_piece(part[start : start + SEND_BYTES])

    async def _send_piece(self, piece: Buffer) -> None:
        with trio.move_on_after(self._write_timeout_s):
            try:
                await self._stream.send_all(piece)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise ClientGone from error
            return
        raise ClientGone

    async def wait_disconnected(self) -> None:
        while len(self._ahead) < _MAX_AHEAD_BYTES:
            try:
                data = await self._stream.receive_some(RECEIVE_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return
            if not data:
                return
            self._ahead += data
        await trio.sleep_forever()

    def stream(self, ahead: bytes) -> Any:
        return ReadAhead(self._stream, ahead + self._ahead)

    async def linger(self) -> None:
        # TLS cannot close the sending side alone.
        await _discard(self)
        with trio.move_on_after(_LINGER_S):
            await self._stream.aclose()

    async def close(self) -> None:
        await trio.aclose_forcefully(self._stream)


async def _discard(transport: Transport) -> None:
    """Receive and drop what the client still sends, within limits."""
    left = _LINGER_BYTES
    with trio.move_on_after(_LINGER_S):
        while left > 0 and (data := await transport.receive()):
            left -= len(data)


def _gathered(parts: Sequence[Buffer]) -> Sequence[Buffer]:
    """Parts for one write: joined where copying is cheaper than gathering."""
    if len(parts) == 1:
        return parts
    return (b"".join(parts),) if is_joined(parts, sum(map(len, parts))) else parts


def is_joined(parts: Sequence[Buffer], size: int) -> bool:
    """Whether parts of `size` bytes together are copied into one for the send."""
    return len(parts) > _MAX_GATHERED or size <= _JOIN_BYTES


def _without(left: Sequence[Buffer], sent: int) -> Sequence[Buffer]:
    """`left` without its first `sent` bytes."""
    for place, part in enumerate(left):
        if sent < len(part):
            return [memoryview(part)[sent:], *left[place + 1 :]]
        sent -= len(part)
    return ()
