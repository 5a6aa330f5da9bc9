"""Parses the protocol's headers and query parameters strictly.

Each function takes raw bytes from the client and returns a typed value, or raises `ProblemError`,
which names the header or parameter at fault. The conditions of requests, If-None-Match for reads
and If-Match for writes (RFC 9110 section 13), are among them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from enum import Enum
from functools import lru_cache
from typing import NamedTuple
from urllib.parse import unquote_to_bytes, urlsplit

from streamd.http.protocol.routing import StreamRoute, resolve
from streamd.protocol.headers import (
    CONTENT_TYPE,
    IF_MATCH,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    PRODUCER_SEQ,
    STREAM_CLOSED,
    STREAM_EXPIRES_AT,
    STREAM_FORK_OFFSET,
    STREAM_FORK_SUB_OFFSET,
    STREAM_FORKED_FROM,
    STREAM_SEQ,
    STREAM_TTL,
    WRITE_FENCE,
)
from streamd.protocol.problems import Problem
from streamd.streams.bounds import MAX_SAFE_INTEGER, MAX_TOKEN_BYTES, MAX_TTL_S
from streamd.streams.checks import MAX_TAGS, TIMESTAMP
from streamd.streams.chunks import Window
from streamd.streams.content import is_content_type
from streamd.streams.etags import parse_tag
from streamd.streams.model import ForkRequest, IfMatch, ProducerStamp, Settings
from streamd.streams.offsets import START, Position, parse_offset

Headers = Mapping[bytes, bytes]

MAX_READ_BYTES = 16 * 1024 * 1024
PIECE_BYTES = 1024 * 1024
# Every length costs some work, so a large answer of tiny records would block the loop.
_FRAMED_BYTES = PIECE_BYTES

_WHOLE_NUMBER = re.compile(rb"0|[1-9][0-9]{0,19}")
_TAG = re.compile(rb'(?:W/)?"[\x21\x23-\x7e\x80-\xff]*"')
# A compressed answer is another representation and has a tag of its own (`compression`).
_CODING = re.compile(rb'-(?:zstd|gzip|deflate)"$')

# ``If-Match: *``: the stream exists.
ANY_STATE = IfMatch()


class Live(Enum):
    """How a read continues at the tail (protocol sections 5.7 and 5.8)."""

    LONG_POLL = b"long-poll"
    SSE = b"sse"


class ReadQuery(NamedTuple):
    """The parameters of a read. `at` is None for ``offset=now``; `local` reads this node's state
    without asking the leader for a later one. `record` replaces the offset by a record's number;
    `framed` asks for records with their lengths, `proof` for a proof of the first one. A kept
    answer is found by all of it."""

    at: Position | None = START
    live: Live | None = None
    cursor: int | None = None
    timeout_ms: int | None = None
    max_bytes: int = PIECE_BYTES
    local: bool = False
    record: int | None = None
    framed: bool = False
    proof: bool = False

    def window(self, at: Position) -> Window:
        """What it asks for of the records from `at` on."""
        return Window(at, self.max_bytes)


def whole_number(raw: bytes, name: str, most: int) -> int:
    """A decimal without sign or leading zeros, at most `most`."""
    if _WHOLE_NUMBER.fullmatch(raw) is None or int(raw) > most:
        raise Problem.INVALID_REQUEST.error(f"{name} must be a whole number of at most {most}")
    return int(raw)


def refuse_coding(content_encoding: bytes) -> None:
    """Raise `ProblemError` for a coded body (RFC 9110 sections 8.4 and 12.5.3): readers would not
    learn that the bytes are coded, and a JSON stream could not parse them."""
    if content_encoding.strip().lower() not in (b"", b"identity"):
        raise Problem.UNSUPPORTED_CODING.error()


def wants_close(headers: Headers) -> bool:
    """Any value but ``true`` counts as absent (protocol section 4.1)."""
    value = headers.get(STREAM_CLOSED.key)
    return value is not None and value.lower() == b"true"


def wants_fence(headers: Headers) -> bool:
    """Any value but ``true`` counts as absent (write fencing, section 3)."""
    value = headers.get(WRITE_FENCE.key)
    return value is not None and value.lower() == b"true"


@lru_cache(maxsize=1024)
def content_type(raw: bytes) -> str:
    """A Content-Type header's value. Raises `ProblemError`."""
    text = raw.decode("latin-1")
    if not is_content_type(text):
        raise Problem.INVALID_CONTENT_TYPE.error()
    return text


def stream_seq(headers: Headers) -> str | None:
    """The writer's Stream-Seq (protocol section 5.2). Raises `ProblemError`."""
    raw = headers.get(STREAM_SEQ.key)
    if raw is None:
        return None
    if not raw or len(raw) > MAX_TOKEN_BYTES:
        raise Problem.INVALID_REQUEST.error(f"Stream-Seq must have 1 to {MAX_TOKEN_BYTES} bytes")
    return raw.decode("latin-1")


