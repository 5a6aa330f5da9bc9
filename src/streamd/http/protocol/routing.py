"""Resolves a raw request path to the resource that it names.

Streams have two addresses. ``/v1/stream/{path}`` is the base protocol's: the first of several
segments is a bucket, created on first use, and a single segment lies in the bucket ``_default``.
``/{bucket}/{stream}`` is the bucketed surface (extensions section 1), strict about its names.
"""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import quote

from streamd.http.protocol.raw_paths import (
    ESCAPED_SLASH,
    NO_SUCH_ROUTE,
    BadPath,
    decode,
    has_escaped_slash,
)
from streamd.http.protocol.reserved_paths import RESERVED, ReservedTarget, resolve_reserved
from streamd.protocol.problems import Problem
from streamd.streams.bounds import MAX_BUCKETED_BYTES
from streamd.streams.keys import is_bucket_id, is_bucket_name, stream_key

DEFAULT_BUCKET = b"_default"
# On the bucketed surface this name lists the bucket, so no stream there can have it.
LISTING = b"streams"
MAX_PATH_BYTES = 1024

_V1 = b"/v1/stream/"
# Characters of a path segment that need no escaping (RFC 3986, pchar), besides letters and digits.
_PATH_CHARACTERS = "-._~!$&'()*+,;=:@"


class StreamRoute(NamedTuple):
    """A stream, by its key and by the path it was addressed with."""

    key: bytes
    path: bytes
    implicit_bucket: bool


class LatestSnapshotRoute(NamedTuple):
    """The latest snapshot of a stream."""

    stream: StreamRoute


class SnapshotRoute(NamedTuple):
    """The snapshot of a stream at `offset`, which is decoded but not parsed."""

    stream: StreamRoute
    offset: bytes


class BootstrapRoute(NamedTuple):
    """A stream's snapshot and everything after it in one response."""

    stream: StreamRoute


class BucketsRoute(NamedTuple):
    """All buckets."""


class BucketRoute(NamedTuple):
    """A bucket."""

    name: bytes


class ListingRoute(NamedTuple):
    """The streams of a bucket (extensions section 1.4). The bucket's name need not be an id: the
    base protocol's surface creates buckets with others, such as `_default`."""

    bucket: bytes


class BatchRoute(NamedTuple):
    """Appends of several records to a stream; an extension of our own."""

    stream: StreamRoute


Target = (
    StreamRoute
    | BucketsRoute
    | BucketRoute
    | ListingRoute
    | BatchRoute
    | LatestSnapshotRoute
    | SnapshotRoute
    | BootstrapRoute
    | ReservedTarget
    | BadPath
)

_BUCKETS = BucketsRoute()
INVALID_BUCKET_ID = BadPath(Problem.INVALID_BUCKET_ID)
RESERVED_STREAM = BadPath(
    Problem.INVALID_STREAM_ID, "the stream id `streams` is reserved: it lists the bucket"
)


def bucket_of(route: Target) -> bytes | None:
    """The bucket of what a route names, by the name in its key."""
    match route:
        case StreamRoute():
            key = route.key
        case BucketRoute():
            return route.name
        case ListingRoute():
            return route.bucket
        case BatchRoute() | LatestSnapshotRoute() | SnapshotRoute() | BootstrapRoute():
            key = route.stream.key
        case _:
            return None
    return key[: key.index(b"\0")]


def takes_pieces(path: bytes) -> bool:
    """As `Application.takes_pieces`."""
    return isinstance(resolve(path), SnapshotRoute)


def resolve(path: bytes) -> Target | None:
    """What the raw path names; None if it is neither on the surface of streams nor of buckets."""
    if not path.startswith(_V1):
        return _resolve_bucketed(path)
    raw = path[len(_V1) :]
    if decode(raw.partition(b"/")[0]) == RESERVED:
        return resolve_reserved(raw)
    if len(path) > MAX_PATH_BYTES:
        return BadPath(Problem.INVALID_PATH, f"the path is longer than {MAX_PATH_BYTES} bytes")
    if has_escaped_slash(path):
        return ESCAPED_SLASH
    decoded = decode(raw)
    if isinstance(decoded, BadPath):
        return decoded
    segments = decoded.split(b"/")
    if not all(segments):
        return BadPath(Problem.INVALID_PATH, "the stream's path has an empty segment")
    if len(segments) == 1:
        return StreamRoute(stream_key(DEFAULT_BUCKET, decoded), path, True)
    bucket, _, name = decoded.partition(b"/")
    return StreamRoute(stream_key(bucket, name), path, True)


def path_of(bucket: bytes, name: bytes) -> str:
    """The path of a stream on the base protocol's surface, where every name is possible.

    Only what must be escaped is, so the path is at most as long as the one that made the stream.
    """
    segments = name.split(b"/")
    quoted = ("%2E" if part == b"." else quote(part, _PATH_CHARACTERS) for part in segments)
    return f"{_V1.decode()}{quote(bucket, _PATH_CHARACTERS)}/{'/'.join(quoted)}"


def _resolve_bucketed(path: bytes) -> Target | None:
    if path == b"/":
        return _BUCKETS
    raw_bucket, slash, rest = path[1:].partition(b"/")
    if not raw_bucket or path.startswith(b"/v1/"):
        return None
    bucket = decode(raw_bucket)
    if isinstance(bucket, BadPath):
        return bucket
    if bucket == RESERVED:
        return BadPath(Problem.INVALID_BUCKET_ID, "subscriptions are below /v1/stream/__ds/")
    if not is_bucket_id(bucket):
        is_listing = decode(rest) == LISTING and is_bucket_name(bucket)
        return ListingRoute(bucket) if is_listing else INVALID_BUCKET_ID
    if not slash:
        return BucketRoute(bucket)
    raw_name, slash, below = rest.partition(b"/")
    stream = _stream_in(bucket, raw_name, b"/%b/%b" % (raw_bucket, raw_name))
    if not slash or isinstance(stream, BadPath):
        return stream
    if isinstance(stream, ListingRoute):
        return RESERVED_STREAM
    return _below(stream, below)


def _below(stream: StreamRoute, below: bytes) -> Target:
    """The resource that the segments after a stream's name select."""
    resource, slash, rest = below.partition(b"/")
    if resource == b"append-batch" and not slash:
        return BatchRoute(stream)
    if resource == b"bootstrap" and not slash:
        return BootstrapRoute(stream)
    if resource == b"snapshot" and b"/" not in rest:
        if not slash:
            return LatestSnapshotRoute(stream)
        offset = decode(rest)
        return offset if isinstance(offset, BadPath) else SnapshotRoute(stream, offset)
    return NO_SUCH_ROUTE


def _stream_in(bucket: bytes, raw_name: bytes, path: bytes) -> StreamRoute | ListingRoute | BadPath:
    """The stream with that name, checked by the rules of the bucketed surface."""
    name = decode(raw_name)
    if isinstance(name, BadPath):
        return name
    if name == LISTING:
        return ListingRoute(bucket)
    if not name or b"/" in name or b".." in name:
        return BadPath(Problem.INVALID_STREAM_ID, "a stream id is not empty, and has no / or ..")
    if len(bucket) + 1 + len(name) > MAX_BUCKETED_BYTES:
        return BadPath(
            Problem.INVALID_STREAM_ID, f"bucket and stream ids exceed {MAX_BUCKETED_BYTES} bytes"
        )
    return StreamRoute(stream_key(bucket, name), path, False)
