"""Heads of requests, parsed strictly.

A lenient server may read a request differently than the proxy in front of it, and that lets
attackers smuggle requests. So this module refuses whatever RFC 9112 lets a recipient repair. llhttp
parses the headers; the checks around it are those that llhttp leaves to its user.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeVar

import httptools

from streamd.http.protocol.wire import SINGLE_HEADERS, VISIBLE, too_many_headers
from streamd.protocol.problems import Problem, ProblemError

MAX_TARGET_BYTES = 8 * 1024

_REMEMBERED = 8192
_REMEMBERED_BYTES = 512

_TARGET = bytes(set(range(0x21, 0x7F)) - set(b'#\\"<>^`{|}'))
_METHODS = frozenset(
    (
        b"GET",
        b"HEAD",
        b"POST",
        b"PUT",
        b"DELETE",
        b"OPTIONS",
        b"PATCH",
        b"QUERY",
        b"TRACE",
        b"CONNECT",
    )
)
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_REQUEST_LINE = re.compile(
    rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+) ([\x21-\x7e\x80-\xff]+) HTTP/[0-9]\.[0-9]\r\n"
)
_VERSION_BYTES = len(b"HTTP/1.1\r\n")
_HOST = re.compile(rb"[A-Za-z0-9._~!$&'()*+,;=%-]*(:[0-9]{0,5})?|\[[0-9A-Fa-f:.]+\](:[0-9]{0,5})?")
_ABSOLUTE = re.compile(rb"https?://([^/?]+)(.*)", re.IGNORECASE | re.DOTALL)
_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})|%00", re.IGNORECASE)
_DOTS = re.compile(rb"(^|/)(\.|%2e){2}(/|$)", re.IGNORECASE)


class _Parts:
    """Collects headers through llhttp's callbacks."""

    __slots__ = ("headers",)

    def __init__(self) -> None:
        self.headers: dict[bytes, bytes] = {}

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        value = value.rstrip(b" \t")  # llhttp keeps trailing space; the value ends before it.
        if name in self.headers:
            if name in SINGLE_HEADERS:
                text = name.decode("ascii", "replace")
                raise Problem.DUPLICATE_HEADER.error(f"{text} is given more than once")
            value = self.headers[name] + b", " + value
        self.headers[name] = value


class Fields:
    """A head from the version on: the part that requests of one client tend to share.

    `content_length` is None for a chunked body.
    """

    __slots__ = ("content_length", "expects_continue", "headers", "keep_alive", "version")

    def __init__(self, raw: bytes, max_headers: int) -> None:
        """Parse ``HTTP/1.1``, the headers and the closing empty line. Raises `ProblemError`."""
        _check_lines(raw, max_headers)
        parts = _Parts()
        parser = httptools.HttpRequestParser(parts)
        try:
            parser.feed_data(b"POST / " + raw)
        except httptools.HttpParserUpgrade:
            pass  # Ignoring an upgrade declines it (RFC 9110 section 7.8).
        except httptools.HttpParserCallbackError as error:
            if isinstance(error.__context__, ProblemError):
                raise error.__context__ from None
            raise
        except httptools.HttpParserError as error:
            raise Problem.BAD_REQUEST.error(f"malformed HTTP: {error}") from None
        self.version = parser.get_http_version()
        self.headers = parts.headers
        if self.version not in ("1.1", "1.0"):
            raise Problem.HTTP_VERSION.error()
        check_host(self.headers.get(b"host"), required=self.version == "1.1")
        self.content_length = self._body_length()
        self.keep_alive = self._keeps_alive()
        # HTTP/1.0 has no interim responses (RFC 9110 section 10.1.1).
        expect = self.headers.get(b"expect") if self.version == "1.1" else None
        check_expectation(expect)
        self.expects_continue = expect is not None

    def _body_length(self) -> int | None:
        length = self.headers.get(b"content-length")
        coding = self.headers.get(b"transfer-encoding")
        if coding is not None:
            if length is not None:
                raise Problem.AMBIGUOUS_LENGTH.error()
            if coding.lower() != b"chunked" or self.version != "1.1":
                raise Problem.INVALID_TRANSFER_ENCODING.error()
            return None
        if length is None:
            return 0
        if not length.isdigit() or len(length) > 18:
            raise Problem.INVALID_CONTENT_LENGTH.error()
        return int(length)

    def _keeps_alive(self) -> bool:
        connection = self.headers.get(b"connection")
        if connection is None:
            return self.version == "1.1"
        options = {option.strip() for option in connection.lower().split(b",")}
        if self.version == "1.0":
            return b"keep-alive" in options and b"close" not in options
        return b"close" not in options


class Head:
    """A request's head."""

    __slots__ = ("fields", "method", "path", "query")

    def __init__(self, method: str, path: bytes, query: bytes, fields: Fields) -> None:
        self.method = method
        self.path = path
        self.query = query
        self.fields = fields


