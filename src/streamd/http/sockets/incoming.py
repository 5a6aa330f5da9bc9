"""Request bodies, whole and in pieces, and the minimum pace at which they must arrive."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Protocol

import trio

from streamd.config.settings import ServerConfig
from streamd.http.protocol.application import Application
from streamd.http.protocol.heads import Fields
from streamd.http.protocol.messages import LateAnswer, Request, Response
from streamd.http.protocol.wire import Chunked
from streamd.http.sockets.fair_limits import Allotment, LimitReached
from streamd.protocol.problems import Problem, ProblemError

_MARKS_PER_WINDOW = 8


class Pace:
    """Whether a body arrives fast enough: `body_min_bytes_per_s` in each `body_timeout_ms`.

    The window slides, so a fast beginning does not pay for a slow rest. Only the time that the
    server spent waiting counts: its own work on a piece is not the client's fault.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._window_s = config.body_timeout_ms / 1000
        self._least_bytes_per_s = config.body_min_bytes_per_s
        self._waited_s = 0.0
        self._bytes = 0
        self._marks = deque([(0.0, 0)])

    def keeps_up(self, waited_s: float, size: int) -> bool:
        """Count `size` bytes that came in `waited_s` more seconds. Returns whether they suffice."""
        self._waited_s += waited_s
        self._bytes += size
        marks = self._marks
        while len(marks) > 1 and self._waited_s - marks[1][0] >= self._window_s:
            marks.popleft()
        began_s, before = marks[0]
        if self._waited_s - marks[-1][0] >= self._window_s / _MARKS_PER_WINDOW:
            marks.append((self._waited_s, self._bytes))
        span_s = self._waited_s - began_s
        came = self._bytes - before
        return span_s < self._window_s or came >= self._least_bytes_per_s * span_s

    async def wait(self, receive: Callable[[], Awaitable[bytes]]) -> bytes:
        """Wait for the client by `receive`. Raises `ProblemError` when it is too slow."""
        started = trio.current_time()
        with trio.move_on_after(self._window_s):
            data = await receive()
            if not self.keeps_up(trio.current_time() - started, len(data)):
                raise Problem.BODY_TIMEOUT.error()
            return data
        raise Problem.BODY_TIMEOUT.error()


async def check_head(application: Application, request: Request) -> Response | None:
    """The answer to a request that its head is enough to refuse, so that its body stays where it
    is. It may take a while."""
    response = application.refusal(request) or await application.foreseen(request)
    if response is None:
        return None
    request.uncharge_body(0)  # It is not received.
    if isinstance(response, LateAnswer):
        await trio.sleep_until(response.deadline)
        return response.answer
    return response


def too_many_bodies() -> ProblemError:
    """The refusal of a body beyond what all bodies together may hold."""
    return Problem.OVERLOADED.error(
        "too many bodies are being received (server.max_buffered_bytes)"
    )


def body_too_large(limit: int) -> ProblemError:
    """The refusal of a body of more than `limit` bytes."""
    return Problem.BODY_TOO_LARGE.error(f"the body exceeds {limit} bytes (server.max_body_bytes)")


class Wire(Protocol):
    """What a body needs of its connection: the bytes received, and more of them."""

    @property
    def buffer(self) -> bytearray: ...

    async def receive_more(self) -> bytes:
        """Receive into the buffer; returns what came. Raises `ClientGone` at the end."""

    async def send_continue(self) -> None:
        """Send the 100 Continue that the client waits for."""


class WireBody:
    """The body of an HTTP/1.1 request: an `IncomingBody`. `ended` once all of it was received."""

    def __init__(self, wire: Wire, fields: Fields, pace: Pace) -> None:
        self.length = fields.content_length
        self.ended = self.length == 0
        self._wire = wire
        self._pace = pace
        self._left = self.length or 0
        self._chunked = Chunked()
        self._has_more = False
        self._awaits_continue = fields.expects_continue

    async def receive(self) -> bytes:
        """The next piece, as `IncomingBody.receive` says."""
        while not self.ended:
            if self._has_more:
                await trio.lowlevel.checkpoint()
            if data := self._take():
                return data
            if self.ended:
                break
            if self._has_more:
                continue
            if self._awaits_continue:
                self._awaits_continue = False
                await self._wire.send_continue()
            await self._pace.wait(self._wire.receive_more)
        return b""

    def _take(self) -> bytes:
        """The part of the body that is in the connection's buffer."""
        buffer = self._wire.buffer
        self._has_more = False
        if not buffer:
            return b""
        if self.length is None:
            self._has_more = self._chunked.feed(buffer)
            self.ended = self._chunked.done
            data = bytes(self._chunked.body)
            self._chunked.body.clear()
            return data
        data = bytes(memoryview(buffer)[: self._left])
        del buffer[: len(data)]
        self._left -= len(data)
        self.ended = not self._left
        return data


class WholeBody:
    """The body of an HTTP/1.1 request whose handler gets it whole. `held` counts what has come, and
    `charge` is called with the size of a body of unknown length while that grows.

    Bodies come with nearly every request that has a task, so none has a timer: the sweeper asks
    whether it `keeps_up`.
    """

    def __init__(
        self,
        wire: Wire,
        fields: Fields,
        config: ServerConfig,
        held: Allotment,
        charge: Callable[[int], None],
    ) -> None:
        self._wire = wire
        self._fields = fields
        self._limit = config.max_body_bytes
        self._held = held
        self._charge = charge
        self._pace = Pace(config)
        self._came = len(wire.buffer)

    def keeps_up(self, waited_s: float) -> bool:
        """Whether what came in `waited_s` more seconds suffices (`Pace`)."""
        came, self._came = self._came, 0
        return self._pace.keeps_up(waited_s, came)

    async def receive(self) -> bytes:
        """All of it. Raises `ProblemError`, `ClientGone`."""
        buffer, length = self._wire.buffer, self._fields.content_length
        if self._fields.expects_continue and not buffer:
            await self._wire.send_continue()
        if length is None:
            return await self._receive_chunked(buffer)
        while len(buffer) < length:
            self._hold(len(buffer))
            await self._receive_more()
        self._hold(length)
        body = bytes(buffer[:length])
        del buffer[:length]
        return body

    async def _receive_chunked(self, buffer: bytearray) -> bytes:
        chunked = Chunked()
        while True:
            has_more = chunked.feed(buffer)
            self._charge(len(chunked.body))
            if len(chunked.body) > self._limit:
                raise body_too_large(self._limit)
            self._hold(len(chunked.body))
            if chunked.done:
                return bytes(chunked.body)
            if has_more:
                await trio.lowlevel.checkpoint()
            else:
                await self._receive_more()

    async def _receive_more(self) -> None:
        self._came += len(await self._wire.receive_more())

    def _hold(self, size: int) -> None:
        """Count the received part against the limit of all connections."""
        try:
            self._held.hold(size)
        except LimitReached:
            raise too_many_bodies() from None
