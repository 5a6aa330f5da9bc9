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
from hypercorn.trio.tcp_server import TCPServer
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from streamd.config import ServerConfig
from streamd.http.asgi import AsgiApplication

log = structlog.get_logger("streamd.http")


class HypercornServer:
    """Serves the application on listening sockets: HTTP/1.1, and HTTP/2 by ALPN or prior
    knowledge."""

    def __init__(self, application: AsgiApplication, server: ServerConfig) -> None:
        self._application = application
        self._server = server
        self._config = _hypercorn_config(server)
        self._context = WorkerContext(None)
        self.connections = 0

    async def serve(
        self, listeners: Sequence[socket.socket], stopping: Callable[[], Awaitable[None]]
    ) -> None:
        """Serve until `stopping` returns, then drain. Raises what is fatal to the node."""
        async with trio.open_nursery() as connections:
            async with trio.open_nursery() as accepting:
                accepting.start_soon(
                    partial(
                        trio.serve_listeners,
                        self._serve_connection,
                        [self._listener(sock) for sock in listeners],
                        handler_nursery=connections,
                    )
                )
                accepting.start_soon(self._application.raise_fatal)
                await stopping()
                accepting.cancel_scope.cancel()
            await self._context.terminated.set()
            drain_s = self._server.drain_timeout_ms / 1000
            connections.cancel_scope.deadline = trio.current_time() + drain_s

    def _listener(
        self, sock: socket.socket
    ) -> trio.SocketListener | trio.SSLListener[trio.SocketStream]:
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(sock))
        context: ssl.SSLContext | None = self._config.create_ssl_context()
        if context is None:
            return listener
        return trio.SSLListener(listener, context, https_compatible=True)

    async def _serve_connection(self, stream: Any) -> None:
        if self.connections >= self._server.max_connections:
            await trio.aclose_forcefully(stream)
            return
        self.connections += 1
        app = ASGIWrapper(self._application)  # type: ignore[arg-type]
        state = ConnectionState({})
        try:
            await TCPServer(app, self._config, self._context, state, stream)
        except* Exception as errors:
            log.warning("a connection failed", error=repr(errors.exceptions[0]))
        finally:
            self.connections -= 1


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
