"""multipart/mixed, from bytes as they come to parts of any size (RFC 2046, section 5.1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from email.message import Message
from typing import NamedTuple

MAX_HEAD_BYTES = 16 * 1024


class Malformed(Exception):
    """The body is no multipart entity with the boundary it names, or it was cut off."""


class PartStart(NamedTuple):
    content_type: str


class PartData(NamedTuple):
    data: bytes


class PartEnd(NamedTuple):
    pass


PartEvent = PartStart | PartData | PartEnd


def boundary_of(content_type: str) -> bytes:
    """The boundary a Content-Type names. Raises `Malformed`."""
    header = Message()
    header["Content-Type"] = content_type
    boundary = header.get_param("boundary")
    if header.get_content_maintype() != "multipart" or not isinstance(boundary, str):
        raise Malformed(f"{content_type} is no multipart type with a boundary")
    return boundary.encode()


def parse_parts(chunks: Iterable[bytes], boundary: bytes) -> Iterator[PartEvent]:
    """A start, data and an end for each part; data is passed on as it comes.

    What precedes the first boundary and follows the last is skipped. Raises `Malformed`.
    """
    # A line break before the body lets the first boundary be found like all others.
    source = _Source(chunks, b"\r\n")
    delimiter = b"\r\n--" + boundary
    for _ in source.until(delimiter):
        pass
    while not source.closes():
        yield PartStart(_content_type(source.head()))
        for piece in source.until(delimiter):
            yield PartData(piece)
        yield PartEnd()


def _content_type(head: bytes) -> str:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-type":
            return value.strip().decode("latin-1")
    return "text/plain"


class _Source:
    """Bytes not yet looked at; `_at` saves moving them for each small part."""

    def __init__(self, chunks: Iterable[bytes], buffer: bytes) -> None:
        self._chunks = iter(chunks)
        self._buffer = buffer
        self._at = 0

    def until(self, delimiter: bytes) -> Iterator[bytes]:
        """The bytes up to `delimiter`, which is passed over."""
        while (end := self._buffer.find(delimiter, self._at)) < 0:
            # What could be the beginning of a delimiter waits for the rest of it.
            safe = len(self._buffer) - len(delimiter) + 1
            if safe > self._at:
                yield self._buffer[self._at : safe]
                self._at = safe
            self._more()
        if end > self._at:
            yield self._buffer[self._at : end]
        self._at = end + len(delimiter)

    def closes(self) -> bool:
        """Whether the delimiter just passed was the last; the rest of its line is passed over."""
        while len(self._buffer) - self._at < 2:
            self._more()
        if self._buffer.startswith(b"--", self._at):
            return True
        # Only white space may stand between a delimiter and the end of its line. The line's end
        # stays: a part without headers begins with an empty line, which is then found as one.
        while (end := self._buffer.find(b"\r\n", self._at)) < 0:
            if len(self._buffer) - self._at > MAX_HEAD_BYTES:
                raise Malformed("a boundary's line does not end")
            self._more()
        if self._buffer[self._at : end].strip(b" \t"):
            raise Malformed("a boundary is followed by something else than the end of its line")
        self._at = end
        return False

    def head(self) -> bytes:
        """The header lines of a part; the empty line after them is passed over."""
        while (end := self._buffer.find(b"\r\n\r\n", self._at)) < 0:
            if len(self._buffer) - self._at > MAX_HEAD_BYTES:
                raise Malformed(f"a part's headers exceed {MAX_HEAD_BYTES} bytes")
            self._more()
        head = self._buffer[self._at : end]
        self._at = end + 4
        return head

    def _more(self) -> None:
        for chunk in self._chunks:
            if chunk:
                self._buffer = self._buffer[self._at :] + chunk
                self._at = 0
                return
        raise Malformed("the body ends in the middle of a part")
