"""Hypercorn's connections behind our own accepting.

Hypercorn's own `serve` lets an error of one connection end them all, and version 0.18 has such
errors within a client's reach: data for an HTTP/2 stream that was answered before its body had
come. So its connection class is used alone, each one contained.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import structlog
import trio
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config as HypercornConfig
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from streamd.config import ServerConfig
from streamd.http.asgi import AsgiApplication
from streamd.http.hypercorn_connection import HypercornConnection, LimitedStream
from streamd.http.listeners import accept_for_ever, turn_away

log = structlog.get_logger("streamd.http")


class HypercornServer:
    """Serves the application on listening sockets: HTTP/1.1, and HTTP/2 by ALPN or prior
    knowledge."""

    def __init__(self, application: AsgiApplication, server: ServerConfig) -> None:
        self.application = application
        self._server = server
        self._config = _hypercorn_config(server)
        self._context = WorkerContext(None)
        self._ssl_context: ssl.SSLContext | None = self._config.create_ssl_context()
        self.connections = 0

    async def serve(
        self, listeners: Sequence[socket.socket], stopping: Callable[[], Awaitable[None]]
    ) -> None:
        """Serve until `stopping` returns, then drain. Raises what is fatal to the node."""
        async with trio.open_nursery() as connections:
            async with trio.open_nursery() as accepting:
                take = partial(self._take, nursery=connections)
                for listener in listeners:
                    accepting.start_soon(accept_for_ever, listener, take)
                accepting.start_soon(self.application.raise_fatal)
                await stopping()
                accepting.cancel_scope.cancel()
            for listener in listeners:
                trio.lowlevel.notify_closing(listener)
                listener.close()
            await self._context.terminated.set()
            drain_s = self._server.drain_timeout_ms / 1000
            connections.cancel_scope.deadline = trio.current_time() + drain_s

    def _take(self, sock: socket.socket, _: str, nursery: trio.Nursery) -> None:
        """Serve a connection that was accepted, or turn it away."""
        if self.connections >= self._server.max_connections:
            turn_away(sock)
            return
        self.connections += 1
        nursery.start_soon(self._serve_connection, sock)

    def _stream(self, sock: socket.socket) -> LimitedStream:
        stream: trio.abc.Stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        if self._ssl_context is not None:
            stream = trio.SSLStream(
                stream, self._ssl_context, server_side=True, https_compatible=True
            )
        return LimitedStream(stream, self._server.write_timeout_ms / 1000)

    async def _serve_connection(self, sock: socket.socket) -> None:
        app = ASGIWrapper(self.application)  # type: ignore[arg-type]
        stream: Any = self._stream(sock)
        try:
            await HypercornConnection(app, self._config, self._context, ConnectionState({}), stream)
        except* Exception as errors:
            log.warning("a connection failed", error=repr(errors.exceptions[0]))
        finally:
            self.connections -= 1
            await trio.aclose_forcefully(stream)


def _hypercorn_config(server: ServerConfig) -> HypercornConfig:
    config = HypercornConfig()
    config.certfile = server.tls_cert
    config.keyfile = server.tls_key
    config.accesslog = None
    config.errorlog = None
    config.include_server_header = False
    config.graceful_timeout = server.drain_timeout_ms / 1000
    config.keep_alive_timeout = server.idle_timeout_ms / 1000
    config.ssl_handshake_timeout = server.header_timeout_ms / 1000
    config.h11_max_incomplete_size = server.max_header_bytes
    config.h2_max_header_list_size = server.max_header_bytes
    return config
