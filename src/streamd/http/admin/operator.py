"""What the handlers of operations act on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from streamd.http.access.needs import Need
from streamd.node.leader_operations import LeaderOperations
from streamd.node.node import Node
from streamd.process.diagnostics import FillLevel, Profiler
from streamd.process.metrics import Metrics


@dataclass(frozen=True)
class Operator:
    """A node and its process.

    `leader` takes orders for the cluster's leader, `random` makes the secrets of tokens, and `held`
    says how full queues and caches are. `document` is the OpenAPI document, and `scopes_of` says
    what a request with a method and a raw path needs, None if it is for no stream or bucket.
    """

    node: Node
    leader: LeaderOperations
    metrics: Metrics
    random: Random
    held: Callable[[], Mapping[str, FillLevel]]
    document: Callable[[], bytes]
    scopes_of: Callable[[str, bytes], Sequence[Need] | None]
    profiler: Profiler = field(default_factory=Profiler)
