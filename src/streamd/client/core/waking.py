"""A wake that a worker holds: how it is renewed, acknowledged and ended (protocol section 7).

Time here is the session's clock, and every rule errs on the safe side: a lease is counted from
before the request that renewed it, so the server ends it later than this process thinks.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import msgspec

from streamd.client.core import subscribing
from streamd.client.core.messages import Place
from streamd.client.core.reading import Incarnation, follow_from
from streamd.client.core.retrying import Backoff, Session, ask, unexpected
from streamd.client.core.steps import Done, Emit, Flow, Lost, Request, resume
from streamd.client.core.streams import StreamFlows
from streamd.client.core.subscribing import stream_path, with_json
from streamd.client.errors import (
    AlreadyClaimed,
    Fenced,
    InvalidOffset,
    LeaseLost,
    NoPendingWork,
    NotAuthenticated,
    OffsetGone,
    OutcomeUnknown,
    ProducerFenced,
    StreamClosed,
    StreamReplaced,
    SubscriptionNotFound,
)
from streamd.client.names import parse_name
from streamd.client.subscription_values import ClaimedWake, SubscribedStream
from streamd.client.values import NOW, START, Chunk
from streamd.protocol.headers import (
    CONTENT_TYPE,
    STREAM_NEXT_OFFSET,
    WRITE_FENCE,
    WRITE_TOKEN,
)
from streamd.streams.content import JSON

# Heartbeats in the time of a lease: two may fail before the third comes too late.
_BEATS = 3


class _Acknowledged(msgspec.Struct):
    """The answer to an acknowledgement. Tokens are renewed with the lease."""

    next_wake: bool = False
    token: str | None = None
    write_token: str | None = None


class HeldWake:
    """A wake in the hands of this process, until it is done, released or lost.

    `path` is the subscription's. `begun_at` is a time of the session's clock before the lease
    began.
    """

    def __init__(
        self, session: Session, path: str, claim: ClaimedWake, begun_at: float, *, is_webhook: bool
    ) -> None:
        self.claim = claim
        self.lease_s = claim.lease_ttl_ms / 1000
        self.is_over = self.next_wake = False
        self.lost: LeaseLost | None = None
        self.write_token = claim.write_token
        self.session = session
        self._token = claim.token
        self._path = path
        self._is_webhook = is_webhook
        self._renewed_at = begun_at
        self._acked: set[str] = set()

    @property
    def pending(self) -> list[SubscribedStream]:
        """The streams that have something after their acknowledged offset."""
        return [stream for stream in self.claim.streams if stream.has_pending]

    @property
    def beat_s(self) -> float:
        """The seconds between two heartbeats."""
        return self.lease_s / _BEATS

    @property
    def left_s(self) -> float:
        """How long the lease lasts at least, from now on."""
        return self._renewed_at + self.lease_s - self.session.clock()

    @property
    def write_headers(self) -> dict[str, str]:
        """The headers of a write to a fenced stream. Without a token the server refuses it, rather
        than take it from anyone."""
        headers: dict[str, str] = {WRITE_FENCE: "true"}
        if self.write_token is not None:
            headers[WRITE_TOKEN] = self.write_token
        return headers

    def check(self) -> None:
        """Raise `LeaseLost` if the wake is lost, and `ValueError` if it has ended."""
        if self.lost is not None:
            raise self.lost
        if self.is_over:
            raise ValueError("this wake has ended: it is done, or was released")

    def lose(self, why: str) -> LeaseLost:
        """The wake is over, without this process. Returns the error to raise."""
        self.lost = self.lost or LeaseLost(why)
        return self.lost

    def expire(self) -> LeaseLost:
        """No heartbeat got through in time."""
        return self.lose(f"the lease of {self.lease_s:g} s ended before the server renewed it")

    def ack(self, handled: Mapping[str, str]) -> Flow[None]:
        """Acknowledge streams up to positions, and renew the lease; with none, a heartbeat."""
        self.check()
        begun_at = self.session.clock()
        answer = yield from self._tell(_acks(handled), done=False, backoff=Backoff(self.session))
        self._renewed_at = begun_at
        self._token = answer.token or self._token
        self.write_token = answer.write_token or self.write_token
        self._acked.update(map(stream_path, handled))

    def done(self, handled: Mapping[str, str] | None) -> Flow[bool]:
        """End the wake. Without `handled`, all that it came for is: each pending stream up to the
        end that it had then, unless an earlier `ack` named it."""
        self.check()
        if handled is None:
            acks = [
                {"stream": stream.path, "offset": stream.tail_offset}
                for stream in self.pending
                if stream.tail_offset is not None and stream.path not in self._acked
            ]
        else:
            acks = _acks(handled)
        backoff = Backoff(self.session)
        try:
            try:
                answer = yield from self._tell(acks, done=True, backoff=backoff)
            except InvalidOffset:
                if handled is not None:
                    raise
                yield from self._acknowledge_each(acks)
                answer = yield from self._tell([], done=True, backoff=backoff)
        except LeaseLost as lost:
            # A try without an answer may have ended the wake, which then is over for a second.
            if not backoff.is_doubtful:
                raise
            self.is_over, self.lost = True, None
            raise OutcomeUnknown("OUTCOME_UNKNOWN", lost.message) from lost
        self.is_over, self.next_wake = True, answer.next_wake
        return answer.next_wake

    def _acknowledge_each(self, acks: list[dict[str, str]]) -> Flow[None]:
        """All that the subscription still has: a stream was deleted, or taken from it."""
        for ack in acks:
            try:
                yield from self._tell([ack], done=False, backoff=Backoff(self.session))
            except InvalidOffset:
                continue

    def release(self) -> Flow[None]:
        """Give the wake back: what is not acknowledged wakes the next worker."""
        self.check()
        if self._is_webhook:
            # Only the lease's end gives it back, and so a receiver that fails is not called again
            # at once.
            self.is_over = True
            return
        backoff = Backoff(self.session)
        try:
            yield from ask(self.session, self._request("release", {}), backoff=backoff)
        except (Fenced, SubscriptionNotFound, NotAuthenticated) as refused:
            # A try without an answer may have released it.
            if not backoff.is_doubtful:
                raise self._lost(refused) from refused
        self.is_over = True

    def _tell(
        self, acks: list[dict[str, str]], *, done: bool, backoff: Backoff
    ) -> Flow[_Acknowledged]:
        route = "callback" if self._is_webhook else "ack"
        request = self._request(route, {"acks": acks, "done": done})
        try:
            answer = yield from ask(self.session, request, backoff=backoff)
        except (Fenced, SubscriptionNotFound, NotAuthenticated) as refused:
            raise self._lost(refused) from refused
        return answer.decoded(_Acknowledged)

    def _lost(self, refused: Fenced | SubscriptionNotFound | NotAuthenticated) -> LeaseLost:
        return self.lose(f"the server has ended this wake ({refused})")

    def _request(self, route: str, more: dict[str, Any]) -> Request:
        stamp = {"wake_id": self.claim.wake_id, "generation": self.claim.generation}
        request = with_json("POST", f"{self._path}/{route}", stamp | more)
        headers = {CONTENT_TYPE: JSON, "Authorization": f"Bearer {self._token}"}
        return request._replace(headers=headers)


def _acks(handled: Mapping[str, str]) -> list[dict[str, str]]:
    """Positions as the server counts them: within an append of several messages, the offset before
    it. Raises `ValueError`, `BadName`."""
    offsets = {stream_path(name): Place(position).offset for name, position in handled.items()}
    return [{"stream": path, "offset": o} for path, o in offsets.items() if o != START]


class GenerationEpochs:
    """The epoch of a producer that belongs to a wake is the wake's generation, and no other."""

    def __init__(self, generation: int) -> None:
        self._generation = generation

    def next(self, producer_id: str, least: int) -> int:
        """The generation. Raises `ProducerFenced` if that is too early."""
        if least > self._generation:
            message = f"a later wake, or another producer of this one, writes as {producer_id}"
            raise ProducerFenced("STALE_EPOCH", message)
        return self._generation


