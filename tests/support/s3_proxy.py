"""A proxy before an object store, through which every request can be made to fail.

It forwards everything byte for byte, so that signatures stay valid, and applies the faults that a
test requests to the next requests of a method. It can also hold a request at a certain moment, so
that a test can kill who made it just then.
"""

from __future__ import annotations

import http.client
import socket
import struct
import threading
from collections import Counter, deque
from contextlib import closing, suppress
from dataclasses import dataclass
from enum import Enum
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from typing import Any, cast
from urllib.parse import unquote

from tests.support.listener import Listener

_UPSTREAM_TIMEOUT_S = 20.0
_HOLD_TIMEOUT_S = 60.0
_METHODS = ("GET", "PUT", "HEAD", "POST", "DELETE")
_SLOW_DOWN = b"""<?xml version="1.0" encoding="UTF-8"?>
<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"""


class Fault(Enum):
    """What may happen to a request."""

    SLOW_DOWN = "503 in the store's own words; the request was not passed on"
    BAD_GATEWAY = "503 of some web server; the request was not passed on"
    LATE = "nothing is answered for as long as the test lasts; the request was not passed on"
    SLOW = "the request is done, and the answer comes `slow_s` late"
    RESET_IN_BODY = "the connection breaks in the middle of the request's body"
    REPLY_LOST = "the request is done, then the connection breaks"
    TWICE = "the request is done twice"
    CUT_SHORT = "the connection ends in the middle of the answer's body"
    FLIPPED_BIT = "one bit of the answer's body is another"
    SHORT_BODY = "half of the answer's body comes, as if it were all"


class Moment(Enum):
    """When a request may be held."""

    BEFORE = "it has come whole, and the store knows nothing of it"
    BEHIND = "the store has done it, and nobody else knows"


class Hold:
    """One request that will be held, is held, or was held; `about` is part of its object's name."""

    def __init__(self, moment: Moment, method: str, about: str, *, passed_over: int = 0) -> None:
        self.moment = moment
        self.method = method
        self.about = about
        self.drops = False
        self._left = passed_over
        self._reached = threading.Event()
        self._released = threading.Event()

    def wait(self, timeout_s: float = _HOLD_TIMEOUT_S) -> None:
        """Wait until a request is held."""
        assert self._reached.wait(timeout_s), f"no {self.method} of {self.about} within time"

    @property
    def is_reached(self) -> bool:
        return self._reached.is_set()

    def release(self, *, drop: bool = False) -> None:
        """Let it continue; or break its connection, so that the store never receives it."""
        self.drops = drop
        self._released.set()

    def claims(self, method: str, about: str) -> bool:
        """Whether this request is the one to be held."""
        if self._reached.is_set() or method != self.method or self.about not in about:
            return False
        self._left -= 1
        if self._left < 0:
            self._reached.set()
        return self._reached.is_set()

    def hold(self) -> bool:
        """Keep the request until it is released. Returns whether to drop it then."""
        self._released.wait(_HOLD_TIMEOUT_S)
        return self.drops


@dataclass
class _Answer:
    status: int
    reason: str
    headers: list[tuple[str, str]]
    body: bytes