class HeadParser:
    """Parses heads, and caches some: a client that keeps appending to one stream repeats its head
    byte for byte, and one that creates streams repeats all but the first line."""

    def __init__(self, max_headers: int) -> None:
        self._max_headers = max_headers
        self._heads: dict[bytes, Head] = {}
        self._fields: dict[bytes, Fields] = {}

    def parse(self, raw: bytes) -> Head:
        """The head `raw`, its closing empty line included. Raises `ProblemError`."""
        head = self._heads.get(raw)
        if head is None:
            head = self._parse(raw)
            if len(raw) <= _REMEMBERED_BYTES and head.method in ("GET", "POST"):
                _remember(self._heads, raw, head)
        return head

    def whole(self, data: bytes) -> tuple[Head, bytes] | None:
        """Head and body, if `data` is one request with all of it, and its head is in the cache."""
        end = data.find(b"\r\n\r\n") + 4
        head = self._heads.get(data[:end])
        if head is None or head.fields.content_length != len(data) - end:
            return None
        return head, data[end:]

    def _parse(self, raw: bytes) -> Head:
        line = _REQUEST_LINE.match(raw)
        if line is None:
            _check_lines(raw, self._max_headers)
            raise Problem.BAD_REQUEST.error("the request line is malformed")
        check_method(line[1])
        rest = raw[line.end() - _VERSION_BYTES :]
        fields = self._fields.get(rest)
        if fields is None:
            fields = Fields(rest, self._max_headers)
            if len(rest) <= _REMEMBERED_BYTES:
                _remember(self._fields, rest, fields)
        path, query = split_target(line[2])
        return Head(line[1].decode("ascii"), path, query, fields)


_T = TypeVar("_T")


def _remember(memory: dict[bytes, _T], raw: bytes, parsed: _T) -> None:
    if len(memory) >= _REMEMBERED:
        memory.clear()
    memory[raw] = parsed


def _check_lines(raw: bytes, max_headers: int) -> None:
    """Check line ends, folding and control characters, which parsers tend to tolerate."""
    if raw.translate(None, VISIBLE):
        raise Problem.BAD_REQUEST.error("a control character in the head")
    lines = raw.count(b"\r\n")
    if raw.count(b"\n") != lines or raw.count(b"\r") != lines:
        raise Problem.BAD_REQUEST.error("a bare CR or LF in the head")
    if b"\n " in raw or b"\n\t" in raw:
        raise Problem.BAD_REQUEST.error("a folded header line")
    if lines - 2 > max_headers:
        raise too_many_headers(max_headers)


def check_method(method: bytes) -> None:
    """Raises `ProblemError` for a method that is malformed, or that no path has."""
    if method in (b"CONNECT", b"TRACE"):
        raise Problem.METHOD_NOT_ALLOWED.error(
            f"{method.decode()} is not allowed", b"Allow: OPTIONS\r\n"
        )
    if _TOKEN.fullmatch(method) is None:
        raise Problem.BAD_REQUEST.error("the method is malformed")
    if method not in _METHODS:
        raise Problem.METHOD_UNKNOWN.error()


def check_host(host: bytes | None, *, required: bool = False) -> None:
    """Raises `ProblemError` for a Host header that is malformed, or missing where required."""
    if host is None:
        if required:
            raise Problem.MISSING_HOST.error()
    elif _HOST.fullmatch(host) is None:
        raise Problem.INVALID_HOST.error()


def check_expectation(expect: bytes | None) -> None:
    """Raises `ProblemError` for any expectation but 100-continue."""
    if expect is not None and expect.lower() != b"100-continue":
        raise Problem.EXPECTATION_FAILED.error()


def split_target(target: bytes) -> tuple[bytes, bytes]:
    """Path and query of a request target in origin form, or in absolute form.

    Raises `ProblemError`.
    """
    if len(target) > MAX_TARGET_BYTES:
        raise Problem.TARGET_TOO_LONG.error(f"the target exceeds {MAX_TARGET_BYTES} bytes")
    if not target.startswith(b"/"):
        absolute = _ABSOLUTE.fullmatch(target)
        if absolute is None or _HOST.fullmatch(absolute[1]) is None:
            if target == b"*":
                return b"*", b""
            raise Problem.INVALID_TARGET.error()
        target = absolute[2] if absolute[2].startswith(b"/") else b"/" + absolute[2]
    if target.translate(None, _TARGET):
        raise Problem.INVALID_TARGET.error("the request target has a character not allowed there")
    path, _, query = target.partition(b"?")
    return _checked_path(path), query


def _checked_path(path: bytes) -> bytes:
    """A raw path with a single meaning. Raises `ProblemError`."""
    if b"%" in path and _ESCAPE.search(path):
        raise Problem.INVALID_PATH.error("the path has an invalid percent escape")
    if (b".." in path or b"%" in path) and _DOTS.search(path):
        raise Problem.INVALID_PATH.error("the path has a .. segment")
    return path


def single_headers(pairs: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Headers by lower-case name; repeats are joined, or refused where they are ambiguous."""
    parts = _Parts()
    for name, value in pairs:
        parts.on_header(bytes(name), bytes(value))
    return parts.headers