class WorkerFlows:
    """How a worker of a pull-wake subscription waits for wakes."""

    def __init__(self, session: Session, subscription_id: str, worker: str | None) -> None:
        self.session = session
        self.subscription_id = subscription_id
        self.worker = worker or f"{socket.gethostname()}-{os.getpid()}-{uuid4().hex[:8]}"
        self._path = subscribing.subscription_path(subscription_id)
        self._wakes: StreamFlows | None = None

    def next(self) -> Flow[HeldWake]:
        """Wait until there is a wake that this worker gets.

        The end of the wake stream is asked for before the claim: what is appended after a claim
        that got nothing is an event after that end.
        """
        wakes = self._wakes or (yield from self._find())
        self._wakes = wakes
        offset, same = (yield from self._end(wakes)), Incarnation(self.session)
        while True:
            held = yield from self._claim()
            if held is not None:
                return held
            try:
                offset = yield from self._event(wakes, offset, same)
            except (OffsetGone, StreamReplaced):
                offset, same = (yield from self._end(wakes)), Incarnation(self.session)

    def _find(self) -> Flow[StreamFlows]:
        found = yield from subscribing.info(self.session, self._path)
        if found.wake_stream is None:
            raise ValueError(f"{self.subscription_id} has a webhook: no worker claims its wakes")
        return StreamFlows(self.session, parse_name(found.wake_stream), None)

    def _end(self, wakes: StreamFlows) -> Flow[str]:
        """The offset of the wake stream's end, however long its server is away."""
        request = Request("GET", wakes.name.path, {"offset": NOW})
        answer = yield from ask(self.session, request, backoff=Backoff(self.session, endless=True))
        if (offset := answer.headers.get(STREAM_NEXT_OFFSET)) is None:
            raise unexpected(answer.status, "Stream-Next-Offset is missing")
        return offset

    def _claim(self) -> Flow[HeldWake | None]:
        """ClaimedWake the wake; None if there is none, or another worker has it.

        A claim whose answer was lost is refused to its own repetition, until its lease ends.
        """
        begun_at = self.session.clock()
        request = with_json("POST", f"{self._path}/claim", {"worker": self.worker})
        try:
            answer = yield from ask(
                self.session, request, backoff=Backoff(self.session, endless=True)
            )
        except (NoPendingWork, AlreadyClaimed):
            return None
        claim = answer.decoded(ClaimedWake)
        return HeldWake(self.session, self._path, claim, begun_at, is_webhook=False)

    def _event(self, wakes: StreamFlows, offset: str, same: Incarnation) -> Flow[str]:
        """Wait for an event of the subscription after `offset`; the offset after it.

        A long-poll, because the claim that follows would break off an endless response.
        """
        begin = Chunk(JSON, b"", offset)
        chunks = follow_from(self.session, wakes.name.path, begin, "long-poll", same)
        result, failure = None, None
        while not isinstance(step := resume(chunks, result, failure), Done):
            result = failure = None
            if isinstance(step, Emit):
                if any(map(self._is_ours, step.value.json())):
                    chunks.close()
                    return str(step.value.next_offset)
                continue
            try:
                result = yield step
            except Lost as lost:
                failure = lost
        message = f"the wake stream {wakes.name.written} is closed, so no wake can come"
        raise StreamClosed("STREAM_CLOSED", message)

    def _is_ours(self, event: Any) -> bool:
        is_wake = isinstance(event, dict) and event.get("type") == "wake"
        return is_wake and event.get("subscription_id") == self.subscription_id
