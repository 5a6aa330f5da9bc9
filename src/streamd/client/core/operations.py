"""Single requests about streams and buckets, as flows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from streamd.client.core.plain import check_messages
from streamd.client.core.retrying import Backoff, Session, ask, unexpected
from streamd.client.core.steps import Answer, Emit, Flow, Request
from streamd.client.errors import (
    AlreadyExists,
    NotFound,
    OutcomeUnknown,
    PreconditionFailed,
    Refused,
    number,
)
from streamd.client.values import Appended, BucketInfo, ListedStream, StreamInfo
from streamd.protocol.headers import (
    CONTENT_TYPE,
    ETAG,
    IF_MATCH,
    PRODUCER_ID,
    PRODUCER_SEQ,
    STREAM_CLOSED,
    STREAM_EARLIEST_OFFSET,
    STREAM_EXPIRES_AT,
    STREAM_NEXT_OFFSET,
    STREAM_SNAPSHOT_OFFSET,
    STREAM_TTL,
    WRITE_FENCE,
)
from streamd.streams.content import json_value

_PAGE = 1000
# The most records of one append-batch (docs/api.md).
MAX_FRAMES = 512
_LENGTH_BYTES = 4


def is_true(headers: Mapping[str, str], header: str) -> bool:
    """Whether a header says `true`, in any case."""
    return headers.get(header, "").lower() == "true"


def _info(answer: Answer) -> StreamInfo:
    headers = answer.headers
    if STREAM_NEXT_OFFSET not in headers:
        raise unexpected(answer.status, "Stream-Next-Offset is missing")
    return StreamInfo(
        headers.get(CONTENT_TYPE, ""),
        headers[STREAM_NEXT_OFFSET],
        is_true(headers, STREAM_CLOSED),
        headers.get(ETAG),
        number(headers.get(STREAM_TTL)),
        headers.get(STREAM_EXPIRES_AT),
        headers.get(STREAM_SNAPSHOT_OFFSET),
        headers.get(STREAM_EARLIEST_OFFSET),
        answer.status == 201,
        is_true(headers, WRITE_FENCE),
    )


def appended(session: Session, path: str, answer: Answer) -> Flow[Appended]:
    """The result in the answer to an append, and the stream's end.

    Servers may leave that out of the answer to a repetition (section 5.2.1); then they are asked.
    """
    headers = answer.headers
    next_offset, closed = headers.get(STREAM_NEXT_OFFSET), is_true(headers, STREAM_CLOSED)
    if next_offset is None and answer.status == 204 and PRODUCER_SEQ in headers:
        info = yield from head(session, path)
        next_offset, closed = info.next_offset, closed or info.closed
    if next_offset is None:
        failure = unexpected(answer.status, "Stream-Next-Offset is missing")
        raise OutcomeUnknown(failure.code, failure.message, failure.status) from failure
    return Appended(next_offset, headers.get(ETAG), closed)


def create(
    session: Session, path: str, headers: Mapping[str, str], data: bytes
) -> Flow[StreamInfo]:
    """Create a stream, or a fork, or confirm that it exists with these settings.

    A repetition of the request that created it answers that it exists, so after a lost answer
    `is_new` is a guess: whether this client was the one is not known.
    """
    answer = yield from ask(session, Request("PUT", path, None, headers, data))
    info = _info(answer)
    # The server has confirmed the lifetime, and need not repeat it.
    return info._replace(
        ttl_s=number(headers.get(STREAM_TTL)) if info.ttl_s is None else info.ttl_s,
        expires_at=info.expires_at or headers.get(STREAM_EXPIRES_AT),
    )


def head(session: Session, path: str) -> Flow[StreamInfo]:
    """What a stream is and where it ends."""
    # Shared by both requests, so that a busy server is not retried for twice the time.
    backoff = Backoff(session)
    try:
        answer = yield from ask(session, Request("HEAD", path), backoff=backoff)
    except Refused:
        # An answer to HEAD has no body; GET says why.
        yield from ask(session, Request("GET", path, {"offset": "now"}), backoff=backoff)
        raise
    return _info(answer)


def append(session: Session, path: str, headers: Mapping[str, str], body: bytes) -> Flow[Appended]:
    """Append: exactly once with a producer's headers, and at most once without them."""
    request = Request("POST", path, None, headers, body)
    is_counted = PRODUCER_ID in headers
    answer = yield from ask(session, request, repeatable=is_counted)
    is_repetition = is_counted and bool(body) and answer.status == 204
    found = yield from appended(session, path, answer)
    return found._replace(is_new=not is_repetition)


