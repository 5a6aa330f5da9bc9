"""The front door: a small, strict HTTP/1.1 server on Trio, for all traffic of a node.

A reactor drives the connections; only what must wait has a task (`connection`). None has timers: a
single sweeper checks the time limits of all connections once a second, because a cancel scope per
request costs as much as parsing the request.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import structlog
import trio

from streamd.config.settings import ServerConfig
from streamd.http.door.arrivals import Arrivals
from streamd.http.door.connection import Connection
from streamd.http.door.connection_task import ConnectionTask
from streamd.http.door.continuations import Continuation, ServeAll, SpeakHttp2
from streamd.http.door.listeners import accept_for_ever, client_certificate, turn_away
from streamd.http.door.newcomers import ConnectionsByClient, Newcomers
from streamd.http.door.parking import ParkedRequests
from streamd.http.door.shared import Http2, Shared
from streamd.http.door.states import BETWEEN_REQUESTS, State, WrongTransition
from streamd.http.protocol.application import Application
from streamd.http.sockets.transports import SocketTransport, StreamTransport, Transport
from streamd.process.addresses import is_loopback_client
from streamd.process.metrics import Metrics

_SWEEP_INTERVAL_S = 1.0

log = structlog.get_logger("streamd.http")


class FrontDoor:
    """Serves an application on listening sockets. `fatal` errors of a handler end the server.

    `http2` gets the connections that begin with HTTP/2. All others are served here, so that there
    is one parser of HTTP/1.1.
    """

    def __init__(
        self,
        application: Application,
        config: ServerConfig,
        metrics: Metrics,
        *,
        fatal: tuple[type[BaseException], ...] = (),
        http2: Http2 | None = None,
        gathering: AbstractContextManager[None] | None = None,
        kept_for_loopback: int = 0,
        ends_idle: bool = False,
    ) -> None:
        """`gathering` is entered for each batch of requests. So many connections are
        `kept_for_loopback` addresses. With `ends_idle` a connection between two requests, too, ends
        in favour of a new one where there is no room."""
        self.shared = Shared(application, config, metrics, fatal, http2)
        self.config = config
        self._http2 = http2
        self.connections: set[Connection] = set()
        self._newcomers = Newcomers()
        self._kept_for_loopback = kept_for_loopback
        self._ends_idle = ends_idle
        self.arrivals = Arrivals(application, gathering or nullcontext())
        self.reactor = self.arrivals.reactor
        self.parked = ParkedRequests(self.reactor)
        self._nursery: trio.Nursery | None = None
        self._handshakes = 0
        self.clients = ConnectionsByClient(config)
        self._accepting = trio.CancelScope()
        self._idle = trio.Event()

    async def serve(
        self,
        listeners: Sequence[socket.socket],
        tls: Callable[[], ssl.SSLContext] | None = None,
    ) -> None:
        """Serve until drained or cancelled. Closes the listeners, which must be non-blocking. With
        `tls` each handshake uses the context that it returns then."""
        self.shared.scheme = b"http" if tls is None else b"https"
        try:
            async with trio.open_nursery() as self._nursery:
                await self._serve(listeners, tls, self._nursery)
                self._nursery.cancel_scope.cancel()
        finally:
            for connection in tuple(self.connections):
                self.end(connection)
            self.reactor.close()

    async def _serve(
        self,
        listeners: Sequence[socket.socket],
        tls: Callable[[], ssl.SSLContext] | None,
        nursery: trio.Nursery,
    ) -> None:
        """Serve in `nursery` until drained."""
        nursery.start_soon(self._sweep)
        nursery.start_soon(self.reactor.run)
        nursery.start_soon(self.parked.deadlines.run)
        if self._http2 is not None:
            nursery.start_soon(self._http2.raise_fatal)
        with self._accepting:
            async with trio.open_nursery() as accepting:
                take = partial(self._take, tls=tls, nursery=nursery)
                for listener in listeners:
                    accepting.start_soon(accept_for_ever, listener, take)
        for listener in listeners:
            trio.lowlevel.notify_closing(listener)
            listener.close()
        if self._http2 is not None:
            await self._http2.drain()
        with trio.move_on_after(self.config.drain_timeout_ms / 1000):
            while self.connections:
                await self._idle.wait()
                self._idle = trio.Event()

    def drain(self) -> None:
        """Stop accepting; end idle connections now and the others after their response."""
        self.shared.draining = True
        self._accepting.cancel()
        for connection in tuple(self.connections):
            if connection.state in BETWEEN_REQUESTS:
                connection.end()

    def _take(
        self,
        sock: socket.socket,
        client: str,
        tls: Callable[[], ssl.SSLContext] | None,
        nursery: trio.Nursery,
    ) -> None:
        """Serve an accepted connection, or turn it away."""
        if not self._enter(client):
            turn_away(sock)
        elif tls is None:
            transport = SocketTransport(sock, self.config.write_timeout_ms / 1000)
            self.reactor.watch(self._connection(transport, client), transport)
        else:
            self._handshakes += 1
            scope = trio.move_on_after(self.config.header_timeout_ms / 1000)
            self._newcomers.add(scope, client, partial(self._end_handshake, scope, client))
            nursery.start_soon(self._serve_tls, sock, client, tls(), scope)

    def _enter(self, client: str) -> bool:
        """Count a connection of a client, for which one that does nothing may have to end. Returns
        False, and counts nothing, if there is no room."""
        most = self.config.max_connections
        if not is_loopback_client(client):
            most -= self._kept_for_loopback
        if len(self.connections) + self._handshakes >= most and not self._make_room():
            return False
        return self.clients.enter(client) or (
            self._make_room(client) and self.clients.enter(client)
        )

    def _make_room(self, client: str | None = None) -> bool:
        """End a connection, of the client if one is given, that does nothing. Returns whether there
        was one."""
        if self._newcomers.end_oldest(client):
            return True
        if not self._ends_idle:
            return False
        idle = (
            one
            for one in self.connections
            if one.state in BETWEEN_REQUESTS and (client is None or one.client == client)
        )
        longest = min(idle, key=lambda one: one.since, default=None)
        if longest is not None:
            self._give_way(longest)
        return longest is not None

    def has_sent_head(self, connection: Connection) -> None:
        """As `Host.has_sent_head`."""
        self._newcomers.discard(connection)

    def may_give_way(self, connection: Connection) -> None:
        """As `Host.may_give_way`."""
        if connection in self.connections:
            self._newcomers.discard(connection)
            end = partial(self._give_way, connection)
            self._newcomers.add(connection, connection.client, end)

    def _give_way(self, connection: Connection) -> None:
        """End a connection, and count it no longer."""
        task = connection.task
        if task is None:
            self.end(connection)
        else:
            self.forget(connection)
            task.end()

    def _end_handshake(self, scope: trio.CancelScope, client: str) -> None:
        self._handshakes -= 1
        self.clients.leave(client)
        scope.cancel()

    async def _serve_tls(
        self,
        sock: socket.socket,
        client: str,
        ssl_context: ssl.SSLContext,
        scope: trio.CancelScope,
    ) -> None:
        """Shake hands within `scope`, and serve."""
        plain = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        stream = trio.SSLStream(plain, ssl_context, server_side=True, https_compatible=True)
        is_done = False
        try:
            with scope:
                await stream.do_handshake()
                is_done = True
        except trio.BrokenResourceError:
            pass
        finally:
            is_counted = self._newcomers.discard(scope)
            self._handshakes -= is_counted
        if not (is_done and is_counted):
            if is_counted:
                self.clients.leave(client)
            await trio.aclose_forcefully(plain)
            return
        transport = StreamTransport(stream, self.config.write_timeout_ms / 1000)
        connection = self._connection(transport, client)
        connection.count.certificate = client_certificate(stream)
        connection.enter(State.TASK_IDLE)
        speaks_http2 = self._http2 is not None and stream.selected_alpn_protocol() == "h2"
        continuation = SpeakHttp2() if speaks_http2 else ServeAll()
        await self._task(connection, continuation).run()

    def _connection(self, transport: Transport, client: str) -> Connection:
        connection = Connection(self, transport, client)
        self.connections.add(connection)
        self.may_give_way(connection)
        connection.count.begun = partial(self._newcomers.discard, connection)
        return connection

    def hand_to_task(self, connection: Connection, continuation: Continuation) -> None:
        """As `Host.hand_to_task`."""
        assert self._nursery is not None
        assert isinstance(connection.transport, SocketTransport)
        self.reactor.unwatch(connection.transport)
        self._nursery.start_soon(self._task(connection, continuation).run)

    def _task(self, connection: Connection, continuation: Continuation) -> ConnectionTask:
        task = connection.task = ConnectionTask(connection, continuation)
        return task

    def take_back(self, connection: Connection) -> None:
        """As `Host.take_back`."""
        assert isinstance(connection.transport, SocketTransport)
        self.reactor.watch(connection, connection.transport)
        self.reactor.advance_later(connection)  # It may have received ahead.

    def end(self, connection: Connection) -> None:
        """As `Host.end`."""
        if connection in self.connections:
            assert isinstance(connection.transport, SocketTransport)
            self.forget(connection)
            self.reactor.unwatch(connection.transport)
            connection.transport.close_now()

    def forget(self, connection: Connection) -> None:
        """As `Host.forget`."""
        connection.enter(State.ENDED)
        self._newcomers.discard(connection)
        self.parked.abandon(connection)
        self.reactor.resume(connection)
        if connection in self.connections:
            self.connections.remove(connection)
            self.clients.leave(connection.client)
            connection.count.close()
        connection.held.release()
        if not self.connections:
            self._idle.set()

    async def _sweep(self) -> None:
        """Enforce the time limits of all connections, and set the clock for the Date header."""
        while True:
            await trio.sleep(_SWEEP_INTERVAL_S)
            self.shared.clock.tick()
            for connection in tuple(self.connections):
                try:
                    connection.check_time(self.shared.clock.now)
                except WrongTransition as wrong:
                    wrong.contain()
