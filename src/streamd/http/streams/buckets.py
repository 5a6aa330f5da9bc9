"""Handlers of buckets: create, describe, list, delete (extensions sections 1.2 to 1.5)."""

from __future__ import annotations

import msgspec

from streamd.auth.scopes import NamePattern
from streamd.http.protocol.fields import is_local, limit_of, parse_query, text_of
from streamd.http.protocol.limit_bodies import LimitsBody
from streamd.http.protocol.messages import Request, Response
from streamd.http.protocol.refusals import error_response
from streamd.http.protocol.routing import (
    INVALID_BUCKET_ID,
    BucketRoute,
    BucketsRoute,
    ListingRoute,
    path_of,
)
from streamd.http.streams.service import BUCKET_NOT_FOUND, Service
from streamd.http.streams.writes import location
from streamd.protocol.problems import Problem
from streamd.streams.commands import CreateBucket, DeleteBucket, Result, Sweep
from streamd.streams.etags import state_tag
from streamd.streams.keys import is_bucket_id, stream_key
from streamd.streams.limits import Limits
from streamd.streams.queries.listing import BucketQuery, Listed, ListQuery, Page

MAX_LISTED = 1000
_MAX_SWEPT = 1000

_JSON_HEAD = b"Content-Type: application/json\r\nCache-Control: no-store\r\n"
_ENCODER = msgspec.json.Encoder()


class BucketBody(msgspec.Struct):
    """The answer to GET of a bucket.

    `kept_bytes` is null until all of its streams are counted, which begins with the first quota
    that is set for any bucket; `kept_streams` includes deleted ones that forks still read. Both are
    what `max_bytes` and `max_streams` of the `limits` are compared with.
    """

    bucket_id: str
    streams: int
    created_at_ms: int
    kept_bytes: int | None
    kept_streams: int
    limits: LimitsBody


class BucketEntry(msgspec.Struct):
    """A bucket among the others."""

    bucket_id: str
    streams: int
    created_at_ms: int


class BucketsBody(msgspec.Struct):
    """The answer to GET of all buckets that the sender may list."""

    prefix: str
    buckets: list[BucketEntry]
    next_cursor: str | None
    has_more: bool


class StreamBody(msgspec.Struct):
    """A stream in a listing. `tail_offset` counts bytes, `next_offset` is the offset of the tail.

    `path` reaches the stream even if `/{bucket}/{stream}` cannot name it. `etag` is that of a HEAD;
    the part before its first colon distinguishes streams that had the same name.
    """

    stream_id: str
    status: str
    content_type: str
    tail_offset: int
    next_offset: str
    created_at_ms: int
    last_write_at_ms: int
    path: str
    etag: str


class ListingBody(msgspec.Struct):
    """The answer to GET of a bucket's streams."""

    bucket_id: str
    prefix: str
    stream_count: int
    streams: list[StreamBody]
    next_cursor: str | None
    has_more: bool


async def create(service: Service, request: Request, route: BucketRoute) -> Response:
    """PUT of a bucket."""
    outcome = await service.node.group.writes.propose(CreateBucket(route.name))
    if outcome.result is Result.BUCKET_EXISTS:
        return error_response(Problem.BUCKET_EXISTS)
    return Response(201, location(request))


async def look_at(service: Service, request: Request, route: BucketRoute) -> Response:
    """GET of a bucket."""
    await service.catch_up(local=is_local(parse_query(request.query)))
    bucket = await service.node.reads.bucket(route.name)
    if bucket is None:
        return BUCKET_NOT_FOUND
    name, state = route.name.decode(), service.node.group.state
    is_counted = state.header.counts and bucket.counted == bucket.streams
    body = BucketBody(
        name,
        bucket.streams - bucket.hidden,
        bucket.created_ms,
        bucket.size if is_counted else None,
        bucket.streams,
        LimitsBody.of(state.limits.of_bucket(name) or Limits()),
    )
    return Response(200, _JSON_HEAD, _ENCODER.encode(body))


async def delete(service: Service, request: Request, route: BucketRoute) -> Response:
    """DELETE of a bucket without streams."""
    outcome = await service.node.group.writes.propose(DeleteBucket(route.name))
    if outcome.result is Result.BUCKET_NOT_EMPTY and await _sweep(service, route.name):
        outcome = await service.node.group.writes.propose(DeleteBucket(route.name))
    match outcome.result:
        case Result.DELETED:
            return Response(204)
        case Result.BUCKET_NOT_FOUND:
            return BUCKET_NOT_FOUND
        case _:
            return error_response(Problem.BUCKET_NOT_EMPTY)


