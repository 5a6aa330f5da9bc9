"""The application: every request finds its handler here, whichever adapter brought it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from streamd.cold.errors import ColdError, ObjectCorrupt, ObjectMissing
from streamd.http import batches, bootstrap, buckets, reading, snapshots, writes
from streamd.http.fields import BadRequest
from streamd.http.messages import LiveResponse, Request, Response, error_response
from streamd.http.routing import (
    RESERVED_STREAM,
    BadPath,
    BatchRoute,
    BootstrapRoute,
    BucketRoute,
    ListingRoute,
    OpsRoute,
    Route,
    SnapshotRoute,
    StreamRoute,
    resolve,
)
from streamd.http.service import Service
from streamd.proposals import OutcomeUnknown, Unavailable

_STREAM_METHODS = b"GET, HEAD, POST, PUT, DELETE, OPTIONS"
_BUCKET_METHODS = b"GET, HEAD, PUT, DELETE, OPTIONS"
_BATCH_METHODS = b"POST, OPTIONS"
_SNAPSHOT_METHODS = b"GET, HEAD, PUT, DELETE, OPTIONS"
_READ_METHODS = b"GET, HEAD, OPTIONS"
_WRITES = frozenset(("POST", "PUT", "DELETE"))
_OPS_METHODS = b"GET, HEAD, POST, OPTIONS"
_ALLOWED_HEADERS = (
    b"Content-Type, Authorization, If-Match, If-None-Match, Stream-Seq, Stream-TTL, "
    b"Stream-Expires-At, Stream-Closed, Stream-Forked-From, Stream-Fork-Offset, "
    b"Stream-Fork-Sub-Offset, Producer-Id, Producer-Epoch, Producer-Seq"
)
_PREFLIGHT = (
    b"Access-Control-Allow-Methods: %b\r\n"
    b"Access-Control-Allow-Headers: " + _ALLOWED_HEADERS + b"\r\n"
    b"Access-Control-Max-Age: 86400\r\n"
    b"Allow: %b\r\n"
)

Ops = Callable[[Request], Awaitable[Response]]


class StreamApplication:
    """Routes requests to the stream handlers and everything else to the operations app."""

    def __init__(self, service: Service, ops: Ops) -> None:
        self._service = service
        self._ops = ops

    def takes_pieces(self, path: bytes) -> bool:
        route = resolve(path)
        return isinstance(route, SnapshotRoute) and route.offset is not None

    async def handle(self, request: Request) -> Response | LiveResponse:
        """Answer `request`. Raises `ClientGone` when a long-poll's client left."""
        route = resolve(request.path)
        response = await self._answer(request, route)
        self._service.metrics.request(_label(route), request.method, response.status)
        return response

    async def _answer(self, request: Request, route: Route) -> Response | LiveResponse:
        try:
            if request.method in _WRITES and (elsewhere := self._redirect(request, route)):
                return elsewhere
            if isinstance(route, StreamRoute):
                return await self._stream(request, route)
            if isinstance(route, BadPath):
                return route.response()
            if isinstance(route, SnapshotRoute):
                return await self._snapshot(request, route)
            if isinstance(route, BootstrapRoute):
                if request.method in ("GET", "HEAD"):
                    return await bootstrap.bootstrap(self._service, request, route)
                return _other(request.method, _READ_METHODS)
            response = await self._elsewhere(request, route)
            await self._service.compressor.compress_any(request, response)
            return response
        except BadRequest as error:
            return error.response()
        except Unavailable as error:
            return error_response(503, "UNAVAILABLE", str(error), b"Retry-After: 1\r\n")
        except (ObjectMissing, ObjectCorrupt):
            message = (
                "bytes in the cold store are damaged or missing; the log of the node says where"
            )
            return error_response(500, "COLD_DATA_DAMAGED", message)
        except ColdError:
            message = "old bytes are in the cold store, which cannot be read now"
            return error_response(503, "COLD_UNAVAILABLE", message, b"Retry-After: 5\r\n")
        except OutcomeUnknown as error:
            message = f"{error}; it may have taken effect"
            return error_response(503, "OUTCOME_UNKNOWN", message, b"Retry-After: 1\r\n")

    def _redirect(self, request: Request, route: Route) -> Response | None:
        """With ``server.non_leader = "redirect"``, a write goes to the leader by its client."""
        if self._service.server.non_leader != "redirect" or isinstance(route, OpsRoute | BadPath):
            return None
        address = self._service.node.leader_address()
        if address is None:
            return None
        query = b"?" + request.query if request.query else b""
        target = b"%b://%b%b%b" % (request.scheme, address.encode(), request.path, query)
        return Response(307, b"Location: %b\r\nCache-Control: no-store\r\n" % target)

    async def _stream(self, request: Request, route: StreamRoute) -> Response | LiveResponse:
        method = request.method
        if method == "POST":
            started = trio.current_time()
            response = await writes.append(self._service, request, route)
            self._service.metrics.append_latency.observe(trio.current_time() - started)
            return response
        if method == "GET":
            return await reading.read(self._service, request, route)
        if method == "HEAD":
            return await reading.head(self._service, request, route)
        if method == "PUT":
            return await writes.create(self._service, request, route)
        if method == "DELETE":
            return await writes.delete(self._service, request, route)
        return _other(method, _STREAM_METHODS)

    async def _elsewhere(
        self, request: Request, route: BucketRoute | ListingRoute | BatchRoute | OpsRoute
    ) -> Response:
        match route:
            case BucketRoute():
                return await self._bucket(request, route)
            case ListingRoute():
                return await self._listing(request, route)
            case BatchRoute():
                return await self._batch(request, route)
        if request.method == "OPTIONS":
            return _preflight(_STREAM_METHODS if request.path == b"*" else _OPS_METHODS)
        return await self._ops(request)

    async def _snapshot(self, request: Request, route: SnapshotRoute) -> Response | LiveResponse:
        method = request.method
        if route.offset is None:
            if method in ("GET", "HEAD"):
                return await snapshots.latest(self._service, request, route)
            return _other(method, _READ_METHODS)
        if method == "PUT":
            return await snapshots.publish(self._service, request, route, route.offset)
        if method in ("GET", "HEAD"):
            return await snapshots.read(self._service, request, route, route.offset)
        if method == "DELETE":
            return await snapshots.delete(self._service, request, route, route.offset)
        return _other(method, _SNAPSHOT_METHODS)

    async def _bucket(self, request: Request, route: BucketRoute) -> Response:
        if request.method in ("GET", "HEAD"):
            return await buckets.look_at(self._service, request, route)
        if request.method == "PUT":
            return await buckets.create(self._service, request, route)
        if request.method == "DELETE":
            return await buckets.delete(self._service, route)
        return _other(request.method, _BUCKET_METHODS)

    async def _listing(self, request: Request, route: ListingRoute) -> Response:
        if request.method in ("GET", "HEAD"):
            return await buckets.list_streams(self._service, request, route)
        if request.method in _WRITES:
            return RESERVED_STREAM.response()
        return _other(request.method, _READ_METHODS)

    async def _batch(self, request: Request, route: BatchRoute) -> Response:
        if request.method != "POST":
            return _other(request.method, _BATCH_METHODS)
        started = trio.current_time()
        response = await batches.append_batch(self._service, request, route)
        self._service.metrics.append_latency.observe(trio.current_time() - started)
        return response


def _other(method: str, allowed: bytes) -> Response:
    if method == "OPTIONS":
        return _preflight(allowed)
    return error_response(
        405, "METHOD_NOT_ALLOWED", f"{method} is not allowed here", b"Allow: %b\r\n" % allowed
    )


def _preflight(allowed: bytes) -> Response:
    return Response(204, _PREFLIGHT % (allowed, allowed))


def _label(route: Route) -> str:
    match route:
        case StreamRoute():
            return "stream"
        case BucketRoute():
            return "bucket"
        case ListingRoute():
            return "listing"
        case BatchRoute():
            return "batch"
        case SnapshotRoute():
            return "snapshot"
        case BootstrapRoute():
            return "bootstrap"
        case BadPath():
            return "none"
        case _:
            return "ops"
