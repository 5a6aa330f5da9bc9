"""The operations application: health, readiness, metrics, status. An ordinary Quart-Trio app."""

from __future__ import annotations

from collections.abc import Callable

from quart import Response, jsonify
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException

from streamd.metrics import Metrics


def create_ops_app(
    metrics: Metrics, ready: Callable[[], bool], status: Callable[[], dict[str, object]]
) -> QuartTrio:
    """Routes over a few callables: `ready` says whether the node has recovered and serves."""
    app = QuartTrio("streamd")

    @app.get("/healthz")
    async def healthz() -> Response:
        return jsonify(status="ok")

    @app.get("/readyz/local")
    async def readyz_local() -> tuple[Response, int]:
        if ready():
            return jsonify(status="ready"), 200
        return jsonify(status="recovering"), 503

    @app.get("/metrics")
    async def exposition() -> Response:
        return Response(
            metrics.exposition(), content_type="text/plain; version=0.0.4; charset=utf-8"
        )

    @app.get("/cluster/status")
    async def cluster_status() -> Response:
        return jsonify(status())

    @app.errorhandler(HTTPException)
    async def refuse(error: HTTPException) -> Response:
        code = (error.name or "error").upper().replace(" ", "_")
        response = jsonify(error={"code": code, "message": error.description or ""})
        response.status_code = error.code or 500
        for name, value in error.get_headers():
            if name.lower() == "allow":
                response.headers[name] = value
        return response

    return app
