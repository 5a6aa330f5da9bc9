"""Applies commands about subscriptions.

Every command that looks at a subscription first ends its lease if that has lapsed by log time
(`Wakes.settle`), so the outcome never depends on whether the leader has noticed yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256

from streamd.streams import quotas
from streamd.streams.commands import Outcome, Result
from streamd.streams.fencing import seals, write_fences
from streamd.streams.model import Stream
from streamd.streams.state import State
from streamd.streams.subscriptions import links, transitions
from streamd.streams.subscriptions.commands import (
    AcknowledgeWake,
    AddSubscriptionKey,
    BeginDelivery,
    ClaimWake,
    DeleteSubscription,
    EndDelivery,
    EndLeases,
    LinkStreams,
    PutSubscription,
    ReleaseWake,
    SubscriptionCommand,
    UnlinkStream,
    VerifyClaim,
    WakeSubscription,
)
from streamd.streams.subscriptions.model import (
    MAX_LINKS,
    MAX_NAMED,
    MAX_NAMED_IN_ALL,
    MAX_SUBSCRIPTIONS,
    Ack,
    Subscription,
    WakeReport,
    WakeStamp,
)
from streamd.streams.subscriptions.signing_keys import TooManySubscriptionKeys, with_key
from streamd.streams.subscriptions.wakes import Wakes


class Subscribing:
    """The commands about the subscriptions of a state."""

    def __init__(
        self, state: State, wakes: Wakes, living: Callable[[bytes, int], Stream | Result]
    ) -> None:
        """`living` finds a stream that can be used at a log time."""
        self._state = state
        self._wakes = wakes
        self._living = living

    def apply(self, command: SubscriptionCommand, now_ms: int) -> Outcome:
        """Apply a command at a log time in milliseconds."""
        match command:
            case PutSubscription():
                return self._put(command, now_ms)
            case DeleteSubscription():
                return self._delete(command)
            case LinkStreams():
                return self._link(command, now_ms)
            case UnlinkStream():
                return self._unlink(command, now_ms)
            case WakeSubscription():
                return self._wake(command, now_ms)
            case ClaimWake():
                return self._claim(command, now_ms)
            case AcknowledgeWake():
                return self._acknowledge(command, now_ms)
            case ReleaseWake():
                return self._release(command, now_ms)
            case VerifyClaim():
                return write_fences.verify(self._state, command.stamp, now_ms)
            case AddSubscriptionKey():
                return self._add_key(command, now_ms)
            case BeginDelivery():
                return self._begin_delivery(command, now_ms)
            case EndDelivery():
                return self._end_delivery(command, now_ms)
        return self._end_leases(command, now_ms)

    # -- subscriptions ------------------------------------------------------------------------

    def _put(self, command: PutSubscription, now_ms: int) -> Outcome:
        state, records = self._state, self._state.subscriptions
        named = sorted(set(command.keys))
        digest = _digest(named)
        known = records.by_id(command.subscription_id)
        if known is not None:
            is_same = (known.config, known.named_digest) == (command.config, digest)
            return _about(Result.EXISTS if is_same else Result.SUBSCRIPTION_EXISTS, known, now_ms)
        if command.config.wake_key in named:
            return Outcome(Result.INVALID)
        if len(records) >= MAX_SUBSCRIPTIONS:
            return Outcome(Result.TOO_MANY_SUBSCRIPTIONS)
        if not quotas.may_subscribe(state, command.owner):
            return Outcome(Result.OWNS_TOO_MANY)
        if self._are_too_many(0, named):
            return Outcome(Result.TOO_MANY_LINKS)
        header = state.header
        subscription = Subscription(
            header.next_stream_id,
            command.subscription_id,
            command.config,
            digest,
            now_ms,
            header.generation_floor,
            owner=command.owner,
        )
        header.next_stream_id += 1
        records.put(subscription)
        if command.config.pattern:
            header.pattern_version += 1
        self._name(subscription, named, now_ms)
        return _about(Result.CREATED, subscription, now_ms)

    def _delete(self, command: DeleteSubscription) -> Outcome:
        state = self._state
        subscription = state.subscriptions.by_id(command.subscription_id, command.number)
        if subscription is None:
            return Outcome(Result.SUBSCRIPTION_NOT_FOUND)
        header = state.header
        header.generation_floor = max(header.generation_floor, subscription.generation)
        header.pattern_version += 1
        seals.delete(state, subscription)
        state.subscriptions.delete(subscription)
        state.discard_subscription(subscription.number)
        return Outcome(Result.DELETED)

    def _link(self, command: LinkStreams, now_ms: int) -> Outcome:
        subscription = self._found(command.subscription_id, now_ms, command.number)
        if subscription is None:
            return Outcome(Result.SUBSCRIPTION_NOT_FOUND)
        named = sorted(set(command.keys))
        if subscription.config.wake_key in named:
            return Outcome(Result.INVALID)
        if self._are_too_many(subscription.number, named):
            return Outcome(Result.TOO_MANY_LINKS)
        self._name(subscription, named, now_ms)
        return _about(Result.DONE, subscription, now_ms)

    def _unlink(self, command: UnlinkStream, now_ms: int) -> Outcome:
        subscription = self._found(command.subscription_id, now_ms, command.number)
        if subscription is None:
            return Outcome(Result.SUBSCRIPTION_NOT_FOUND)
        number, key = subscription.number, command.key
        self._state.subscriptions.unname(number, key)
        stream = self._living(key, now_ms)
        if isinstance(stream, Stream):
            links.refresh(self._state, key, stream)
            link = links.find(stream, number)
            if link is not None and link.is_glob:
                link.is_explicit = False
            else:
                links.drop(self._state, key, stream, number)
            self._state.streams.put(key, stream)
        return _about(Result.DONE, subscription, now_ms)

    def _are_too_many(self, number: int, named: Sequence[bytes]) -> bool:
        """Whether a subscription cannot name these streams too."""
        records = self._state.subscriptions
        known = records.named_by(number)
        new = [key for key in named if key not in known]
        return (
            len(known) + len(new) > MAX_NAMED
            or records.named_count + len(new) > MAX_NAMED_IN_ALL
            or any(self._is_linked_most(key) for key in new)
        )

    def _is_linked_most(self, key: bytes) -> bool:
        if len(self._state.subscriptions.naming(key)) >= MAX_LINKS:
            return True
        stream = self._state.streams.get(key)
        return stream is not None and len(stream.links) >= MAX_LINKS

    def _name(self, subscription: Subscription, named: Iterable[bytes], now_ms: int) -> None:
        for key in named:
            self._state.subscriptions.name(subscription.number, key)
            stream = self._living(key, now_ms)
            if isinstance(stream, Stream):
                links.refresh(self._state, key, stream)
                self._state.streams.put(key, stream)

    def _found(self, subscription_id: str, now_ms: int, number: int = 0) -> Subscription | None:
        """The subscription with that id and, unless it is 0, number, as of a log time."""
        subscription = self._state.subscriptions.by_id(subscription_id, number)
        if subscription is not None:
            self._wakes.settle(subscription, now_ms)
        return subscription

    # -- workers ------------------------------------------------------------------------------

    def _wake(self, command: WakeSubscription, now_ms: int) -> Outcome:
        subscription = self._found(command.subscription_id, now_ms, command.number)
        if subscription is None:
            return Outcome(Result.SUBSCRIPTION_NOT_FOUND)
        is_new = subscription.wake is None
        if is_new:
            self._wakes.force(subscription, now_ms)
        elif subscription.next_attempt_ms is not None:
            # A retry that waits is tried now.
            subscription.next_attempt_ms = now_ms
            self._state.subscriptions.put(subscription)
            self._wakes.retry_event(subscription, now_ms)
        return _about(Result.DONE, subscription, now_ms, next_wake=is_new)

    def _claim(self, command: ClaimWake, now_ms: int) -> Outcome:
        subscription = self._found(command.subscription_id, now_ms, command.number)
        if subscription is None:
            return Outcome(Result.SUBSCRIPTION_NOT_FOUND)
        if subscription.config.kind != "pull-wake":
            return _about(Result.NOT_PULL_WAKE, subscription, now_ms)
        if subscription.lease_until_ms is not None:
            return _about(Result.ALREADY_CLAIMED, subscription, now_ms)
        if self._ended_for_nothing(subscription):
            return _about(Result.NO_PENDING_WORK, subscription, now_ms)
        if subscription.wake is None:
            self._wakes.begin_for_claim(subscription, now_ms)
        transitions.claim(subscription, command.worker, now_ms)
        self._state.subscriptions.put(subscription)
        return _about(Result.DONE, subscription, now_ms)

    def _ended_for_nothing(self, subscription: Subscription) -> bool:
        """Whether nothing is left to do for a worker; a wake that is still outstanding ends."""
        wake = subscription.wake
        # A claim is how a worker becomes the writer of fenced streams.
        is_writer = subscription.config.kind == "pull-wake" and subscription.fenced_links > 0
        if subscription.pending or is_writer or (wake is not None and wake.is_forced):
            return False
        transitions.end_wake(subscription)
        self._state.subscriptions.put(subscription)
        return True

    def _acknowledge(self, command: AcknowledgeWake, now_ms: int) -> Outcome:
        subscription = self._stamped(command.subscription_id, command.stamp, now_ms)
        if isinstance(subscription, Outcome):
            return subscription
        for ack in command.acks:
            fault = links.ack_fault(self._looked_at(ack.key, now_ms), subscription.number, ack)
            if fault:
                return _about(Result.ACK_INVALID, subscription, now_ms, reason=fault)
        self._take_acks(subscription, command.acks)
        transitions.renew(subscription, now_ms)
        next_wake = command.done and self._finish(subscription, now_ms)
        self._state.subscriptions.put(subscription)
        return _about(Result.DONE, subscription, now_ms, next_wake=next_wake)

    def _release(self, command: ReleaseWake, now_ms: int) -> Outcome:
        subscription = self._stamped(command.subscription_id, command.stamp, now_ms)
        if isinstance(subscription, Outcome):
            return subscription
        next_wake = self._finish(subscription, now_ms)
        return _about(Result.DONE, subscription, now_ms, next_wake=next_wake)

    def _stamped(
        self, subscription_id: str, stamp: WakeStamp, now_ms: int
    ) -> Subscription | Outcome:
        """The subscription whose outstanding wake a worker may act on, or the refusal."""
        subscription = self._found(subscription_id, now_ms)
        if subscription is None or subscription.number != stamp.number:
            return Outcome(Result.SUBSCRIPTION_NOT_FOUND)
        if not transitions.is_current(subscription, stamp):
            return _about(Result.FENCED, subscription, now_ms)
        return subscription

    def _looked_at(self, key: bytes, now_ms: int) -> Stream | None:
        """A stream with its links up to date; None if it does not exist."""
        stream = self._living(key, now_ms)
        if isinstance(stream, Result):
            return None
        if links.look(self._state, key, stream):
            self._state.streams.put(key, stream)
        return stream

    def _take_acks(self, subscription: Subscription, acks: Iterable[Ack]) -> None:
        for ack in acks:
            stream = self._state.streams.get(ack.key)
            assert stream is not None, "it was looked at"
            links.acknowledge(self._state, stream, subscription, ack)
            self._state.streams.put(ack.key, stream)

    def _finish(self, subscription: Subscription, now_ms: int) -> bool:
        """End a wake; returns whether another one has begun, since work is left."""
        transitions.end_wake(subscription)
        self._state.subscriptions.put(subscription)
        return self._wakes.wake_again(subscription, now_ms)

    # -- the leader ---------------------------------------------------------------------------

    def _add_key(self, command: AddSubscriptionKey, now_ms: int) -> Outcome:
        records = self._state.subscriptions
        known = tuple(records.keys.values())
        try:
            kept = with_key(known, command.key, now_ms, revokes=command.revokes)
        except TooManySubscriptionKeys:
            return Outcome(Result.TOO_MANY_SUBSCRIPTION_KEYS)
        if kept is None:
            return Outcome(Result.STALE)
        records.keep_keys(kept)
        return Outcome(Result.DONE)

    def _begin_delivery(self, command: BeginDelivery, now_ms: int) -> Outcome:
        subscription = self._numbered(command.number, now_ms)
        if subscription is None or subscription.config.kind != "webhook":
            return Outcome(Result.STALE)
        if not transitions.may_attempt(subscription, command.wake_id, command.attempt, now_ms):
            return _about(Result.STALE, subscription, now_ms)
        if self._ended_for_nothing(subscription):
            return _about(Result.NO_PENDING_WORK, subscription, now_ms)
        transitions.begin_attempt(subscription, now_ms)
        self._state.subscriptions.put(subscription)
        return _about(Result.DONE, subscription, now_ms)

    def _end_delivery(self, command: EndDelivery, now_ms: int) -> Outcome:
        subscription = self._numbered(command.number, now_ms)
        if subscription is None or not transitions.is_latest_attempt(
            subscription, command.wake_id, command.attempt
        ):
            return Outcome(Result.STALE)
        next_wake = False
        if not command.is_delivered:
            transitions.attempt_failed(subscription, command.why, now_ms)
        else:
            transitions.attempt_arrived(subscription)
            if command.done:
                self._take_possible(subscription, command.acks, now_ms)
                next_wake = self._finish(subscription, now_ms)
        self._state.subscriptions.put(subscription)
        return _about(Result.DONE, subscription, now_ms, next_wake=next_wake)

    def _take_possible(self, subscription: Subscription, acks: Iterable[Ack], now_ms: int) -> None:
        for ack in acks:
            stream = self._looked_at(ack.key, now_ms)
            if not links.ack_fault(stream, subscription.number, ack):
                self._take_acks(subscription, [ack])

    def _end_leases(self, command: EndLeases, now_ms: int) -> Outcome:
        for number in command.numbers:
            subscription = self._numbered(number, now_ms)
            if subscription is not None:
                self._wakes.retry_event(subscription, now_ms)
        return Outcome(Result.DONE)

    def _numbered(self, number: int, now_ms: int) -> Subscription | None:
        """The subscription with that number, as of a log time."""
        subscription = self._state.subscriptions.get(number)
        if subscription is not None:
            self._wakes.settle(subscription, now_ms)
        return subscription


def _about(
    result: Result,
    subscription: Subscription,
    now_ms: int,
    *,
    next_wake: bool = False,
    reason: str = "",
) -> Outcome:
    """The outcome of a command about a subscription."""
    report = WakeReport.of(subscription, now_ms, next_wake=next_wake, reason=reason)
    return Outcome(result, wake=report)


def _digest(named: Iterable[bytes]) -> bytes:
    """A digest of the keys of streams: their sequence, each with its length."""
    digest = sha256()
    for key in named:
        digest.update(b"%d " % len(key) + key)
    return digest.digest()
