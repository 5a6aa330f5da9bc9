"""The state of all subscriptions, as metrics.

Every node has them in memory and exports the same, as far as it has applied the log.
"""

from __future__ import annotations

from collections.abc import Mapping

from streamd.group.group import Group
from streamd.process.metrics import Metrics
from streamd.streams.subscriptions.model import Subscription

# To count so many costs about a millisecond of the event loop, and they are not counted again for
# ten times as long in ms.
_COUNTED_PER_MS = 1_000 / 10
_STATES = ("idle", "waiting", "leased", "failed")


def export(group: Group, metrics: Metrics) -> None:
    """Register the metrics."""
    counts = _Counts(group)
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


class _Counts:
    """Counts again when the subscriptions have changed, and less often if there are many."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._version: object = None
        self._counted_ms = 0
        self._states = dict.fromkeys(_STATES, 0)
        self._pending = 0
        self._oldest_ms: int | None = None

    def by_state(self) -> Mapping[str, float]:
        self._count()
        return self._states

    def pending(self) -> float:
        self._count()
        return self._pending

    def oldest_s(self) -> float:
        self._count()
        if self._oldest_ms is None:
            return 0.0
        return max(0, self._group.now_ms() - self._oldest_ms) / 1000

    def _count(self) -> None:
        records, now_ms = self._group.state.subscriptions, self._group.now_ms()
        rests_ms = len(records) / _COUNTED_PER_MS
        if records.version is self._version or now_ms - self._counted_ms < rests_ms:
            return
        self._version, self._counted_ms = records.version, now_ms
        states, pending = dict.fromkeys(_STATES, 0), 0
        waiting_ms = []
        for one in records.records.values():
            state = _state(one)
            states[state] += 1
            pending += one.pending
            if state in ("waiting", "failed") and one.wake is not None:
                waiting_ms.append(one.wake.since_ms)
        self._states, self._pending = states, pending
        self._oldest_ms = min(waiting_ms, default=None)


def _state(one: Subscription) -> str:
    if one.is_failed:
        return "failed"
    if one.wake is None:
        return "idle"
    is_taken = one.is_received if one.config.kind == "webhook" else bool(one.holder)
    return "leased" if is_taken else "waiting"
