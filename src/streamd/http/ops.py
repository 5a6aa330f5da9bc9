"""The operations application: health, readiness, metrics, and the administration of the cluster.
An ordinary Quart-Trio app."""

from __future__ import annotations

from functools import partial
from random import Random

import msgspec
from quart import Response, jsonify, request
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException

from streamd.audit_trail.notes import note
from streamd.cluster.administration import (
    Add,
    AdminCommand,
    AdminRefused,
    Promote,
    Remove,
    Transfer,
)
from streamd.config.settings import split_address
from streamd.http.admin import backup_routes, debug_routes, limit_routes, token_routes
from streamd.http.admin.answers import Answer, answering, error_answer
from streamd.http.openapi import document
from streamd.http.protocol.fields import BadRequest, parse_query
from streamd.node import cold_status, status
from streamd.node.leader_operations import COLD_WORK, Found, LeaderOperations
from streamd.node.node import Node
from streamd.process.metrics import Metrics

_ADMIN_COMMANDS: dict[str, type[AdminCommand]] = {
    "add": Add,
    "promote": Promote,
    "remove": Remove,
    "transfer": Transfer,
}
_CODES = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}
STATUS = {"NOT_A_MEMBER": 404, "NOT_A_LEARNER": 404, "NOT_A_VOTER": 404, "NO_ANSWER": 502}


def create_ops_app(
    metrics: Metrics,
    node: Node,
    operations: LeaderOperations,
    random: Random,
    held: debug_routes.HeldNow = dict,
) -> QuartTrio:
    """Routes over a node. `operations` are those of its cluster's leader. `random` makes the
    secrets of tokens; `held` tells how full queues and caches are."""
    app = QuartTrio("streamd", static_folder=None)
    # No path has a second spelling here; werkzeug would redirect doubled slashes.
    app.url_map.merge_slashes = False
    # The adapters limit the size and the pace of bodies.
    app.config["MAX_CONTENT_LENGTH"] = app.config["BODY_TIMEOUT"] = None

    _add_probes(app, node)
    token_routes.add(app, node, random)
    debug_routes.add(app, held)
    limit_routes.add(app, node)
    backup_routes.add(app, node)

    @app.get("/metrics")
    async def exposition() -> Response:
        return Response(
            metrics.exposition(), content_type="text/plain; version=0.0.4; charset=utf-8"
        )

    @app.get("/openapi.json")
    async def openapi() -> Response:
        return Response(document(), content_type="application/json")

    @app.get("/cluster/status")
    @answering
    async def cluster_status() -> Answer:
        return jsonify(await _leaders_report(operations, "status") or status.report(node)), 200

    @app.post("/cluster/snapshot")
    async def snapshot() -> Answer:
        return jsonify(first_log_index=await node.group.storage.compact()), 200

    _add_cold(app, node, operations)
    for operation, kind in _ADMIN_COMMANDS.items():
        app.add_url_rule(
            f"/cluster/{operation}",
            endpoint=operation,
            view_func=partial(_administer, node, operation, kind),
            methods=["POST"],
        )

    @app.errorhandler(HTTPException)
    async def refuse(error: HTTPException) -> Response:
        status = error.code or 500
        response, _ = error_answer(_CODES.get(status, "INTERNAL"), error.description or "", status)
        response.status_code = status
        for name, value in error.get_headers():
            if name.lower() == "allow":
                response.headers[name] = value
        return response

    return app


def _add_probes(app: QuartTrio, node: Node) -> None:
    """What load balancers and orchestrators ask."""

    @app.get("/healthz")
    async def healthz() -> Response:
        return jsonify(status="ok")

    @app.get("/readyz/local")
    async def readyz_local() -> Answer:
        if not node.is_ready():
            return jsonify(status="recovering"), 503
        if not node.reaches_leader():
            return jsonify(status="no connection to the leader"), 503
        return jsonify(status="ready"), 200

    @app.get("/readyz/cluster")
    async def readyz_cluster() -> Answer:
        if node.is_ready() and node.is_in_contact():
            return jsonify(status="ready"), 200
        return jsonify(status="no leader is known, or this node lags"), 503


def _add_cold(app: QuartTrio, node: Node, operations: LeaderOperations) -> None:
    """The cold store: its report, and work of the leader to start now."""

    @app.get("/cluster/cold")
    @answering
    async def cold() -> Answer:
        found = await _leaders_report(operations, "cold") or await cold_status.report(node)
        return _no_cold_store() if found is None else (jsonify(found), 200)

    for work in COLD_WORK:
        app.add_url_rule(
            f"/cluster/cold/{work}",
            endpoint=f"cold {work}",
            view_func=partial(_run_now, node, operations, work),
            methods=["POST"],
        )


def _no_cold_store() -> Answer:
    return error_answer("NO_COLD_STORE", 'this node has no cold store: cold.backend is "none"', 404)


async def _leaders_report(operations: LeaderOperations, name: str) -> Found | None:
    """The leader's report, if the request is for that and the leader answers. Raises
    `BadRequest`."""
    given = parse_query(request.query_string)
    match given.get(b"at"):
        case None:
            return None
        case b"leader":
            return await operations.report(name)
    raise BadRequest("INVALID_REQUEST", "the parameter at can only be leader")


@answering
async def _run_now(node: Node, operations: LeaderOperations, work: str) -> Answer:
    """Start work of the leader's cold store now; the answer says how to tell when it is done."""
    if node.cold_tier is None:
        return _no_cold_store()
    order = await operations.start(work)
    if order is not None:
        return jsonify(order), 202
    # A leader of release 0.1.0 takes the order from its clients only.
    address = node.leader_address()
    response = jsonify(leader_address=address)
    response.headers["Location"] = f"{request.scheme}://{address}{request.path}"
    response.headers["Cache-Control"] = "no-store"
    return response, 307


@answering
async def _administer(node: Node, operation: str, kind: type[AdminCommand]) -> Answer:
    """Carry out the admin command in the request's JSON body."""
    if node.administration is None:
        return error_answer(
            "NOT_A_CLUSTER", "this node is a cluster by itself: cluster.name is not set", 409
        )
    body = msgspec.json.decode(await request.get_data() or b"{}", type=dict)
    command = msgspec.convert({**body, "type": operation}, kind)
    if isinstance(command, Add):
        split_address("address", command.address)
    note(**msgspec.structs.asdict(command))
    try:
        return jsonify(await node.administration.perform(command)), 200
    except AdminRefused as error:
        return error_answer(error.code, str(error), STATUS.get(error.code, 409))