class S3Proxy(Listener):
    """Forwards requests, and applies faults to them."""

    def __init__(self, upstream_port: int) -> None:
        super().__init__()
        self._upstream_port = upstream_port
        self._lock = threading.Lock()
        self._faults: dict[str, deque[Fault]] = {}
        self._always: dict[str, Fault] = {}
        self._about = ""
        self._holds: list[Hold] = []
        self.slow_s = 1.0
        # Faults done, and requests passed on by method.
        self.done: Counter[Fault] = Counter()
        self.passed: Counter[str] = Counter()
        self.endpoint = self.url

    def serve(self, client: socket.socket) -> None:
        _Handler(client, self)

    def fail(self, method: str, *faults: Fault) -> None:
        """Do these to the next requests of that method, one each."""
        with self._lock:
            self._faults.setdefault(method, deque()).extend(faults)

    def fail_always(self, method: str, fault: Fault) -> None:
        """Do this to all requests of that method, until `heal`."""
        with self._lock:
            self._always[method] = fault

    def fail_all(self, fault: Fault) -> None:
        """Do this to every request, until `heal`."""
        for method in _METHODS:
            self.fail_always(method, fault)

    def only(self, about: str) -> None:
        """Until `heal`, faults affect only requests about an object with this in its name."""
        self._about = about

    def hold(self, moment: Moment, method: str, about: str = "", passed_over: int = 0) -> Hold:
        """Hold one request of a method, about something whose name has `about` in it, after
        so many others of its kind were passed over."""
        hold = Hold(moment, method, about, passed_over=passed_over)
        with self._lock:
            self._holds.append(hold)
        return hold

    def heal(self) -> None:
        """End all faults, and release everything held."""
        with self._lock:
            self._faults.clear()
            self._always.clear()
            self._about = ""
            holds, self._holds = self._holds, []
        for hold in holds:
            hold.release()

    def held(self, moment: Moment, method: str, about: str) -> bool:
        """Hold a request if required. Returns whether to drop it."""
        with self._lock:
            waiting = [hold for hold in self._holds if hold.moment is moment]
            hold = next((hold for hold in waiting if hold.claims(method, about)), None)
        return hold is not None and hold.hold()

    def next_fault(self, method: str, about: str) -> Fault | None:
        with self._lock:
            if self._about not in about:
                return None
            waiting = self._faults.get(method)
            fault = waiting.popleft() if waiting else self._always.get(method)
            if fault is not None:
                self.done[fault] += 1
            return fault

    def forward(
        self, method: str, path: str, headers: list[tuple[str, str]], body: bytes
    ) -> _Answer:
        with closing(self._sent(method, path, headers, body)) as connection:
            response = connection.getresponse()
            answer = _Answer(
                response.status, response.reason, response.getheaders(), response.read()
            )
        with self._lock:
            self.passed[method] += 1
        return answer

    def forward_half(
        self, method: str, path: str, headers: list[tuple[str, str]], body: bytes
    ) -> None:
        """Send the store an incomplete request."""
        self._sent(method, path, headers, body[: len(body) // 2]).close()

    def _sent(
        self, method: str, path: str, headers: list[tuple[str, str]], body: bytes
    ) -> http.client.HTTPConnection:
        """A connection to the store on which a request was sent."""
        connection = http.client.HTTPConnection(
            "127.0.0.1", self._upstream_port, timeout=_UPSTREAM_TIMEOUT_S
        )
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        for name, value in headers:
            connection.putheader(name, value)
        connection.endheaders(body or None)
        return connection

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.heal()
        super().__exit__(kind, error, traceback)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, client: socket.socket, owner: S3Proxy) -> None:
        self.owner = owner
        super().__init__(client, client.getpeername(), cast("Any", None))

    def handle(self) -> None:
        with suppress(OSError, http.client.HTTPException):
            super().handle()

    def _relay(self) -> None:
        owner, method = self.owner, self.command
        headers = list(self.headers.items())
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        # Many objects are deleted by one POST, which names them in its body.
        about = unquote(self.path) + (body.decode(errors="replace") if method == "POST" else "")
        if owner.held(Moment.BEFORE, method, about):
            return self._reset()
        fault = owner.next_fault(method, about)
        match fault:
            case Fault.SLOW_DOWN:
                xml = [("Content-Type", "application/xml")]
                return self._answer(_Answer(503, "Slow Down", xml, _SLOW_DOWN))
            case Fault.BAD_GATEWAY:
                html = [("Content-Type", "text/html")]
                return self._answer(_Answer(503, "Unavailable", html, b"<h1>Sorry</h1>"))
            case Fault.LATE:
                owner.over.wait()
                return self._reset()
            case Fault.RESET_IN_BODY:
                owner.forward_half(method, self.path, headers, body)
                return self._reset()
            case Fault.TWICE:
                owner.forward(method, self.path, headers, body)
        answer = owner.forward(method, self.path, headers, body)
        if owner.held(Moment.BEHIND, method, about) or fault is Fault.REPLY_LOST:
            return self._reset()
        if fault is Fault.SLOW:
            owner.over.wait(owner.slow_s)
        if fault is Fault.FLIPPED_BIT:
            damaged = bytearray(answer.body)
            damaged[len(damaged) // 2] ^= 0x10
            answer.body = bytes(damaged)
        elif fault is Fault.SHORT_BODY:
            answer.body = answer.body[: len(answer.body) // 2]
        return self._answer(answer, cut_short=fault is Fault.CUT_SHORT)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = _relay

    def _answer(self, answer: _Answer, *, cut_short: bool = False) -> None:
        self.send_response_only(answer.status, answer.reason)
        length = str(len(answer.body))
        for name, value in answer.headers:
            if name.lower() == "content-length" and self.command == "HEAD":
                length = value
            elif name.lower() not in ("content-length", "transfer-encoding", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", length)
        self.end_headers()
        self.wfile.write(answer.body[: len(answer.body) // 2] if cut_short else answer.body)
        self.close_connection = cut_short

    def _reset(self) -> None:
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.close()
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass
