"""How streams are named on the command line.

``NAME`` is the stream at ``/v1/stream/NAME`` and ``BUCKET/STREAM`` the one at
``/v1/stream/BUCKET/STREAM``, where a bucket is created on first use. A name with a leading slash is
a URL path itself, such as ``/BUCKET/STREAM`` for the strict surface.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple
from urllib.parse import quote, unquote, unquote_to_bytes

from streamd.streams.bounds import MAX_BUCKETED_BYTES
from streamd.streams.keys import is_bucket_id

V1 = "/v1/stream/"
# On the bucketed surface this name lists the bucket (extensions section 1.1).
_LISTING = "streams"


class BadName(ValueError):
    """The name cannot be that of a stream, or not of a stream in a bucket."""


class StreamName(NamedTuple):
    """A stream as the user wrote it, and its percent-encoded path."""

    written: str
    path: str

    def bucketed_path(self) -> str:
        """The path on the bucketed surface, where snapshots are. Raises `BadName`."""
        below = self.path.removeprefix(V1) if self.path.startswith(V1) else self.path[1:]
        bucket, _, stream = below.partition("/")
        if not bucket or not stream or "/" in stream:
            raise BadName(
                f"{self.written} is not in a bucket of its own: name it BUCKET/STREAM for this"
            )
        return self.path if not self.path.startswith(V1) else f"/{bucket}/{stream}"

    @property
    def is_in_bucket(self) -> bool:
        """Whether the bucketed surface, which has batches and snapshots, takes the name: it is
        stricter than the protocol (extensions section 1.1)."""
        try:
            bucket, _, stream = self.bucketed_path()[1:].partition("/")
        except BadName:
            return False
        size = len(unquote_to_bytes(f"{bucket}/{stream}"))
        is_id = stream != _LISTING and ".." not in stream and size <= MAX_BUCKETED_BYTES
        return is_id and is_bucket_id(bucket.encode())


def parse_name(written: str) -> StreamName:
    """Raises `BadName`."""
    if written.startswith("/"):
        try:
            path = _quoted([unquote(part, errors="strict") for part in written.split("/")])
        except UnicodeDecodeError:
            raise BadName(f"{written} is not UTF-8") from None
        if path in ("/", V1):
            raise BadName(f"{written} is not the path of a stream")
        return StreamName(written, path)
    if "://" in written:
        raise BadName("name the stream without its server, and the server with --url")
    if not all(written.split("/")):
        raise BadName(f"'{written}' has an empty part")
    return StreamName(written, V1 + _quoted(written.split("/")))


def bucket_path(written: str) -> str:
    """The path of a bucket. Raises `BadName`."""
    bucket = written.strip("/")
    if not bucket or "/" in bucket:
        raise BadName(f"'{written}' is not the name of a bucket")
    return "/" + _quoted([bucket])


def _quoted(parts: Sequence[str]) -> str:
    """Quote a path so that each part means itself: HTTP clients and proxies would turn ``a/../b``
    into ``b``, another stream. Raises `BadName`."""
    if ".." in parts:
        raise BadName(f"'{'/'.join(parts)}' has a part ..")
    return "/".join("%2E" if part == "." else quote(part, safe="") for part in parts)
