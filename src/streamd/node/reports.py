"""What a node reports about itself, and what it fetches of this kind from other members.

One node is enough to ask about all: it forwards the name of a report over the peer port, as it
forwards operations to the leader. What comes back is in an envelope with the time of the question
and of the answer by the clock of the node that asked, so that the clocks can be compared
(`NodeFacts` has the other two times).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import trio

from streamd.config.redacted import without_secrets
from streamd.config.settings import Config
from streamd.group.proposals import OutcomeUnknown, Unavailable
from streamd.node import cold_status, status
from streamd.node.leader_operations import Found, LeaderOperations
from streamd.node.node import Node
from streamd.node.own_facts import gather_facts
from streamd.process.diagnostics import (
    FillLevel,
    ProfileInProgress,
    Profiler,
    memory_of_process,
    task_tree,
)
from streamd.process.logs import last_lines

FACTS = "facts"
# Reports for operators who look into a node, by their names in paths. Those of `TEXTS` are texts,
# in an object with the one field `text`.
TEXTS = ("metrics", "log", "tasks", "profile")
DEBUG_REPORTS = ("status", "cold", "config", "memory", *TEXTS)
PROFILE_S = 5
# Longer than a node takes to look at itself: its store and its peers may not answer.
_TIMEOUT_S = 10.0
# Between nodes: the leader's operations have some of these names.
_PREFIX = "own-"

_ENCODER = msgspec.json.Encoder()
_FOUND = msgspec.json.Decoder(dict[str, Any])


class ReportUnknown(Unavailable):
    """A member runs a release that has no such report."""


class NodeReports:
    """The reports of this node and, over the peer port, of the other members."""

    def __init__(
        self,
        node: Node,
        config: Config,
        leader: LeaderOperations,
        *,
        clock_ms: Callable[[], int],
        held: Callable[[], Mapping[str, FillLevel]] = dict,
    ) -> None:
        """`leader` carries out what peers ask for that is not a report; `held` says how full queues
        and caches are."""
        self._node = node
        self._config = config
        self._leader = leader
        self._clock_ms = clock_ms
        self._held = held
        self.profiler = Profiler()
        self._handlers: Mapping[str, Callable[[], Awaitable[Found]]] = {
            FACTS: self._facts,
            "status": self._status,
            "cold": self._cold,
            "config": self._redacted_config,
            "memory": self._memory,
            "metrics": self._metrics,
            "log": self._log,
            "tasks": self._tasks,
            "profile": self._profile,
        }

    def is_member(self, node_id: int) -> bool:
        """Whether a node is a member of the cluster, so far as this one knows; it is one itself."""
        view = self._node.group.view
        return node_id == view.node_id or node_id in view.configuration.members()

    async def of(self, node_id: int, name: str) -> Found:
        """A report of a member, in its envelope. If that does not answer, `error` says why, and
        `report` is None; one that answers and does not know the report is `too_old`."""
        asked_ms, report, error = self._clock_ms(), None, f"no answer within {_TIMEOUT_S:g} s"
        too_old = False
        with trio.move_on_after(_TIMEOUT_S):
            try:
                report, error = await self._fetch(node_id, name), ""
            except (Unavailable, OutcomeUnknown) as failure:
                error, too_old = str(failure), isinstance(failure, ReportUnknown)
        return {
            "node_id": node_id,
            "asked_by": self._node.group.view.node_id,
            "asked_ms": asked_ms,
            "answered_ms": self._clock_ms(),
            "error": error or None,
            "too_old": too_old,
            "report": report,
        }

    async def operate(self, payload: bytes) -> bytes:
        """Answer another node that asks for a report, or for an operation of the leader. Raises as
        `LeaderOperations.operate`."""
        name = payload.decode("latin-1")
        handler = self._handlers.get(name.removeprefix(_PREFIX))
        if handler is None or not name.startswith(_PREFIX):
            return await self._leader.operate(payload)
        return _ENCODER.encode(await handler())

    def memory(self) -> Found:
        """The memory of this process, and how full its queues and caches are."""
        return memory_of_process(self._held())

    async def _fetch(self, node_id: int, name: str) -> Found:
        """Raises `Unavailable`, `OutcomeUnknown`."""
        node = self._node
        if node_id == node.group.view.node_id:
            return await self._handlers[name]()
        if node.cluster is None:
            raise Unavailable("this node has no peers")
        answer = await node.cluster.ask_to_operate(node_id, f"{_PREFIX}{name}".encode())
        if answer is None:
            raise ReportUnknown("its release has no such report")
        return _FOUND.decode(answer)

    # -- of this node -----------------------------------------------------------------------------

    async def _facts(self) -> Found:
        facts = await gather_facts(self._node, self._config, self._clock_ms)
        return _FOUND.decode(_ENCODER.encode(facts))

    async def _status(self) -> Found:
        return status.report(self._node)

    async def _cold(self) -> Found:
        return await cold_status.report(self._node) or {}

    async def _redacted_config(self) -> Found:
        return without_secrets(self._config)

    async def _memory(self) -> Found:
        return self.memory()

    async def _metrics(self) -> Found:
        return {"text": self._node.metrics.exposition().decode()}

    async def _log(self) -> Found:
        return {"text": last_lines()}

    async def _tasks(self) -> Found:
        return {"text": task_tree()}

    async def _profile(self) -> Found:
        try:
            return {"text": await self.profiler.profile(PROFILE_S)}
        except ProfileInProgress:
            raise Unavailable("another profile of the node is being taken") from None
