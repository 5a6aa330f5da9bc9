"""What both ends of a connection share: its tasks, and the node around it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from random import Random

import msgspec
import trio

from streamd import __version__
from streamd.transport.credentials import Credentials
from streamd.transport.errors import ConnectionEnded
from streamd.transport.hello import Hello
from streamd.transport.interface import Handler, Limits, Network
from streamd.transport.wire import Traffic, Wire


class ConnectionContext:
    """What all connections of one node share."""

    def __init__(
        self,
        handler: Handler,
        network: Network,
        random: Random,
        limits: Limits,
        fatal: tuple[type[Exception], ...],
        credentials: Credentials,
    ) -> None:
        self.credentials = credentials
        # PONGs name it: only a peer that has passed the handshake learns this node's release.
        self.release = __version__.encode()
        self.handler = handler
        self.network = network
        self.random = random
        self.limits = limits
        self.fatal = fatal
        # The number of this process, by which others notice that a node was restarted.
        self.instance = random.getrandbits(63)
        self._traffic: dict[int, Traffic] = {}

    def hello(self) -> Hello:
        nonce = self.credentials.nonce()
        return msgspec.structs.replace(
            self.handler.hello(), instance=self.instance, nonce=nonce, proves_first=bool(nonce)
        )

    def traffic(self, peer_id: int) -> Traffic:
        return self._traffic.get(peer_id) or Traffic()

    def count(self, peer_id: int, wire: Wire) -> None:
        """Count the wire as the peer's from now on, with what it has carried so far."""
        total = self._traffic.setdefault(peer_id, Traffic())
        total.add(wire.traffic)
        wire.traffic = total

    def forget(self, peer_id: int) -> None:
        self._traffic.pop(peer_id, None)


async def run_until_ended(*jobs: Callable[[trio.Nursery], Awaitable[None]]) -> str:
    """Run the jobs of a connection, and what they start in the nursery, until one raises
    `ConnectionEnded`. Returns its reason."""
    reasons: list[str] = []

    async def run(job: Callable[[trio.Nursery], Awaitable[None]]) -> None:
        try:
            await job(nursery)
        except ConnectionEnded as ended:
            reasons.append(str(ended))
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for job in jobs:
            nursery.start_soon(run, job)
    assert reasons, "no job ends otherwise"
    return reasons[0]


async def close(stream: trio.abc.Stream) -> None:
    """Close at once: a courtesy that waits for the peer could wait for ever."""
    with suppress(trio.BrokenResourceError):
        await trio.aclose_forcefully(stream)
