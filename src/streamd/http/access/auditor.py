"""Records who administered the node and who was refused: an audit trail's view of requests.

An entry has what identifies a request and its sender, never a query, a header's unchecked
value, or a body: these may hold credentials and content.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from http import HTTPStatus
from urllib.parse import quote_from_bytes

import msgspec

from streamd.audit_trail.refusals import Kind
from streamd.audit_trail.trail import AuditTrail, AuditUnavailable, collect
from streamd.http.access.authority import Authority
from streamd.http.access.needs import SERVER, Need
from streamd.http.protocol.messages import LiveResponse, Request, Response
from streamd.http.protocol.refusals import ErrorBody, answer_to
from streamd.http.protocol.wire import body_parts
from streamd.streams.content import UNDECODABLE

# Answers that deny something to their sender.
_REFUSED = frozenset((401, 403, 421, 429))
_READS = frozenset(("GET", "HEAD", "OPTIONS"))
MAX_SHOWN = 1024
_MAX_SEARCHED = 2 * MAX_SHOWN
_MAX_METHOD = 16
# What somebody may have put into a path by mistake: tokens, JWTs, signatures of URLs. The id of a
# token may be seen. The time to search is linear: a JWT is looked for once in each word.
SECRETS = re.compile(
    r"(?<=sd_.{16}_)[a-z2-7]{32}"
    r"|(?<![\w-])(?=[\w-]*eyJ)[\w-]++(?:\.[\w-]*+){2,}+"
    r"|(?<=\.)[\w-]{86}"
)
PRINTABLE = "".join(map(chr, range(0x21, 0x7F)))
_UNESCAPED = PRINTABLE.replace("%", "")
# What a proxy says of a request. Anyone can say so, and the entry says only that it was said.
_SAID = (
    ("forwarded_for", b"x-forwarded-for", re.compile(rb"[A-Fa-f0-9.:,\[\] ]{1,256}")),
    ("request_id", b"x-request-id", re.compile(rb"[A-Za-z0-9-]{1,64}")),
)
_NETWORK = re.compile(r"[0-9a-f]{16}")

_ERROR = msgspec.json.Decoder(ErrorBody)


class Auditor:
    """Tells the `trail` of acts and refusals; without one it does nothing.

    `describe` says what kind of resource a request is for, and what the request needs.
    """

    def __init__(
        self,
        trail: AuditTrail | None,
        authority: Authority,
        describe: Callable[[Request], tuple[str, Sequence[Need]]],
    ) -> None:
        self._trail = trail
        self._authority = authority
        self._describe = describe

    def answered(self, request: Request, response: Response | LiveResponse) -> None:
        """Record an answer if it is a refusal."""
        if response.status in _REFUSED and self._trail is not None:
            assert isinstance(response, Response), "refusals are whole"
            entry, code = self._entry(request), _code(response)
            client = _shown_client(request.client)
            kind = Kind(response.status, code, client, self._authority.seen(request)[0])
            self._trail.refused(kind, {**entry, "status": response.status, "code": code})

    def records(self, request: Request) -> bool:
        """Whether a request for what is administered is an act that must be recorded."""
        return self._trail is not None and request.method not in _READS

    async def carry_out(self, request: Request, act: Callable[[], Awaitable[Response]]) -> Response:
        """Let an admitted request act, between its two entries."""
        assert self._trail is not None
        entry = self._entry(request)
        try:
            asked_id = await self._trail.asked(entry)
        except AuditUnavailable as error:
            return answer_to(error)
        details = collect()
        outcome: dict[str, object] = {"status": None, "code": "INTERRUPTED"}
        try:
            response = await act()
            outcome = {"status": response.status, "code": _code(response)}
        finally:
            if details:
                outcome["details"] = details
            await self._trail.done(asked_id, {**entry, **outcome})
        return response

    def _entry(self, request: Request) -> dict[str, object]:
        """What an entry has of a request."""
        who, credential = self._authority.seen(request)
        route, wanted = self._describe(request)
        entry: dict[str, object] = {
            "who": who,
            "credential": credential,
            "from": _shown_client(request.client),
            "method": request.method[:_MAX_METHOD],
            "route": route,
            "path": shown(request.path, PRINTABLE),
            "needs": [f"{need.verb}:{_shown_target(need)}" for need in wanted],
        }
        for name, header, form in _SAID:
            value = request.headers.get(header)
            if value is not None and form.fullmatch(value):
                entry[name] = value.decode()
        return entry


def _code(response: Response) -> str | None:
    """The code of an error. The body of a success may hold a new secret, and is not looked at."""
    if response.status < HTTPStatus.BAD_REQUEST:
        return None
    parts, _ = body_parts(response.body)
    try:
        return _ERROR.decode(b"".join(parts)).error.code
    except UNDECODABLE:
        return None


def _shown_target(need: Need) -> str:
    """A target as in a scope."""
    if need.target == SERVER:
        return "*"
    return shown(need.target.replace(b"\0", b"/", 1), _UNESCAPED)


def shown(raw: bytes, safe: str) -> str:
    """Bytes of a sender's choice, escaped, in a limited length, and without secrets."""
    # Found before the text is cut: half a secret no longer looks like one.
    text = SECRETS.sub("***", quote_from_bytes(raw[:_MAX_SEARCHED], safe))
    is_whole = len(raw) <= _MAX_SEARCHED and len(text) <= MAX_SHOWN
    return text if is_whole else text[:MAX_SHOWN] + "…"


def _shown_client(client: str) -> str | None:
    """The address that a request came from; of an IPv6 address its /64 (`addresses.client_of`)."""
    if _NETWORK.fullmatch(client) is None:
        return client or None
    return f"{socket.inet_ntop(socket.AF_INET6, bytes.fromhex(client) + bytes(8))}/64"
