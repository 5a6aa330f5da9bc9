"""The operations app: an ordinary Quart-Trio app, whose rules are the table's operations."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from random import Random

from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException

from streamd.http.admin.answers import Answer, answering, refusal
from streamd.http.admin.operator import Operator
from streamd.http.protocol.refusals import error_response
from streamd.http.router import document, scopes_of
from streamd.http.routes import OPERATIONS
from streamd.node.leader_operations import LeaderOperations
from streamd.node.node import Node
from streamd.process.diagnostics import FillLevel
from streamd.process.metrics import Metrics
from streamd.protocol.problems import Problem


def create_ops_app(
    metrics: Metrics,
    node: Node,
    operations: LeaderOperations,
    random: Random,
    held: Callable[[], Mapping[str, FillLevel]] = dict,
) -> QuartTrio:
    """The app over a node. `operations` are those of its cluster's leader. `random` makes the
    secrets of tokens; `held` says how full queues and caches are."""
    app = QuartTrio("streamd", static_folder=None)
    # No path has a second spelling here; werkzeug would redirect doubled slashes.
    app.url_map.merge_slashes = False
    # The adapters limit the size and the pace of bodies.
    app.config["MAX_CONTENT_LENGTH"] = app.config["BODY_TIMEOUT"] = None

    operator = Operator(node, operations, metrics, random, held, document, scopes_of)
    for route in OPERATIONS:
        # Quart answers HEAD by itself where there is a GET.
        if route.method != "HEAD":
            app.add_url_rule(
                re.sub(r"{(\w+)}", r"<\1>", route.path.template),
                endpoint=f"{route.method} {route.path.template}",
                view_func=partial(answering(route.handler.handle), operator),
                methods=[route.method],
                provide_automatic_options=False,
            )

    @app.errorhandler(HTTPException)
    async def refuse(error: HTTPException) -> Answer:
        return refusal(error_response(Problem.INTERNAL, error.description or ""))

    return app
