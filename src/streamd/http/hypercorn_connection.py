"""One of Hypercorn's connections, with limits that Hypercorn does not have."""

from __future__ import annotations

from typing import Any

import structlog
import trio
from h2.errors import ErrorCodes
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.protocol import h2
from hypercorn.trio.tcp_server import MAX_RECV, TCPServer

from streamd.http.http2_frames import Flood, FrameMeter
from streamd.http.transports import SEND_BYTES

log = structlog.get_logger("streamd.http")


class BoundedBuffer(h2.StreamBuffer):
    """The part of a response that waits for the client: little more than the high-water mark.

    Hypercorn's own buffer resumes the response whenever it is asked for data, even if nothing was
    sent. With a client that grants no window, the whole response piled up there.
    """

    async def push(self, data: bytes) -> None:
        if self._complete:
            raise h2.BufferCompleteError
        self.buffer += data
        await self._is_empty.clear()
        if len(self.buffer) >= h2.BUFFER_HIGH_WATER:
            await self._paused.clear()
            await self._paused.wait()

    async def pop(self, max_length: int) -> bytes:
        data = bytes(self.buffer[:max_length])
        del self.buffer[:max_length]
        if len(self.buffer) < h2.BUFFER_HIGH_WATER:
            await self._paused.set()
        if not self.buffer:
            await self._is_empty.set()
        return data


# Hypercorn looks the class up here, and offers no other way to replace it.
h2.StreamBuffer = BoundedBuffer  # type: ignore[misc]


class HypercornConnection(TCPServer):
    """A connection that does little in each turn of the loop, and ends when its client leaves.

    Hypercorn's own connection processes everything received in one turn, and stays until the idle
    timeout after its client has left: clients that come and go at a modest rate would use up all
    connections.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._meter = FrameMeter(trio.current_time())
        self._ended = False

    async def protocol_send(self, event: Event) -> None:
        if isinstance(event, RawData):
            self._meter.count_sent(len(event.data))
        if not (self._ended and isinstance(event, Updated)):
            await super().protocol_send(event)

    async def _read_data(self) -> None:
        try:
            while data := await self.stream.receive_some(MAX_RECV):
                for piece in self._meter.turns(bytes(data), trio.current_time()):
                    await self.protocol.handle(RawData(piece))
                    await trio.lowlevel.checkpoint()
            await self.protocol.handle(RawData(b""))
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            pass
        except Flood:
            log.info("HTTP/2 client sent too many control frames", client=self._client())
            await self._calm_down()
        await self.protocol.handle(Closed())
        self._ended = True
        await self.idle_task.stop()

    async def _calm_down(self) -> None:
        """Send GOAWAY with the reason (RFC 9113 section 10.5)."""
        if isinstance(protocol := self.protocol.protocol, h2.H2Protocol):
            protocol.connection.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)
            await self.protocol_send(RawData(protocol.connection.data_to_send()))

    def _client(self) -> str:
        return self.protocol.client[0] if self.protocol.client else ""


class LimitedStream:
    """Wraps the stream `inner` of a connection to limit the time of its sends."""

    def __init__(self, inner: Any, write_timeout_s: float) -> None:
        self._inner = inner
        self._write_timeout_s = write_timeout_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def send_all(self, data: bytes) -> None:
        """Send `data`, at least `SEND_BYTES` of it in each write timeout.

        Hypercorn shields its sends from cancellation, so no timeout around them would work.
        Raises `BrokenResourceError`.
        """
        for start in range(0, len(data), SEND_BYTES):
            with trio.move_on_after(self._write_timeout_s) as scope:
                await self._inner.send_all(data[start : start + SEND_BYTES])
            if scope.cancelled_caught:
                await trio.aclose_forcefully(self._inner)
                raise trio.BrokenResourceError("the client receives too slowly")
