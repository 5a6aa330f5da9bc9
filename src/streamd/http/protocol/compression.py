"""Compression of complete answers, for clients that ask for it (RFC 9110 section 12.5.3).

Live responses are never compressed: an event has to leave at once, and a compressor would keep its
window for each of thousands of readers.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Protocol

import trio
import zstandard

from streamd.http.protocol.connections import Buffer
from streamd.http.protocol.messages import Request, Response
from streamd.http.protocol.wire import body_parts
from streamd.process.threads import RunBlocking
from streamd.protocol.headers import ACCEPT_ENCODING
from streamd.streams.content import media_type

# Bodies up to this size are sent as they are: they fit into a packet anyway.
LEAST_BYTES = 1024
VARY = b"Vary: Accept-Encoding\r\n"

# Compressing a larger body would block the event loop for more than a fraction of a millisecond.
_INLINE_BYTES = 8 * 1024
# Compression may take one core. While more than this many answers wait for it, further ones are
# sent uncompressed.
_AT_ONCE = 1
_MOST_WAITING = 32

_ZSTD_LEVEL = 3
_ZLIB_LEVEL = 4
_GZIP_WINDOW = 31
_DEFLATE_WINDOW = 15

# Types whose format is compressed already.
_DENSE = re.compile(
    r"image/(?!svg\+xml|bmp|x-ms-bmp).*|audio/.*|video/.*|font/woff2?|application/(?:"
    r"zip|gzip|x-gzip|zstd|x-bzip2?|x-xz|x-7z-compressed|vnd\.rar|x-rar-compressed|pdf|"
    r"java-archive|epub\+zip|vnd\.openxmlformats-.*|vnd\.oasis\..*)"
)
_QUALITY = re.compile(rb"[ \t]*q=(0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?)[ \t]*", re.IGNORECASE)
_ETAG = re.compile(rb'^(ETag: "[^"\r]*)"\r$', re.MULTILINE)
_CONTENT_TYPE = re.compile(rb"^content-type: ([^\r]*)\r$", re.MULTILINE | re.IGNORECASE)
_FIXED = re.compile(rb"^(?:content-encoding|vary):", re.MULTILINE | re.IGNORECASE)


class _Coder(Protocol):
    def compress(self, data: Buffer, /) -> bytes: ...

    def flush(self) -> bytes: ...


def _gzip(size: int) -> _Coder:
    return zlib.compressobj(_ZLIB_LEVEL, zlib.DEFLATED, _GZIP_WINDOW)


def _deflate(size: int) -> _Coder:
    return zlib.compressobj(_ZLIB_LEVEL, zlib.DEFLATED, _DEFLATE_WINDOW)


def _zstd(size: int) -> _Coder:
    # The frame tells the size, so that clients can allocate their buffer at once.
    return zstandard.ZstdCompressor(level=_ZSTD_LEVEL).compressobj(size=size)


# In our order of preference, for clients with equal weights.
_CODERS: dict[bytes, Callable[[int], _Coder]] = {
    b"zstd": _zstd,
    b"gzip": _gzip,
    b"deflate": _deflate,
}


class Compressor:
    """Compresses answers, large ones in a thread."""

    def __init__(self, run_blocking: RunBlocking) -> None:
        self._run_blocking = run_blocking
        self._limiter = trio.CapacityLimiter(_AT_ONCE)

    async def compress_any(self, request: Request, response: Response) -> None:
        """Compress an answer of any route, if that is worth it."""
        if response.status != 200 or body_parts(response.body)[1] <= LEAST_BYTES:
            return
        kind = _CONTENT_TYPE.search(response.head)
        if kind is None or not pays(kind[1].decode("latin-1")) or _FIXED.search(response.head):
            return
        response.head += VARY
        await self.compress(request, response)

    async def compress(self, request: Request, response: Response) -> None:
        """Compress an answer of a suitable type, if the client wants that and it gets smaller."""
        coding = asked_for(request)
        if coding is None:
            return
        parts, size = body_parts(response.body)
        call = partial(_compressed, _CODERS[coding], parts, size)
        if size <= _INLINE_BYTES:
            body = call()
        elif self._limiter.statistics().tasks_waiting < _MOST_WAITING:
            body = await self._run_blocking(call, limiter=self._limiter)
        else:
            return
        if len(body) < size:
            # Two representations must not share a strong tag; `fields.named_tag` understands both.
            response.head = (
                _ETAG.sub(rb'\1-%b"\r' % coding, response.head)
                + b"Content-Encoding: %b\r\n" % coding
            )
            response.body = body


def _compressed(make: Callable[[int], _Coder], parts: Sequence[Buffer], size: int) -> bytes:
    coder = make(size)
    pieces = [coder.compress(part) for part in parts]
    pieces.append(coder.flush())
    return b"".join(pieces)


@lru_cache(maxsize=4096)
def pays(content_type: str) -> bool:
    """Whether bodies of the type may get smaller.

    ``application/octet-stream``, the default, tells nothing about the body, so it may.
    """
    return _DENSE.fullmatch(media_type(content_type)) is None


def asked_for(request: Request) -> bytes | None:
    """The coding that a request asks for, or None."""
    accepted = request.headers.get(ACCEPT_ENCODING.key)
    return None if accepted is None else choose(accepted)


@lru_cache(maxsize=1024)
def choose(accepted: bytes) -> bytes | None:
    """The coding that an Accept-Encoding header asks for, or None."""
    qualities: dict[bytes, float] = {}
    for element in accepted.split(b","):
        name, _, parameter = element.partition(b";")
        coding = name.strip().lower().removeprefix(b"x-")
        quality = _QUALITY.fullmatch(parameter) if parameter else None
        if parameter and quality is None:
            continue  # A malformed element asks for nothing.
        qualities[coding] = 1.0 if quality is None else float(quality[1])
    others = qualities.get(b"*", 0.0)
    best = max(_CODERS, key=lambda coding: qualities.get(coding, others))
    best_quality = qualities.get(best, others)
    if best_quality <= 0 or best_quality < qualities.get(b"identity", 0.0):
        return None
    return best
