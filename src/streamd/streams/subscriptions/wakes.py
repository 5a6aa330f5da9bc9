"""Wakes of subscriptions, decided in the log entry that causes them.

An append that gives an idle subscription work begins its next wake. A webhook's wake is then due,
and the leader delivers it; the event of a pull-wake subscription is appended to its wake stream in
the same entry, so it is neither lost nor written twice. Such an event may itself wake others that
are linked to that stream, each of them at most once in an entry.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

import msgspec

from streamd.streams import quotas
from streamd.streams.commands import Change, Result
from streamd.streams.content import JSON_SEPARATOR, is_json
from streamd.streams.fencing import seals
from streamd.streams.model import Stream
from streamd.streams.state import State
from streamd.streams.subscriptions import links, transitions
from streamd.streams.subscriptions.model import Subscription, Wake
from streamd.streams.subscriptions.paths import path_of

# Events that are written when a wake stream is created; those of other wakes that wait for it
# follow when their retries are due.
_MAX_AT_CREATION = 1_000

_ENCODER = msgspec.json.Encoder()


class Wakes:
    """Begins wakes in a state, and writes their events."""

    def __init__(
        self,
        state: State,
        living: Callable[[bytes, int], Stream | Result],
        changed: Callable[[Stream], Change],
    ) -> None:
        """`living` finds a stream that can be used at a log time, `changed` notes for its live
        readers what is appended to it."""
        self._state = state
        self._living = living
        self._changed = changed
        # The log entry that is being applied.
        self.index = 0

    # -- streams ------------------------------------------------------------------------------

    def created(self, key: bytes, stream: Stream, now_ms: int) -> None:
        """A stream was created, with its links; it may have records.

        Wakes that nobody has claimed get their events in it if it is their wake stream, also those
        that had one in a former stream of that name.
        """
        # Those that its own records wake get their events in it without this.
        unclaimed = self._unclaimed(key)
        if stream.records > stream.fork_point.record:
            self.appended(key, stream, now_ms)
        for subscription in unclaimed:
            subscription.is_received = False
            self._wake_idle(self._write(subscription, now_ms), now_ms)

    def _unclaimed(self, wake_key: bytes) -> list[Subscription]:
        """Subscriptions with that wake stream whose wakes nobody has claimed; not all, if there are
        many."""
        records = self._state.subscriptions
        numbers = sorted(records.waking_with(wake_key))[:_MAX_AT_CREATION]
        found = (records.get(number) for number in numbers)
        return [
            one
            for one in found
            if one is not None and one.wake is not None and one.lease_until_ms is None
        ]

    def appended(self, key: bytes, stream: Stream, now_ms: int) -> None:
        """A stream whose links are up to date got records."""
        found = links.appended(self._state, key, stream)
        self._state.streams.put(key, stream)
        self._wake_idle(found, now_ms)

    # -- subscriptions ------------------------------------------------------------------------

    def wake_again(self, subscription: Subscription, now_ms: int) -> bool:
        """Begin the next wake if an idle subscription has work; returns whether it did."""
        if subscription.wake is not None or not subscription.pending:
            return False
        self._wake_idle([subscription], now_ms)
        return True

    def force(self, subscription: Subscription, now_ms: int) -> None:
        """Begin a wake of an idle subscription, with or without work."""
        self._begin(subscription, now_ms, is_forced=True)
        self._wake_idle(self._write(subscription, now_ms), now_ms)

    def begin_for_claim(self, subscription: Subscription, now_ms: int) -> None:
        """Begin the wake that a worker claims without having been woken."""
        self._begin(subscription, now_ms, is_forced=not subscription.pending)

    def settle(self, subscription: Subscription, now_ms: int) -> None:
        """End a lease that has lapsed, and wake the subscription again if it has work."""
        if transitions.lapse(subscription, now_ms):
            self._state.subscriptions.put(subscription)
            self.wake_again(subscription, now_ms)

    def retry_event(self, subscription: Subscription, now_ms: int) -> None:
        """Try again to write the event of a pull-wake subscription's wake, if that is due."""
        at_ms = subscription.next_attempt_ms
        if at_ms is not None and at_ms <= now_ms:
            self._wake_idle(self._write(subscription, now_ms), now_ms)

    def _wake_idle(self, subscriptions: Iterable[Subscription], now_ms: int) -> None:
        """Wake those that are idle, and those that have work by the events of their wakes."""
        waiting = deque(subscriptions)
        while waiting:
            subscription = waiting.popleft()
            if subscription.wake is None:
                self._begin(subscription, now_ms)
                waiting.extend(self._write(subscription, now_ms))

    def _begin(self, subscription: Subscription, now_ms: int, *, is_forced: bool = False) -> None:
        state = self._state
        wake_id = transitions.wake_id(
            subscription.number,
            subscription.generation + 1,
            self.index,
            state.header.incarnation_base,
        )
        wake = Wake(wake_id, now_ms, subscription.latest, is_forced)
        transitions.begin_wake(subscription, wake)
        state.subscriptions.put(subscription)

    def _write(self, subscription: Subscription, now_ms: int) -> list[Subscription]:
        """Write the event of a pull-wake subscription's wake; returns those to which it gives
        work."""
        if subscription.config.kind != "pull-wake":
            return []
        subscription.attempts += 1
        key = subscription.config.wake_key
        found = self._appendable(key, now_ms, data := _event(subscription, now_ms))
        if isinstance(found, str):
            transitions.attempt_failed(subscription, found, now_ms)
            self._state.subscriptions.put(subscription)
            return []
        transitions.attempt_arrived(subscription)
        self._state.subscriptions.put(subscription)
        return self._append(key, found, data, now_ms)

    def _appendable(self, key: bytes, now_ms: int, data: bytes) -> Stream | str:
        """The wake stream, or why it does not take an event, in words."""
        stream = self._living(key, now_ms)
        if isinstance(stream, Result):
            return "the wake stream does not exist"
        if stream.closed:
            return "the wake stream is closed"
        if not is_json(stream.content_type):
            return "the wake stream is not of type application/json"
        full = quotas.refusal(self._state, key, stream, len(data))
        return stream if full is None else f"the wake stream has no room: {full.value}"

    def _append(self, key: bytes, stream: Stream, data: bytes, now_ms: int) -> list[Subscription]:
        state = self._state
        change = self._changed(stream)
        is_watched = links.look(state, key, stream)
        if stream.settings.write_fence:
            seals.settle(state, stream)
        state.append(key, stream, [(data, [len(data)])])
        quotas.grow(state, key, stream, len(data))
        stream.last_write_ms = now_ms
        if stream.ttl_ms is not None:
            stream.touched_ms = now_ms
        change.parts.append(data)
        found = links.appended(state, key, stream) if is_watched else []
        state.streams.put(key, stream)
        return found


def _event(subscription: Subscription, now_ms: int) -> bytes:
    """What a wake stream holds (protocol section 7.2)."""
    wake = subscription.wake
    assert wake is not None
    event = {
        "type": "wake",
        "subscription_id": subscription.subscription_id,
        "stream": path_of(wake.key) if wake.key else "",
        "generation": subscription.generation,
        "ts": now_ms,
    }
    return _ENCODER.encode(event) + JSON_SEPARATOR