async def _sweep(service: Service, name: bytes) -> bool:
    """Remove expired streams: without them the bucket is empty for its clients.

    Returns whether deleting the bucket is worth another try.
    """
    page = await _page(service, ListQuery(name, limit=1), local=False)
    if page.streams or not page.over:
        return False
    await service.node.group.writes.propose(
        Sweep([stream_key(name, over) for over in page.over[:_MAX_SWEPT]])
    )
    return True


async def list_buckets(service: Service, request: Request, route: BucketsRoute) -> Response:
    """GET of all buckets that the sender may list, also those whose names are no bucket ids."""
    given = parse_query(request.query)
    query = BucketQuery(*_page_of(given), _visible_buckets(request))
    await service.catch_up(local=is_local(given))
    await service.node.group.reads.stored()
    page = await service.node.reads.bucket_page(query)
    entries = [BucketEntry(one.name.decode(), one.streams, one.created_ms) for one in page.buckets]
    body = BucketsBody(
        query.prefix.decode(),
        entries,
        entries[-1].bucket_id if page.has_more else None,
        page.has_more,
    )
    return Response(200, _JSON_HEAD, _ENCODER.encode(body))


async def list_streams(service: Service, request: Request, route: ListingRoute) -> Response:
    """GET of the streams of a bucket."""
    given = parse_query(request.query)
    query = ListQuery(route.bucket, *_page_of(given), _visible(request, route.bucket))
    local = is_local(given)
    await service.catch_up(local=local)
    if await service.node.reads.bucket(route.bucket) is None:
        is_id = is_bucket_id(route.bucket)
        return BUCKET_NOT_FOUND if is_id else INVALID_BUCKET_ID.response()
    page = await _page(service, query, local=local)
    body = ListingBody(
        route.bucket.decode(),
        query.prefix.decode(),
        len(page.streams),
        [_shown(service, route.bucket, stream) for stream in page.streams],
        None if page.cursor is None else page.cursor.decode(),
        page.has_more,
    )
    return Response(200, _JSON_HEAD, _ENCODER.encode(body))


def _page_of(given: dict[bytes, bytes]) -> tuple[bytes, bytes, int]:
    """Which page of a listing a query is about: the prefix, the name before it, and its size."""
    return text_of(given, b"prefix"), text_of(given, b"after"), limit_of(given, MAX_LISTED)


def _visible_buckets(request: Request) -> tuple[NamePattern, ...]:
    """The buckets that a request's sender may list."""
    if request.identity is None:
        return (NamePattern(b"", True),)
    return tuple(request.identity.scopes.buckets("list"))


def _visible(request: Request, bucket: bytes) -> tuple[NamePattern, ...]:
    """The streams of a bucket that a request's sender may read."""
    if request.identity is None:
        return (NamePattern(b"", True),)
    return tuple(request.identity.scopes.names("read", bucket))


async def _page(service: Service, query: ListQuery, *, local: bool) -> Page:
    """The page, as of now or later. A stream that it leaves out as expired has expired on every
    node."""
    group = service.node.group
    asked_ms = group.now_ms()
    page = await service.node.reads.page(query, await group.reads.stored())
    over = [
        stream_key(query.bucket, listed.name)
        for listed in page.streams
        if listed.expiry_ms is not None and listed.expiry_ms <= asked_ms
    ]
    if over and group.view.leads and not local:
        # As for a single stream (`Service.find`): the log learns of the expiry first, then clients
        # do. By then log time has passed `asked_ms`, so the second page leaves all of them out.
        await group.writes.propose(Sweep(over))
        page = await service.node.reads.page(query, await group.reads.stored())
    return page


def _shown(service: Service, bucket: bytes, stream: Listed) -> StreamBody:
    tail = stream.tail.token()
    return StreamBody(
        stream.name.decode(),
        "closed" if stream.closed else "open",
        stream.content_type,
        stream.tail.byte,
        tail.decode(),
        stream.created_ms,
        stream.last_write_ms,
        path_of(bucket, stream.name),
        state_tag(service.incarnation(stream.stream_id), tail, stream.closed).decode(),
    )
