"""Does what is due about subscriptions, for as long as this node leads.

What is due, and when, is in the replicated state, and each attempt is recorded in the log before it
is made: a leader knows what the one before it began, and has nothing that the next one would miss.
An attempt of a leader that has ended is not repeated before its lease has.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import structlog
import trio

from streamd.group.group import Group
from streamd.group.proposals import OutcomeUnknown, Unavailable
from streamd.node.delivery.delivery_queue import DeliveryQueue
from streamd.node.delivery.keyring import Keyring, KeysSealed
from streamd.node.delivery.sender import DeliveryFailed
from streamd.node.delivery.webhooks import Webhooks
from streamd.process.metrics import Metrics
from streamd.streams.commands import Result
from streamd.streams.subscriptions.commands import BeginDelivery, EndDelivery, EndLeases
from streamd.streams.subscriptions.linked import LinkedStream
from streamd.streams.subscriptions.model import Ack, Subscription, WakeReport
from streamd.streams.subscriptions.records import SubscriptionRecords
from streamd.streams.subscriptions.webhook_texts import (
    Notification,
    body_of,
    says_done,
    subscription_url,
)
from streamd.streams.subscriptions.webhook_urls import host_of

log = structlog.get_logger("streamd.subscriptions")

# How many numbers are taken from the state, or named in one command, at once.
_AT_ONCE = 1_000
# After a proposal that was refused.
_PAUSE_S = 0.5
# The clock may have been set meanwhile.
_LONGEST_SLEEP_S = 10.0


# The streams of a subscription, pending ones first, as many as one notification may name.
StreamsOf = Callable[[int], Awaitable[Sequence[LinkedStream]]]


class _Flight:
    """An attempt that is being made."""

    def __init__(self, wake_id: str) -> None:
        self.wake_id = wake_id
        self.scope = trio.CancelScope()


class Deliverer:
    """The leader's task. `clock_ms` is wall time: signatures tell receivers when they were made."""

    def __init__(
        self,
        group: Group,
        keyring: Keyring,
        webhooks: Webhooks,
        streams_of: StreamsOf,
        clock_ms: Callable[[], int],
    ) -> None:
        self._group = group
        self._changed = group.view.subscriptions_changed
        self._keyring = keyring
        self._poster = webhooks.poster
        self._base_url = webhooks.base_url
        self._streams_of = streams_of
        self._clock_ms = clock_ms
        self.queue = DeliveryQueue(webhooks.config.max_deliveries)
        self.outcomes = {"delivered": 0, "done": 0, "failed": 0}
        self._flights: dict[int, _Flight] = {}
        self._lapsed: set[int] = set()
        self._is_ending_leases = False
        self._why_sealed = ""

    def export(self, metrics: Metrics) -> None:
        """Register what only this node knows of deliveries."""
        metrics.counter_by(
            "outcome",
            "webhook_deliveries",
            "Attempts of this node to deliver webhooks, by outcome: done by the answer, delivered "
            "otherwise, or failed.",
            lambda: self.outcomes,
        )
        metrics.gauge(
            "webhooks_in_flight",
            "Webhooks that this node is delivering.",
            lambda: self.queue.placed,
        )
        metrics.gauge(
            "webhooks_waiting",
            "Webhooks that are due and wait for a place among those in flight.",
            lambda: len(self.queue),
        )

    @property
    def _records(self) -> SubscriptionRecords:
        return self._group.state.subscriptions

    async def run(self) -> None:
        """Run until cancelled. Raises `StorageError`."""
        view = self._group.view
        while True:
            term = await view.wait_to_lead()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._lead, nursery)
                await view.wait_for_end_of(term)
                nursery.cancel_scope.cancel()

    async def _lead(self, nursery: trio.Nursery) -> None:
        group = self._group
        # What an earlier leader proposed may be in the log and not be applied yet.
        while group.state.header.applied_term != group.view.term:
            await group.view.turn_taken.park()
        self._lapsed.clear()
        self.queue.clear()
        self._records.due.restart()
        while True:
            self._look(nursery)
            await self._wait()

    async def _wait(self) -> None:
        """Wait until something is due, or has changed."""
        next_ms = self._records.due.next_ms
        sleep_s = _LONGEST_SLEEP_S
        if next_ms is not None:
            sleep_s = min(max((next_ms - self._now_ms()) / 1000, 0.001), sleep_s)
        with trio.move_on_after(sleep_s):
            await self._changed.park()

    def _now_ms(self) -> int:
        """Log time: leases and retries end by nobody's own clock."""
        return self._group.now_ms()

    def _look(self, nursery: trio.Nursery) -> None:
        """Begin all that is due, as far as there is room."""
        self._break_off()
        now_ms = self._now_ms()
        while taken := self._records.due.take(now_ms, _AT_ONCE):
            for number in taken:
                self._sort(number)
        if self._lapsed and not self._is_ending_leases:
            nursery.start_soon(self._end_leases)
        if self._is_sealed():
            return
        while (placed := self.queue.take()) is not None:
            subscription = self._records.get(placed)
            if subscription is None or subscription.wake is None:
                self.queue.leave(placed)
            else:
                flight = self._flights[placed] = _Flight(subscription.wake.wake_id)
                nursery.start_soon(self._fly, subscription, flight)

    def _break_off(self) -> None:
        """End requests of wakes that have ended, by a callback, a deletion or their lease: nothing
        can come of them any longer, and they hold places."""
        for number, flight in self._flights.items():
            subscription = self._records.get(number)
            wake = None if subscription is None else subscription.wake
            if wake is None or wake.wake_id != flight.wake_id:
                flight.scope.cancel()

    def _sort(self, number: int) -> None:
        """Note what is to be done about a subscription that is due."""
        subscription = self._records.get(number)
        if subscription is None:
            return
        if subscription.lease_until_ms is not None or not subscription.config.webhook_url:
            self._lapsed.add(number)
            return
        url = subscription.config.webhook_url
        self.queue.add(number, host_of(url), has_failed=subscription.failures > 0)

    def _is_sealed(self) -> bool:
        """Whether this node cannot open the keys; it is logged when that begins and ends."""
        try:
            if self._keyring.known:
                self._keyring.current()
            why = ""
        except KeysSealed as error:
            why = str(error)
        if why != self._why_sealed:
            if why:
                log.error("no webhooks are delivered: this node cannot sign them", why=why)
            else:
                log.info("webhooks are delivered again")
            self._why_sealed = why
        return bool(why)

    async def _end_leases(self) -> None:
        """End leases that have lapsed, as many as there are, one command at a time."""
        self._is_ending_leases = True
        try:
            while self._lapsed:
                numbers = sorted(self._lapsed)[:_AT_ONCE]
                try:
                    await self._group.writes.propose(EndLeases(numbers))
                except (Unavailable, OutcomeUnknown) as error:
                    log.info("leases are ended later", why=str(error))
                    await trio.sleep(_PAUSE_S)
                self._lapsed.difference_update(numbers)
                for number in numbers:
                    self._records.due.put_back(number)
        finally:
            self._is_ending_leases = False
            self._changed.unpark_all()

    # -- a delivery ---------------------------------------------------------------------------

    async def _fly(self, subscription: Subscription, flight: _Flight) -> None:
        number = subscription.number
        try:
            with flight.scope:
                await self._deliver(subscription, flight.wake_id)
        except (Unavailable, OutcomeUnknown, KeysSealed) as error:
            # Of a node with another secret the key in use may be, since this node looked.
            log.info("a webhook is delivered later", why=str(error))
            await trio.sleep(_PAUSE_S)
        finally:
            del self._flights[number]
            self.queue.leave(number)
            self._records.due.put_back(number)
            self._changed.unpark_all()

    async def _deliver(self, subscription: Subscription, wake_id: str) -> None:
        """Record an attempt, make it, and record what came of it. Raises `Unavailable`,
        `OutcomeUnknown`, `KeysSealed`: the attempt was not made."""
        number, url = subscription.number, subscription.config.webhook_url
        # A cluster that was restored begins without keys.
        await self._keyring.ensure()
        attempt = subscription.attempts + 1
        begun = await self._group.writes.propose(BeginDelivery(number, wake_id, attempt))
        if begun.result is not Result.DONE or begun.wake is None:
            return
        streams = await self._streams_of(number)
        body = self._body(subscription, begun.wake, streams)
        signature = self._keyring.signature(body, self._clock_ms() // 1000)
        try:
            answer = await self._poster.post(url, body, signature)
        except DeliveryFailed as error:
            self.outcomes["failed"] += 1
            end = EndDelivery(number, wake_id, attempt, False, str(error))
        else:
            is_done = says_done(answer)
            self.outcomes["done" if is_done else "delivered"] += 1
            acks = [
                Ack(one.key, one.tail.record, one.tail.byte)
                for one in streams
                if is_done and one.has_pending
            ]
            end = EndDelivery(number, wake_id, attempt, True, "", acks, is_done)
        await self._record(end)

    async def _record(self, end: EndDelivery) -> None:
        """Propose until it is known to be in the log: a repetition changes nothing."""
        while True:
            try:
                await self._group.writes.propose(end)
                return
            except (Unavailable, OutcomeUnknown) as error:
                log.info("the result of a webhook is recorded later", why=str(error))
                await trio.sleep(_PAUSE_S)

    def _body(
        self, subscription: Subscription, wake: WakeReport, streams: Sequence[LinkedStream]
    ) -> bytes:
        """The body of a notification, with tokens for the lease that has just begun."""
        return body_of(
            Notification(
                subscription.subscription_id,
                wake.wake_id,
                wake.generation,
                [one.notified for one in streams],
                subscription_url(self._base_url, subscription.subscription_id, "callback"),
                self._keyring.mint("callback", wake),
                subscription.config.lease_ttl_ms,
                self._keyring.mint("write", wake) if subscription.fenced_links else None,
            )
        )
