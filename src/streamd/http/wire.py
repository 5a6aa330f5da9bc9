"""HTTP/1.1 bodies and responses on the wire, and what is refused."""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus

from streamd.http.messages import Buffer, Response, error_response

MAX_CHUNK_LINE_BYTES = 256
MAX_TRAILER_BYTES = 4 * 1024

VISIBLE = bytes(range(0x20, 0x7F)) + bytes(range(0x80, 0x100)) + b"\t\r\n"
# Headers of which two could mean two things; all others are lists or of no interest here.
SINGLE_HEADERS = frozenset(
    (
        b"host",
        b"content-length",
        b"transfer-encoding",
        b"content-type",
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
# What is no trailer (RFC 9110 section 6.5.1): it would be too late, or unseen by a proxy.
_NO_TRAILERS = SINGLE_HEADERS | {b"authorization"}
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})([ \t]*;[\t\x20-\x7e\x80-\xff]*)?")

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
        well_formed = colon and _TOKEN.fullmatch(name) and not value.translate(None, VISIBLE)
        if not well_formed or name.lower() in _NO_TRAILERS:
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
