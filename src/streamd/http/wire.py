"""HTTP/1.1 on the wire: heads parsed strictly, bodies unframed, responses made.

A lenient server is one that a proxy in front of it understands differently, which is how requests
are smuggled. So whatever RFC 9112 lets a recipient repair is refused here. Parsing itself is
llhttp's; the checks before it are those that llhttp leaves to its user.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from http import HTTPStatus

import httptools

from streamd.http.messages import Buffer, Response, error_response

MAX_TARGET_BYTES = 8 * 1024
MAX_CHUNK_LINE_BYTES = 256
MAX_TRAILER_BYTES = 4 * 1024

_VISIBLE = bytes(range(0x20, 0x7F)) + bytes(range(0x80, 0x100)) + b"\t\r\n"
_TARGET = bytes(set(range(0x21, 0x7F)) - set(b'#\\"<>^`{|}'))
_METHODS = frozenset(
    (b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"PATCH", b"TRACE", b"CONNECT")
)
# Headers of which two could mean two things; all others are lists or of no interest here.
_SINGLE = frozenset(
    (
        b"host",
        b"content-length",
        b"transfer-encoding",
        b"content-type",
        b"authorization",
        b"expect",
        b"stream-ttl",
        b"stream-expires-at",
        b"stream-seq",
        b"stream-closed",
        b"stream-forked-from",
        b"stream-fork-offset",
        b"stream-fork-sub-offset",
        b"producer-id",
        b"producer-epoch",
        b"producer-seq",
    )
)
_HOST = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=%-]*(:[0-9]{0,5})?|\[[0-9A-Fa-f:.]+\](:[0-9]{0,5})?")
_REQUEST_LINE = re.compile(
    rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) [\x21-\x7e\x80-\xff]+ HTTP/[0-9]\.[0-9]\r\n"
)
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_ABSOLUTE = re.compile(rb"https?://([^/?]+)(.*)", re.IGNORECASE | re.DOTALL)
_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})|%00", re.IGNORECASE)
_DOTS = re.compile(rb"(^|/)(\.|%2e){2}(/|$)", re.IGNORECASE)
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})([ \t]*;[\t\x20-\x7e\x80-\xff]*)?")
_FORBIDDEN_TRAILERS = _SINGLE

STATUS_LINES = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode())
    for status in HTTPStatus
}
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Refused(Exception):
    """The request is not answered as asked: `response` is sent and the connection closed."""

    def __init__(self, status: int, code: str, message: str, head: bytes = b"") -> None:
        super().__init__(message)
        self.response: Response = error_response(status, code, message, head, close=True)


class _Parts:
    """What llhttp's callbacks gather."""

    __slots__ = ("headers", "url")

    def __init__(self) -> None:
        self.headers: dict[bytes, bytes] = {}
        self.url = b""

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in self.headers:
            if name in _SINGLE:
                text = name.decode("ascii", "replace")
                raise Refused(400, "DUPLICATE_HEADER", f"{text} is given more than once")
            value = self.headers[name] + b", " + value
        self.headers[name] = value


