"""Conditional requests: If-None-Match for reads, If-Match for writes (RFC 9110 section 13)."""

from __future__ import annotations

import re

from streamd.http.protocol.fields import Headers
from streamd.protocol.headers import IF_MATCH
from streamd.protocol.problems import Problem
from streamd.streams.checks import MAX_TAGS
from streamd.streams.etags import parse_tag
from streamd.streams.model import IfMatch

_TAG = re.compile(rb'(?:W/)?"[\x21\x23-\x7e\x80-\xff]*"')
# A compressed answer is another representation and has a tag of its own (`compression`).
_CODING = re.compile(rb'-(?:zstd|gzip|deflate)"$')

# ``If-Match: *``: the stream exists.
ANY_STATE = IfMatch()


def without_coding(tag: bytes) -> bytes:
    """The tag that the answer had before it was compressed."""
    return _CODING.sub(b'"', tag)


def named_tag(header: bytes, etag: bytes) -> bytes | None:
    """The tag by which an If-None-Match header names `etag`, compressed or not, or None.

    Weak comparison (RFC 9110 section 8.8.3.2).
    """
    if header == etag or header.strip() == b"*":
        return etag
    for candidate in header.split(b","):
        tag = candidate.strip().removeprefix(b"W/")
        if without_coding(tag) == etag:
            return tag
    return None


def if_match(headers: Headers) -> IfMatch | None:
    """The condition of a write. Weak and foreign tags never match. Raises `ProblemError`."""
    raw = headers.get(IF_MATCH.key)
    if raw is None:
        return None
    if raw.strip() == b"*":
        return ANY_STATE
    tags = _TAG.findall(raw)
    if len(tags) > MAX_TAGS:
        raise Problem.INVALID_REQUEST.error(f"If-Match may list {MAX_TAGS} tags")
    versions = (parse_tag(without_coding(tag)) for tag in tags)
    return IfMatch(tuple(version for version in versions if version is not None))
