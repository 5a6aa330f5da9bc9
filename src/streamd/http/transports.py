"""Connections to clients: a bare socket, fast, or any Trio stream, TLS among them."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import Any, Protocol

import trio

from streamd.http.messages import Buffer, ClientGone

_RECEIVE_BYTES = 64 * 1024
# What a client may send ahead while its live response is under way.
_MAX_AHEAD_BYTES = 64 * 1024
_JOIN_BYTES = 256 * 1024
_MAX_GATHERED = 64
# What a client must take in each write timeout. A stream is given so much at once, for it tells of
# no progress in between, and TLS makes a copy.
SEND_BYTES = 64 * 1024
_LINGER_S = 5.0
_LINGER_BYTES = 64 * 1024 * 1024


class ReadAhead:
    """A Trio stream of which some was read before; what is not here is as `inner` has it."""

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
        """The next bytes; empty once the client has sent all, or is gone."""

    def send_now(self, data: bytes) -> int:
        """Write what goes without waiting; returns the number of bytes that went."""

    async def send(self, parts: Sequence[Buffer]) -> None:
        """Write all parts. Raises `ClientGone`, also when less than `SEND_BYTES`, or than what is
        left, goes in the write timeout."""

    async def wait_disconnected(self) -> None:
        """Return once the client is gone; what it sends meanwhile is kept for `receive`."""

    def stream(self, ahead: bytes) -> Any:
        """The connection as a Trio stream that gives `ahead` first, for another to serve; only
        `close` may be called from then on."""

    async def linger(self) -> None:
        """End the sending side and let the client read: a close with input unread would reset
        the connection and take the last response with it."""

    async def close(self) -> None:
        """Close at once, without courtesies."""


class SocketTransport:
    """A non-blocking socket, used directly: Trio is asked to wait only when there is need."""

    def __init__(self, sock: socket.socket, write_timeout_s: float) -> None:
        self._sock = sock
        self._write_timeout_s = write_timeout_s
        self._ahead = b""

    async def receive(self) -> bytes:
        if self._ahead:
            data, self._ahead = self._ahead, b""
            return data
        while True:
            await trio.lowlevel.wait_readable(self._sock)
            try:
                return self._sock.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                continue
            except OSError:
                return b""

    def send_now(self, data: bytes) -> int:
        try:
            return self._sock.send(data)
        except OSError:
            return 0

    async def send(self, parts: Sequence[Buffer]) -> None:
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
        while len(self._ahead) < _MAX_AHEAD_BYTES:
            await trio.lowlevel.wait_readable(self._sock)
            try:
                data = self._sock.recv(_RECEIVE_BYTES)
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

    async def close(self) -> None:
        trio.lowlevel.notify_closing(self._sock)
        self._sock.close()


class StreamTransport:
    """Any Trio stream."""

    def __init__(self, stream: trio.abc.Stream, write_timeout_s: float) -> None:
        self._stream = stream
        self._write_timeout_s = write_timeout_s
        self._ahead = b""

    async def receive(self) -> bytes:
        if self._ahead:
            data, self._ahead = self._ahead, b""
            return data
        try:
            return bytes(await self._stream.receive_some(_RECEIVE_BYTES))
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
                data = await self._stream.receive_some(_RECEIVE_BYTES)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return
            if not data:
                return
            self._ahead += data
        await trio.sleep_forever()

    def stream(self, ahead: bytes) -> Any:
        return ReadAhead(self._stream, ahead + self._ahead)

    async def linger(self) -> None:
        # TLS has no end of sending alone.
        await _discard(self)
        with trio.move_on_after(_LINGER_S):
            await self._stream.aclose()

    async def close(self) -> None:
        await trio.aclose_forcefully(self._stream)


async def _discard(transport: Transport) -> None:
    """Take what a client goes on sending, within limits."""
    left = _LINGER_BYTES
    with trio.move_on_after(_LINGER_S):
        while left > 0 and (data := await transport.receive()):
            left -= len(data)


def _gathered(parts: Sequence[Buffer]) -> Sequence[Buffer]:
    """Parts to be written at once: joined where copying is cheaper than gathering."""
    if len(parts) == 1:
        return parts
    return (b"".join(parts),) if is_joined(parts, sum(map(len, parts))) else parts


def is_joined(parts: Sequence[Buffer], size: int) -> bool:
    """Whether parts of `size` bytes together are copied to be sent, not sent as they are."""
    return len(parts) > _MAX_GATHERED or size <= _JOIN_BYTES


def _without(left: Sequence[Buffer], sent: int) -> Sequence[Buffer]:
    """What remains of `left` once `sent` bytes of it have gone."""
    for place, part in enumerate(left):
        if sent < len(part):
            return [memoryview(part)[sent:], *left[place + 1 :]]
        sent -= len(part)
    return ()
