"""One task for all connections that are in their normal way.

A task for each connection costs a switch and a wait for its socket with every request, several
times what the request itself costs. Here an epoll instance of our own watches the sockets, Trio
waits for that one descriptor, one call receives from all that have bytes (`batch_io`), and each of
them costs a plain call.

The epoll is edge-triggered: it tells of bytes once, when they come, so that a connection that is
busy with a request costs nothing meanwhile. So a connection must take all bytes, and the end of
the input after them, or look again by itself. While it is busy it is paused: what comes then stays
in the socket, where the kernel limits it.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVarTuple

import trio

from streamd.http.sockets.batch_io import receive_ready
from streamd.http.sockets.transports import SocketTransport

if TYPE_CHECKING:
    from streamd.http.door.connection import Connection

# In one turn of the loop: what takes a few milliseconds, so that nobody else waits for longer.
CALLS_PER_TURN = 256

Args = TypeVarTuple("Args")

_EVENTS = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET


class Reactor:
    """Calls `Connection.take` with what the sockets that it watches get, bytes or the end."""

    def __init__(self, gathering: AbstractContextManager[None]) -> None:
        """`gathering` is entered for each batch of calls."""
        self._gathering = gathering
        self._epoll = select.epoll()
        self._watched: dict[int, Connection] = {}
        self._to_advance: set[Connection] = set()
        self._paused: set[Connection] = set()
        self._due: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._something_due = trio.lowlevel.ParkingLot()
        self._left_in_turn = CALLS_PER_TURN

    def watch(self, connection: Connection, transport: SocketTransport) -> None:
        """Watch a connection's socket. What has come already is told of, too."""
        descriptor = transport.fileno()
        self._watched[descriptor] = connection
        self._epoll.register(descriptor, _EVENTS)

    def unwatch(self, transport: SocketTransport) -> None:
        """Stop watching a socket, which is still open."""
        descriptor = transport.fileno()
        del self._watched[descriptor]
        self._epoll.unregister(descriptor)

    def pause(self, connection: Connection) -> None:
        """Leave what a connection gets in its socket, and call `Connection.advance` instead."""
        self._paused.add(connection)

    def resume(self, connection: Connection) -> None:
        """Receive for a connection again, from what comes now on."""
        self._paused.discard(connection)

    def soon(self, call: Callable[[*Args], None], *args: *Args) -> None:
        """Make a call in another turn. Calls are made in order."""
        if not self._due:
            self._something_due.unpark()
        self._due.append((call, args))

    def now(self, call: Callable[[*Args], None], *args: *Args) -> None:
        """Make a call at once, or in another turn if this one has made as many as it may."""
        if self._left_in_turn and not self._due:
            self._left_in_turn -= 1
            call(*args)
        else:
            self.soon(call, *args)

    def advance_later(self, connection: Connection) -> None:
        """Call `Connection.advance` in another turn, once: if each arrival of bytes added a call, a
        client that pipelines requests would have many served in one turn."""
        if connection not in self._to_advance:
            self._to_advance.add(connection)
            self.pause(connection)
            self.soon(self._advance, connection)

    def _advance(self, connection: Connection) -> None:
        self._to_advance.discard(connection)
        self.resume(connection)
        connection.advance()

    def close(self) -> None:
        """Stop watching. The sockets stay open."""
        self._watched.clear()
        self._epoll.close()

    async def run(self) -> None:
        """Run until cancelled. Raises what a connection raises."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._make_calls)
            while True:
                await trio.lowlevel.wait_readable(self._epoll.fileno())
                self._left_in_turn = CALLS_PER_TURN
                with self._gathering:
                    self._serve()

    def _serve(self) -> None:
        for connection, events, data in receive_ready(
            self._epoll, self._watched, self._paused, CALLS_PER_TURN
        ):
            if events != select.EPOLLIN:
                connection.hung_up = True
            if data is not None:
                connection.take(data)
            elif connection in self._to_advance:
                connection.has_more = True
            else:
                connection.advance()

    async def _make_calls(self) -> None:
        while True:
            with self._gathering:
                self._make_due_calls()
            if self._due:
                await trio.lowlevel.checkpoint()
            else:
                await self._something_due.park()

    def _make_due_calls(self) -> None:
        # Not in a frame that lives on, which would hold the last connection.
        for _ in range(min(len(self._due), CALLS_PER_TURN)):
            call, args = self._due.popleft()
            call(*args)
