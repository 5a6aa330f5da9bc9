"""Limits that all clients share, divided so that no address can use them up.

First come, first served would let one client keep all others out. So an address may have several
requests only while they hold no more than what is left of the limit (dynamic thresholds: Choudhury
and Hahne, 1998): one address alone gets half of it, two get a third each, and some is always left
for the next one. A single request is bounded by the limit alone, so that a limit of one request
lets one through.
"""

from __future__ import annotations


class LimitReached(Exception):
    """All clients together, or this one, hold as much as they may."""


def leaves_enough(limit: int, held: int, own: int) -> bool:
    """Whether an address may hold `own` of the `held` that all hold together."""
    return own <= limit - held


class FairLimit:
    """A limit, in bytes or requests, and how much of it each client holds."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self.clients: dict[str, int] = {}

    def allotment(self, client: str) -> Allotment:
        """For one more request of `client`; it holds nothing yet."""
        return Allotment(self, client)


class Allotment:
    """The part of a limit that one request, or one connection, holds."""

    __slots__ = ("_client", "_fair_limit", "held")

    def __init__(self, fair_limit: FairLimit, client: str) -> None:
        self._fair_limit = fair_limit
        self._client = client
        self.held = 0

    def hold(self, amount: int) -> None:
        """Hold `amount` in all. Raises `LimitReached`, and then holds as much as before."""
        whole, more = self._fair_limit, amount - self.held
        others = whole.clients.get(self._client, 0) - self.held
        assert min(amount, others) >= 0, "a client holds what its requests hold"
        if more > 0:
            held = whole.held + more
            if held > whole.limit:
                raise LimitReached
            if others and not leaves_enough(whole.limit, held, others + amount):
                raise LimitReached
        whole.held += more
        self.held = amount
        assert whole.held >= others + amount, "all clients hold what each of them holds"
        if others + amount:
            whole.clients[self._client] = others + amount
        else:
            whole.clients.pop(self._client, None)

    def release(self) -> None:
        if self.held:
            self.hold(0)
