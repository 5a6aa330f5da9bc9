"""Streams on servers, over HTTP."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple
from urllib.parse import urlsplit

import numpy as np

from streamd.client import Answer, Client, NotFound, Refused, Unreachable
from streamd.client.core.retrying import RETRY_FOR_S
from streamd.client.names import parse_name
from streamd.process.redaction import shown
from streamd.protocol.headers import (
    CONTENT_TYPE,
    ETAG,
    STREAM_CONTENT_TYPE,
    STREAM_EARLIEST_OFFSET,
    STREAM_FIRST_OFFSET,
    STREAM_NEXT_OFFSET,
    STREAM_SNAPSHOT_OFFSET,
    STREAM_UP_TO_DATE,
)
from streamd.protocol.problems import Problem
from streamd.spark.errors import NoAnswer, NotUnderstood, StreamMissing, Trimmed
from streamd.spark.options import BadOption
from streamd.spark.streams import Described, Piece, Range, Snapshot
from streamd.streams.offsets import Position, parse_offset

_GONE = (404, 410)
# What a resolver says of a host that does not exist.
_NO_HOST = (socket.EAI_NONAME, socket.EAI_NODATA)


class Servers(NamedTuple):
    """Nodes of a cluster that are asked in turn, and how long a request is retried."""

    urls: tuple[str, ...]
    cacert: str | None = None
    retry_for_s: float = RETRY_FOR_S
    token: str | None = None

    def __repr__(self) -> str:
        return f"Servers({self.urls}, {self.cacert}, {self.retry_for_s})"

    def __str__(self) -> str:
        return ", ".join(shown(url) for url in self.urls)


_open: dict[tuple[Servers, int], Client] = {}


def client_of(servers: Servers, turn: int = 0, *, met: bool = False) -> Client:
    """A client that this process keeps, starting with the node whose turn it is.

    A task passes `met`: the driver has reached a server, so a host that is not found will be.
    Raises `BadOption`.
    """
    # Spark forks its Python workers; children must not use what their parent has open.
    turn %= len(servers.urls)
    known = _open.get((servers, os.getpid() << 16 | turn))
    if known is not None:
        return known
    if not met:
        _find_hosts(servers.urls)
    urls = servers.urls[turn:] + servers.urls[:turn]
    try:
        client = Client(
            urls,
            verify=servers.cacert or True,
            token=servers.token,
            retry_for_s=servers.retry_for_s,
        )
    except OSError as error:
        raise BadOption(
            f"option cacert is '{servers.cacert}', which cannot be read as CAs: {error}"
        ) from None
    _open[servers, os.getpid() << 16 | turn] = client
    return client


def _find_hosts(urls: Sequence[str]) -> None:
    """Raise `BadOption` if none of the hosts exists: to retry would not help.

    A resolver that cannot say so now is asked again with each request.
    """
    hosts = {urlsplit(url).hostname: None for url in urls}
    for host in hosts:
        try:
            socket.getaddrinfo(host, None)
        except socket.gaierror as error:
            if error.errno in _NO_HOST:
                continue
        return
    raise BadOption(f"option url has no host that exists: {', '.join(map(str, hosts))}; correct it")


class Remote:
    """`Streams` on a server. Also raises `NoAnswer`, `StreamdError`."""

    def __init__(self, servers: Servers, turn: int = 0, *, met: bool = False) -> None:
        """`turn` and `met` as for `client_of`."""
        self._client = client_of(servers, turn, met=met)
        self._servers = servers

    def describe(self, wanted: Iterable[str]) -> Sequence[Described]:
        return [self._describe(name) for name in wanted]

    def _describe(self, name: str) -> Described:
        try:
            answer = self._ask("HEAD", name)
        except StreamMissing as missing:
            raise StreamMissing(f"{missing}: create it, or name another") from None
        return Described(
            name,
            answer.headers.get(CONTENT_TYPE, ""),
            _incarnation(answer.headers.get(ETAG, "")),
            _position(answer, STREAM_NEXT_OFFSET),
        )

    def listed(self, bucket: str, prefix: str) -> Iterator[Described]:
        """The streams of a bucket under a prefix. Raises `StreamMissing`, `BadOption`."""
        try:
            with self._reaching():
                for listed in self._client.bucket(bucket).streams(prefix=prefix):
                    tail = parse_offset(listed.next_offset.encode())
                    if tail is None:
                        raise NotUnderstood(_OLD)
                    name = f"{bucket}/{listed.stream_id}"
                    yield Described(name, listed.content_type, _incarnation(listed.etag), tail)
        except NotFound:
            raise StreamMissing(f"there is no bucket {bucket} at {self._servers}") from None
        except Refused as refusal:
            if refusal.code == Problem.INVALID_BUCKET_ID.code:
                raise BadOption(f"option bucket is '{bucket}'; {_LISTED}") from None
            raise

    def boundary(self, name: str, record: int) -> Position:
        answer = self._ask("HEAD", name, {"record": str(record)})
        return _position(answer, STREAM_FIRST_OFFSET)

    def located(self, wanted: Range) -> Range:
        return wanted

    def pieces(self, wanted: Range, start: int) -> Iterator[Piece]:
        """The records of a range from `start` on, a response at a time."""
        name = wanted.name
        query = {"framing": "lengths", "record": str(start)}
        while True:
            answer = self._ask("GET", name, query)
            if _incarnation(answer.headers.get(ETAG, "")) != wanted.incarnation:
                raise StreamMissing(f"{name} was deleted, and another made of the same name")
            piece = _piece(answer)
            if len(piece.lengths):
                yield piece
            if STREAM_UP_TO_DATE in answer.headers:
                return
            query = {"framing": "lengths", "offset": answer.headers[STREAM_NEXT_OFFSET]}

    def snapshot(self, name: str) -> Snapshot:
        try:
            with self._reaching():
                path = f"{parse_name(name).bucketed_path()}/snapshot"
                answer = self._client.request("GET", path)
        except Refused as refusal:
            if refusal.status in _GONE:
                raise StreamMissing(f"there is no snapshot of {name}") from None
            raise
        at = _position(answer, STREAM_SNAPSHOT_OFFSET)
        return Snapshot(at, answer.headers.get(CONTENT_TYPE, ""), answer.body)

    def _ask(self, method: str, name: str, query: dict[str, str] | None = None) -> Answer:
        try:
            with self._reaching():
                return self._client.request(method, parse_name(name).path, params=query)
        except Refused as refusal:
            earliest = parse_offset(refusal.headers.get(STREAM_EARLIEST_OFFSET, "").encode())
            if refusal.status == 410 and earliest is not None:
                raise Trimmed(name, earliest) from None
            if refusal.status in _GONE:
                raise StreamMissing(f"there is no stream {name} at {self._servers}") from None
            raise

    @contextmanager
    def _reaching(self) -> Iterator[None]:
        try:
            yield
        except Unreachable as error:
            raise NoAnswer(
                f"{error.message} (tried for {self._servers.retry_for_s:g} s): start the server, "
                "correct option url, or set a longer retry_for_s"
            ) from None


_LISTED = (
    "servers list buckets of 4 to 64 of a-z 0-9 _ -: name streams of others, or of none, with "
    "stream or streams"
)
_OLD = "the server's answer lacks fields of the present version: it is older than this package"


def _piece(answer: Answer) -> Piece:
    headers = answer.headers
    if STREAM_CONTENT_TYPE not in headers:
        raise NotUnderstood(_OLD)
    count = int.from_bytes(answer.body[:4])
    lengths = np.frombuffer(answer.body, dtype=">u4", count=count, offset=4).astype(np.int64)
    start = _position(answer, STREAM_FIRST_OFFSET)
    return Piece(headers[STREAM_CONTENT_TYPE], start, lengths, answer.body[4 + 4 * count :])


def _position(answer: Answer, header: str) -> Position:
    found = parse_offset(answer.headers.get(header, "").encode())
    if found is None:
        raise NotUnderstood(_OLD)
    return found


def _incarnation(etag: str) -> str:
    """What distinguishes streams of one name: the beginning of all their ETags."""
    return etag.lstrip('"').partition(":")[0]
