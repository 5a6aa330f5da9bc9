"""Deliberate mistakes in how webhooks are delivered, each of which a schedule has to find."""

# mypy: disable-error-code="attr-defined,assignment"
from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from streamd.node.delivery.deliverer import Deliverer
from streamd.streams.subscriptions import transitions
from streamd.streams.subscriptions.model import Subscription, WakeReport

Plant = Callable[[pytest.MonkeyPatch], None]
PLANTED: list[Plant] = []


def bug(plant: Plant) -> Plant:
    PLANTED.append(plant)
    return plant


@bug
def intent_is_not_replicated(patch: pytest.MonkeyPatch) -> None:
    """The leader posts what is due, and tells the log afterwards."""
    deliver = Deliverer._deliver

    async def deliver_at_once(self: Deliverer, subscription: Subscription, wake_id: str) -> None:
        now_ms = self._group.now_ms()
        wake = WakeReport.of(subscription, now_ms)
        wake = wake.__class__(
            wake.number, wake.generation, wake.wake_id, "",
            now_ms + subscription.config.lease_ttl_ms,
        )  # fmt: skip
        streams = await self._streams_of(subscription.number)
        body = self._body(subscription, wake, streams)
        await self._poster.post("", body, "")
        await deliver(self, subscription, wake_id)

    patch.setattr(Deliverer, "_deliver", deliver_at_once)


@bug
def leases_and_retries_end_by_the_leaders_own_clock(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Deliverer, "_now_ms", lambda self: self._clock_ms())


@bug
def an_older_generation_may_still_acknowledge(patch: pytest.MonkeyPatch) -> None:
    def is_current(subscription: Subscription, stamp: object) -> bool:
        return subscription.wake is not None

    patch.setattr(transitions, "is_current", is_current)


@bug
def next_leader_forgets_what_is_due(patch: pytest.MonkeyPatch) -> None:
    """It waits for what comes, and does not look at what its predecessor had begun."""

    async def lead(self: Deliverer, nursery: trio.Nursery) -> None:
        while self._group.state.header.applied_term != self._group.view.term:
            await self._group.view.turn_taken.park()
        self._records.due.take(2**62, 10**6)
        while True:
            self._look(nursery)
            await self._wait()

    patch.setattr(Deliverer, "_lead", lead)
