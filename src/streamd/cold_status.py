"""How a node's cold tier stands, for those who look at it: as a report and as metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import trio

from streamd.cold.objects import MAX_PAGE
from streamd.cold_tier import ColdTier
from streamd.metrics import Metrics
from streamd.node import Node
from streamd.storage.state_store import StateStore
from streamd.streams import keys
from streamd.streams.model import Pack

_PACK = msgspec.msgpack.Decoder(Pack)


class Packs(NamedTuple):
    """How many objects with slices there are, how large, and how many of them nothing needs."""

    count: int
    size: int
    dead: int


async def report(node: Node) -> dict[str, object] | None:
    """What ``/cluster/cold`` says; None without a cold tier. Raises `StorageFailed`.

    Bytes, packs and the archive are replicated. What is under way or went wrong only who does it
    knows: the leader, or for its own disk each node.
    """
    tier = node.cold_tier
    if tier is None:
        return None
    core, header, config = node.group.core, node.group.state.header, node.cold_config
    packs = await node.run_blocking(_packs, node.stores.state)
    oldest_ms = await node.run_blocking(_oldest_hot_ms, node.stores.state)
    return {
        "place": tier.cold.place,
        "node_id": core.node_id,
        "leads": node.group.leads,
        "leader_id": core.leader_id or None,
        "leader_address": node.leader_address(),
        "term": core.term,
        "hot_bytes": header.hot_bytes,
        "hot_limit_bytes": config.hot_limit_bytes,
        "lag_ms": _lag_ms(node, oldest_ms),
        "flushed_bytes": header.flushed_bytes,
        "cold_bytes": header.cold_bytes,
        "packs": packs.count,
        "pack_bytes": packs.size,
        "dead_packs": packs.dead,
        "local_bytes": node.dropper.local_bytes,
        "backpressure": backpressure(node),
        "flush": _flush(node),
        "gc": _gc(node),
        "archive": _archive(node),
        "tasks": {task.name: _task(task) for task in _tasks(tier)},
        "last_error": _last_error(tier),
    }


def backpressure(node: Node) -> str | None:
    """Why appends are refused at the moment; None when they are taken."""
    hot, limit = node.group.state.header.hot_bytes, node.cold_config.hot_limit_bytes
    if node.cold_tier is None or hot <= limit:
        return None
    return f"refused: {hot} bytes wait for the store, and no more than {limit} may"