class Head:
    """A request's head. `content_length` is None for a chunked body."""

    __slots__ = ("content_length", "expects_continue", "headers", "keep_alive", "method", "path",
                 "query", "version")  # fmt: skip

    def __init__(self, raw: bytes, max_headers: int) -> None:
        """Parse a head, its closing empty line included. Raises `Refused`."""
        _check_lines(raw, max_headers)
        method = _method_of(raw)
        parts = _Parts()
        parser = httptools.HttpRequestParser(parts)
        try:
            parser.feed_data(raw)
        except httptools.HttpParserUpgrade:
            pass  # An upgrade that is asked for is declined by not taking notice.
        except httptools.HttpParserCallbackError as error:
            if isinstance(error.__context__, Refused):
                raise error.__context__ from None
            raise
        except httptools.HttpParserError as error:
            raise Refused(400, "BAD_REQUEST", f"malformed HTTP: {error}") from None
        self.version = parser.get_http_version()
        self.headers = parts.headers
        if self.version not in ("1.1", "1.0"):
            raise Refused(505, "HTTP_VERSION", "only HTTP/1.1 and HTTP/1.0 are spoken here")
        check_host(self.headers.get(b"host"), required=self.version == "1.1")
        self.method = method.decode("ascii")
        self.path, self.query = split_target(parts.url)
        self.content_length = self._body_length()
        self.keep_alive = self._keeps_alive()
        expect = self.headers.get(b"expect")
        check_expectation(expect)
        self.expects_continue = expect is not None

    def _body_length(self) -> int | None:
        length = self.headers.get(b"content-length")
        coding = self.headers.get(b"transfer-encoding")
        if coding is not None:
            if length is not None:
                raise Refused(
                    400, "AMBIGUOUS_LENGTH", "Content-Length and Transfer-Encoding are both given"
                )
            if coding.lower() != b"chunked" or self.version != "1.1":
                raise Refused(400, "INVALID_TRANSFER_ENCODING", "Transfer-Encoding must be chunked")
            return None
        if length is None:
            return 0
        if not length.isdigit() or len(length) > 18:
            raise Refused(400, "INVALID_CONTENT_LENGTH", "Content-Length is not a number")
        return int(length)

    def _keeps_alive(self) -> bool:
        connection = self.headers.get(b"connection")
        if connection is None:
            return self.version == "1.1"
        options = {option.strip() for option in connection.lower().split(b",")}
        if self.version == "1.0":
            return b"keep-alive" in options and b"close" not in options
        return b"close" not in options


def _check_lines(raw: bytes, max_headers: int) -> None:
    """Line ends, folding and control characters, which parsers like to be generous about."""
    if raw.translate(None, _VISIBLE):
        raise Refused(400, "BAD_REQUEST", "a control character in the head")
    lines = raw.count(b"\r\n")
    if raw.count(b"\n") != lines or raw.count(b"\r") != lines:
        raise Refused(400, "BAD_REQUEST", "a bare CR or LF in the head")
    if b"\n " in raw or b"\n\t" in raw:
        raise Refused(400, "BAD_REQUEST", "a folded header line")
    if lines - 2 > max_headers:
        raise Refused(431, "TOO_MANY_HEADERS", f"more than {max_headers} headers")


def _method_of(raw: bytes) -> bytes:
    """The method, from a request line of exactly the form that it must have."""
    line = _REQUEST_LINE.match(raw)
    if line is None:
        raise Refused(400, "BAD_REQUEST", "the request line is malformed")
    check_method(line[1])
    return line[1]


def check_method(method: bytes) -> None:
    """Raises `Refused` for a method that no resource here has."""
    if method in (b"CONNECT", b"TRACE"):
        raise Refused(
            405, "METHOD_NOT_ALLOWED", f"{method.decode()} is not allowed", b"Allow: OPTIONS\r\n"
        )
    if method not in _METHODS:
        raise Refused(501, "METHOD_UNKNOWN", "the method is not known")


def check_host(host: bytes | None, *, required: bool = False) -> None:
    """Raises `Refused`."""
    if host is None:
        if required:
            raise Refused(400, "MISSING_HOST", "Host is required")
    elif _HOST.fullmatch(host) is None:
        raise Refused(400, "INVALID_HOST", "Host is not a host and port")


def check_expectation(expect: bytes | None) -> None:
    """Raises `Refused`."""
    if expect is not None and expect.lower() != b"100-continue":
        raise Refused(417, "EXPECTATION_FAILED", "only Expect: 100-continue is understood")


def split_target(target: bytes) -> tuple[bytes, bytes]:
    """Path and query of a request target in origin form, or in absolute form.

    Raises `Refused`.
    """
    if len(target) > MAX_TARGET_BYTES:
        raise Refused(414, "TARGET_TOO_LONG", f"the target exceeds {MAX_TARGET_BYTES} bytes")
    if not target.startswith(b"/"):
        absolute = _ABSOLUTE.fullmatch(target)
        if absolute is None or _HOST.fullmatch(absolute[1]) is None:
            if target == b"*":
                return b"*", b""
            raise Refused(400, "INVALID_TARGET", "the request target is not a path")
        target = absolute[2] if absolute[2].startswith(b"/") else b"/" + absolute[2]
    if target.translate(None, _TARGET):
        raise Refused(400, "INVALID_TARGET", "the request target has a character not allowed there")
    path, _, query = target.partition(b"?")
    return _checked_path(path), query


