"""Requests until there is an answer: which are tried again, at which node, and for how long."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Mapping, Sequence
from http import HTTPStatus
from urllib.parse import urlencode, urljoin, urlsplit

from streamd.client.core.steps import RECEIVE, Answer, Emit, Flow, Lost, Pause, Request, Send
from streamd.client.errors import (
    NOT_OURS,
    OutcomeUnknown,
    StreamdError,
    Unavailable,
    Unreachable,
    foreign_refusal,
    refusal,
)
from streamd.client.names import V1
from streamd.process.redaction import shown
from streamd.protocol.headers import LOCATION, RETRY_AFTER

# A long-poll is silent for 30 s, a tail for 15 s; a server that is silent longer is gone.
TIMEOUT_S = 60.0
RETRY_FOR_S = 60.0
_MAX_REDIRECTS = 5
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0
_LONGEST_ASKED_PAUSE_S = 300.0
_ANNOUNCE_AFTER_S = 1.0
# Time that the last answer may take beyond the time for retries.
GRACE_S = 1.5
_LEAST_TIMEOUT_S = 0.1

_READS = frozenset({"GET", "HEAD"})

# Gets what a call waits for, and None once it no longer waits. A key tells calls apart.
Watch = Callable[[object, str | None], None]


def _ignore(_: str) -> None:
    pass


def _unwatched(_: object, __: str | None) -> None:
    pass


class Session:
    """What the requests of one client share: its nodes, and how long it tries.

    `retry_for_s` is how long a request is tried again. If it is None, that is 60 s once a server
    has answered, and not at all before: an address that never answered is probably wrong.
    `renews` is whether credentials are asked for before each request: then a 401 is tried again
    once. `announce` gets a sentence when a request takes long.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        retry_for_s: float | None = None,
        renews: bool = False,
        announce: Callable[[str], None] = _ignore,
        clock: Callable[[], float] = time.monotonic,
        jitter: Callable[[float, float], float] = random.uniform,
    ) -> None:
        if not urls:
            raise ValueError("name the URL of a node")
        # Other clients of the protocol are given the URL below which the streams are.
        self.urls = [url.rstrip("/").removesuffix(V1.rstrip("/")) for url in urls]
        self._origins = {_origin(url) for url in urls}
        self._at = 0
        self.met = retry_for_s is not None
        self.retry_for_s = RETRY_FOR_S if retry_for_s is None else retry_for_s
        self.renews = renews
        self.announce = announce
        self.clock = clock
        self.jitter = jitter
        self.is_bounded = self.answered = False
        self.watch: Watch = _unwatched

    def bound(self, watch: Watch) -> None:
        """Let `retry_for_s`, and `GRACE_S`, bound each call with all that it waits for: a server
        that is silent, too. A reader that follows a stream is bound until a server has answered.
        """
        self.is_bounded = True
        self.watch = watch

    @property
    def url(self) -> str:
        """The node that is asked."""
        return self.urls[self._at]

    @property
    def nodes(self) -> int:
        return len(self.urls)

    def trusts(self, url: str) -> bool:
        """Whether credentials may go there: to the origin of a node that the caller named."""
        return _origin(url) in self._origins

    def avoid(self, url: str) -> None:
        """Ask the node after this one from now on, unless that has happened already."""
        if self.url == url:
            self._at = (self._at + 1) % len(self.urls)


def _origin(url: str) -> tuple[str, str | None, int | None]:
    parts = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme)
    return parts.scheme, parts.hostname, port


