"""Splits what an HTTP/2 client sends, so that each turn of the event loop has little to do.

A frame of nine bytes may cost as much work as one of 16 KiB, and the library processes all it gets
before any other task runs. So it gets a few frames at a time. Frames that carry neither a request
nor a body are paid from an allowance (a token bucket): a fast download needs many WINDOW_UPDATE
frames, but in proportion to its bytes; a client that sends them without bytes is flooding.
"""

from __future__ import annotations

from collections.abc import Iterator

FRAMES_PER_TURN = 16
# Control frames that a client may send at once, and the allowance per second and per KiB of body.
BURST_FRAMES = 1000
FRAMES_PER_S = 100
_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_HEADER_BYTES = 9
_MAX_FRAME_BYTES = 16 * 1024
# What a block of headers may have in CONTINUATION frames: it is kept until it is whole.
_MAX_BLOCK_BYTES = 256 * 1024
_DATA, _HEADERS, _PRIORITY, _CONTINUATION = 0x0, 0x1, 0x2, 0x9
_END_STREAM, _END_HEADERS = 0x1, 0x4


class Flood(Exception):
    """The client sends far more control frames, or faults, than its requests and bodies need."""


class FrameMeter:
    """Follows the frames of one connection from its first byte."""

    def __init__(self, now: float) -> None:
        self._allowance = float(BURST_FRAMES)
        self._renewed_at = now
        self._preface = _PREFACE
        self._header = b""
        self._left = 0
        self._is_passed_on = True
        self._in_headers = False
        self._block_bytes = 0
        self.speaks_http2 = True

    def count_sent(self, size: int) -> None:
        """Count bytes that were sent to the client, which acknowledges them by frames."""
        self._allow(size / 1024)

    def count_fault(self) -> None:
        """Count a request that the server had to reset, which costs as much as one that the client
        resets. Raises `Flood`."""
        self._take()

    def turns(self, data: bytes, now: float) -> Iterator[bytes]:
        """`data` in pieces, each for one turn of the loop; a piece may be empty.

        Frames that a server may ignore are left out: PRIORITY, which is deprecated (RFC 9113
        section 5.3.2) and whose tree costs most of all, and unknown ones (section 5.5). Data that
        does not begin with HTTP/2's preface is one piece. Raises `Flood`.
        """
        self._allow((now - self._renewed_at) * FRAMES_PER_S)
        self._renewed_at = now
        begins = self._preface[: len(data)]
        if not data.startswith(begins):
            self._preface, self.speaks_http2 = b"", False
        if not self.speaks_http2:
            yield data
            return
        self._preface = self._preface[len(begins) :]
        out, at, frames = bytearray(begins), len(begins), 0
        while at < len(data):
            if self._left:
                end = min(len(data), at + self._left)
                if self._is_passed_on:
                    out += data[at:end]
                self._left -= end - at
                at = end
                continue
            piece = data[at : at + _HEADER_BYTES - len(self._header)]
            self._header += piece
            at += len(piece)
            if len(self._header) == _HEADER_BYTES:
                if frames == FRAMES_PER_TURN:
                    yield bytes(out)
                    out.clear()
                    frames = 0
                frames += 1
                self._begin_frame(self._header)
                if self._is_passed_on:
                    out += self._header
                self._header = b""
        yield bytes(out)

    def _begin_frame(self, header: bytes) -> None:
        size, kind, flags = int.from_bytes(header[:3]), header[3], header[4]
        self._left = size
        ignorable = kind == _PRIORITY or kind > _CONTINUATION
        # No other frame may come within a block of headers: the library refuses that.
        self._is_passed_on = not ignorable or self._in_headers or size > _MAX_FRAME_BYTES
        if kind in (_HEADERS, _CONTINUATION):
            self._in_headers = not flags & _END_HEADERS
        if kind == _DATA and (size or flags & _END_STREAM):
            self._allow(size / 1024)
        elif kind != _HEADERS:
            self._take()
        self._block_bytes = self._block_bytes + size if kind == _CONTINUATION else 0
        if self._block_bytes > _MAX_BLOCK_BYTES:
            raise Flood

    def _take(self) -> None:
        self._allowance -= 1
        if self._allowance < 0:
            raise Flood

    def _allow(self, frames: float) -> None:
        self._allowance = min(BURST_FRAMES, self._allowance + frames)
