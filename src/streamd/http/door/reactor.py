"""One task for all connections that are in their normal way.

A task for each connection costs a switch and a wait for its socket with every request, several
times what the request itself costs. Here an epoll instance of our own watches the sockets, that one
descriptor is attended to without a task, too (`process.attending`), one call receives from all that
have bytes (`batch_io`), and each of them costs a plain call.

The epoll is edge-triggered: it tells of bytes once, when they come, so that a connection that is
busy with a request costs nothing meanwhile. So a connection must take all bytes, and the end of
the input after them, or look again by itself. While it is busy it is paused: what comes then stays
in the socket, where the kernel limits it.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol, TypeVarTuple

import trio

from streamd.http.door.states import WrongTransition
from streamd.http.sockets.batch_io import receive_ready
from streamd.http.sockets.transports import SocketTransport
from streamd.process.attending import attend

# In one turn of the loop: what takes a few milliseconds, so that nobody else waits for longer.
CALLS_PER_TURN = 256

Args = TypeVarTuple("Args")

_EVENTS = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET


class Watched(Protocol):
    """A connection, as the reactor knows it."""

    hung_up: bool  # The end of the client's input was reported.
    has_more: bool  # The socket may have something that was reported already.

    def take(self, data: bytes) -> None:
        """Serve the next request, after `data` was received, empty at the end of the input."""

    def advance(self) -> None:
        """Serve the next request, as far as it has come. May be called at any time."""


class Reactor:
    """Calls `Watched.take` with what the sockets that it watches get, bytes or the end."""

    def __init__(self, gathering: AbstractContextManager[None]) -> None:
        """`gathering` is entered for each batch of calls."""
        self._gathering = gathering
        self._epoll = select.epoll()
        self._watched: dict[int, Watched] = {}
        self._to_advance: set[Watched] = set()
        self._paused: set[Watched] = set()
        self._due: deque[tuple[int, Callable[..., None], tuple[Any, ...]]] = deque()
        self._something_due = trio.lowlevel.ParkingLot()
        self._left_in_turn = CALLS_PER_TURN

    def watch(self, connection: Watched, transport: SocketTransport) -> None:
        """Watch a connection's socket. It is also called for what has come already."""
        descriptor = transport.fileno()
        self._paused.discard(connection)
        self._watched[descriptor] = connection
        self._epoll.register(descriptor, _EVENTS)

    def unwatch(self, transport: SocketTransport) -> None:
        """Stop watching a socket, which is still open."""
        descriptor = transport.fileno()
        del self._watched[descriptor]
        self._epoll.unregister(descriptor)

    def pause(self, connection: Watched) -> None:
        """Leave what a connection gets in its socket, and call `Watched.advance` instead."""
        self._paused.add(connection)

    def pause_all(self, connections: Iterable[Watched]) -> None:
        """Pause each of these connections."""
        self._paused.update(connections)

    def resume(self, connection: Watched) -> None:
        """Receive for a connection again, from what comes now on."""
        self._paused.discard(connection)

    def resume_all(self, connections: Iterable[Watched]) -> None:
        """Resume each of these connections."""
        self._paused.difference_update(connections)

    def soon(self, call: Callable[[*Args], None], *args: *Args) -> None:
        """Make a call in another turn. Calls are made in order."""
        self._add_due(1, call, args)

    def now(self, count: int, call: Callable[[*Args], None], *args: *Args) -> None:
        """Make a call that stands for `count` calls at once, or in another turn if this one has
        made as many as it may."""
        if count <= self._left_in_turn and not self._due:
            self._left_in_turn -= count
            call(*args)
        else:
            self._add_due(count, call, args)

    def _add_due(self, count: int, call: Callable[..., None], args: tuple[Any, ...]) -> None:
        if not self._due:
            self._something_due.unpark()
        self._due.append((count, call, args))

    def advance_later(self, connection: Watched) -> None:
        """Call `Watched.advance` in another turn, once: if each arrival of bytes added a call, a
        client that pipelines requests would have many served in one turn."""
        self.pause(connection)  # It may have been resumed since.
        if connection not in self._to_advance:
            self._to_advance.add(connection)
            self.soon(self._advance, connection)

    def _advance(self, connection: Watched) -> None:
        self._to_advance.discard(connection)
        self.resume(connection)
        connection.advance()

    def close(self) -> None:
        """Stop watching. The sockets stay open."""
        self._watched.clear()
        self._epoll.close()

    async def run(self) -> None:
        """Run until cancelled. Raises what a connection raises, but for `WrongTransition`."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._make_calls)
            await attend(self._epoll.fileno(), self._turn)

    def _turn(self) -> None:
        self._left_in_turn = CALLS_PER_TURN
        with self._gathering:
            self._serve()

    def _serve(self) -> None:
        for connection, events, data in receive_ready(
            self._epoll, self._watched, self._paused, CALLS_PER_TURN
        ):
            if events != select.EPOLLIN:
                connection.hung_up = True
            try:
                if data is not None:
                    connection.take(data)
                elif connection in self._to_advance:
                    connection.has_more = True
                else:
                    connection.advance()
            except WrongTransition as wrong:
                wrong.contain()

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
        left = CALLS_PER_TURN
        for _ in range(len(self._due)):
            count = self._due[0][0]
            if count > left < CALLS_PER_TURN:
                break
            left -= count
            _, call, args = self._due.popleft()
            try:
                call(*args)
            except WrongTransition as wrong:
                wrong.contain()
