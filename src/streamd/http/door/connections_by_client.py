"""How many connections each address has, and how fast it makes them."""

from __future__ import annotations

import trio

from streamd.auth.rates import NS_PER_S, Accounts, TableFull
from streamd.config.settings import ServerConfig
from streamd.streams.limits import Limits


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
