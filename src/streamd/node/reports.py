"""What a node reports about itself, and what it fetches of this kind from other members.

One node is enough to ask about all: it forwards the name of a report over the peer port, as it
forwards operations to the leader. What comes back is in an envelope with the time of the question
and of the answer by the clock of the node that asked, so that the clocks can be compared
(`NodeFacts` has the other two times).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Any

import msgspec
import trio

from streamd import __version__
from streamd.auth.tokens import shown_id
from streamd.config.settings import Config
from streamd.group.proposals import OutcomeUnknown, Unavailable
from streamd.inspection.facts import EndingToken, NodeFacts, PeerFacts, StoreFacts, SyncFacts
from streamd.inspection.ports import reach
from streamd.inspection.survey import survey
from streamd.node.leader_operations import Found, LeaderOperations
from streamd.node.node import Node
from streamd.objectstore.errors import ColdError
from streamd.process.threads import in_thread_or_left

FACTS = "facts"
# Longer than a node takes to look at itself: its store and its peers may not answer.
_TIMEOUT_S = 10.0
_STORE_TIMEOUT_S = 5.0
# Tokens that end within this time, and how many of them are shown.
_SOON_MS = 30 * 24 * 3_600_000
_MAX_TOKENS = 100
_SHARE = 0.99

_ENCODER = msgspec.json.Encoder()
_FOUND = msgspec.json.Decoder(dict[str, Any])


class NodeReports:
    """The reports of this node and, over the peer port, of the other members."""

    def __init__(
        self, node: Node, config: Config, leader: LeaderOperations, *, clock_ms: Callable[[], int]
    ) -> None:
        """`leader` carries out what peers ask for that is not a report."""
        self._node = node
        self._config = config
        self._leader = leader
        self._clock_ms = clock_ms
        self._handlers: Mapping[str, Callable[[], Awaitable[Found]]] = {FACTS: self._facts}

    def is_member(self, node_id: int) -> bool:
        """Whether a node is a member of the cluster, so far as this one knows; it is one itself."""
        view = self._node.group.view
        return node_id == view.node_id or node_id in view.configuration.members()

    async def of(self, node_id: int, name: str) -> Found:
        """A report of a member, in its envelope. If that does not answer, `error` says why, and
        `report` is None."""
        asked_ms, report, error = self._clock_ms(), None, f"no answer within {_TIMEOUT_S:g} s"
        with trio.move_on_after(_TIMEOUT_S):
            try:
                report, error = await self._fetch(node_id, name), ""
            except (Unavailable, OutcomeUnknown) as failure:
                error = str(failure)
        return {
            "node_id": node_id,
            "asked_by": self._node.group.view.node_id,
            "asked_ms": asked_ms,
            "answered_ms": self._clock_ms(),
            "error": error or None,
            "report": report,
        }

    async def operate(self, payload: bytes) -> bytes:
        """Answer another node that asks for a report, or for an operation of the leader. Raises as
        `LeaderOperations.operate`."""
        handler = self._handlers.get(payload.decode("latin-1"))
        if handler is None:
            return await self._leader.operate(payload)
        return _ENCODER.encode(await handler())

    async def _fetch(self, node_id: int, name: str) -> Found:
        """Raises `Unavailable`, `OutcomeUnknown`."""
        node = self._node
        if node_id == node.group.view.node_id:
            return await self._handlers[name]()
        if node.cluster is None:
            raise Unavailable("this node has no peers")
        answer = await node.cluster.ask_to_operate(node_id, name.encode())
        if answer is None:
            raise Unavailable("its release has no such report")
        return _FOUND.decode(answer)

    # -- facts ------------------------------------------------------------------------------------

    async def _facts(self) -> Found:
        received_ms = self._clock_ms()
        found: dict[str, Any] = {}

        async def gather(field: str, look: Callable[[], Awaitable[Any]]) -> None:
            found[field] = await look()

        async with trio.open_nursery() as nursery:
            # A disk that hangs must not hold up the answer, so the thread is left to itself.
            look = partial(in_thread_or_left, survey, self._config)
            nursery.start_soon(gather, "machine", look)
            nursery.start_soon(gather, "peers", self._peers)
            nursery.start_soon(gather, "store", self._store)
        facts = NodeFacts(
            node_id=self._node.group.view.node_id,
            version=__version__,
            received_ms=received_ms,
            syncs=self._syncs(),
            ending_tokens=self._ending_tokens(),
            answered_ms=self._clock_ms(),
            **found,
        )
        return _FOUND.decode(_ENCODER.encode(facts))

    def _syncs(self) -> list[SyncFacts]:
        metrics, found = self._node.metrics, []
        for of, minutes in (("the last minute", 1), ("the last hour", 60)):
            counts = metrics.recent_fsyncs.since(minutes)
            p99_s = metrics.fsync_latency.within(counts, _SHARE) if any(counts) else None
            found.append(SyncFacts(of, sum(counts), p99_s))
        return found

    async def _peers(self) -> list[PeerFacts]:
        cluster, view = self._node.cluster, self._node.group.view
        if cluster is None:
            return []
        found: dict[int, PeerFacts] = {}

        async def look(node_id: int, peer_address: str, client_address: str) -> None:
            connection = cluster.connections().get(node_id)
            found[node_id] = PeerFacts(
                node_id,
                peer_address,
                client_address,
                dials=connection is not None and connection.connected,
                is_dialled=cluster.is_dialled_by(node_id),
                last_error="" if connection is None else connection.last_error,
                clients_error=await reach(client_address),
            )

        async with trio.open_nursery() as nursery:
            for node_id, peer_address, client_address in view.configuration.addresses:
                if node_id != view.node_id:
                    nursery.start_soon(look, node_id, peer_address, client_address)
        return [found[node_id] for node_id in sorted(found)]

    async def _store(self) -> StoreFacts | None:
        tier = self._node.cold_tier
        if tier is None:
            return None
        try:
            await tier.cold.check(_STORE_TIMEOUT_S)
        except ColdError as error:
            return StoreFacts(tier.cold.place, str(error))
        return StoreFacts(tier.cold.place)

    def _ending_tokens(self) -> list[EndingToken]:
        group = self._node.group
        soon_ms = group.now_ms() + _SOON_MS
        ending = sorted(
            (token.expires_ms, token_id)
            for token_id, token in group.state.tokens.items()
            if token.expires_ms is not None and token.expires_ms < soon_ms
        )
        return [EndingToken(shown_id(token_id), at) for at, token_id in ending[:_MAX_TOKENS]]
