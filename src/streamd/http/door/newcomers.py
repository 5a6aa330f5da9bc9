"""What bounds the connections of strangers: how many of them may be silent, and from one address.

Connections that have sent no whole head of a request yet cost their clients nothing, so they may
not keep others out: where there is no room, the oldest of them ends in favour of the next client.
An honest client sends its request at once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable

import trio

from streamd.auth.rates import NS_PER_S, Accounts, TableFull
from streamd.config.settings import ServerConfig
from streamd.streams.limits import Limits


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


class ConnectionsByClient:
    """Counts connections by client (`addresses.client_of`), before all else is known of them."""

    def __init__(self, config: ServerConfig) -> None:
        default = (2 * config.max_connections + 2) // 3
        rate = config.max_new_connections_per_address_per_s
        self._most = config.max_connections_per_address or default
        self._limits = None if rate is None else Limits(requests_per_s=rate)
        self._accounts: Accounts[str] = Accounts("address", 2 * config.max_connections)
        self._held: dict[str, int] = {}

    def enter(self, client: str) -> bool:
        """Count a new connection of a client, which must `leave`. Returns False, and counts
        nothing, if it has too many or makes them too fast."""
        held = self._held.get(client, 0)
        if held >= self._most or (self._limits is not None and self._is_too_fast(client)):
            return False
        self._held[client] = held + 1
        return True

    def _is_too_fast(self, client: str) -> bool:
        assert self._limits is not None
        now_ns = int(trio.current_time() * NS_PER_S)
        try:
            account = self._accounts.get(client, self._limits, now_ns)
        except TableFull:
            return True
        return not account.take(now_ns, 0, reads=False)

    def leave(self, client: str) -> None:
        """Count a connection of a client no longer."""
        self._held[client] -= 1
        if not self._held[client]:
            del self._held[client]
