"""The operations app: an ordinary Quart-Trio app, whose rules are the table's operations.

Both adapters serve it by calling it as an ASGI application, with a `Request`.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, MutableMapping
from functools import partial
from random import Random
from typing import Any

import trio
from quart.routing import QuartMap, QuartRule
from quart_trio import QuartTrio
from werkzeug.exceptions import HTTPException

from streamd.config.settings import Config
from streamd.http.admin.operator import SENDER, Answer, Operator, answering, refusal
from streamd.http.protocol.messages import Request, Response
from streamd.http.protocol.refusals import error_response
from streamd.http.router import document, scopes_of
from streamd.http.routes import OPERATIONS
from streamd.node.leader_operations import LeaderOperations
from streamd.node.node import Node
from streamd.node.reports import NodeReports
from streamd.process.metrics import Metrics
from streamd.protocol.problems import Problem

Message = MutableMapping[str, Any]
AsgiApp = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]],
    Awaitable[None],
]

MAX_RESPONSE_BYTES = 16 * 1024 * 1024
# The adapters add these themselves.
_DROPPED = frozenset((b"content-length", b"date", b"server", b"connection", b"transfer-encoding"))

# Quart answers HEAD by itself where there is a GET.
_ENDPOINTS = {
    f"{route.method} {route.path.template}": route for route in OPERATIONS if route.method != "HEAD"
}
# All apps of a process share them: to compile them takes 20 ms, most of the start of a node.
_RULES = QuartMap(
    [
        QuartRule(
            re.sub(r"{(\w+)}", r"<\1>", route.path.template),
            endpoint=endpoint,
            methods=[route.method],
        )
        for endpoint, route in _ENDPOINTS.items()
    ],
    # No path has a second spelling here; werkzeug would redirect doubled slashes.
    merge_slashes=False,
)


def create_ops_app(
    metrics: Metrics,
    node: Node,
    operations: LeaderOperations,
    reports: NodeReports,
    random: Random,
    config: Config,
) -> QuartTrio:
    """The app over a node. `operations` are those of its cluster's leader, `reports` those of its
    members. `random` makes the secrets of tokens. The node was started with `config`."""
    app = QuartTrio("streamd", static_folder=None)
    app.url_map = _RULES
    # The adapters limit the size and the pace of bodies.
    app.config["MAX_CONTENT_LENGTH"] = app.config["BODY_TIMEOUT"] = None

    operator = Operator(node, operations, reports, metrics, random, document, scopes_of, config)
    for endpoint, route in _ENDPOINTS.items():
        app.view_functions[endpoint] = partial(answering(route.handler.handle), operator)

    @app.errorhandler(HTTPException)
    async def refuse(error: HTTPException) -> Answer:
        return refusal(error_response(Problem.INTERNAL, error.description or ""))

    return app


async def call_asgi(app: AsgiApp, request: Request) -> Response:
    """The answer of `app` to `request`, held in memory whole, up to a limit."""
    exchange = _Exchange(request)
    await app(_scope(request), exchange.receive, exchange.send)
    return exchange.response()


def _scope(request: Request) -> Message:
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.scheme.decode(),
        "path": request.path.decode("latin-1"),
        "raw_path": request.path,
        "query_string": request.query,
        "root_path": "",
        "headers": list(request.headers.items()),
        "client": None,
        "server": None,
        "extensions": {},
        SENDER: request.identity,
    }


class _Exchange:
    def __init__(self, request: Request) -> None:
        self._request = request
        self._received = False
        self._status = 500
        self._head = b""
        self._body = bytearray()

    async def receive(self) -> Message:
        if self._received:
            # A client may close its sending side and still read. The app would take that for a
            # disconnection, stop in the middle of its work and answer nothing.
            await trio.sleep_forever()
        self._received = True
        return {"type": "http.request", "body": self._request.body, "more_body": False}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._head = b"".join(
                b"%b: %b\r\n" % (name, value)
                for name, value in message["headers"]
                if name.lower() not in _DROPPED
            )
        elif message["type"] == "http.response.body":
            self._body += message.get("body", b"")

    def response(self) -> Response:
        if len(self._body) > MAX_RESPONSE_BYTES:
            return error_response(Problem.RESPONSE_TOO_LARGE)
        return Response(self._status, self._head, bytes(self._body))