class Backoff:
    """Pauses between tries, each longer than the last, until the time for retries is over."""

    def __init__(self, session: Session, *, endless: bool = False) -> None:
        self._session = session
        self._is_endless = endless
        # Whether a try that failed may have taken effect.
        self.is_doubtful = False
        self.reset()

    def reset(self) -> None:
        """Start over after progress."""
        self._begun: float | None = None
        self._since: float | None = None
        self._pause_s = _FIRST_PAUSE_S
        self._failed = 0
        self._announced = False

    @property
    def _is_bound(self) -> bool:
        session = self._session
        return session.is_bounded and not (self._is_endless and session.answered)

    def begin(self, url: str) -> float | None:
        """Begin a try. Returns how long the node may be silent: None for as long as any."""
        if not self._is_bound:
            return None
        session, now = self._session, self._session.clock()
        if self._begun is None:
            self._begun = now
        session.watch(self, f"waiting for {shown(url)} to answer")
        # Each node has its share of the time, so that one that hangs does not keep the others out.
        nodes = max(1, session.nodes - self._failed)
        left_s = self._begun + session.retry_for_s + GRACE_S - now
        return max(left_s / nodes, _LEAST_TIMEOUT_S)

    def end(self) -> None:
        """The call has ended, or goes on with what it waits for."""
        self._session.watch(self, None)

    def pause_after(self, url: str, failure: Lost | StreamdError) -> Pause:
        """The pause before the next try. Raises the failure when the time is over."""
        if isinstance(failure, Lost) and failure.by_caller:
            return Pause(0.0)
        session, now = self._session, self._session.clock()
        is_bound, limit_s = self._is_bound, session.retry_for_s
        if self._since is None:
            self._since = now if self._begun is None else self._begun
        self.is_doubtful = self.is_doubtful or not _changed_nothing(failure)
        pause_s = self._pause_s * session.jitter(0.5, 1.0)
        met = True
        if isinstance(failure, Lost):
            session.avoid(url)
            self._failed += 1
            all_asked = self._failed % session.nodes == 0
            met = session.met or not all_asked
            pause_s = pause_s if all_asked else 0.0
            if is_bound and self._failed < session.nodes:
                limit_s += GRACE_S  # A node that was not asked yet has its share of that.
        else:
            pause_s = max(pause_s, asked_pause_s(failure.headers))
        if self._is_endless and not is_bound:
            limit_s = float("inf")
        if not met or now - self._since + pause_s > limit_s:
            raise Unreachable(_in_words(url, failure)) if isinstance(failure, Lost) else failure
        if is_bound:
            session.watch(self, f"{_in_words(url, failure)}; trying again")
        elif now - self._since > _ANNOUNCE_AFTER_S and not self._announced:
            session.announce(f"{_in_words(url, failure)}; trying again")
            self._announced = True
        if pause_s:
            self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)
        return Pause(pause_s)


def asked_pause_s(headers: Mapping[str, str]) -> float:
    """The seconds of Retry-After; 0 without it, or if it is a date."""
    raw = headers.get(RETRY_AFTER, "")
    return min(float(raw), _LONGEST_ASKED_PAUSE_S) if raw.isdecimal() else 0.0


def _in_words(url: str, failure: Lost | StreamdError) -> str:
    what = f"cannot serve the request now ({failure})"
    if isinstance(failure, Lost):
        what = f"broke off: {failure}" if failure.sent else f"cannot be reached: {failure}"
    return f"{shown(url)} {what}"


def ask(
    session: Session,
    request: Request,
    *,
    repeatable: bool = True,
    in_pieces: bool = False,
    backoff: Backoff | None = None,
) -> Flow[Answer]:
    """Try until there is an answer, and return it if it is a success.

    A request that is not `repeatable` is tried again only if it cannot have taken effect. Raises
    `Refused`, `Unreachable`, `OutcomeUnknown`.
    """
    backoff = backoff or Backoff(session)
    try:
        return (yield from _tries(session, request, repeatable, in_pieces, backoff))
    finally:
        backoff.end()


def _tries(
    session: Session, request: Request, repeatable: bool, in_pieces: bool, backoff: Backoff
) -> Flow[Answer]:
    renewed = False
    while True:
        url = session.url
        timeout_s = backoff.begin(url)
        failure: Lost | StreamdError
        try:
            answer = yield from _exchange(session, url, request, in_pieces, timeout_s)
        except Lost as lost:
            if not repeatable and not _changed_nothing(lost):
                raise OutcomeUnknown("OUTCOME_UNKNOWN", _in_words(url, lost)) from lost
            failure = lost
        else:
            if answer.is_success:
                session.answered = True
                return answer
            failure = error_of(request, answer)
            if answer.status == 401 and session.renews and not renewed:
                renewed = True
                continue
            if not isinstance(failure, Unavailable | OutcomeUnknown):
                raise failure
            if not repeatable and not _changed_nothing(failure):
                raise OutcomeUnknown(failure.code, failure.message, failure.status, failure.headers)
        try:
            pause = backoff.pause_after(url, failure)
        except Unavailable as over:
            # A proxy that fails may have passed a write on.
            if request.method in _READS or not backoff.is_doubtful:
                raise
            raise OutcomeUnknown(over.code, over.message, over.status, over.headers) from over
        yield pause


