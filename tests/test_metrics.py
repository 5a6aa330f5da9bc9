"""Metrics in Prometheus' text format."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from streamd.process.histograms import Histogram, RecentCounts
from streamd.process.metrics import Metrics


def _samples(metrics: Metrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(metrics.exposition().decode())
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def test_requests_are_counted_by_route_method_and_status() -> None:
    metrics = Metrics()
    metrics.request("stream", "POST", 204)
    metrics.request("stream", "POST", 204)
    metrics.request("stream", "GET", 404)
    samples = _samples(metrics)
    name = "streamd_http_requests_total"
    assert samples[name, (("method", "POST"), ("route", "stream"), ("status", "204"))] == 2
    assert samples[name, (("method", "GET"), ("route", "stream"), ("status", "404"))] == 1


def test_histograms_are_cumulative_and_bounds_are_inclusive() -> None:
    metrics = Metrics()
    metrics.commit_batch = Histogram((1, 2, 4))
    for value in (1, 2, 2, 3, 100):
        metrics.commit_batch.observe(value)
    samples = _samples(metrics)
    name = "streamd_commit_batch_commands"
    buckets = [samples[f"{name}_bucket", (("le", le),)] for le in ("1.0", "2.0", "4.0", "+Inf")]
    assert buckets == [1, 3, 4, 5]
    assert samples[f"{name}_sum", ()] == 108
    assert samples[f"{name}_count", ()] == 5


def test_gauges_and_live_readers_are_read_at_each_scrape() -> None:
    metrics = Metrics()
    readers = {"sse": 0}
    metrics.gauge_by("mode", "live_readers", "Live responses.", lambda: readers)
    metrics.gauge("raft_term", "The term.", lambda: 7)
    readers["sse"] = 3
    samples = _samples(metrics)
    assert samples["streamd_live_readers", (("mode", "sse"),)] == 3
    assert samples["streamd_raft_term", ()] == 7


def test_every_metric_that_operators_rely_on_exists_from_the_start() -> None:
    names = {name for name, _ in _samples(Metrics())}
    assert {
        "streamd_append_latency_seconds_count",
        "streamd_fsync_latency_seconds_count",
        "streamd_commit_batch_commands_count",
        "streamd_http_received_bytes_total",
        "streamd_http_sent_bytes_total",
    } <= names


def test_a_metric_whose_labels_say_something_is_always_one() -> None:
    metrics = Metrics()
    metrics.info("build", "The release.", {"version": "0.2.0", "python": "3.11.7"})
    samples = _samples(metrics)
    assert samples["streamd_build_info", (("python", "3.11.7"), ("version", "0.2.0"))] == 1


def test_recent_counts_are_those_of_the_last_minutes() -> None:
    histogram = Histogram((1, 2))
    recent = RecentCounts(histogram)
    assert recent.since(60) == [0, 0, 0]
    histogram.observe(1)
    assert recent.since(1) == recent.since(60) == [1, 0, 0]
    for _ in range(2):
        recent.note()
    histogram.observe(9)
    assert recent.since(1) == [0, 0, 1]
    assert recent.since(60) == [1, 0, 1]
    for _ in range(61):
        recent.note()
    assert recent.since(1) == [0, 0, 0]
    assert recent.since(60) == [0, 0, 0]


def test_a_share_of_the_observations_is_within_a_bound() -> None:
    histogram = Histogram((1, 2, 4))
    assert histogram.within([99, 1, 0, 0], 0.99) == 1
    assert histogram.within([98, 2, 0, 0], 0.99) == 2
    assert histogram.within([0, 0, 1, 0], 0.99) == 4
    assert histogram.within([0, 0, 0, 1], 0.99) is None