def close(session: Session, path: str, headers: Mapping[str, str]) -> Flow[Appended]:
    """Close a stream without an append, which may be repeated."""
    backoff = Backoff(session)
    try:
        answer = yield from ask(session, Request("POST", path, None, headers), backoff=backoff)
    except PreconditionFailed as failed:
        # An earlier try without an answer may have closed it, which changes its ETag.
        if not backoff.is_doubtful:
            raise
        code = "OUTCOME_UNKNOWN"
        raise OutcomeUnknown(code, failed.message, failed.status, failed.headers) from failed
    return (yield from appended(session, path, answer))


def delete(session: Session, path: str, headers: Mapping[str, str] | None = None) -> Flow[None]:
    """Delete a stream or a bucket."""
    backoff = Backoff(session)
    try:
        yield from ask(session, Request("DELETE", path, None, headers), backoff=backoff)
    except NotFound:
        # An earlier try without an answer may have deleted it.
        if not backoff.is_doubtful:
            raise


def put_bucket(session: Session, path: str) -> Flow[None]:
    """Create a bucket."""
    backoff = Backoff(session)
    try:
        yield from ask(session, Request("PUT", path), backoff=backoff)
    except AlreadyExists:
        # An earlier try without an answer may have created it.
        if not backoff.is_doubtful:
            raise


def bucket(session: Session, path: str) -> Flow[BucketInfo]:
    """A bucket's facts."""
    answer = yield from ask(session, Request("GET", path))
    return answer.decoded(BucketInfo)


class _Page(msgspec.Struct):
    has_more: bool
    next_cursor: str | None = None


class _Streams(_Page, kw_only=True):
    streams: list[ListedStream]


class _Buckets(_Page, kw_only=True):
    buckets: list[BucketInfo]


def listing(session: Session, path: str, prefix: str, after: str | None) -> Flow[None]:
    """Emit the streams of a bucket in the order of their ids."""
    return _paged(session, f"{path}/streams", prefix, after, _Streams)


def buckets(session: Session, prefix: str, after: str | None) -> Flow[None]:
    """Emit the buckets in the order of their names."""
    return _paged(session, "/", prefix, after, _Buckets)


def _paged(
    session: Session,
    path: str,
    prefix: str,
    after: str | None,
    kind: type[_Streams] | type[_Buckets],
) -> Flow[None]:
    params = {"limit": str(_PAGE)}
    if prefix:
        params["prefix"] = prefix
    while True:
        if after is not None:
            params["after"] = after
        answer = yield from ask(session, Request("GET", path, params))
        page = answer.decoded(kind)
        for one in page.streams if isinstance(page, _Streams) else page.buckets:
            yield Emit(one)
        after = page.next_cursor
        if not page.has_more or after is None:
            return


def json_body(values: Sequence[object]) -> bytes:
    """An array of values as the body of an append. Raises `TypeError`, `ValueError`."""
    check_messages(values)
    return msgspec.json.encode(values)


def json_array(texts: Sequence[bytes]) -> bytes:
    """JSON texts as an array. Each is checked, so that none can break out of the array.

    Raises `ValueError`.
    """
    return b"[" + b",".join(map(json_value, texts)) + b"]"


def frames(payloads: Sequence[bytes]) -> bytes:
    """Payloads as the body of append-batch."""
    return b"".join(
        [
            part
            for payload in payloads
            for part in (len(payload).to_bytes(_LENGTH_BYTES, "big"), payload)
        ]
    )


def write_headers(
    content_type: str | None = None, *, if_match: str | None = None, closes: bool = False
) -> dict[str, str]:
    """The headers of a write."""
    headers: dict[str, str] = {}
    if content_type is not None:
        headers[CONTENT_TYPE] = content_type
    if if_match is not None:
        headers[IF_MATCH] = if_match
    if closes:
        headers[STREAM_CLOSED] = "true"
    return headers


def authorization(token: str) -> dict[str, str]:
    """The header that carries a token."""
    return {"Authorization": f"Bearer {token}"}


def lifetime(ttl_s: int | None, expires_at: str | None) -> dict[str, str]:
    """The headers that limit a stream's life."""
    headers: dict[str, str] = {}
    if ttl_s is not None:
        headers[STREAM_TTL] = str(ttl_s)
    if expires_at is not None:
        headers[STREAM_EXPIRES_AT] = expires_at
    return headers
