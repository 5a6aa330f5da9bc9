"""Operations as a listener serves them: health, metrics, administration. Kept from web pages,
admitted by their scopes, and answered by the operations app."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from functools import partial

from streamd.config.settings import ServerConfig
from streamd.http.access import needs
from streamd.http.access.admin_guard import PUBLIC_PATHS, AdminGuard
from streamd.http.access.auditor import Auditor
from streamd.http.access.authority import Authority
from streamd.http.access.rates import RateLimits
from streamd.http.prompt_answers import REFUSALS, PromptAnswers
from streamd.http.protocol.messages import Request, Response
from streamd.http.protocol.routing import NO_SUCH_ROUTE
from streamd.protocol.headers import ACCEPT_ENCODING, HEADERS

# The operations app.
Ops = Callable[[Request], Awaitable[Response]]

# Tokens are given out to known people only, also where nobody else has to say who they are.
_TOKENS = b"/auth/"
_ALLOW = re.compile(rb"^allow: ([^\r]*)\r$", re.MULTILINE | re.IGNORECASE)
_READS = frozenset(("GET", "HEAD"))
_ALL_METHODS = b"GET, HEAD, POST, PUT, DELETE, OPTIONS"
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


class Operations:
    """The operations at a listener: those whose paths `serves` accepts. The others do not exist
    there; a stranger cannot tell, because authority comes first.

    `server` has the listener's names.
    """

    def __init__(
        self,
        ops: Ops,
        authority: Authority,
        answers: PromptAnswers,
        auditor: Auditor,
        rates: RateLimits,
        server: ServerConfig,
        serves: Callable[[bytes], bool],
    ) -> None:
        self._ops = ops
        self._authority = authority
        self._answers = answers
        self._auditor = auditor
        self._rates = rates
        self._guard = AdminGuard(server, requires_tokens=authority.is_required)
        self._serves = serves

    def refusal(self, request: Request) -> Response | None:
        """The answer to an operation that is not for this sender, or not for pages. Only refusals
        are charged to their senders: nothing may keep those out who can raise limits."""
        is_public = self._is_public(request.path)
        response = None if is_public else self._guard.refusal(request)
        wanted = needs.operation(request.method, request.path)
        is_closed = self._authority.is_required or request.path.startswith(_TOKENS)
        if response is None and wanted is not None and is_closed:
            try:
                self._authority.admit(request, lambda: wanted)
            except REFUSALS as error:
                response = self._answers.refusal(error)
        if response is None:
            return None
        if late := self._rates.refusal(request):
            response = late.answer
        response.private = not is_public
        return response

    async def answer(self, request: Request) -> Response:
        """Answer any request for something that is neither a stream nor a bucket."""
        if request.path == b"*" and request.method == "OPTIONS":
            return preflight(_ALL_METHODS)
        if response := self.refusal(request):
            return response
        is_public = self._is_public(request.path)
        asking = partial(self._ask, request, preflight if is_public else _methods)
        if self._auditor.records(request):
            response = await self._auditor.carry_out(request, asking)
        else:
            response = await asking()
            if request.method in _READS:
                response = self._again(request) or response
        response.private = not is_public
        return response

    def _again(self, request: Request) -> Response | None:
        """The refusal of a request whose token was revoked while it was answered: perhaps before it
        came, where the leader knew more."""
        try:
            self._authority.admit_again(request)
        except REFUSALS as error:
            return self._answers.refusal(error)
        return None

    def _is_public(self, path: bytes) -> bool:
        return path in PUBLIC_PATHS and self._serves(path)

    async def _ask(self, request: Request, options: Callable[[bytes], Response]) -> Response:
        """The operations app's answer; to OPTIONS, what `options` makes of the allowed methods."""
        if not self._serves(request.path):
            return NO_SUCH_ROUTE.response()
        response = await self._ops(request)
        allowed = _ALLOW.search(response.head)
        if request.method != "OPTIONS" or response.status != 200 or allowed is None:
            return response
        return options(listed(sorted(allowed[1].decode().split(", "))))


def listed(methods: Iterable[str]) -> bytes:
    """Methods as in an Allow header."""
    return ", ".join(methods).encode()


def preflight(allowed: bytes) -> Response:
    """The answer to a browser that asks which methods and headers are allowed."""
    return Response(204, _PREFLIGHT % (allowed, allowed))


def _methods(allowed: bytes) -> Response:
    return Response(204, b"Allow: %b\r\n" % allowed)
