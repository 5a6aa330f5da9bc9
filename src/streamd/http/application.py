"""The application: routes every request to its handler, whichever adapter brought it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import trio

from streamd.auth.identity import SignedIdentity
from streamd.group.proposals import NoRoom, Unavailable
from streamd.http.access import needs
from streamd.http.access.auditor import Auditor
from streamd.http.access.needs import Need, NeedsOf
from streamd.http.operations import Operations, Ops, listed, preflight
from streamd.http.prompt_answers import REFUSALS, PromptAnswers
from streamd.http.protocol.fields import BadRequest, refuse_coding
from streamd.http.protocol.messages import (
    Begun,
    LateAnswer,
    Later,
    LiveResponse,
    Parked,
    Request,
    Response,
    error_response,
)
from streamd.http.protocol.routing import (
    RESERVED_STREAM,
    BadPath,
    BatchRoute,
    BootstrapRoute,
    BucketRoute,
    BucketsRoute,
    LatestSnapshotRoute,
    ListingRoute,
    OpsRoute,
    Route,
    SnapshotRoute,
    StreamRoute,
    resolve,
    takes_pieces,
)
from streamd.http.streams import batches, bootstrap, buckets, reading, snapshots, writes
from streamd.http.streams.large_writes import refusal_of_large_write
from streamd.http.streams.reading import LongPoll
from streamd.http.streams.service import Service
from streamd.http.streams.writes import Write
from streamd.protocol.headers import CONTENT_ENCODING

T = TypeVar("T")
Handler = Callable[[Service, Request, Any], Awaitable[Response | LiveResponse | Parked]]
# What answers a read without waiting, or with None leaves it to the handler.
Prompt = Callable[[Service, Request, Any], Response | Parked | None]
# What says what to propose for a write, or with None leaves it to the handler. It needs no state,
# so that another process than the one with the state can call it (`workers`).
Judge = Callable[[Request, Any], Write | None]


class Resource(NamedTuple):
    """The label of a kind of route in the metrics, the handlers of its methods, and what a request
    with each of them `needs` to be permitted. Those in `prompt` and `judge` are asked first.

    Every route answers OPTIONS, so that is not among the methods; it tells nothing of the state and
    needs nothing, because browsers ask without credentials.
    """

    label: str
    handlers: Mapping[str, Handler]
    needs: Mapping[str, NeedsOf]
    prompt: Mapping[str, Prompt] = {}
    judge: Mapping[str, Judge] = {}

    @property
    def methods(self) -> bytes:
        """As in an Allow header."""
        return listed((*self.handlers, "OPTIONS"))


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
            "GET": needs.read,
            "HEAD": needs.read,
            "POST": needs.append,
            "PUT": needs.create,
            "DELETE": needs.delete,
        },
        {"GET": reading.begin_read, "HEAD": reading.begin_head},
        {"POST": writes.begin_append, "PUT": writes.begin_create},
    ),
    BatchRoute: Resource(
        "batch",
        {"POST": batches.append_batch},
        {"POST": needs.append_batch},
        judge={"POST": batches.begin_append_batch},
    ),
    LatestSnapshotRoute: Resource(
        "snapshot",
        {"GET": snapshots.latest, "HEAD": snapshots.latest},
        {"GET": needs.read_below, "HEAD": needs.read_below},
    ),
    SnapshotRoute: Resource(
        "snapshot",
        {
            "GET": snapshots.read,
            "HEAD": snapshots.read,
            "PUT": snapshots.publish,
            "DELETE": snapshots.delete,
        },
        {
            "GET": needs.read_below,
            "HEAD": needs.read_below,
            "PUT": needs.snapshot,
            "DELETE": needs.snapshot,
        },
    ),
    BootstrapRoute: Resource(
        "bootstrap",
        {"GET": bootstrap.bootstrap, "HEAD": bootstrap.bootstrap},
        {"GET": needs.read_below, "HEAD": needs.read_below},
    ),
    BucketsRoute: Resource(
        "buckets",
        {"GET": buckets.list_buckets, "HEAD": buckets.list_buckets},
        {"GET": needs.list_buckets, "HEAD": needs.list_buckets},
    ),
    BucketRoute: Resource(
        "bucket",
        {
            "GET": buckets.look_at,
            "HEAD": buckets.look_at,
            "PUT": buckets.create,
            "DELETE": buckets.delete,
        },
        {
            "GET": needs.look_at_bucket,
            "HEAD": needs.look_at_bucket,
            "PUT": needs.administer_bucket,
            "DELETE": needs.administer_bucket,
        },
    ),
    ListingRoute: Resource(
        "listing",
        {"GET": buckets.list_streams, "HEAD": buckets.list_streams},
        {"GET": needs.list_bucket, "HEAD": needs.list_bucket},
    ),
}
_STREAMS = RESOURCES[StreamRoute]
_WRITES = frozenset(("POST", "PUT", "DELETE"))
_READS = frozenset(("GET", "HEAD"))


class StreamApplication:
    """Routes requests to the stream handlers, and everything else to the operations app."""

    def __init__(
        self, service: Service, ops: Ops, serves: Callable[[bytes], bool] = needs.is_operation
    ) -> None:
        """Of the operations `ops`, those whose paths `serves` accepts are served.

        Raises `needs.UndeclaredScope` if a handler has no declared need.
        """
        for resource in RESOURCES.values():
            label = resource.label
            needs.check_declared(
                [(label, method) for method in resource.handlers],
                [(label, method) for method in resource.needs],
            )
        self._service = service
        self._authority = service.authority
        self._stream_guard = service.stream_guard
        self._rates = service.rates
        self._auditor = Auditor(service.trail, service.authority, _described)
        self._answers = PromptAnswers(
            service.node.metrics, service.node.group.writes.submit, self._auditor.answered
        )
        self._operations = Operations(
            ops,
            service.authority,
            self._answers,
            self._auditor,
            service.rates,
            service.server,
            serves,
        )

    def takes_pieces(self, path: bytes) -> bool:
        return takes_pieces(path)

    def refusal(self, request: Request) -> Response | LateAnswer | None:
        """As `Application.refusal`."""
        response = self._head_refused(request, resolve(request.path))
        if response is not None:
            refused = response.answer if isinstance(response, LateAnswer) else response
            self._auditor.answered(request, refused)
        return response

    async def foreseen(self, request: Request) -> Response | None:
        """As `Application.foreseen`."""
        route = resolve(request.path)
        resource = RESOURCES.get(type(route))
        if resource is None or self._redirect(request, route) is not None:
            return None
        started = trio.current_time()
        try:
            response = await refusal_of_large_write(self._service, request, route)
        except NoRoom as error:
            response = self._answers.refusal(error)
        except REFUSALS:
            return None  # The handler raises it, or knows more by then.
        if response is not None:
            self._answers.count(request, resource.label, response, started)
        return response

    def _head_refused(self, request: Request, route: Route) -> Response | LateAnswer | None:
        if isinstance(route, OpsRoute):
            return self._operations.refusal(request)
        try:
            return self._admit(request, route)
        except REFUSALS as error:
            return self._answers.refusal(error)

    def _admit(self, request: Request, route: Route) -> LateAnswer | None:
        """Find the sender of a request that may have what it asks for, if anybody must say who they
        are, and charge it, or return what says that it is too much. Raises one of `REFUSALS`."""
        resource = RESOURCES.get(type(route))
        if resource is None:
            return self._rates.refusal(request) if isinstance(route, BadPath) else None
        is_required = self._authority.is_required
        needs_of = resource.needs.get(request.method) if is_required else None
        try:
            self._stream_guard.check(request)
            if needs_of is not None:
                identity = self._authority.admit(request, partial(needs_of, route, request.headers))
                request.identity = identity
        except (BadRequest, Unavailable):
            if late := self._rates.refusal(request):
                return late
            raise
        if is_required and needs_of is None:
            return self._rates.refusal(request)
        return self._rates.refusal(request, route)

    def _admit_again(self, request: Request, response: Response | LiveResponse | Parked) -> None:
        """Raises one of `REFUSALS` if an answer is not for its sender after all."""
        try:
            self._authority.admit_again(request)
        except REFUSALS:
            if not isinstance(response, Response):
                response.abandon()
            raise

    def begin(self, request: Request, later: Later) -> Response | Parked | Begun:
        """As `Application.begin`."""
        route = resolve(request.path)
        resource = RESOURCES.get(type(route))
        if resource is None:
            return Begun.MUST_WAIT
        answers, label = self._answers, resource.label
        if (judge := resource.judge.get(request.method)) is not None:
            return answers.begin(request, label, later, self._judged, judge, request, route)
        if (prompt := resource.prompt.get(request.method)) is not None:
            return answers.begin(request, label, later, self._prompted, prompt, request, route)
        return Begun.MUST_WAIT

    def _judged(
        self, judge: Judge, request: Request, route: Route
    ) -> Response | Write | LateAnswer | None:
        return self._refused(request, route) or judge(request, route)

    def _prompted(self, prompt: Prompt, request: Request, route: Route) -> Response | Parked | None:
        return self._refused(request, route) or prompt(self._service, request, route)

    def resume(self, parked: Parked) -> Response | Parked | None:
        """As `Application.resume`."""
        try:
            return self._counted(parked, parked.resume())
        except REFUSALS as error:
            return self._counted(parked, self._answers.refusal(error))

    async def go_on(self, parked: Parked) -> Response | LiveResponse | Parked | None:
        """As `Application.go_on`."""
        try:
            return self._counted(parked, await parked.go_on())
        except REFUSALS as error:
            return self._counted(parked, self._answers.refusal(error))

    def _counted(self, parked: Parked, found: T) -> T:
        """What a live read came to; count it if it is answered now. A late answer was counted when
        it was made."""
        if isinstance(found, Response) and not isinstance(parked, LateAnswer):
            self._service.node.metrics.request(_STREAMS.label, "GET", found.status)
            if isinstance(parked, LongPoll):
                self._auditor.answered(parked.request, found)
        return found

    async def handle(self, request: Request) -> Response | LiveResponse | Parked:
        """As `Application.handle`."""
        route = resolve(request.path)
        resource = RESOURCES.get(type(route))
        started = trio.current_time()
        try:
            response = await self._answer(request, route, resource)
        except REFUSALS as error:
            response = self._answers.refusal(error)
        if isinstance(response, Response | LiveResponse | LateAnswer):
            label = _label(route) if resource is None else resource.label
            self._answers.count(request, label, response, started)
        return response

    async def _answer(
        self, request: Request, route: Route, resource: Resource | None
    ) -> Response | LiveResponse | Parked:
        if refused := self._refused(request, route):
            return refused
        response: Response | LiveResponse | Parked
        if resource is None:
            bad = route.response() if isinstance(route, BadPath) else None
            response = bad or await self._operations.answer(request)
        elif (handler := resource.handlers.get(request.method)) is None:
            response = _other(request.method, route, resource)
        elif isinstance(route, BucketRoute) and self._auditor.records(request):
            handling = partial(handler, self._service, request, route)
            response = await self._auditor.carry_out(request, partial(self._told, handling))
        else:
            response = await handler(self._service, request, route)
            if request.identity is not None and request.method in _READS:
                # It may have waited for the leader, and its token may have been revoked before.
                self._admit_again(request, response)
        # The stream handlers decide themselves what to compress.
        if resource is not _STREAMS and isinstance(response, Response):
            await self._service.compressor.compress_any(request, response)
        return response

    async def _told(self, handling: Callable[[], Awaitable[Any]]) -> Response:
        """The answer of a handler that makes whole ones, also where it raises one of `REFUSALS`."""
        try:
            response = await handling()
        except REFUSALS as error:
            return self._answers.refusal(error)
        assert isinstance(response, Response), "administration is not live"
        return response

    def _refused(self, request: Request, route: Route) -> Response | LateAnswer | None:
        """The answer to a request that no handler gets. Raises one of `REFUSALS`."""
        if late := self._admit(request, route):
            return late
        if request.method not in _WRITES:
            return None
        check_coding(request)
        return self._redirect(request, route)

    def _redirect(self, request: Request, route: Route) -> Response | None:
        """The redirect of a write to the leader, with ``server.non_leader = "redirect"``. None
        leaves the write to this node, which forwards it."""
        if self._service.server.non_leader != "redirect" or isinstance(route, OpsRoute | BadPath):
            return None
        if isinstance(request.identity, SignedIdentity):
            return None  # The URL is not valid at the leader's address.
        address = self._service.node.leader_address()
        if address is None:
            return None
        query = b"?" + request.query if request.query else b""
        target = b"%b://%b%b%b" % (request.scheme, address.encode(), request.path, query)
        return Response(307, b"Location: %b\r\nCache-Control: no-store\r\n" % target)


def check_coding(request: Request) -> None:
    """Raises `BadRequest` for a write whose body has a coding."""
    if CONTENT_ENCODING.key in request.headers:
        refuse_coding(request.headers[CONTENT_ENCODING.key])


def _other(method: str, route: Route, resource: Resource) -> Response:
    """The answer to a method that has no handler."""
    allowed = resource.methods
    if method == "OPTIONS":
        return preflight(allowed)
    if isinstance(route, ListingRoute) and method in _WRITES:
        return RESERVED_STREAM.response()
    return error_response(
        405, "METHOD_NOT_ALLOWED", f"{method} is not allowed here", b"Allow: %b\r\n" % allowed
    )


def _described(request: Request) -> tuple[str, Sequence[Need]]:
    """What kind of route a request has, and what it needs, as far as that can be told."""
    route = resolve(request.path)
    resource = RESOURCES.get(type(route))
    if resource is None:
        is_bad = isinstance(route, BadPath)
        wanted = () if is_bad else needs.operation(request.method, request.path)
        return _label(route), wanted or ()
    needs_of = resource.needs.get(request.method)
    try:
        return resource.label, () if needs_of is None else needs_of(route, request.headers)
    except BadRequest:
        return resource.label, ()


def _label(route: Route) -> str:
    """The label of a route outside the protocol."""
    return "none" if isinstance(route, BadPath) else "ops"
