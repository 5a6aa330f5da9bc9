"""What all connections of one front door use."""

from __future__ import annotations

from email.utils import formatdate
from typing import Any, Protocol

import trio

from streamd.config.settings import ServerConfig
from streamd.http.door.channels import Chunks
from streamd.http.protocol.application import Application, BugGuard
from streamd.http.protocol.connections import ClientGone, ConnectionCount
from streamd.http.protocol.heads import HeadParser
from streamd.http.protocol.messages import SHARED_HEADS, Audience
from streamd.http.sockets.fair_limits import FairLimit
from streamd.http.sockets.outgoing import Outgoing
from streamd.process.metrics import Metrics
from streamd.protocol.problems import ProblemError


class Http2(Protocol):
    """Serves the same application on HTTP/2 connections."""

    def share_limits(self, bodies: FairLimit, outgoing: Outgoing) -> None:
        """Count bodies and answers against the limits that HTTP/1.1 uses."""

    async def serve(self, stream: Any, connection: ConnectionCount) -> None:
        """Serve a Trio stream, plain or TLS, to its end. It is counted as the `connection`."""

    async def drain(self) -> None:
        """End idle connections now and the others after their responses."""

    async def raise_fatal(self) -> None:
        """Wait for an error that is fatal to the node, and raise it."""


class SweepClock:
    """What changes once a second, with the sweep of all connections.

    `now` is when the last sweep began, by Trio's clock: precise enough for limits of seconds, and
    free to read. `tail_heads` are the header lines, with the date, that end the head of a response,
    by its audience, and `tail_head` is that of most.
    """

    def __init__(self) -> None:
        self.tick()

    def tick(self) -> None:
        """A sweep begins."""
        date = b"Date: %b\r\n" % formatdate(usegmt=True).encode()
        self.tail_heads = {audience: head + date for audience, head in SHARED_HEADS.items()}
        self.tail_head = self.tail_heads[Audience.ANYONE]
        self.now = trio.current_time()


class Shared:
    """The application, the limits and the caches of a front door's connections."""

    def __init__(
        self,
        application: Application,
        config: ServerConfig,
        metrics: Metrics,
        fatal: tuple[type[BaseException], ...],
        http2: Http2 | None,
    ) -> None:
        self.application = application
        self.config = config
        self.metrics = metrics
        self.guard = BugGuard(fatal, ClientGone, ProblemError)
        self.http2 = http2
        self.scheme = b"http"
        self.draining = False
        self.clock = SweepClock()
        self.heads = HeadParser(config.max_headers)
        self.chunks = Chunks()
        self.bodies = FairLimit(config.max_buffered_bytes)
        self.outgoing = Outgoing(config.max_buffered_bytes)
        if http2 is not None:
            http2.share_limits(self.bodies, self.outgoing)
