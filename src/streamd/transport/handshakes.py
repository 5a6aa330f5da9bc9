"""Which incoming connections may be in their handshake at once.

A connection that has proved nothing costs a descriptor and a task, so there is a limit. First come,
first served would let silent strangers keep everyone out: here the oldest handshake gives way to a
newcomer. An honest one takes milliseconds, so only a flood of thousands a second ends it before it
is done. And strangers never take the places of members: those are counted by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

from streamd.process.addresses import client_of
from streamd.transport.interface import Limits


class Handshakes:
    """Handshakes under way. `is_member` returns whether a member of the cluster is at an address,
    as `client_of` gives it."""

    def __init__(self, limits: Limits, is_member: Callable[[str], bool]) -> None:
        self._limits = limits
        self._is_member = is_member
        # In the order in which they began, each with its client, and whether a member is there.
        self._under_way: dict[trio.CancelScope, tuple[str | None, bool]] = {}

    @contextmanager
    def one(self, host: str | None) -> Iterator[trio.CancelScope]:
        """A handshake with a host, or with an end in memory that has none. The scope is cancelled
        when it must give way."""
        client = None if host is None else client_of(host)
        is_member = client is not None and self._is_member(client)
        limits = self._limits
        each = limits.max_handshakes if client is None else limits.max_handshakes_per_host
        self._make_room(each, lambda other, _: other == client)
        if not is_member:
            self._make_room(limits.max_handshakes, lambda _, of_member: not of_member)
        scope = trio.CancelScope()
        self._under_way[scope] = client, is_member
        try:
            with scope:
                yield scope
        finally:
            self._under_way.pop(scope, None)

    def _make_room(self, most: int, counts: Callable[[str | None, bool], bool]) -> None:
        """End the oldest of those that count, if there are as many as there may be."""
        found = [scope for scope, (client, of) in self._under_way.items() if counts(client, of)]
        if len(found) >= most:
            del self._under_way[found[0]]
            found[0].cancel()