def receive(session: Session, request: Request) -> Flow[None]:
    """Emit an answer of any size: first without its body, and then the pieces of that.

    It is asked for again only until a piece has arrived: raises `Unreachable` if it breaks off
    after that. Raises as `ask` does.
    """
    backoff = Backoff(session)
    while True:
        answer = yield from ask(session, request, in_pieces=True, backoff=backoff)
        url, size = session.url, 0
        try:
            piece = yield RECEIVE
            yield Emit(answer)
            while piece:
                size += len(piece)
                yield Emit(piece)
                piece = yield RECEIVE
            return
        except Lost as lost:
            if size:
                message = f"{shown(url)} broke off after {size} bytes"
                raise Unreachable(message) from lost
            yield backoff.pause_after(url, lost)


def _changed_nothing(failure: Lost | StreamdError) -> bool:
    """Whether a request that failed, or was refused for now, cannot have taken effect."""
    if isinstance(failure, Lost):
        return not failure.sent
    # The server's own refusals change nothing (docs/api.md); a proxy in between promises nothing.
    is_ours = failure.message != NOT_OURS
    return failure.status == 429 or (is_ours and not isinstance(failure, OutcomeUnknown))


def _exchange(
    session: Session, node: str, request: Request, in_pieces: bool, timeout_s: float | None
) -> Flow[Answer]:
    """Send to a node and follow its redirects, with the body again."""
    url = node + request.path
    if request.params:
        url += f"?{urlencode(request.params)}"
    trusted = True
    for _ in range(_MAX_REDIRECTS):
        try:
            answer: Answer = yield Send(url, request, trusted, in_pieces, timeout_s)
        except Lost as lost:
            session.met = session.met or lost.answered
            raise
        session.met = True
        if answer.status not in (307, 308) or LOCATION not in answer.headers:
            if answer.status == 401 and not trusted:
                raise _without_credentials(url, error_of(request, answer))
            return answer
        url = _target(url, answer)
        trusted = session.trusts(url)
    raise refusal(answer.status, "REDIRECTS", f"more than {_MAX_REDIRECTS} redirects", {})


def _target(url: str, answer: Answer) -> str:
    """Where an answer redirects to. Raises `StreamdError` if that is not a URL."""
    location = answer.headers[LOCATION]
    try:
        target = urljoin(url, location)
        scheme, host, _ = _origin(target)
    except ValueError:
        scheme, host = "", None
    if scheme not in ("http", "https") or not host or not target.isascii():
        raise unexpected(answer.status, f"it redirects to {shown(location)!r}")
    return target


def _without_credentials(url: str, failure: StreamdError) -> StreamdError:
    """The refusal of a node that a redirect led to, with what the caller can do about it."""
    node = shown(urljoin(url, "/"))
    message = f"{failure.message}; {node} gets no token unless it is one of the URLs given"
    return refusal(401, failure.code, message, failure.headers)


def error_of(request: Request, answer: Answer) -> StreamdError:
    """The error that an answer describes."""
    status = answer.status
    try:
        error = dict(json.loads(answer.body)["error"])
        # The protocol's own errors of subscriptions need no message (section 7).
        code, message = str(error.pop("code")), str(error.pop("message", ""))
    except (ValueError, KeyError, TypeError, RecursionError):
        # An answer to HEAD has no body.
        message = "" if request.method == "HEAD" else NOT_OURS
        return foreign_refusal(request.method, status, _phrase(status), message, answer.headers)
    return refusal(status, code, message, answer.headers, error)


def unexpected(status: int, message: str) -> StreamdError:
    """The error for an answer that breaks the protocol."""
    return refusal(status, "UNEXPECTED", f"the answer breaks the protocol: {message}", {})


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "unknown status"
