"""Bodies of requests that are taken as they come, and how slowly they may do that."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from streamd.config import ServerConfig
from streamd.http.heads import Fields
from streamd.http.wire import Chunked, Refused


class Pace:
    """How much a client sent while it was waited for, and whether that is enough.

    Only the time counts that the server spent waiting: what it does with a piece is not the
    client's fault. It is looked at in windows, so that nobody may lag for hours on the strength
    of a fast beginning.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._window_s = config.body_timeout_ms / 1000
        self._least_bytes_per_s = config.body_min_bytes_per_s
        self._waited_s = 0.0
        self._bytes = 0

    async def wait(self, receive: Callable[[], Awaitable[bytes]]) -> bytes:
        """Have `receive` wait for the client. Raises `Refused` when it is too slow."""
        started = trio.current_time()
        with trio.move_on_after(self._window_s):
            data = await receive()
            self._waited_s += trio.current_time() - started
            self._bytes += len(data)
            if self._waited_s >= self._window_s:
                if self._bytes < self._least_bytes_per_s * self._waited_s:
                    raise _too_slow()
                self._waited_s, self._bytes = 0.0, 0
            return data
        raise _too_slow()


def _too_slow() -> Refused:
    return Refused(408, "BODY_TIMEOUT", "the request's body came too slowly")


class Wire(Protocol):
    """What a body needs of its connection: the bytes received, and more of them."""

    @property
    def buffer(self) -> bytearray: ...

    async def receive_more(self) -> bytes:
        """Receive into the buffer; returns what came. Raises `ClientGone` at the end."""

    async def send_continue(self) -> None:
        """Tell the client to go on, which waits for that."""


class WireBody:
    """The body of an HTTP/1.1 request, an `IncomingBody`. `ended` once all of it was taken."""

    def __init__(self, wire: Wire, fields: Fields, pace: Pace) -> None:
        self.length = fields.content_length
        self.ended = self.length == 0
        self._wire = wire
        self._pace = pace
        self._left = self.length or 0
        self._chunked = Chunked()
        self._awaits_continue = fields.expects_continue

    async def receive(self) -> bytes:
        while not self.ended:
            if data := self._take():
                return data
            if self.ended:
                break
            if self._awaits_continue:
                self._awaits_continue = False
                await self._wire.send_continue()
            await self._pace.wait(self._wire.receive_more)
        return b""

    def _take(self) -> bytes:
        """What is here of the body, as far as it was received."""
        buffer = self._wire.buffer
        if not buffer:
            return b""
        if self.length is None:
            self._chunked.feed(buffer)
            self.ended = self._chunked.done
            data = bytes(self._chunked.body)
            self._chunked.body.clear()
            return data
        data = bytes(memoryview(buffer)[: self._left])
        del buffer[: len(data)]
        self._left -= len(data)
        self.ended = not self._left
        return data