def producer(headers: Headers) -> ProducerStamp | None:
    """The three producer headers, all or none (protocol section 5.2.1)."""
    producer_id = headers.get(PRODUCER_ID.key)
    epoch = headers.get(PRODUCER_EPOCH.key)
    seq = headers.get(PRODUCER_SEQ.key)
    if producer_id is None and epoch is None and seq is None:
        return None
    if producer_id is None or epoch is None or seq is None:
        raise Problem.INVALID_PRODUCER.error()
    if not producer_id or len(producer_id) > MAX_TOKEN_BYTES:
        raise Problem.INVALID_PRODUCER.error(f"Producer-Id must have 1 to {MAX_TOKEN_BYTES} bytes")
    return ProducerStamp(
        producer_id.decode("latin-1"),
        whole_number(epoch, "Producer-Epoch", MAX_SAFE_INTEGER),
        whole_number(seq, "Producer-Seq", MAX_SAFE_INTEGER),
    )


def create_settings(headers: Headers, fork: ForkRequest | None) -> Settings:
    """The settings that a PUT asks for (protocol section 5.1). Raises `ProblemError`."""
    raw_type = headers.get(CONTENT_TYPE.key)
    ttl = headers.get(STREAM_TTL.key)
    expires_at = headers.get(STREAM_EXPIRES_AT.key)
    if ttl is not None and expires_at is not None:
        raise Problem.INVALID_REQUEST.error("Stream-TTL and Stream-Expires-At cannot be combined")
    ttl_ms = None if ttl is None else whole_number(ttl, "Stream-TTL", MAX_TTL_S) * 1000
    text, expires_at_ms = (None, None) if expires_at is None else _timestamp(expires_at)
    return Settings(
        content_type(raw_type) if raw_type else None,
        ttl_ms,
        text,
        expires_at_ms,
        fork,
        wants_fence(headers),
    )


