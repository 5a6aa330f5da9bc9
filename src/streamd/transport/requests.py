"""Requests and their replies, on the asking and on the answering side of a connection."""

from __future__ import annotations

import math

import msgspec
import structlog
import trio

from streamd.streams.content import UNDECODABLE
from streamd.transport.errors import (
    NotSent,
    ProtocolError,
    RefusalMessage,
    RequestOutcomeUnknown,
    RequestRefused,
)
from streamd.transport.interface import Handler, Limits
from streamd.transport.outbox import Outbox, Packet
from streamd.transport.wire import (
    FrameKind,
    Reply,
    ReplyStatus,
    Request,
    reply_payload,
    request_payload,
)

OVERLOADED = "OVERLOADED"

log = structlog.get_logger("streamd.transport")

_HEAD_BYTES = 64  # the overhead of a request or reply, and a little more
_MAX_TIMEOUT_MS = (1 << 32) - 1
# Refusals cost the asker nothing, so their number is limited for a peer that reads none of them.
_MAX_WAITING_REPLIES = 4

_REFUSED = msgspec.msgpack.Decoder(RefusalMessage)
_ENCODER = msgspec.msgpack.Encoder()


class _Call:
    """One request of ours, until its caller has returned."""

    def __init__(self) -> None:
        self.begun = False
        self.reply: Reply | None = None
        self.lost: str | None = None
        self.ended = trio.Event()

    def begin(self) -> None:
        self.begun = True

    def lose(self, reason: str) -> None:
        self.lost = reason
        self.ended.set()

    def result(self, reason: str) -> bytes:
        """The answer; otherwise `reason` is why there is none. Raises what `request` raises."""
        if self.reply is None:
            raise RequestOutcomeUnknown(reason) if self.begun else NotSent(reason)
        if self.reply.status == ReplyStatus.DONE:
            return self.reply.payload
        refused = _REFUSED.decode(self.reply.payload)
        if self.reply.status == ReplyStatus.REFUSED:
            raise RequestRefused(refused.code, refused.message)
        raise RequestOutcomeUnknown(refused.message)


class Asking:
    """The requests to one peer: at most `max_requests` under way; the others wait their turn."""

    def __init__(self, outbox: Outbox, limits: Limits) -> None:
        self._outbox = outbox
        self._limits = limits
        self._slots = trio.Semaphore(limits.max_requests)
        self._calls: dict[int, _Call] = {}
        self._asked = 0
        self._connected = False

    def begin(self) -> None:
        """A connection was made."""
        assert not self._calls, "no request outlives its connection"
        self._connected = True

    def end(self, reason: str) -> None:
        """The connection is lost, and the answers with it."""
        self._connected = False
        for call in self._calls.values():
            call.lose(reason)
        self._calls.clear()

    async def ask(self, group_id: int, kind: int, payload: bytes, timeout_s: float) -> bytes:
        """See `Transport.request`."""
        limit = min(self._limits.max_request_bytes, self._limits.max_packet_bytes - _HEAD_BYTES)
        if len(payload) > limit:
            raise NotSent(f"the request exceeds {limit} bytes")
        if not self._connected:
            raise NotSent("the peer is not connected")
        call = _Call()
        with trio.move_on_after(max(0.0, timeout_s)):
            deadline = trio.current_effective_deadline()
            await self._take_slot()
            try:
                if not self._connected:
                    raise NotSent("the peer is not connected")
                left_ms = (deadline - trio.current_time()) * 1000
                timeout_ms = _MAX_TIMEOUT_MS if left_ms > _MAX_TIMEOUT_MS else math.ceil(left_ms)
                self._asked += 1
                await self._exchange(
                    call, Request(group_id, self._asked, kind, max(1, timeout_ms), payload)
                )
            finally:
                self._slots.release()
        return call.result(call.lost or f"no answer within {timeout_s:g} s")

    async def _take_slot(self) -> None:
        """Wait for the request's turn, but not for a pass of Trio's loop if that is now: a client
        waits for what a request carries."""
        await trio.lowlevel.checkpoint_if_cancelled()
        try:
            self._slots.acquire_nowait()
        except trio.WouldBlock:
            await self._slots.acquire()

    async def _exchange(self, call: _Call, request: Request) -> None:
        assert self._connected, "a request waits only while it can be sent"
        self._calls[request.request_id] = call
        number = self._outbox.put_packet(
            Packet(FrameKind.REQUEST, request_payload(request), call.begin)
        )
        try:
            await call.ended.wait()
        finally:
            self._calls.pop(request.request_id, None)
            self._outbox.take_back(number)

    def on_reply(self, reply: Reply) -> None:
        """Raises `ProtocolError`. Ignores replies that no request waits for."""
        if reply.status not in frozenset(ReplyStatus):
            raise ProtocolError(f"it sent a reply of unknown status {reply.status}")
        if reply.status != ReplyStatus.DONE:
            try:
                _REFUSED.decode(reply.payload)
            except UNDECODABLE as error:
                raise ProtocolError(f"it sent a refusal that cannot be decoded: {error}") from error
        call = self._calls.pop(reply.request_id, None)
        if call is not None:
            call.reply = reply
            call.ended.set()


