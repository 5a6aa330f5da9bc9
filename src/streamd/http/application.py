"""The application: routes every request to its handler, whichever adapter brought it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

import trio

from streamd.auth.identity import Identity, SignedIdentity
from streamd.config.settings import ServerConfig
from streamd.group.proposals import NoRoom, Unavailable
from streamd.http.access.auditor import Auditor
from streamd.http.access.needs import OPEN, Need
from streamd.http.access.page_guards import AdminGuard
from streamd.http.dispatcher import Beginning, Dispatcher
from streamd.http.protocol.application import Begun, Fate, Later
from streamd.http.protocol.fields import refuse_coding
from streamd.http.protocol.messages import (
    Audience,
    LateAnswer,
    LiveResponse,
    Parked,
    Request,
    Response,
)
from streamd.http.protocol.raw_paths import NO_SUCH_ROUTE, BadPath
from streamd.http.protocol.refusals import REFUSALS
from streamd.http.protocol.routing import BatchRoute, SnapshotRoute, StreamRoute, Target
from streamd.http.router import (
    CONSOLE,
    RESOURCES,
    Found,
    Resource,
    find,
    find_operation,
    preflight,
    without_console,
)
from streamd.http.routes import Judge, Prompt
from streamd.http.streams.large_writes import refusal_of_large_write
from streamd.http.streams.reading import LongPoll
from streamd.http.streams.service import Service
from streamd.http.streams.writes import Write
from streamd.protocol.headers import CONTENT_ENCODING
from streamd.protocol.problems import ProblemError

T = TypeVar("T")
# The operations app.
Ops = Callable[[Request], Awaitable[Response]]

_STREAMS = RESOURCES[StreamRoute]
_WRITES = frozenset(("POST", "PUT", "DELETE"))
_READS = frozenset(("GET", "HEAD"))
# Tokens are given out to known people only, also where nobody else has to say who they are.
_TOKENS = b"/auth/"
# Relative, because a proxy may serve the node below a path. Nobody else's answer to this request
# may be kept for a browser, nor a browser's for them.
_TO_CONSOLE = {
    path: b"Location: %b\r\nCache-Control: no-store\r\nVary: Accept\r\n" % location
    for path, location in ((b"/", b"console"), (b"/console/", b"../console"))
}


class HttpApplication:
    """Answers what a listener serves: streams and operations, or a part of them.

    Operations are kept from web pages, admitted by their scopes, and answered by the operations
    app. Those that are not served do not exist; a stranger cannot tell, because authority comes
    first.
    """

    def __init__(
        self,
        service: Service,
        ops: Ops,
        server: ServerConfig,
        *,
        serves_streams: bool = True,
        serves_operators: bool = True,
    ) -> None:
        """`server` has the listener's names."""
        self._service = service
        self._ops = ops
        self._serves_operators = serves_operators
        self._serves_console = serves_operators and server.console
        found = find if serves_streams else find_operation
        self._find = found if self._serves_console else partial(without_console, found)
        self._authority = service.authority
        self._stream_guard = service.stream_guard
        self._admin_guard = AdminGuard(server, requires_tokens=service.authority.is_required)
        self._rates = service.rates
        self._auditor = Auditor(service.trail, service.authority, self._described)
        node = service.node
        self._dispatcher = Dispatcher(
            node.metrics, node.group.writes.submit, self._auditor.answered
        )

    def takes_pieces(self, path: bytes) -> bool:
        """As `Application.takes_pieces`."""
        return isinstance(self._find(path).target, SnapshotRoute)

    def refusal(self, request: Request) -> Response | LateAnswer | None:
        """As `Application.refusal`."""
        if self._opens_console(request):
            return None
        response = self._head_refused(request, self._find(request.path))
        if response is not None:
            refused = response.answer if isinstance(response, LateAnswer) else response
            self._auditor.answered(request, refused)
        return response

    async def foreseen(self, request: Request) -> Response | None:
        """As `Application.foreseen`."""
        found = self._find(request.path)
        if self._redirect(request, found) is not None:
            return None
        started = trio.current_time()
        try:
            response = await refusal_of_large_write(self._service, request, found.target)
        except NoRoom as error:
            response = self._dispatcher.refusal(error)
        except REFUSALS:
            return None  # The handler raises it, or knows more by then.
        if response is not None:
            self._dispatcher.count(request, found.resource.label, response, started)
        return response

    def _opens_console(self, request: Request) -> bool:
        """Whether a browser opens the server's address, or a wrong one of the console's: then it is
        led to the console."""
        return (
            self._serves_console
            and request.path in _TO_CONSOLE
            and request.method in _READS
            and b"text/html" in request.headers.get(b"accept", b"")
        )

    def _head_refused(self, request: Request, found: Found) -> Response | LateAnswer | None:
        if found.resource.is_operation:
            return self._operation_refused(request, found.resource)
        response: Response | LateAnswer | None
        try:
            response = self._admit(request, found)
        except REFUSALS as error:
            response = self._dispatcher.refusal(error)
        if response is not None and found.resource.is_guarded:
            _keep_from_pages(response)
        return response

    def _admit(self, request: Request, found: Found) -> LateAnswer | None:
        """Find the sender of a request that may have what it asks for, if anybody must say who they
        are, and charge it, or return what says that it is too much. Raises one of `REFUSALS`."""
        resource, target = found
        if resource.is_operation:
            return None
        if isinstance(target, BadPath):
            return self._rates.refusal(request)
        is_required = self._authority.is_required
        needs_of = resource.needs.get(request.method) if is_required else OPEN
        try:
            self._stream_guard.check(request)
            if resource.is_guarded:
                self._check_page(request, resource)
            if needs_of is not None:
                wanted = partial(needs_of, target, request.headers)
                request.identity = self._sender(request, target, wanted)
        except (ProblemError, Unavailable):
            if late := self._rates.refusal(request):
                return late
            raise
        if is_required and needs_of is OPEN:
            return self._rates.refusal(request)
        return self._rates.refusal(request, target)

    def _sender(
        self, request: Request, target: Target | None, needs_of: Callable[[], Sequence[Need]]
    ) -> Identity:
        """The sender of a request that may have what it asks for. What an append may write that has
        nothing but the write token of a claim, the log decides. Raises one of `REFUSALS`."""
        claim = None
        if request.method == "POST" and isinstance(target, StreamRoute | BatchRoute):
            claim = self._service.write_tokens.admit(request)
        if claim is None:
            return self._authority.admit(request, needs_of)
        if request.connection.certificate is not None:
            with suppress(ProblemError):
                return self._authority.admit(request, needs_of)
        return claim

    def _admit_again(self, request: Request, response: Response | LiveResponse | Parked) -> None:
        """Raises one of `REFUSALS` if an answer is not for its sender after all: it may have waited
        for the leader, and its token may have been revoked before."""
        try:
            self._authority.admit_again(request)
        except REFUSALS:
            if not isinstance(response, Response):
                response.abandon()
            raise

    def begin(self, requests: Sequence[Request], later: Later) -> Sequence[Fate]:
        """As `Application.begin`."""
        may_repeat = not self._rates.exist()
        return self._dispatcher.begin(requests, later, self._begin, may_repeat=may_repeat)

    def _begin(self, request: Request, beginning: Beginning) -> Fate:
        found = self._find(request.path)
        resource = found.resource
        route = resource.routes.get(request.method)
        if route is None:
            return Begun.MUST_WAIT
        begin, label = beginning.begin, resource.label
        if (judge := route.handler.judge) is not None:
            return begin(request, label, self._judged, judge, request, found)
        if (prompt := route.handler.prompt) is not None:
            return begin(request, label, self._prompted, prompt, request, found)
        return Begun.MUST_WAIT

    def _judged(
        self, judge: Judge, request: Request, found: Found
    ) -> Response | Write | LateAnswer | None:
        return self._refused(request, found) or judge(request, found.target)

    def _prompted(self, prompt: Prompt, request: Request, found: Found) -> Response | Parked | None:
        return self._refused(request, found) or prompt(self._service, request, found.target)

    def resume(self, parked: Parked) -> Response | Parked | None:
        """As `Application.resume`."""
        try:
            return self._counted(parked, parked.resume())
        except REFUSALS as error:
            return self._counted(parked, self._dispatcher.refusal(error))

    async def go_on(self, parked: Parked) -> Response | LiveResponse | Parked | None:
        """As `Application.go_on`."""
        try:
            return self._counted(parked, await parked.go_on())
        except REFUSALS as error:
            return self._counted(parked, self._dispatcher.refusal(error))

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
        resource, target = found = self._find(request.path)
        started = trio.current_time()
        if self._opens_console(request):
            to_console = Response(303, _TO_CONSOLE[request.path])
            self._dispatcher.count(request, CONSOLE, to_console, started)
            return to_console
        response: Response | LiveResponse | Parked
        try:
            if refused := self._refused(request, found):
                response = refused
            elif resource.is_operation:
                response = await self._operate(request, resource)
            elif isinstance(target, BadPath):
                response = target.response()
            elif (route := resource.routes.get(request.method)) is None:
                response = resource.other(request.method, target)
            elif resource.records(request.method) and self._auditor.records(request):
                handling = partial(route.handler.handle, self._service, request, target)
                response = await self._auditor.carry_out(request, partial(self._act, handling))
            else:
                response = await route.handler.handle(self._service, request, target)
                if request.identity is not None and request.method in _READS:
                    self._admit_again(request, response)
            # The stream handlers decide themselves what to compress.
            if resource is not _STREAMS and isinstance(response, Response):
                await self._service.compressor.compress_any(request, response)
        except REFUSALS as error:
            response = self._dispatcher.refusal(error)
        if resource.is_guarded:
            _keep_from_pages(response)
        if isinstance(response, Response | LiveResponse | LateAnswer):
            self._dispatcher.count(request, resource.label, response, started)
        return response

    async def _act(self, handling: Callable[[], Awaitable[Any]]) -> Response:
        """The answer of a handler that makes whole ones, also where it raises one of `REFUSALS`."""
        try:
            response = await handling()
        except REFUSALS as error:
            return self._dispatcher.refusal(error)
        assert isinstance(response, Response), "administration is not live"
        return response

    def _refused(self, request: Request, found: Found) -> Response | LateAnswer | None:
        """The answer to a request that no handler gets. Raises one of `REFUSALS`."""
        if late := self._admit(request, found):
            return late
        if request.method not in _WRITES:
            return None
        check_coding(request)
        return self._redirect(request, found)

    def _redirect(self, request: Request, found: Found) -> Response | None:
        """The redirect of a write to the leader, with ``server.non_leader = "redirect"``. None
        leaves the write to this node, which forwards it."""
        if self._service.server.non_leader != "redirect" or not found.resource.routes:
            return None
        if found.resource.is_operation or isinstance(request.identity, SignedIdentity):
            return None  # A signed URL is not valid at the leader's address.
        address = self._service.node.leader_address()
        if address is None:
            return None
        query = b"?" + request.query if request.query else b""
        target = b"%b://%b%b%b" % (request.scheme, address.encode(), request.path, query)
        return Response(307, b"Location: %b\r\nCache-Control: no-store\r\n" % target)

    def _operation_refused(self, request: Request, resource: Resource) -> Response | None:
        """The answer to an operation that is not for this sender, or not for pages. Only refusals
        are charged to their senders: nothing may keep those out who can raise limits."""
        needs_of = resource.needs.get(request.method, resource.otherwise)
        is_closed = self._authority.is_required or request.path.startswith(_TOKENS)
        try:
            if resource.is_guarded:
                self._check_page(request, resource)
            if needs_of is not None and is_closed:
                wanted = partial(needs_of, None, request.headers)
                request.identity = self._authority.admit(request, wanted, takes_signed=False)
        except REFUSALS as error:
            response = self._dispatcher.refusal(error)
        else:
            return None
        if late := self._rates.refusal(request):
            response = late.answer
        response.audience = resource.audience(response.status)
        return response

    def _check_page(self, request: Request, resource: Resource) -> None:
        """Raises `ProblemError` for a page that may not use what is guarded."""
        self._admin_guard.check(
            request,
            takes_post="POST" in resource.routes,
            is_for_clients=not resource.is_operation,
        )

    async def _operate(self, request: Request, resource: Resource) -> Response:
        """Answer a request for something that is neither a stream nor a bucket."""
        if request.path == b"*" and request.method == "OPTIONS":
            return preflight()
        if response := self._operation_refused(request, resource):
            return response
        asking = partial(self._ask, request, resource)
        if resource.records(request.method) and self._auditor.records(request):
            response = await self._auditor.carry_out(request, asking)
        else:
            response = await asking()
            if request.method in _READS:
                self._admit_again(request, response)
        response.audience = resource.audience(response.status)
        return response

    async def _ask(self, request: Request, resource: Resource) -> Response:
        """The operations app's answer, if the operation is served here."""
        if not resource.routes or not (self._serves_operators or resource.is_for_clients):
            return NO_SUCH_ROUTE.response()
        if request.method not in resource.routes:
            return resource.other(request.method, None)
        return await self._ops(request)

    def _described(self, request: Request) -> tuple[str, Sequence[Need]]:
        """As the auditor wants it: the label of a request's route, and what it needs, as far as
        that is known."""
        resource, target = self._find(request.path)
        try:
            return resource.label, resource.scopes(request.method, target, request.headers)
        except ProblemError:
            return resource.label, ()


def _keep_from_pages(response: Response | LiveResponse | Parked) -> None:
    """Let no page of another origin read an answer."""
    answer = response.answer if isinstance(response, LateAnswer) else response
    assert isinstance(answer, Response), "what is guarded is not live"
    answer.audience = Audience.OWN_PAGES


def check_coding(request: Request) -> None:
    """Raises `ProblemError` for a write whose body has a coding."""
    if CONTENT_ENCODING.key in request.headers:
        refuse_coding(request.headers[CONTENT_ENCODING.key])