def _timestamp(raw: bytes) -> tuple[str, int]:
    text = raw.decode("latin-1")
    try:
        if TIMESTAMP.fullmatch(text) is None:
            raise ValueError
        return text, int(datetime.fromisoformat(text.upper()).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise Problem.INVALID_REQUEST.error(
            "Stream-Expires-At must be an RFC 3339 time stamp"
        ) from None


def fork_source(headers: Headers) -> bytes | None:
    """The key of the stream that Stream-Forked-From names, by its path or its URL at this host.

    Raises `ProblemError`.
    """
    raw = headers.get(STREAM_FORKED_FROM.key)
    if raw is None:
        return None
    path = raw
    if raw.startswith((b"http://", b"https://")):
        try:
            url = urlsplit(raw)
        except ValueError:
            url = urlsplit(b"")  # A malformed host.
        # On another server this path is another stream.
        is_here = url.netloc.lower() == headers.get(b"host", b"").lower()
        path = url.path if is_here else b""
    route = resolve(path) if path.startswith(b"/") else None
    if not isinstance(route, StreamRoute):
        raise Problem.INVALID_FORK.error("Stream-Forked-From is not the path of a stream here")
    return route.key


def fork_request(headers: Headers, source: bytes | None) -> ForkRequest | None:
    """The fork headers; `source` is the key that Stream-Forked-From names, if given."""
    raw_offset = headers.get(STREAM_FORK_OFFSET.key)
    raw_sub_offset = headers.get(STREAM_FORK_SUB_OFFSET.key)
    if source is None:
        if raw_offset is not None or raw_sub_offset is not None:
            raise Problem.INVALID_FORK.error(
                "Stream-Fork-Offset and -Sub-Offset need Stream-Forked-From"
            )
        return None
    offset = None
    if raw_offset is not None:
        offset = parse_offset(raw_offset)
        if offset is None:
            raise Problem.INVALID_OFFSET.error("Stream-Fork-Offset is not an offset")
    sub_offset = 0
    if raw_sub_offset is not None:
        sub_offset = whole_number(raw_sub_offset, "Stream-Fork-Sub-Offset", MAX_SAFE_INTEGER)
    return ForkRequest(source, offset and (offset.record, offset.byte), sub_offset)


def read_query(query: bytes) -> ReadQuery:
    """The query of a GET on a stream (protocol sections 5.6 to 5.8). Raises `ProblemError`."""
    if not query:
        return _DEFAULT_QUERY
    return _read_query_cached(query) if len(query) <= 200 else _read_query(query)


_DEFAULT_QUERY = ReadQuery()


@lru_cache(maxsize=8192)
def _read_query_cached(query: bytes) -> ReadQuery:
    return _read_query(query)


def _read_query(query: bytes) -> ReadQuery:
    given = parse_query(query)
    live = None
    # Some clients name the read that is not live, as the reference server lets them.
    if given.get(b"live", b"false") != b"false":
        try:
            live = Live(given[b"live"])
        except ValueError:
            raise Problem.INVALID_REQUEST.error("live must be long-poll or sse") from None
        if b"offset" not in given:
            raise Problem.INVALID_OFFSET.error("a live read needs an offset")
    timeout = given.get(b"timeout")
    most = given.get(b"max_bytes")
    cursor = given.get(b"cursor", b"")
    if len(cursor) > MAX_TOKEN_BYTES:
        raise Problem.INVALID_REQUEST.error(f"cursor exceeds {MAX_TOKEN_BYTES} bytes")
    record = given.get(b"record")
    if record is not None and b"offset" in given:
        raise Problem.INVALID_REQUEST.error("offset and record cannot be combined")
    framing = given.get(b"framing")
    if framing not in (None, b"lengths"):
        raise Problem.INVALID_REQUEST.error("framing must be lengths")
    if framing is not None and live is not None:
        raise Problem.INVALID_REQUEST.error("framing and live cannot be combined")
    proof = given.get(b"proof")
    if proof not in (None, b"record"):
        raise Problem.INVALID_REQUEST.error("proof must be record")
    if proof is not None and (live is not None or framing is not None):
        raise Problem.INVALID_REQUEST.error("proof cannot be combined with live or framing")
    max_bytes = PIECE_BYTES
    if most is not None:
        max_bytes = max(1, whole_number(most, "max_bytes", MAX_READ_BYTES))
    if framing is not None:
        max_bytes = min(max_bytes, _FRAMED_BYTES)
    return ReadQuery(
        _offset(given.get(b"offset", b"-1")),
        live,
        # A cursor is only a cache key: a malformed one must not fail the read.
        int(cursor) if cursor.isdigit() else None,
        None if timeout is None else _seconds_as_ms(timeout),
        max_bytes,
        is_local(given),
        None if record is None else whole_number(record, "record", MAX_SAFE_INTEGER),
        framing is not None,
        proof is not None,
    )


def is_local(given: Mapping[bytes, bytes]) -> bool:
    """Whether a parsed query asks for this node's own state. Raises `ProblemError`."""
    consistency = given.get(b"consistency", b"linearizable")
    if consistency not in (b"linearizable", b"local"):
        raise Problem.INVALID_REQUEST.error("consistency must be linearizable or local")
    return consistency == b"local"


def _offset(raw: bytes) -> Position | None:
    if raw == b"now":
        return None
    if raw == b"-1":
        return START
    position = parse_offset(raw)
    if position is None:
        raise Problem.INVALID_OFFSET.error(
            "offset must be -1, now, or an offset from an earlier answer"
        )
    return position


def _seconds_as_ms(raw: bytes) -> int:
    if re.fullmatch(rb"[0-9]{1,6}(\.[0-9]{1,3})?", raw) is None:
        raise Problem.INVALID_REQUEST.error("timeout must be a number of seconds")
    return int(float(raw) * 1000)


def parse_query(query: bytes) -> dict[bytes, bytes]:
    """Query parameters by name, decoded. Raises `ProblemError` for a repeated one."""
    given: dict[bytes, bytes] = {}
    for pair in query.split(b"&"):
        name, _, value = pair.partition(b"=")
        if b"%" in pair or b"+" in pair:
            name = unquote_to_bytes(name.replace(b"+", b" "))
            value = unquote_to_bytes(value.replace(b"+", b" "))
        if name in given:
            text = name.decode("utf-8", "replace")
            raise Problem.INVALID_REQUEST.error(f"the parameter {text} is given more than once")
        given[name] = value
    return given


def text_of(given: Mapping[bytes, bytes], name: bytes) -> bytes:
    """A parameter of a parsed query, empty if it is not there. Raises `ProblemError` if it is not
    UTF-8."""
    raw = given.get(name, b"")
    try:
        raw.decode()
    except UnicodeDecodeError:
        raise Problem.INVALID_REQUEST.error(f"{name.decode()} is not UTF-8") from None
    return raw


def limit_of(given: Mapping[bytes, bytes], most: int) -> int:
    """How many entries a parsed query asks for, `most` by default. Raises `ProblemError`."""
    raw = given.get(b"limit")
    limit = most if raw is None else whole_number(raw, "limit", most)
    if not limit:
        raise Problem.INVALID_REQUEST.error(f"limit must be 1 to {most}")
    return limit


def snapshot_offset(raw: bytes) -> Position:
    """The offset in the path of a snapshot to publish. Raises `ProblemError`."""
    position = parse_offset(raw)
    if position is None:
        raise Problem.INVALID_OFFSET.error("a snapshot's offset must be one from an earlier answer")
    return position


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
