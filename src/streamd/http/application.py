"""The application: routes every request to its handler, whichever adapter brought it."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from typing import Any, NamedTuple

import trio

from streamd.group.proposals import OutcomeUnknown, Settled, Unavailable
from streamd.headers import ACCEPT_ENCODING, CONTENT_ENCODING, HEADERS
from streamd.http import batches, bootstrap, buckets, reading, snapshots, writes
from streamd.http.admin_guard import PUBLIC_PATHS, AdminGuard
from streamd.http.fields import BadRequest, refuse_coding
from streamd.http.messages import (
    Begun,
    Later,
    LiveResponse,
    Parked,
    Request,
    Response,
    error_response,
)
from streamd.http.routing import (
    RESERVED_STREAM,
    BadPath,
    BatchRoute,
    BootstrapRoute,
    BucketRoute,
    LatestSnapshotRoute,
    ListingRoute,
    OpsRoute,
    Route,
    SnapshotRoute,
    StreamRoute,
    resolve,
)
from streamd.http.service import Service
from streamd.http.writes import Write
from streamd.objectstore.errors import ColdError, ObjectCorrupt, ObjectMissing
from streamd.streams.commands import Outcome

Handler = Callable[[Service, Request, Any], Awaitable[Response | LiveResponse | Parked]]
# What answers without waiting, says what to propose for the answer, or with None leaves the request
# to the handler.
Prompt = Callable[[Service, Request, Any], Response | Write | Parked | None]


class Resource(NamedTuple):
    """The label of a kind of route in the metrics, and the handlers of its methods: those in
    `prompt` are asked first.

    Every route answers OPTIONS, so that is not among the methods.
    """

    label: str
    handlers: Mapping[str, Handler]
    prompt: Mapping[str, Prompt] = {}

    @property
    def methods(self) -> bytes:
        """As in an Allow header."""
        return _listed((*self.handlers, "OPTIONS"))


def _listed(methods: Iterable[str]) -> bytes:
    return ", ".join(methods).encode()


RESOURCES: Mapping[type[Route], Resource] = {
    StreamRoute: Resource(
        "stream",
        {
            "GET": reading.read,
            "HEAD": reading.head,
            "POST": writes.append,
            "PUT": writes.create,
            "DELETE": writes.delete,
        },
        {
            "GET": reading.begin_read,
            "HEAD": reading.begin_head,
            "POST": writes.begin_append,
            "PUT": writes.begin_create,
        },
    ),
    BatchRoute: Resource(
        "batch", {"POST": batches.append_batch}, {"POST": batches.begin_append_batch}
    ),
    LatestSnapshotRoute: Resource("snapshot", {"GET": snapshots.latest, "HEAD": snapshots.latest}),
    SnapshotRoute: Resource(
        "snapshot",
        {
            "GET": snapshots.read,
            "HEAD": snapshots.read,
            "PUT": snapshots.publish,
            "DELETE": snapshots.delete,
        },
    ),
    BootstrapRoute: Resource(
        "bootstrap", {"GET": bootstrap.bootstrap, "HEAD": bootstrap.bootstrap}
    ),
    BucketRoute: Resource(
        "bucket",
        {
            "GET": buckets.look_at,
            "HEAD": buckets.look_at,
            "PUT": buckets.create,
            "DELETE": buckets.delete,
        },
    ),
    ListingRoute: Resource("listing", {"GET": buckets.list_streams, "HEAD": buckets.list_streams}),
}
_STREAMS = RESOURCES[StreamRoute]
_ALL_METHODS = b"GET, HEAD, POST, PUT, DELETE, OPTIONS"
_WRITES = frozenset(("POST", "PUT", "DELETE"))
_APPENDS = frozenset((_STREAMS.label, RESOURCES[BatchRoute].label))
_ALLOW = re.compile(rb"^allow: ([^\r]*)\r$", re.MULTILINE | re.IGNORECASE)
# Accept-Encoding is the browser's own business.
_ALLOWED_HEADERS = ", ".join(
    ("Authorization", *(one for one in HEADERS if one.request and one != ACCEPT_ENCODING))
).encode()
_PREFLIGHT = (
    b"Access-Control-Allow-Methods: %b\r\n"
    b"Access-Control-Allow-Headers: " + _ALLOWED_HEADERS + b"\r\n"
    b"Access-Control-Max-Age: 86400\r\n"
    b"Allow: %b\r\n"
)

# What a handler raises instead of an answer.
REFUSALS = (BadRequest, Unavailable, OutcomeUnknown, ColdError)
_DAMAGED = "bytes in the cold store are damaged or missing; the node's log names the object"

Ops = Callable[[Request], Awaitable[Response]]


class StreamApplication:
    """Routes requests to the stream handlers, and everything else to the operations app."""

    def __init__(self, service: Service, ops: Ops) -> None:
        self._service = service
        self._ops = ops
        self._guard = AdminGuard(service.server)

    def takes_pieces(self, path: bytes) -> bool:
        return isinstance(resolve(path), SnapshotRoute)

    def begin(self, request: Request, later: Later) -> Response | Parked | Begun:
        """As `Application.begin`."""
        route = resolve(request.path)
        resource = RESOURCES.get(type(route))
        prompt = None if resource is None else resource.prompt.get(request.method)
        if resource is None or prompt is None:
            return Begun.MUST_WAIT
        started = trio.current_time()
        try:
            begun = self._refused(request, route) or prompt(self._service, request, route)
            if begun is None:
                return Begun.MUST_WAIT
            if isinstance(begun, Write):
                finish = partial(self._finish, begun.answer, request, resource.label, started)
                tell = partial(later, finish)
                self._service.node.group.submit(begun.command, begun.size, tell)
                return Begun.UNDER_WAY
        except REFUSALS as error:
            begun = self._refusal(error)
        if isinstance(begun, Response):
            self._count(request, resource.label, begun, started)
        return begun

    def resume(self, parked: Parked) -> Response | Parked | None:
        """As `Application.resume`."""
        try:
            return self._counted(parked.resume())
        except REFUSALS as error:
            return self._counted(self._refusal(error))

    async def go_on(self, parked: Parked) -> Response | Parked | None:
        """As `Application.go_on`."""
        try:
            return self._counted(await parked.go_on())
        except REFUSALS as error:
            return self._counted(self._refusal(error))

    def _counted(self, found: Response | Parked | None) -> Response | Parked | None:
        """What a live read came to; count it if it is answered now."""
        if isinstance(found, Response):
            self._service.node.metrics.request(_STREAMS.label, "GET", found.status)
        return found

    def _finish(
        self,
        answer: Callable[[Outcome], Response],
        request: Request,
        label: str,
        started: float,
        settled: Settled,
    ) -> Response:
        """The answer to a write whose outcome is known, or can no longer be."""
        try:
            response = answer(settled.unwrap())
        except REFUSALS as error:
            response = self._refusal(error)
        self._count(request, label, response, started)
        return response

    async def handle(self, request: Request) -> Response | LiveResponse | Parked:
        """As `Application.handle`."""
        route = resolve(request.path)
        resource = RESOURCES.get(type(route))
        started = trio.current_time()
        try:
            response = await self._answer(request, route, resource)
        except REFUSALS as error:
            response = self._refusal(error)
        if isinstance(response, Response | LiveResponse):
            label = _label(route) if resource is None else resource.label
            self._count(request, label, response, started)
        return response

    async def _answer(
        self, request: Request, route: Route, resource: Resource | None
    ) -> Response | LiveResponse | Parked:
        if refused := self._refused(request, route):
            return refused
        response: Response | LiveResponse | Parked
        if resource is None:
            response = await self._operate(request, route)
        elif (handler := resource.handlers.get(request.method)) is None:
            response = _other(request.method, route, resource)
        else:
            response = await handler(self._service, request, route)
        # The stream handlers decide themselves what to compress.
        if resource is not _STREAMS and isinstance(response, Response):
            await self._service.compressor.compress_any(request, response)
        return response

    def _count(
        self, request: Request, label: str, response: Response | LiveResponse, started: float
    ) -> None:
        metrics = self._service.node.metrics
        if request.method == "POST" and label in _APPENDS and response.status < 300:
            metrics.append_latency.observe(trio.current_time() - started)
        metrics.request(label, request.method, response.status)

    def _refusal(self, error: Exception) -> Response:
        """The answer for one of `REFUSALS`."""
        match error:
            case BadRequest():
                return error.response()
            case Unavailable():
                return error_response(503, "UNAVAILABLE", str(error), b"Retry-After: 1\r\n")
            case OutcomeUnknown():
                self._service.node.metrics.outcomes_unknown += 1
                message = f"{error}; it may have taken effect"
                return error_response(503, "OUTCOME_UNKNOWN", message, b"Retry-After: 1\r\n")
            case ObjectMissing() | ObjectCorrupt():
                return error_response(500, "COLD_DATA_DAMAGED", _DAMAGED)
            case _:
                message = "old bytes are in the cold store, which cannot be read now"
                return error_response(503, "COLD_UNAVAILABLE", message, b"Retry-After: 5\r\n")

    def _refused(self, request: Request, route: Route) -> Response | None:
        """The answer to a write that no handler gets. Raises `BadRequest`."""
        if request.method not in _WRITES:
            return None
        if CONTENT_ENCODING.key in request.headers:
            refuse_coding(request.headers[CONTENT_ENCODING.key])
        return self._redirect(request, route)

    def _redirect(self, request: Request, route: Route) -> Response | None:
        """The redirect of a write to the leader, with ``server.non_leader = "redirect"``."""
        if self._service.server.non_leader != "redirect" or isinstance(route, OpsRoute | BadPath):
            return None
        address = self._service.node.leader_address()
        if address is None:
            return None
        query = b"?" + request.query if request.query else b""
        target = b"%b://%b%b%b" % (request.scheme, address.encode(), request.path, query)
        return Response(307, b"Location: %b\r\nCache-Control: no-store\r\n" % target)

    async def _operate(self, request: Request, route: Route) -> Response | LiveResponse:
        if isinstance(route, BadPath):
            return route.response()
        if request.path == b"*" and request.method == "OPTIONS":
            return _preflight(_ALL_METHODS)
        if request.path in PUBLIC_PATHS:
            return await self._ask_ops(request, _preflight)
        response = self._guard.refusal(request) or await self._ask_ops(request, _methods)
        response.private = True
        return response

    async def _ask_ops(self, request: Request, options: Callable[[bytes], Response]) -> Response:
        """The operations app's answer; to OPTIONS, what `options` makes of the allowed methods."""
        response = await self._ops(request)
        allowed = _ALLOW.search(response.head)
        if request.method != "OPTIONS" or response.status != 200 or allowed is None:
            return response
        return options(_listed(sorted(allowed[1].decode().split(", "))))


def _other(method: str, route: Route, resource: Resource) -> Response:
    """The answer to a method that has no handler."""
    allowed = resource.methods
    if method == "OPTIONS":
        return _preflight(allowed)
    if isinstance(route, ListingRoute) and method in _WRITES:
        return RESERVED_STREAM.response()
    return error_response(
        405, "METHOD_NOT_ALLOWED", f"{method} is not allowed here", b"Allow: %b\r\n" % allowed
    )


def _preflight(allowed: bytes) -> Response:
    return Response(204, _PREFLIGHT % (allowed, allowed))


def _methods(allowed: bytes) -> Response:
    return Response(204, b"Allow: %b\r\n" % allowed)


def _label(route: Route) -> str:
    """The label of a route outside the protocol."""
    return "none" if isinstance(route, BadPath) else "ops"
