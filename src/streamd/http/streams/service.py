"""What the handlers of requests share: the node, and the limits over all clients."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from streamd.audit_trail.trail import AuditTrail
from streamd.config.settings import ServerConfig
from streamd.config.subscriptions import SubscriptionsConfig
from streamd.group.log_formats import SUBSCRIPTIONS_FORMAT
from streamd.http.access import write_tokens
from streamd.http.access.authority import Authority
from streamd.http.access.page_guards import StreamGuard
from streamd.http.access.rates import RateLimits
from streamd.http.access.write_tokens import WriteTokens
from streamd.http.protocol import fields
from streamd.http.protocol.compression import Compressor
from streamd.http.protocol.cursors import Cursors
from streamd.http.protocol.messages import Request, Response
from streamd.http.protocol.refusals import error_response
from streamd.http.protocol.routing import StreamRoute
from streamd.http.sockets.fair_limits import FairLimit
from streamd.http.sockets.outgoing import Outgoing
from streamd.http.streams.live import Hub
from streamd.http.streams.recent_answers import RecentAnswers
from streamd.node.node import Node
from streamd.protocol.problems import Problem
from streamd.streams.commands import Outcome, Result, Sweep
from streamd.streams.model import Stream
from streamd.streams.offsets import Position
from streamd.streams.subscriptions.model import Credential, FenceStamp


def _vary(names: Sequence[bytes]) -> bytes:
    return b"Vary: %b\r\n" % b", ".join(names) if names else b""


class Service:
    """A node, and what its handlers share: who may do what and how much, limits over all clients,
    and tools.

    `answers` are those of recent small reads, `uploads` and `downloads` limit the snapshots and
    bootstraps on their way in and out, `outgoing` the bytes that live readers hold, `splitting` the
    large JSON bodies that are split into messages at the same time: one, because splitting takes
    many times the body's size. `trail` is None unless an audit trail is configured, and
    `subscriptions` is their configuration. `vary` is the header that tells caches on what an answer
    depends, without and with compression (protocol section 8.1).
    """

    __slots__ = (
        "answers",
        "authority",
        "compressor",
        "cursors",
        "downloads",
        "hub",
        "node",
        "outgoing",
        "rates",
        "server",
        "splitting",
        "stream_guard",
        "subscriptions",
        "trail",
        "uploads",
        "vary",
        "write_tokens",
    )

    def __init__(
        self,
        node: Node,
        hub: Hub,
        server: ServerConfig,
        cursors: Cursors,
        authority: Authority,
        trail: AuditTrail | None = None,
        subscriptions: SubscriptionsConfig | None = None,
    ) -> None:
        self.node = node
        self.hub = hub
        self.server = server
        self.cursors = cursors
        self.authority = authority
        self.trail = trail
        self.subscriptions = subscriptions or SubscriptionsConfig()
        self.rates = RateLimits(node.group.state, node.metrics, server.max_connections)
        self.stream_guard = StreamGuard(server, requires_tokens=authority.is_required)
        depends = [b"Authorization"] if authority.is_required else []
        if self.stream_guard.checks_origin:
            depends.append(b"Origin")
        self.vary = _vary(depends), _vary([b"Accept-Encoding", *depends])
        self.write_tokens = WriteTokens(node.keyring.verify, node.is_ready)
        self.answers = RecentAnswers()
        self.compressor = Compressor(node.run_blocking)
        self.splitting = trio.CapacityLimiter(1)
        self.uploads = FairLimit(server.max_snapshot_uploads)
        self.downloads = FairLimit(server.max_snapshot_downloads)
        self.outgoing = Outgoing(server.max_buffered_bytes)

    async def may_fence(self) -> bool:
        """Whether streams can be fenced: the feature level says so. Raises `Unavailable`."""
        formats = self.node.log_formats
        if not formats.may_use(SUBSCRIPTIONS_FORMAT):
            await self.catch_up()  # This node may not know of it yet.
        return formats.may_use(SUBSCRIPTIONS_FORMAT)

    async def write_stamp(self, request: Request) -> FenceStamp | None:
        """What an append shows of a claim, for the log to judge it; None if that is nothing.

        Raises `ProblemError` for a malformed carrier, and if the sender wants its write fenced and
        shows no valid token; `Unavailable`.
        """
        if not write_tokens.are_shown(request.headers):
            return None
        stamp = self.write_tokens.stamp(request)
        if stamp is not None and stamp.credential is not Credential.WRITE:
            await self.catch_up()  # Its key may be newer than what this node knows.
            stamp = self.write_tokens.stamp(request)
        is_valid = stamp is not None and stamp.credential is Credential.WRITE
        if fields.wants_fence(request.headers) and not is_valid:
            raise Problem.UNAUTHENTICATED.error(reason="credential")
        # Before the level is reached no stream is fenced, and the log must not have stamps.
        return stamp if stamp is None or await self.may_fence() else None

    async def find(self, route: StreamRoute, *, local: bool = False) -> Stream | Response:
        """The stream at `route`, or the error response if it does not exist.

        Linearizable, or with `local` by this node's state. Raises `Unavailable`.
        """
        await self.catch_up(local=local)
        stream = await self.node.reads.stream(route.key)
        if stream is not None and self._must_expire(route, stream):
            await self.node.group.writes.propose(Sweep([route.key]))
            stream = await self.node.reads.stream(route.key)
        return _found(stream)

    def find_now(self, route: StreamRoute, *, local: bool = False) -> Stream | Response | None:
        """As `find`, or None if that must wait."""
        if not (local or self.node.group.reads.may_read_now()) or not self.node.reads.has(
            route.key
        ):
            return None
        stream = self.node.reads.known(route.key)
        if stream is not None and self._must_expire(route, stream):
            return None
        return _found(stream)

    async def catch_up(self, *, local: bool = False) -> None:
        """Wait until the state has every write acknowledged so far, unless the read is `local`.

        Raises `Unavailable`.
        """
        if not local:
            await self.node.group.reads.catch_up()

    def _must_expire(self, route: StreamRoute, stream: Stream) -> bool:
        """Whether a stream has expired and the log must say so before a reader learns it.

        Clocks of nodes differ. If one node answered by its own clock that a stream is gone, another
        could still show the stream afterwards. So the leader first writes the expiry to the log,
        and the other nodes go by the log alone.
        """
        if stream.deleted or (stream.ttl_ms is None and stream.expires_at_ms is None):
            return False
        group = self.node.group
        touched_ms = group.writes.touches.latest_ms(route.key, stream.stream_id)
        return group.view.leads and stream.expired(group.now_ms(), touched_ms)

    def incarnation(self, stream_id: int) -> int:
        """The number that the stream's ETags begin with."""
        return self.node.group.state.header.incarnation_base + stream_id

    def touch(self, route: StreamRoute, stream: Stream) -> None:
        """Renew the sliding window of a stream that was read."""
        if stream.ttl_ms is not None:
            self.node.group.writes.touches.note(route.key, stream.stream_id)


