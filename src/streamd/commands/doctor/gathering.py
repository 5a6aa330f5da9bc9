"""What there is to know about a running cluster, through one of its nodes."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import msgspec

from streamd.client.errors import StreamdError
from streamd.commands.doctor.findings import ClockOffset, Examined
from streamd.commands.operating import AT_LEADER, Json, Operator
from streamd.hosts.inspection.facts import NodeFacts
from streamd.protocol.problems import Problem

_MAX_ASKED = 8
# A node's clock is read in whole milliseconds.
_ROUNDING_MS = 1.0


def of_cluster(operator: Operator) -> Examined:
    """Ask a node, which asks the others. Raises `StreamdError` if none gives its status."""
    status = operator.get("/cluster/status", AT_LEADER)
    members = [member["node_id"] for member in status.get("members", [])] or [status["node_id"]]
    nodes: dict[int, NodeFacts] = {}
    silent: dict[int, str] = {}
    too_old: list[int] = []
    clocks: dict[int, ClockOffset] = {}
    now_ms = 0
    with ThreadPoolExecutor(_MAX_ASKED) as threads:
        asked = {node: threads.submit(_report, operator, node) for node in members}
        cold = threads.submit(_cold, operator)
    for node, answer in asked.items():
        envelope, why = answer.result()
        if envelope is None:
            silent[node] = why
            continue
        if envelope["report"] is None:
            if envelope["too_old"]:
                too_old.append(node)
            else:
                silent[node] = envelope["error"]
            continue
        try:
            facts = nodes[node] = msgspec.convert(envelope["report"], NodeFacts)
        except msgspec.ValidationError as error:
            silent[node] = f"its release reports what this one cannot read: {error}"
            continue
        now_ms = envelope["answered_ms"]
        if envelope["asked_by"] != node:
            clocks[node] = offset_of(envelope["asked_ms"], envelope["answered_ms"], facts)
    now_ms = now_ms or time.time_ns() // 1_000_000
    report, cold_error = cold.result()
    return Examined(nodes, now_ms, silent, too_old, clocks, status, report, cold_error)


def offset_of(asked_ms: int, heard_ms: int, facts: NodeFacts) -> ClockOffset:
    """How far a node's clock is ahead of the asker's, from the four times of a question and its
    answer (RFC 5905 section 8): half of the time on the way is the most that it can be wrong by."""
    ahead_ms = ((facts.received_ms - asked_ms) + (facts.answered_ms - heard_ms)) / 2
    way_ms = (heard_ms - asked_ms) - (facts.answered_ms - facts.received_ms)
    return ClockOffset(ahead_ms, max(0, way_ms) / 2 + _ROUNDING_MS)


def _report(operator: Operator, node: int) -> tuple[Json | None, str]:
    """The envelope of a node's facts, or why there is none."""
    try:
        return operator.get(f"/cluster/nodes/{node}"), ""
    except StreamdError as error:
        return None, error.message or str(error)


def _cold(operator: Operator) -> tuple[Json | None, str | None]:
    """The report of the cold store, or why there is none."""
    try:
        return operator.get("/cluster/cold", AT_LEADER), None
    except StreamdError as error:
        has_none = error.code == Problem.NO_COLD_STORE.code
        return None, None if has_none else error.message or str(error)
