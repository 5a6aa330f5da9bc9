"""HTTP/1.1 bodies and responses on the wire, and the rejection of requests."""

from __future__ import annotations

import re
from collections.abc import Sequence
from http import HTTPStatus

from streamd.http.protocol.connections import Buffer
from streamd.http.protocol.messages import LiveResponse, Response
from streamd.protocol.headers import HEADERS
from streamd.protocol.problems import Problem, ProblemError

MAX_CHUNK_LINE_BYTES = 256
MAX_TRAILER_BYTES = 4 * 1024
# How many chunks are decoded in one turn of the loop, which takes a few tenths of a millisecond.
CHUNKS_PER_TURN = 256

VISIBLE = bytes(range(0x20, 0x7F)) + bytes(range(0x80, 0x100)) + b"\t\r\n"
# Headers that framing or routing relies on. Two different values would be ambiguous, as they would
# be for the headers that the protocol defines.
_FRAMING = (b"host", b"content-length", b"transfer-encoding", b"expect")
SINGLE_HEADERS = frozenset((*_FRAMING, *(header.key for header in HEADERS if header.single)))
# Fields refused in trailers (RFC 9110 section 6.5.1): they come too late, and a proxy may not see
# them.
_NO_TRAILERS = SINGLE_HEADERS | {b"authorization"}
_EMPTY_LINES = re.compile(rb"(?:\r\n)*")
_TOKEN = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})([ \t]*;[\t\x20-\x7e\x80-\xff]*)?")

STATUS_LINES = {
    status.value: b"HTTP/1.1 %d %b\r\n" % (status.value, status.phrase.encode())
    for status in HTTPStatus
}
# How a connection begins with prior knowledge of HTTP/2 (RFC 9113 section 3.4).
PREFACE_HEAD = b"PRI * HTTP/2.0\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def head_too_large(limit: int) -> ProblemError:
    """The rejection of a head of more than `limit` bytes."""
    return Problem.HEADERS_TOO_LARGE.error(
        f"the head exceeds {limit} bytes (server.max_header_bytes)"
    )


def too_many_headers(limit: int) -> ProblemError:
    """The rejection of a head with more than `limit` headers."""
    return Problem.TOO_MANY_HEADERS.error(f"more than {limit} headers (server.max_headers)")


class Chunked:
    """Decodes the chunked coding of one body, piece by piece (RFC 9112 section 7.1)."""

    __slots__ = ("_left", "_state", "body", "done", "trailer_bytes")

    def __init__(self) -> None:
        self.body = bytearray()
        self.done = False
        self.trailer_bytes = 0
        self._left = 0
        self._state = "size"

    def feed(self, buffer: bytearray) -> bool:
        """Decode what is complete at the front of `buffer`, and remove it there.

        At most `CHUNKS_PER_TURN` at once: a tiny chunk costs a hundred times as much as its bytes.
        Returns whether there may be more to decode, after a turn of the loop. Raises
        `ProblemError`.
        """
        at = 0
        for _ in range(CHUNKS_PER_TURN):
            if self.done:
                break
            if self._state == "data":
                piece = buffer[at : at + self._left]
                self.body += piece
                at += len(piece)
                self._left -= len(piece)
                if self._left:
                    break
                self._state = "data end"
            if self._state == "data end" and buffer.startswith(b"\r\n", at):
                at += 2
                self._state = "size"
            line = _line(buffer, at)
            if line is None:
                break
            at += len(line) + 2
            self._take(line)
        else:
            del buffer[:at]
            return not self.done
        del buffer[:at]
        return False

    def _take(self, line: bytes) -> None:
        if self._state == "data end":
            raise Problem.BAD_CHUNK.error("a chunk is longer than its size")
        if self._state == "size":
            match = _CHUNK_SIZE.fullmatch(line)
            if match is None:
                raise Problem.BAD_CHUNK.error("a chunk size is malformed")
            self._left = int(match[1], 16)
            self._state = "data" if self._left else "trailer"
        elif not line:
            self.done = True
        else:
            self._take_trailer(line)

    def _take_trailer(self, line: bytes) -> None:
        """Drop a trailer. Raises `ProblemError` for one that would change the request."""
        self.trailer_bytes += len(line)
        name, colon, value = line.partition(b":")
        if self.trailer_bytes > MAX_TRAILER_BYTES:
            raise Problem.TRAILERS_TOO_LARGE.error(f"the trailers exceed {MAX_TRAILER_BYTES} bytes")
        well_formed = colon and _TOKEN.fullmatch(name) and not value.translate(None, VISIBLE)
        if not well_formed or name.lower() in _NO_TRAILERS:
            raise Problem.BAD_TRAILER.error()