def _found(stream: Stream | None) -> Stream | Response:
    if stream is None:
        return NOT_FOUND
    return GONE if stream.deleted else stream


def offset_gone(earliest: Position) -> Response:
    """The error for an offset before the earliest one (extensions section 2.2)."""
    return error_response(
        Problem.STREAM_OFFSET_GONE, head=b"Stream-Earliest-Offset: %b\r\n" % earliest.token()
    )


NOT_FOUND = error_response(Problem.STREAM_NOT_FOUND)
BUCKET_NOT_FOUND = error_response(Problem.BUCKET_NOT_FOUND)
GONE = error_response(Problem.STREAM_GONE)
TOO_MANY_READERS = error_response(Problem.TOO_MANY_READERS)


def quota_answer(outcome: Outcome) -> Response:
    """The answer to a refusal by a quota."""
    match outcome.result:
        case Result.BUCKET_FULL:
            message = "the bucket keeps as many bytes as its limits allow"
            return error_response(Problem.QUOTA_EXCEEDED, message)
        case Result.STREAM_FULL:
            message = "the stream keeps as many bytes as the limits of its bucket allow"
            return error_response(Problem.QUOTA_EXCEEDED, message)
        case Result.TOO_MANY_STREAMS:
            return error_response(Problem.TOO_MANY_STREAMS)
        case _:
            raise AssertionError(outcome)
