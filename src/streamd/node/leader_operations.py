"""Operations of the leader, and reports of what only it knows, which any node may be asked for.

A node that is not the leader forwards them over the peer port, as it does writes. It needs no
address of the leader for that, which may serve operations on a loopback address only
(``admin.listen``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import trio

from streamd.group.proposals import OutcomeUnknown, Unavailable
from streamd.node import cold_status, status
from streamd.node.node import Node
from streamd.tiering.tier import ColdTier, LeaderTerm
from streamd.transport.errors import RequestRefused

COLD_WORK = ("flush", "gc", "scrub")
# Timeout for a node's report about itself, which is not worth a long wait.
_REPORT_TIMEOUT_S = 3.0

Found = dict[str, Any]

_ENCODER = msgspec.json.Encoder()
_FOUND = msgspec.json.Decoder(Found)


class LeaderOperations:
    """Carries out operations here or at the leader."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._handlers: Mapping[str, Callable[[], Awaitable[Found]]] = {
            "flush": self._flush,
            "gc": self._gc,
            "scrub": self._scrub,
            "status": self._status,
            "cold": self._cold,
            "health": self._health,
        }

    async def start(self, work: str) -> Found | None:
        """Start one of `COLD_WORK`; the answer says how to tell when it is done. None if the leader
        runs 0.1.0, which takes no such orders from other nodes.

        May be repeated. Raises `Unavailable`, `OutcomeUnknown`.
        """
        assert work in COLD_WORK
        return await self._at_leader(work)

    async def report(self, name: str) -> Found | None:
        """The leader's ``status`` or ``cold`` report; None if it does not answer soon."""
        with trio.move_on_after(_REPORT_TIMEOUT_S):
            try:
                return await self._at_leader(name)
            except (Unavailable, OutcomeUnknown):
                return None
        return None

    async def operate(self, payload: bytes) -> bytes:
        """Carry out the operation of this name for another node. Raises `Unavailable`, and
        `RequestRefused` for a name that this release does not know."""
        handler = self._handlers.get(payload.decode("latin-1"))
        if handler is None:
            raise RequestRefused("UNKNOWN_REQUEST", "this release does not know the operation")
        return _ENCODER.encode(await handler())

    async def _at_leader(self, name: str) -> Found | None:
        node = self._node
        leader_id = node.group.view.leader_id
        if leader_id == node.group.view.node_id:
            return await self._handlers[name]()
        if not leader_id or node.cluster is None:
            raise Unavailable("no leader is known")
        answer = await node.cluster.ask_to_operate(leader_id, name.encode())
        return None if answer is None else _FOUND.decode(answer)

    # -- at the leader ------------------------------------------------------------------------

    async def _flush(self) -> Found:
        return self._order("pass", self._node.flusher.ask)

    async def _gc(self) -> Found:
        return self._order("round", self._node.cold_gc.want_round)

    async def _scrub(self) -> Found:
        return self._order("pass", self._node.scrubber.ask)

    def _order(self, number: str, ask: Callable[[], int]) -> Found:
        """Start work; `number` says what of it to wait for."""
        tier, term = self._led()
        hot_bytes = self._node.group.state.header.hot_bytes
        order = {"term": term.term, "hot_bytes": hot_bytes, number: ask()}
        tier.run_now()
        return order

    def _led(self) -> tuple[ColdTier, LeaderTerm]:
        """The tier in this node's term as leader. Raises `Unavailable`."""
        tier = self._node.cold_tier
        if tier is None:
            raise Unavailable("the leader has no cold store")
        if tier.lead is None:
            raise Unavailable("this node is not the leader")
        return tier, tier.lead

    async def _status(self) -> Found:
        if not self._node.group.view.leads:
            raise Unavailable("this node is not the leader")
        return status.report(self._node)

    async def _health(self) -> Found:
        """What any node says of itself, whether it leads or not."""
        return msgspec.structs.asdict(self._node.health())

    async def _cold(self) -> Found:
        self._led()
        found = await cold_status.report(self._node)
        assert found is not None, "there is a cold store"
        return found
