"""The state of all subscriptions, as a report and as metrics.

Every node has them in memory and exports the same, as far as it has applied the log.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from streamd.group.group import Group
from streamd.process.metrics import Metrics
from streamd.streams.subscriptions.model import Subscription

# To count so many costs about a millisecond of the event loop, and they are not counted again for
# ten times as long in ms.
_COUNTED_PER_MS = 1_000 / 10
_STATES = ("idle", "waiting", "leased", "failed")


class SubscriptionCounts:
    """Counts again when the subscriptions have changed, and less often if there are many."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._version: object = None
        self._counted_ms = 0
        self._states = dict.fromkeys(_STATES, 0)
        self._pending = 0
        # When the oldest wake that nobody has taken came to be, by the state of its subscription.
        self._oldest_ms: dict[str, int] = {}

    def report(self) -> dict[str, Any]:
        """How many there are in each state, and the age in ms of the oldest wake that waits for a
        worker, and of the oldest one whose delivery failed; None without one."""
        self._count()
        return {
            **self._states,
            "pending_streams": self._pending,
            "oldest_waiting_ms": self._age_ms("waiting"),
            "oldest_failed_ms": self._age_ms("failed"),
        }

    def by_state(self) -> Mapping[str, float]:
        """How many there are in each state."""
        self._count()
        return self._states

    def pending(self) -> float:
        """Streams with records that were not acknowledged, counted for each subscription."""
        self._count()
        return self._pending

    def oldest_s(self) -> float:
        """The age of the oldest wake that no worker has taken, in seconds; 0 without one."""
        self._count()
        return max((self._age_ms(state) or 0 for state in self._oldest_ms), default=0) / 1000

    def _age_ms(self, state: str) -> int | None:
        since_ms = self._oldest_ms.get(state)
        return None if since_ms is None else max(0, self._group.now_ms() - since_ms)

    def _count(self) -> None:
        records, now_ms = self._group.state.subscriptions, self._group.now_ms()
        rests_ms = len(records) / _COUNTED_PER_MS
        if records.version is self._version or now_ms - self._counted_ms < rests_ms:
            return
        self._version, self._counted_ms = records.version, now_ms
        states, pending = dict.fromkeys(_STATES, 0), 0
        oldest_ms: dict[str, int] = {}
        for one in records.records.values():
            state = _state(one)
            states[state] += 1
            pending += one.pending
            if state in ("waiting", "failed") and one.wake is not None:
                oldest_ms[state] = min(oldest_ms.get(state, one.wake.since_ms), one.wake.since_ms)
        self._states, self._pending, self._oldest_ms = states, pending, oldest_ms


def export(counts: SubscriptionCounts, metrics: Metrics) -> None:
    """Register the metrics."""
    metrics.gauge_by(
        "state",
        "subscriptions",
        "Subscriptions: idle, waiting for a worker to take a wake, leased to one, or failed to "
        "deliver a wake.",
        counts.by_state,
    )
    metrics.gauge(
        "subscription_pending_streams",
        "Streams of subscriptions with records that were not acknowledged, counted for each.",
        counts.pending,
    )
    metrics.gauge(
        "subscription_oldest_wake_seconds",
        "Age of the oldest wake that no worker has taken, in log time; 0 without one.",
        counts.oldest_s,
    )


def _state(one: Subscription) -> str:
    if one.is_failed:
        return "failed"
    if one.wake is None:
        return "idle"
    is_taken = one.is_received if one.config.kind == "webhook" else bool(one.holder)
    return "leased" if is_taken else "waiting"