def _line(buffer: bytearray, at: int) -> bytes | None:
    """The line that begins at `at`, without its end, or None if its end has not arrived yet."""
    end = buffer.find(b"\n", at, at + MAX_CHUNK_LINE_BYTES + 2)
    if end < 0:
        if len(buffer) - at > MAX_CHUNK_LINE_BYTES:
            raise Problem.BAD_CHUNK.error("a line of the chunked body is too long")
        return None
    line = bytes(buffer[at : end - 1]) if end > at else b""
    if buffer[end - 1 : end] != b"\r" or end == at or b"\r" in line or b"\0" in line:
        raise Problem.BAD_CHUNK.error("a bare CR or LF in the chunked body")
    return line


def take_head(buffer: bytearray, searched: int, limit: int) -> bytes | None:
    """The head at the front of `buffer`, taken from there, or None if its end has not come yet.

    The first `searched` bytes have no end of a head. Raises `ProblemError`.
    """
    if buffer[:2] == b"\r\n":
        del buffer[: empty_lines(buffer)]  # RFC 9112 section 2.2: ignored.
        searched = 0
    end = buffer.find(b"\r\n\r\n", searched)
    if end < 0:
        if len(buffer) > limit:
            raise head_too_large(limit)
        if b"\n\n" in buffer or b"\0" in buffer:
            raise Problem.BAD_REQUEST.error("a bare LF or NUL in the head")
        return None
    if end + 4 > limit:
        raise head_too_large(limit)
    head = bytes(buffer[: end + 4])
    del buffer[: end + 4]
    return head


def empty_lines(buffer: bytearray) -> int:
    """The number of bytes at the front of `buffer` that are empty lines."""
    match = _EMPTY_LINES.match(buffer)
    return match.end() if match else 0


def body_parts(body: Buffer | Sequence[Buffer]) -> tuple[Sequence[Buffer], int]:
    """A response's body as parts, and their size in bytes."""
    # With a union in its place, which is made by each call, this takes three times as long.
    if isinstance(body, (bytes, memoryview)):
        return (body,), len(body)
    return body, sum(map(len, body))


def answer_parts(
    response: Response,
    tail_head: bytes,
    *,
    is_head: bool = False,
    keep_alive: bool = True,
    is_http_1_0: bool = False,
) -> tuple[Sequence[Buffer], int]:
    """A response on the wire, its head first, and the size of its body in bytes.

    The answer to a HEAD request has no body. `tail_head` are the last header lines but those
    about the connection.
    """
    parts, size = body_parts(response.body) if response.body else ((), 0)
    lines = [STATUS_LINES[response.status], response.head, tail_head]
    if response.status not in (204, 304) and (size or not is_head):
        lines.append(b"Content-Length: %d\r\n" % size)
    if not keep_alive:
        lines.append(b"Connection: close\r\n\r\n")
    elif is_http_1_0:
        lines.append(b"Connection: keep-alive\r\n\r\n")
    else:
        lines.append(b"\r\n")
    head = b"".join(lines)
    if is_head or not size:
        return (head,), 0
    return (head, *parts), size


def live_head(
    response: LiveResponse, tail_head: bytes, *, chunked: bool, keep_alive: bool
) -> bytes:
    """The head of a live response on the wire; `tail_head` as in `answer_parts`."""
    head = STATUS_LINES[response.status] + response.head + tail_head
    if chunked:
        head += b"Transfer-Encoding: chunked\r\n"
    elif response.length is not None:
        head += b"Content-Length: %d\r\n" % response.length
    return head + (b"\r\n" if keep_alive else b"Connection: close\r\n\r\n")