def _checked_path(path: bytes) -> bytes:
    """A raw path that means one thing only. Raises `Refused`."""
    if b"%" in path and _ESCAPE.search(path):
        raise Refused(400, "INVALID_PATH", "the path has an invalid percent escape")
    if (b".." in path or b"%" in path) and _DOTS.search(path):
        raise Refused(400, "INVALID_PATH", "the path has a .. segment")
    return path


def single_headers(pairs: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Headers by lower-case name; repeats are joined, or refused where they are ambiguous."""
    parts = _Parts()
    for name, value in pairs:
        parts.on_header(bytes(name), bytes(value))
    return parts.headers


class Chunked:
    """Undoes the chunked coding of one body, piece by piece (RFC 9112 section 7.1)."""

    __slots__ = ("_left", "_state", "body", "done", "trailer_bytes")

    def __init__(self) -> None:
        self.body = bytearray()
        self.done = False
        self.trailer_bytes = 0
        self._left = 0
        self._state = "size"

    def feed(self, buffer: bytearray) -> None:
        """Take what it can from the front of `buffer`, removing it there. Raises `Refused`."""
        while not self.done:
            if self._state == "data":
                piece = buffer[: self._left]
                self.body += piece
                del buffer[: len(piece)]
                self._left -= len(piece)
                if self._left:
                    return
                self._state = "data end"
            line = _take_line(buffer)
            if line is None:
                return
            self._take(line)

    def _take(self, line: bytes) -> None:
        if self._state == "data end":
            if line:
                raise Refused(400, "BAD_CHUNK", "a chunk is longer than its size")
            self._state = "size"
        elif self._state == "size":
            match = _CHUNK_SIZE.fullmatch(line)
            if match is None:
                raise Refused(400, "BAD_CHUNK", "a chunk size is malformed")
            self._left = int(match[1], 16)
            self._state = "data" if self._left else "trailer"
        elif not line:
            self.done = True
        else:
            self._take_trailer(line)

    def _take_trailer(self, line: bytes) -> None:
        """Trailers are dropped; those that would change the request are refused."""
        self.trailer_bytes += len(line)
        name, colon, value = line.partition(b":")
        if self.trailer_bytes > MAX_TRAILER_BYTES:
            raise Refused(431, "TRAILERS_TOO_LARGE", "the trailers are too large")
        well_formed = colon and _TOKEN.fullmatch(name) and not value.translate(None, _VISIBLE)
        if not well_formed or name.lower() in _FORBIDDEN_TRAILERS:
            raise Refused(400, "BAD_TRAILER", "a trailer is malformed or not allowed")


def _take_line(buffer: bytearray) -> bytes | None:
    """Take one line off the front, or None when it is not all there yet."""
    end = buffer.find(b"\n", 0, MAX_CHUNK_LINE_BYTES + 2)
    if end < 0:
        if len(buffer) > MAX_CHUNK_LINE_BYTES:
            raise Refused(400, "BAD_CHUNK", "a line of the chunked body is too long")
        return None
    line = bytes(buffer[: end + 1])
    if not line.endswith(b"\r\n") or b"\r" in line[:-2] or b"\0" in line:
        raise Refused(400, "BAD_CHUNK", "a bare CR or LF in the chunked body")
    del buffer[: end + 1]
    return line[:-2]


def body_parts(body: Buffer | Sequence[Buffer]) -> tuple[Sequence[Buffer], int]:
    """A response's body as parts, and their size in bytes."""
    if isinstance(body, bytes | memoryview):
        return (body,), len(body)
    return body, sum(map(len, body))
