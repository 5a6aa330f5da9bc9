"""Connections that have sent no whole head of a request yet.

They cost their clients nothing, so they may not keep others out: where there is no room, the oldest
of them ends in favour of the next client. An honest client sends its request at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable


class Newcomers:
    """Silent connections, by client, in the order in which they came."""

    def __init__(self) -> None:
        self._all: dict[Hashable, tuple[str, Callable[[], None]]] = {}
        self._by_client: dict[str, dict[Hashable, None]] = {}

    def add(self, one: Hashable, client: str, end: Callable[[], None]) -> None:
        """Add a connection, which `end` ends at once."""
        self._all[one] = client, end
        self._by_client.setdefault(client, {})[one] = None

    def discard(self, one: Hashable) -> bool:
        """Forget one that has sent a request, or ended. Returns whether it was a newcomer."""
        found = self._all.pop(one, None)
        if found is None:
            return False
        theirs = self._by_client[found[0]]
        del theirs[one]
        if not theirs:
            del self._by_client[found[0]]
        return True

    def end_oldest(self, client: str | None = None) -> bool:
        """End the oldest, or the oldest of a client. Returns whether there was one."""
        among = self._all if client is None else self._by_client.get(client, {})
        oldest = next(iter(among), None)
        if oldest is None:
            return False
        _, end = self._all[oldest]
        self.discard(oldest)
        end()
        return True
