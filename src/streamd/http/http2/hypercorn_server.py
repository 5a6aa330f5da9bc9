"""HTTP/2 by Hypercorn, on connections that the front door accepted.

In Hypercorn's own `serve` an error of one connection ends them all, and in version 0.18 a client
can cause one: data for an HTTP/2 stream that was answered before its body had arrived. So streamd
uses only its connection class, and errors stay within the connection, or within one request of it
(`http2_protocol`). It speaks HTTP/2 only: Hypercorn's parser of HTTP/1.1 repairs what the front
door refuses, and accepts upgrades that a proxy did not ask for.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import structlog
import trio
from h2.errors import ErrorCodes
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config as HypercornConfig
from hypercorn.events import Closed, Event, RawData, Updated
from hypercorn.trio.task_group import TaskGroup
from hypercorn.trio.tcp_server import MAX_RECV, TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr

from streamd.config.settings import ServerConfig
from streamd.http.http2.asgi import AsgiApplication
from streamd.http.http2.http2_frames import Flood, FrameMeter
from streamd.http.http2.http2_protocol import Http2Protocol
from streamd.http.protocol.connections import ConnectionCount
from streamd.http.sockets.fair_limits import FairLimit
from streamd.http.sockets.outgoing import Outgoing
from streamd.http.sockets.transports import SEND_BYTES

# As many as HTTP/2 can number on one connection (RFC 9113 section 5.1.1).
_MAX_STREAMS = 2**30

log = structlog.get_logger("streamd.http")


class HypercornConnection(TCPServer):
    """A connection of HTTP/2 that does little in each turn of the loop, and ends when its client
    leaves. TLS, if there is any, has shaken hands.

    Hypercorn's own connection processes everything received in one turn, and stays until the idle
    timeout after its client has left: clients that come and go at a modest rate would use up all
    connections.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._meter = FrameMeter(trio.current_time())
        self._ended = False
        self._client = ""
        self.protocol: Any

    async def run(self) -> None:
        """Serve to the end of the connection."""
        below_tls = getattr(self.stream, "transport_stream", None)
        plain = self.stream if below_tls is None else below_tls
        try:
            client = parse_socket_addr(plain.socket.family, plain.socket.getpeername())
            server = parse_socket_addr(plain.socket.family, plain.socket.getsockname())
            self._client = client[0] if client else ""
            async with TaskGroup() as self._task_group:
                self.protocol = Http2Protocol(
                    self.config,
                    self._meter.count_fault,
                    self.app,
                    self.context,
                    self._task_group,
                    ConnectionState(self.state),
                    below_tls is not None,
                    client,
                    server,
                    self.protocol_send,
                )
                await self.protocol.initiate()
                await self.idle_task.restart(self._task_group, self._idle_timeout)
                await self._read_data()
        except OSError:
            pass
        finally:
            await self._close()

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
            log.info("HTTP/2 client sent too many control frames", client=self._client)
            await self._calm_down()
        await self.protocol.handle(Closed())
        self._ended = True
        await self.idle_task.stop()

    async def _calm_down(self) -> None:
        """Send GOAWAY with the reason (RFC 9113 section 10.5)."""
        connection = self.protocol.connection
        connection.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)
        await self.protocol_send(RawData(connection.data_to_send()))


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


class HypercornHttp2:
    """Serves the application on connections that begin with HTTP/2: an `Http2`."""

    def __init__(self, application: AsgiApplication, server: ServerConfig) -> None:
        self.application = application
        self._write_timeout_s = server.write_timeout_ms / 1000
        self._config = _hypercorn_config(server)
        self._context = WorkerContext(None)

    def share_limits(self, bodies: FairLimit, outgoing: Outgoing) -> None:
        self.application.bodies = bodies
        self.application.outgoing = outgoing

    async def serve(self, stream: Any, connection: ConnectionCount) -> None:
        """As `Http2.serve`."""
        app = ASGIWrapper(partial(self.application, connection=connection))
        limited: Any = LimitedStream(stream, self._write_timeout_s)
        try:
            await HypercornConnection(
                app, self._config, self._context, ConnectionState({}), limited
            )
        except* Exception as errors:
            # Its text may quote what the client sent.
            import traceback

            traceback.print_exception(errors)
            log.warning("connection failed", error=kind_of(errors))

    async def drain(self) -> None:
        await self._context.terminated.set()

    async def raise_fatal(self) -> None:
        await self.application.raise_fatal()


def kind_of(error: BaseException) -> str:
    """The name of an error's type; of a group's first error."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return type(error).__name__


def _hypercorn_config(server: ServerConfig) -> HypercornConfig:
    config = HypercornConfig()
    config.accesslog = None
    config.errorlog = None
    config.include_server_header = False
    config.graceful_timeout = server.drain_timeout_ms / 1000
    config.keep_alive_timeout = server.idle_timeout_ms / 1000
    # By default a connection ends after a thousand requests, in the middle of those under way.
    config.keep_alive_max_requests = _MAX_STREAMS
    config.h2_max_header_list_size = server.max_header_bytes
    return config