class Answering:
    """The requests of one peer. Beyond the limits they are refused without a look at them."""

    def __init__(
        self,
        handler: Handler,
        peer_id: int,
        outbox: Outbox,
        limits: Limits,
        fatal: tuple[type[Exception], ...],
    ) -> None:
        self._handler = handler
        self._peer_id = peer_id
        self._outbox = outbox
        self._limits = limits
        self._fatal = fatal
        self._requests = 0
        self._request_bytes = 0
        self._reply_bytes = 0

    def on_request(self, request: Request, nursery: trio.Nursery) -> None:
        """Raises `ProtocolError` when the peer keeps asking without reading the replies."""
        size = len(request.payload)
        if (
            self._requests < self._limits.max_requests
            and self._request_bytes + size <= self._limits.max_request_bytes
        ):
            self._requests += 1
            self._request_bytes += size
            nursery.start_soon(self._answer, request)
            return
        if self._outbox.waiting_packets >= _MAX_WAITING_REPLIES * self._limits.max_requests:
            raise ProtocolError("it keeps sending requests without reading the replies")
        refused = RefusalMessage(OVERLOADED, "too many requests of this node are under way")
        reply = Reply(request.request_id, ReplyStatus.REFUSED, _ENCODER.encode(refused))
        self._outbox.put_packet(Packet(FrameKind.REPLY, reply_payload(reply), _nothing))

    async def _answer(self, request: Request) -> None:
        """Call the handler; the request counts as under way until its reply is being written."""
        reply = await self._handle(request)
        self._request_bytes -= len(request.payload)
        assert self._request_bytes >= 0, "each request is counted once"
        if reply is None:
            self._requests -= 1
            return
        if self._reply_bytes and (
            self._reply_bytes + len(reply.payload) > self._limits.max_request_bytes
        ):
            why = RefusalMessage(OVERLOADED, "too many answers are waiting to be read")
            reply = Reply(request.request_id, ReplyStatus.FAILED, _ENCODER.encode(why))
        payload = reply_payload(reply)
        self._reply_bytes += len(payload)

        def give_back() -> None:
            self._requests -= 1
            self._reply_bytes -= len(payload)
            assert min(self._requests, self._reply_bytes) >= 0, "each reply is counted once"

        self._outbox.put_packet(Packet(FrameKind.REPLY, payload, give_back))

    async def _handle(self, request: Request) -> Reply | None:
        """The reply, or None when the asker no longer waits for one."""
        number = request.request_id
        try:
            with trio.move_on_after(request.timeout_ms / 1000):
                answer = await self._handler.on_request(
                    self._peer_id, request.group_id, request.kind, request.payload
                )
                if len(answer) + _HEAD_BYTES > self._limits.max_packet_bytes:
                    raise ValueError(f"an answer of {len(answer)} bytes cannot be sent")
                return Reply(number, ReplyStatus.DONE, answer)
            return None
        except RequestRefused as refused:
            status, why = ReplyStatus.REFUSED, RefusalMessage(refused.code, refused.message)
        except RequestOutcomeUnknown as unknown:
            status, why = ReplyStatus.FAILED, RefusalMessage("OUTCOME_UNKNOWN", str(unknown))
        except self._fatal:
            raise
        except Exception:
            # A bug of ours: this request gets an answer, all others continue.
            log.exception("a peer's request failed", peer_id=self._peer_id, kind=request.kind)
            status, why = (
                ReplyStatus.FAILED,
                RefusalMessage("INTERNAL", "the peer failed to answer"),
            )
        return Reply(number, status, _ENCODER.encode(why))


def _nothing() -> None:
    """Called for a refusal, which holds no place that it could free."""
