"""Requests to a server: which are tried again, at which node, and for how long.

`Server.ask` and `attempt` are for requests that may be made twice: reads, creates, closes and
deletes by their nature, appends because they carry a producer's numbers. `ask_once` is for the
others.
"""

from __future__ import annotations

import json
import random
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from http import HTTPStatus
from typing import Any, NamedTuple

import httpx

from streamd import __version__
from streamd.headers import ACCEPT_ENCODING, LOCATION, RETRY_AFTER
from streamd.redaction import shown

Body = bytes | Callable[[], Iterator[bytes]]

# The limit of an answer that is read as a whole: above the largest piece of a read.
MAX_ANSWER_BYTES = 64 * 1024 * 1024
RETRY_FOR_S = 60.0
_CONNECT_S = 10.0
# A long-poll is silent for 30 s, a tail for 15 s; a server that is silent longer is gone.
_SILENCE_S = 60.0
_MAX_REDIRECTS = 5
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0
_LONGEST_ASKED_PAUSE_S = 300.0
_ANNOUNCE_AFTER_S = 2.0
_BUSY = (429, 502, 503, 504)
_PEEK_S = 3.0


class ApiError(Exception):
    """The server refused. `code` is its stable code, or the status in words."""

    def __init__(self, status: int, code: str, message: str, headers: Mapping[str, str]) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.headers = headers

    def __str__(self) -> str:
        message = str(self.args[0])
        return f"{self.status} {self.code}: {message}" if message else f"{self.status} {self.code}"


class Unreachable(Exception):
    """No server answered, or could serve the request, within the time for retries."""


class Busy(Exception):
    """The server asks to try again later: after `pause_s`, or 0 if it does not say."""

    def __init__(self, refusal: ApiError) -> None:
        super().__init__(str(refusal))
        self.refusal = refusal
        raw = refusal.headers.get(RETRY_AFTER, "")
        self.pause_s = float(raw) if raw.isdigit() else 0.0


class Broken(Exception):
    """An answer ended before it was complete."""


