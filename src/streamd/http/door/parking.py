"""Requests that wait for something other than their client.

The reactor keeps such a request as a value. Over TLS and HTTP/2 the connection's task waits for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from heapq import heappop, heappush
from typing import Generic, Protocol, TypeVar

import trio

from streamd.http.door.reactor import Reactor
from streamd.http.protocol.application import Application
from streamd.http.protocol.connections import Channel, ClientGone
from streamd.http.protocol.messages import LiveResponse, Parked, Response

# How late a deadline may be noticed. The waits of all clients then need no more than a hundred
# wakes a second.
_SLOT_S = 0.01

T = TypeVar("T")


class Deadlines(Generic[T]):
    """Tells whose deadlines came, by Trio's clock, at most `_SLOT_S` late.

    A timer wheel: what is due in the same slot of time shares one entry of the heap, and one wake
    of the task. To set and to unset a deadline costs a dictionary's entry, whatever their number.
    """

    def __init__(self, came: Callable[[T], None]) -> None:
        """`came` must return at once."""
        self._came = came
        self._slots: dict[int, dict[T, None]] = {}
        self._heap: list[int] = []
        self._sooner = trio.lowlevel.ParkingLot()

    def set(self, deadline: float, owner: T) -> int:
        """Tell of `owner` at `deadline`. Returns the slot, which `unset` needs."""
        slot = math.ceil(deadline / _SLOT_S)
        owners = self._slots.get(slot)
        if owners is None:
            owners = self._slots[slot] = {}
            heappush(self._heap, slot)
            if self._heap[0] == slot:
                self._sooner.unpark()
        owners[owner] = None
        return slot

    def unset(self, slot: int, owner: T) -> None:
        """Do not tell of `owner`, if that was not done. An empty slot stays until its time."""
        if owners := self._slots.get(slot):
            owners.pop(owner, None)

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            with trio.move_on_at(self._heap[0] * _SLOT_S if self._heap else math.inf):
                await self._sooner.park()
            while self._heap and self._heap[0] * _SLOT_S <= trio.current_time():
                for owner in self._slots.pop(heappop(self._heap)):
                    self._came(owner)


class Resumable(Protocol):
    """A connection, as far as its parked request needs it."""

    def resume(self, parked: Parked) -> None:
        """Go on with the request that was kept."""


class ParkedRequests:
    """The requests of the reactor's connections that wait, one of a connection at most."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor
        self._kept: dict[Resumable, tuple[Parked, int]] = {}
        self.deadlines = Deadlines(self._deadline_came)

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, connection: Resumable) -> bool:
        return connection in self._kept

    def keep(self, connection: Resumable, parked: Parked) -> None:
        """Keep a request until `connection` can `resume` it, or ends."""
        parked.park(partial(self._resume_later, connection))
        self._kept[connection] = parked, self.deadlines.set(parked.deadline, connection)

    def abandon(self, connection: Resumable) -> None:
        """Abandon the request of a connection that ended, if it had one."""
        if (parked := self._take(connection)) is not None:
            parked.abandon()

    def _take(self, connection: Resumable) -> Parked | None:
        parked, slot = self._kept.pop(connection, (None, 0))
        self.deadlines.unset(slot, connection)
        return parked

    def _deadline_came(self, connection: Resumable) -> None:
        self._resume_later(connection, self._kept[connection][0])

    def _resume_later(self, connection: Resumable, parked: Parked) -> None:
        # In another turn: one change may wake a thousand.
        self._reactor.soon(self._resume, connection, parked)

    def _resume(self, connection: Resumable, parked: Parked) -> None:
        kept = self._kept.get(connection)
        # Since this call was due it may have gone on, or its client left.
        if kept is not None and kept[0] is parked:
            self._take(connection)
            connection.resume(parked)


async def wait(
    application: Application,
    parked: Parked,
    channel: Channel,
    scope: trio.CancelScope | None = None,
) -> Response | LiveResponse | Parked | None:
    """Wait in this task until `parked` can go on, and go on with it; at once when `scope` is
    cancelled. Raises `ClientGone`."""
    can_go_on = False
    scope = scope or trio.CancelScope()
    scope.deadline = parked.deadline
    try:
        with scope:
            parked.park(lambda _: scope.cancel())
            await channel.wait_disconnected()
        can_go_on = scope.cancelled_caught
    finally:
        if not can_go_on:
            parked.abandon()
    if not can_go_on:
        raise ClientGone
    return application.resume(parked) or await application.go_on(parked)
