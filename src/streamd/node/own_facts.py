"""What a node finds out about itself and its machine when it is asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import trio

from streamd import __version__
from streamd.auth.tokens import shown_id
from streamd.config.settings import Config
from streamd.hosts.inspection.facts import EndingToken, NodeFacts, PeerFacts, StoreFacts, SyncFacts
from streamd.hosts.inspection.ports import reach
from streamd.hosts.inspection.survey import survey
from streamd.node.node import Node
from streamd.objectstore.errors import ColdError
from streamd.process.metrics import Metrics
from streamd.process.threads import in_thread_or_left

_STORE_TIMEOUT_S = 5.0
# Tokens that end within this time, and how many of them are shown.
_SOON_MS = 30 * 24 * 3_600_000
_MAX_TOKENS = 100
_SHARE = 0.99


async def gather_facts(node: Node, config: Config, clock_ms: Callable[[], int]) -> NodeFacts:
    """The facts about a node, which runs with this configuration. Takes some seconds if its store,
    its peers or its disk do not answer."""
    received_ms = clock_ms()
    found: dict[str, Any] = {}

    async def gather(field: str, look: Callable[[], Awaitable[Any]]) -> None:
        found[field] = await look()

    async with trio.open_nursery() as nursery:
        # A disk that hangs must not hold up the answer, so the thread is left to itself.
        nursery.start_soon(gather, "machine", partial(in_thread_or_left, survey, config))
        nursery.start_soon(gather, "peers", partial(_peers, node))
        nursery.start_soon(gather, "store", partial(_store, node))
    return NodeFacts(
        node_id=node.group.view.node_id,
        version=__version__,
        received_ms=received_ms,
        syncs=_syncs(node.metrics),
        ending_tokens=_ending_tokens(node),
        answered_ms=clock_ms(),
        **found,
    )


def _syncs(metrics: Metrics) -> list[SyncFacts]:
    found = []
    for of, minutes in (("the last minute", 1), ("the last hour", 60)):
        counts = metrics.recent_fsyncs.since(minutes)
        p99_s = metrics.fsync_latency.within(counts, _SHARE) if any(counts) else None
        found.append(SyncFacts(of, sum(counts), p99_s))
    return found


async def _peers(node: Node) -> list[PeerFacts]:
    cluster, view = node.cluster, node.group.view
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


async def _store(node: Node) -> StoreFacts | None:
    tier = node.cold_tier
    if tier is None:
        return None
    try:
        await tier.cold.check(_STORE_TIMEOUT_S)
    except ColdError as error:
        return StoreFacts(tier.cold.place, str(error))
    return StoreFacts(tier.cold.place)


def _ending_tokens(node: Node) -> list[EndingToken]:
    group = node.group
    soon_ms = group.now_ms() + _SOON_MS
    ending = sorted(
        (token.expires_ms, token_id)
        for token_id, token in group.state.tokens.items()
        if token.expires_ms is not None and token.expires_ms < soon_ms
    )
    return [EndingToken(shown_id(token_id), at) for at, token_id in ending[:_MAX_TOKENS]]