class Answer(NamedTuple):
    """An answer with its whole body."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def json(self) -> dict[str, Any]:
        """The JSON object in the body. Raises `ApiError` if it is anything else."""
        try:
            value = json.loads(self.body)
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise ApiError(self.status, "UNEXPECTED", _NOT_OURS, self.headers)
        return value


class _Request(NamedTuple):
    """A request, which may be sent several times and to several nodes."""

    method: str
    path: str
    params: Mapping[str, str] | None = None
    headers: Mapping[str, str] | None = None
    body: Body = b""


_NOT_OURS = "the answer is not streamd's"
# Parameters of reports that only the leader can give: any node fetches them from it.
AT_LEADER: Mapping[str, str] = {"at": "leader"}


FAILURES = (httpx.TransportError, httpx.DecodingError, Busy, Broken)


class Server:
    """One server, or the nodes of a cluster: when one is gone the next is asked.

    `retry_for_s` is how long a request is tried again. By default that is 60 s once a server has
    answered, and not at all before: an address that never answered is probably wrong. The `token`
    goes to every node, also to one that a node names, and so does the certificate in the file
    `cert`, with its key. Raises `ssl.SSLError` for files that cannot be used.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        cacert: str | None = None,
        cert: str | None = None,
        token: str | None = None,
        retry_for_s: float | None = None,
    ) -> None:
        assert urls, "there is a node to ask"
        self._urls = [url.rstrip("/") for url in urls]
        self._at = 0
        # Whether a server has answered before, and so may come back.
        self.met = retry_for_s is not None
        self._retry_for_s = RETRY_FOR_S if retry_for_s is None else retry_for_s
        headers = {"User-Agent": f"streamd/{__version__}", ACCEPT_ENCODING: "identity"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        self._client = httpx.Client(
            verify=_tls_context(urls, cacert, cert),
            timeout=httpx.Timeout(_SILENCE_S, connect=_CONNECT_S),
            headers=headers,
        )

    @property
    def url(self) -> str:
        return self._urls[self._at]

    @property
    def shown_url(self) -> str:
        """The URL for messages, without any credentials in it."""
        return shown(self.url)

    def close(self) -> None:
        self._client.close()

    def backoff(self, *, endless: bool = False) -> Backoff:
        """The pauses and the deadline for a request that begins now."""
        return Backoff(self, float("inf") if endless else self._retry_for_s)

    def ask(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        body: Body = b"",
        backoff: Backoff | None = None,
    ) -> Answer:
        """Try until there is an answer. Raises `ApiError`, `Unreachable`."""
        backoff = backoff or self.backoff()
        request = _Request(method, path, params, headers, body)
        while True:
            try:
                return self._try(request)
            except FAILURES as failure:
                backoff.wait(failure)

    def ask_once(
        self, method: str, path: str, *, headers: Mapping[str, str], body: bytes
    ) -> Answer:
        """Ask for what must not happen twice: retried only while no connection can be made.

        Raises `ApiError`, `Unreachable`.
        """
        backoff = self.backoff()
        request = _Request(method, path, None, headers, body)
        while True:
            try:
                return self._try(request)
            except (httpx.ConnectError, httpx.ConnectTimeout) as failure:
                backoff.wait(failure)
            except Busy as failure:
                raise failure.refusal from None
            except FAILURES as failure:
                reason = f"{self.shown_url} {_in_words(failure)}"
                raise Unreachable(f"{reason}; the request may have taken effect") from failure

    def _try(self, request: _Request) -> Answer:
        with self._answering(request) as response:
            return Answer(response.status_code, response.headers, read_whole(response))

    def peek(self, address: str, path: str) -> dict[str, Any] | None:
        """The JSON object that the node at `address` answers soon, or None."""
        url = httpx.URL(self.url).copy_with(netloc=address.encode()).join(path)
        try:
            with self._client.stream("GET", url, timeout=_PEEK_S) as response:
                response.raise_for_status()
                return Answer(response.status_code, response.headers, read_whole(response)).json()
        except (httpx.HTTPError, httpx.InvalidURL, ApiError):
            return None

    def attempt(
        self, method: str, path: str, params: Mapping[str, str] | None = None
    ) -> AbstractContextManager[httpx.Response]:
        """One try; the caller reads the body. Raises `ApiError` and `FAILURES`."""
        return self._answering(_Request(method, path, params))

    @contextmanager
    def _answering(self, request: _Request) -> Iterator[httpx.Response]:
        response = self._send(request)
        try:
            if not response.is_success:
                refusal = _refusal(response, read_whole(response))
                raise Busy(refusal) if refusal.status in _BUSY else refusal
            yield response
        finally:
            response.close()

    def _send(self, request: _Request) -> httpx.Response:
        """Send, and follow redirects, with the body again."""
        url = httpx.URL(self.url + request.path)
        if request.params:
            url = url.copy_merge_params(request.params)
        for _ in range(_MAX_REDIRECTS):
            response = self._client.send(self._built(request, url), stream=True)
            self.met = True
            if response.status_code not in (307, 308) or LOCATION not in response.headers:
                return response
            response.close()
            url = url.join(response.headers[LOCATION])
        raise ApiError(
            response.status_code, "REDIRECTS", f"more than {_MAX_REDIRECTS} redirects", {}
        )

    def _built(self, request: _Request, url: httpx.URL) -> httpx.Request:
        # A request of httpx is part of a reference cycle and keeps a body of bytes: a large append
        # would hold a hundred bodies until the garbage collector runs.
        body, headers = request.body, dict(request.headers or {})
        if isinstance(body, bytes):
            headers["Content-Length"] = str(len(body))
        content = iter((body,)) if isinstance(body, bytes) else body()
        return self._client.build_request(request.method, url, headers=headers, content=content)

    def next_node(self) -> bool:
        """Ask the next node from now on. Returns whether a pause is due: all nodes were asked."""
        self._at = (self._at + 1) % len(self._urls)
        return self._at == 0


class Backoff:
    """Pauses between tries, each longer than the last, until the deadline."""

    def __init__(self, server: Server, limit_s: float) -> None:
        self._server = server
        self._limit_s = limit_s
        self.reset()

    @property
    def tried(self) -> bool:
        """Whether a try failed; it may have taken effect."""
        return self._since is not None

    def reset(self) -> None:
        """Start over after progress."""
        self._since: float | None = None
        self._pause_s = _FIRST_PAUSE_S
        self._announced = False

    def wait(self, failure: Exception) -> None:
        """Pause before the next try. Raises `Unreachable` when the time is over."""
        if isinstance(failure, httpx.LocalProtocolError):
            raise failure  # the mistake is ours, and another try would repeat it
        now = time.monotonic()
        if self._since is None:
            self._since = now
        reason = f"{self._server.shown_url} {_in_words(failure)}"
        pause_s = self._pause_s * random.uniform(0.5, 1.0)
        if isinstance(failure, Busy):
            pause_s = max(pause_s, min(failure.pause_s, _LONGEST_ASKED_PAUSE_S))
            met = True
        else:
            all_asked = self._server.next_node()
            met = self._server.met or not all_asked
            pause_s = pause_s if all_asked else 0.0
        if not met or now - self._since + pause_s > self._limit_s:
            raise Unreachable(reason) from failure
        if now - self._since > _ANNOUNCE_AFTER_S and not self._announced:
            print(f"streamd: {reason}; trying again", file=sys.stderr)
            self._announced = True
        time.sleep(pause_s)
        if pause_s:
            self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)


def _tls_context(urls: Sequence[str], cacert: str | None, cert: str | None) -> ssl.SSLContext:
    if cacert is None and cert is None and not any(url.startswith("https:") for url in urls):
        # Loading the system's CAs takes longer than most commands. Without them a redirect to https
        # fails.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context = ssl.create_default_context(cafile=cacert)
    if cert is not None:
        # Without a password OpenSSL would ask a terminal for one.
        context.load_cert_chain(cert, password="")
    return context


def read_whole(response: httpx.Response) -> bytes:
    """The body, up to the limit. Raises `ApiError`, `httpx.TransportError`."""
    parts: list[bytes] = []
    size = 0
    for part in response.iter_bytes():
        parts.append(part)
        size += len(part)
        if size > MAX_ANSWER_BYTES:
            raise ApiError(
                response.status_code,
                "TOO_LARGE",
                f"the answer exceeds {MAX_ANSWER_BYTES} bytes",
                {},
            )
    return b"".join(parts)


def _refusal(response: httpx.Response, body: bytes) -> ApiError:
    status = response.status_code
    try:
        error = json.loads(body)["error"]
        code, message = str(error["code"]), str(error["message"])
    except (ValueError, KeyError, TypeError):
        code, message = _phrase(status), _NOT_OURS
        if response.request.method == "HEAD":  # its answer has no body
            message = ""
    return ApiError(status, code, message, response.headers)


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "unknown status"


def _in_words(failure: Exception) -> str:
    if isinstance(failure, Busy):
        return f"cannot serve the request now ({failure})"
    if isinstance(failure, httpx.ConnectError | httpx.ConnectTimeout):
        return f"cannot be reached: {failure}"
    return f"broke off: {failure or type(failure).__name__}"
