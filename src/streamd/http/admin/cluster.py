"""Health and metrics of a node, and the administration of its cluster and its cold store."""

from __future__ import annotations

import msgspec
from quart import Response, jsonify, request

from streamd.audit_trail.trail import note
from streamd.cluster.administration import Add, AdminCommand
from streamd.config.settings import split_address
from streamd.http.admin.operator import Answer, Operator
from streamd.http.protocol.fields import parse_query, whole_number
from streamd.node import cold_status, status
from streamd.node.leader_operations import Found
from streamd.protocol.problems import Problem

_MAX_MS = 2**53
_EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"


async def healthz(_: Operator) -> Answer:
    """Whether the process answers."""
    return jsonify(status="ok"), 200


async def readyz_local(operator: Operator) -> Answer:
    """Whether the node has recovered and reaches its leader."""
    if not operator.node.is_ready():
        return jsonify(status="recovering"), 503
    if not operator.node.reaches_leader():
        return jsonify(status="no connection to the leader"), 503
    return jsonify(status="ready"), 200


async def readyz_cluster(operator: Operator) -> Answer:
    """Whether the node is in contact with a leader and does not lag."""
    if operator.node.is_cluster_ready():
        return jsonify(status="ready"), 200
    return jsonify(status="no leader is known, or this node lags"), 503


async def metrics(operator: Operator) -> Answer:
    """Metrics for Prometheus."""
    return Response(operator.metrics.exposition(), content_type=_EXPOSITION), 200


async def openapi(operator: Operator) -> Answer:
    """The OpenAPI document."""
    return Response(operator.document(), content_type="application/json"), 200


async def report_status(operator: Operator) -> Answer:
    """The status of the node and its cluster."""
    found = await _leaders_report(operator, "status") or status.report(operator.node)
    return jsonify(found), 200


async def report_history(operator: Operator) -> Answer:
    """Rates and latencies of the node over the last hour."""
    given = parse_query(request.query_string)
    after_ms = whole_number(given.get(b"after_ms", b"0"), "after_ms", _MAX_MS)
    response = jsonify(operator.metrics.last_hour.after(after_ms))
    response.headers["Cache-Control"] = "no-store"
    return response, 200


async def compact(operator: Operator) -> Answer:
    """Store the node's state and compact its log."""
    return jsonify(first_log_index=await operator.node.group.storage.compact()), 200


async def report_cold(operator: Operator) -> Answer:
    """The status of the cold store."""
    found = await _leaders_report(operator, "cold") or await cold_status.report(operator.node)
    if found is None:
        raise Problem.NO_COLD_STORE.error()
    return jsonify(found), 200


async def _leaders_report(operator: Operator, name: str) -> Found | None:
    """The leader's report, if the request is for that and the leader answers. Raises
    `ProblemError`."""
    given = parse_query(request.query_string)
    match given.get(b"at"):
        case None:
            return None
        case b"leader":
            return await operator.leader.report(name)
    raise Problem.INVALID_REQUEST.error("the parameter at can only be leader")


async def start_cold_work(operator: Operator, work: str) -> Answer:
    """Start work of the leader's cold store now; the answer says how to tell when it is done."""
    if operator.node.cold_tier is None:
        raise Problem.NO_COLD_STORE.error()
    order = await operator.leader.start(work)
    if order is not None:
        return jsonify(order), 202
    # A leader of release 0.1.0 takes the order from its clients only.
    address = operator.node.leader_address()
    response = jsonify(leader_address=address)
    response.headers["Location"] = f"{request.scheme}://{address}{request.path}"
    response.headers["Cache-Control"] = "no-store"
    return response, 307


async def administer(operator: Operator, kind: type[AdminCommand]) -> Answer:
    """Carry out the admin command in the request's JSON body."""
    administration = operator.node.administration
    if administration is None:
        raise Problem.NOT_A_CLUSTER.error()
    body = msgspec.json.decode(await request.get_data() or b"{}", type=dict)
    command = msgspec.convert({**body, "type": kind.__struct_config__.tag}, kind)
    if isinstance(command, Add):
        split_address("address", command.address)
    note(**msgspec.structs.asdict(command))
    return jsonify(await administration.perform(command)), 200
