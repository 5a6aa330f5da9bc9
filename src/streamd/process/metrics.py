"""Metrics: plain numbers on the hot path, Prometheus text at scrape time.

A counter of the Prometheus library costs a lock and a few calls, ours costs an addition; a
collector reads them when the node is scraped. Metric names here have no prefix: `streamd_` is
added.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from streamd.process.histograms import Histogram, RecentCounts
from streamd.process.history import LastHour

_SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

_Labelled = tuple[
    type[CounterMetricFamily] | type[GaugeMetricFamily],
    str,
    str,
    str,
    Callable[[], Mapping[str, float]],
]


class Metrics:
    """Everything that one node counts; gauges are functions that are called at scrape time."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str, int], int] = {}
        self.append_latency = Histogram(_SECONDS)
        self.fsync_latency = Histogram(_SECONDS)
        self.recent_fsyncs = RecentCounts(self.fsync_latency)
        self.last_hour = LastHour()
        self.commit_batch = Histogram(_COUNTS)
        self.loop_lag = Histogram(_SECONDS)
        self.gc_pause = Histogram(_SECONDS)
        self.log_stall = Histogram(_SECONDS)
        self.packages_resent = 0
        self.sessions_opened = 0
        self.outcomes_unknown = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.gauges: dict[str, tuple[str, Callable[[], float]]] = {}
        self.labelled: list[_Labelled] = []
        self.infos: dict[str, tuple[str, dict[str, str]]] = {}
        self.registry = CollectorRegistry()
        self.registry.register(_Families(self))
        ProcessCollector(registry=self.registry)

    def request(self, route: str, method: str, status: int, count: int = 1) -> None:
        key = (route, method, status)
        self.requests[key] = self.requests.get(key, 0) + count

    def gauge(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Register a gauge ``streamd_{name}``."""
        self.gauges[name] = (text, value)

    def gauge_by(
        self, label: str, name: str, text: str, values: Callable[[], Mapping[str, float]]
    ) -> None:
        """Register a gauge ``streamd_{name}`` with a series for each value of `label`."""
        self.labelled.append((GaugeMetricFamily, label, name, text, values))

    def counter_by(
        self, label: str, name: str, text: str, values: Callable[[], Mapping[str, float]]
    ) -> None:
        """Register a counter ``streamd_{name}_total`` with a series for each value of `label`."""
        self.labelled.append((CounterMetricFamily, label, name, text, values))

    def info(self, name: str, text: str, labels: Mapping[str, str]) -> None:
        """Register a gauge ``streamd_{name}_info``, always 1, whose labels say something."""
        self.infos[name] = (text, dict(labels))

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self.registry)


class _Families(Collector):
    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        """Called by the registry at each scrape."""
        metrics = self._metrics
        requests = CounterMetricFamily(
            "streamd_http_requests",
            "HTTP requests answered by this node.",
            labels=("route", "method", "status"),
        )
        for (route, method, status), count in metrics.requests.items():
            requests.add_metric((route, method, str(status)), count)
        yield requests
        yield metrics.append_latency.family(
            "streamd_append_latency_seconds",
            "Seconds from the arrival of an append to its acknowledgement.",
        )
        yield metrics.fsync_latency.family(
            "streamd_fsync_latency_seconds", "Seconds that one synced write of the log takes."
        )
        yield metrics.commit_batch.family(
            "streamd_commit_batch_commands", "Commands in one log entry."
        )
        yield metrics.loop_lag.family(
            "streamd_loop_lag_seconds",
            "Seconds by which the event loop was late for a timer, measured ten times a second.",
        )
        yield metrics.gc_pause.family(
            "streamd_gc_pause_seconds",
            "Seconds for which Python's garbage collector stopped the process.",
        )
        yield metrics.log_stall.family(
            "streamd_log_stall_seconds",
            "Seconds for which writes to the log waited for room in its journal, or while entries "
            "were removed from it.",
        )
        yield CounterMetricFamily(
            "streamd_packages_resent",
            "Packages of writes proposed again after a leader or connection was lost.",
            metrics.packages_resent,
        )
        yield CounterMetricFamily(
            "streamd_sessions_opened",
            "Write sessions opened by this node.",
            metrics.sessions_opened,
        )
        yield CounterMetricFamily(
            "streamd_outcomes_unknown",
            "Writes answered with OUTCOME_UNKNOWN.",
            metrics.outcomes_unknown,
        )
        yield CounterMetricFamily(
            "streamd_http_received_bytes", "Bytes received from HTTP clients.", metrics.bytes_in
        )
        yield CounterMetricFamily(
            "streamd_http_sent_bytes", "Bytes sent to HTTP clients.", metrics.bytes_out
        )
        for name, (text, info) in metrics.infos.items():
            told = GaugeMetricFamily(f"streamd_{name}_info", text, labels=tuple(info))
            told.add_metric(tuple(info.values()), 1)
            yield told
        for name, (text, value) in metrics.gauges.items():
            yield GaugeMetricFamily(f"streamd_{name}", text, value())
        for family_type, label, name, text, values in metrics.labelled:
            family = family_type(f"streamd_{name}", text, labels=(label,))
            for label_value, number in values().items():
                family.add_metric((label_value,), number)
            yield family
