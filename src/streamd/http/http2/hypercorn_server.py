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
from hypercorn.app_wrappers import ASGIWrapper
from hypercorn.config import Config as HypercornConfig
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState

from streamd.config.settings import ServerConfig
from streamd.http.http2.asgi import AsgiApplication
from streamd.http.http2.hypercorn_connection import HypercornConnection, LimitedStream
from streamd.http.protocol.connections import ConnectionCount
from streamd.http.sockets.fair_limits import FairLimit
from streamd.http.sockets.outgoing import Outgoing

# As many as HTTP/2 can number on one connection (RFC 9113 section 5.1.1).
_MAX_STREAMS = 2**30

log = structlog.get_logger("streamd.http")


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
