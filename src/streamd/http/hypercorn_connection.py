"""One of Hypercorn's connections, with limits that Hypercorn does not have."""

from __future__ import annotations

from typing import Any

import trio
from hypercorn.events import Event, Updated
from hypercorn.trio.tcp_server import TCPServer

from streamd.http.transports import SEND_BYTES


class HypercornConnection(TCPServer):
    """A connection that is over when its client has gone.

    Hypercorn's own lasts until its idle timeout then, so that clients who come and go at a modest
    rate would use up all connections.
    """

    _ended = False

    async def protocol_send(self, event: Event) -> None:
        if not (self._ended and isinstance(event, Updated)):
            await super().protocol_send(event)

    async def _read_data(self) -> None:
        await super()._read_data()
        self._ended = True
        await self.idle_task.stop()


class LimitedStream:
    """The stream below a connection: what is not here is as the stream `inner` has it."""

    def __init__(self, inner: Any, write_timeout_s: float) -> None:
        self._inner = inner
        self._write_timeout_s = write_timeout_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def send_all(self, data: bytes) -> None:
        """Send `data`, `SEND_BYTES` of it in each write timeout at the least.

        Hypercorn shields its sending, so that no limit of time from above gets through to it.
        Raises `BrokenResourceError`.
        """
        for start in range(0, len(data), SEND_BYTES):
            with trio.move_on_after(self._write_timeout_s) as scope:
                await self._inner.send_all(data[start : start + SEND_BYTES])
            if scope.cancelled_caught:
                await trio.aclose_forcefully(self._inner)
                raise trio.BrokenResourceError("the client takes too little")
