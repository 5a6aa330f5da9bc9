"""A parser of multipart/mixed with parts of any size (RFC 2046, section 5.1)."""

from __future__ import annotations

from typing import NamedTuple

from streamd.client.core.steps import RECEIVE, Emit, Flow

MAX_HEAD_BYTES = 16 * 1024


class Malformed(Exception):
    """The body is not a multipart entity with the named boundary, or it was cut off."""


class PartStart(NamedTuple):
    """A part begins; its Content-Type, `text/plain` by default."""

    content_type: str


class PartData(NamedTuple):
    """The next bytes of the part."""

    data: bytes


class PartEnd(NamedTuple):
    """The part is complete."""


def boundary_of(content_type: str) -> bytes:
    """The boundary a Content-Type names. Raises `Malformed`."""
    from email.message import Message  # a fifth of the time that the client takes to import

    header = Message()
    header["Content-Type"] = content_type
    boundary = header.get_param("boundary")
    if header.get_content_maintype() != "multipart" or not isinstance(boundary, str):
        raise Malformed(f"Content-Type {content_type!r} is not multipart with a boundary")
    return boundary.encode()


def parse_parts(boundary: bytes) -> Flow[None]:
    """Emit a start, data and an end for each part of the answer, data as it arrives.

    Skips what precedes the first boundary and follows the last. Raises `Malformed`.
    """
    # With a line break in front, the first boundary is found like all others.
    source = _Source(b"\r\n")
    delimiter = b"\r\n--" + boundary
    yield from source.until(delimiter, skipping=True)
    while not (yield from source.closes()):
        head = yield from source.head()
        yield Emit(PartStart(_content_type(head)))
        yield from source.until(delimiter)
        yield Emit(PartEnd())


def _content_type(head: bytes) -> str:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-type":
            return value.strip().decode("latin-1")
    return "text/plain"


class _Source:
    """Bytes not yet parsed; advancing `_at` avoids moving them for each small part."""

    def __init__(self, buffer: bytes) -> None:
        self._buffer = buffer
        self._at = 0

    def until(self, delimiter: bytes, *, skipping: bool = False) -> Flow[None]:
        """Emit the bytes up to `delimiter`, unless `skipping`, and skip it."""
        while (end := self._buffer.find(delimiter, self._at)) < 0:
            # The last bytes may begin a delimiter: hold them until more arrive.
            safe = len(self._buffer) - len(delimiter) + 1
            if safe > self._at:
                if not skipping:
                    yield Emit(PartData(self._buffer[self._at : safe]))
                self._at = safe
            yield from self._more()
        if end > self._at and not skipping:
            yield Emit(PartData(self._buffer[self._at : end]))
        self._at = end + len(delimiter)

    def closes(self) -> Flow[bool]:
        """Whether the delimiter just skipped was the last; skips the rest of its line."""
        while len(self._buffer) - self._at < 2:
            yield from self._more()
        if self._buffer.startswith(b"--", self._at):
            return True
        # Only white space may follow a delimiter on its line. The line's end is not skipped: with
        # it, `head` finds the empty line of a part without headers as it finds any other.
        while (end := self._buffer.find(b"\r\n", self._at)) < 0:
            if len(self._buffer) - self._at > MAX_HEAD_BYTES:
                raise Malformed(f"the line of a boundary exceeds {MAX_HEAD_BYTES} bytes")
            yield from self._more()
        if self._buffer[self._at : end].strip(b" \t"):
            raise Malformed("a boundary is followed by more than white space on its line")
        self._at = end
        return False

    def head(self) -> Flow[bytes]:
        """The header lines of a part; skips the empty line after them."""
        while (end := self._buffer.find(b"\r\n\r\n", self._at)) < 0:
            if len(self._buffer) - self._at > MAX_HEAD_BYTES:
                raise Malformed(f"a part's headers exceed {MAX_HEAD_BYTES} bytes")
            yield from self._more()
        head = self._buffer[self._at : end]
        self._at = end + 4
        return head

    def _more(self) -> Flow[None]:
        piece = yield RECEIVE
        if not piece:
            raise Malformed("the body ends in the middle of a part")
        self._buffer = self._buffer[self._at :] + piece
        self._at = 0
