"""The ring with what a node did in the last hour."""

from __future__ import annotations

import pytest

from streamd.process.histograms import Histogram
from streamd.process.history import COLUMNS, INTERVAL_S, LastHour, quantile_ms
from streamd.process.metrics import Metrics


def rows(history: LastHour, after_ms: int = 0) -> list[dict[str, float | None]]:
    columns = history.after(after_ms)["columns"]
    assert isinstance(columns, dict)
    assert tuple(columns) == COLUMNS
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def test_a_row_has_rates_and_latencies_since_the_one_before() -> None:
    metrics, history = Metrics(), LastHour()
    metrics.request("stream", "POST", 204, count=1000)
    history.note(metrics, 1_000, 10.0)
    assert rows(history) == []
    metrics.request("stream", "POST", 204, count=20)
    metrics.request("batch", "POST", 200, count=10)
    metrics.request("stream", "GET", 200, count=5)
    metrics.request("ops", "GET", 200, count=99)
    metrics.request("stream", "POST", 503, count=2)
    metrics.append_latency.observe(0.004, 30)
    metrics.bytes_in += 500
    metrics.gauge("streams", "Streams.", lambda: 7)
    history.note(metrics, 6_000, 15.0)
    [row] = rows(history)
    assert (row["at_ms"], row["writes_per_s"], row["reads_per_s"]) == (6_000, 6.0, 1.0)
    assert (row["errors_per_s"], row["in_bytes_per_s"], row["streams"]) == (0.4, 100.0, 7.0)
    assert row["append_p50_ms"] == pytest.approx(3.5)  # between the bounds 2 and 5 ms
    assert row["fsync_p50_ms"] is None
    assert row["cold_hot_bytes"] is None


def test_rows_are_kept_for_an_hour_and_answered_from_a_time_on() -> None:
    metrics, history = Metrics(), LastHour()
    for number in range(1000):
        history.note(metrics, number * 5_000, number * INTERVAL_S)
    found = [row["at_ms"] for row in rows(history)]
    assert found == [number * 5_000 for number in range(280, 1000)]
    assert [row["at_ms"] for row in rows(history, after_ms=998 * 5_000)] == [999 * 5_000]
    assert rows(history, after_ms=999 * 5_000) == []


@pytest.mark.parametrize(
    ("counts", "share", "value"),
    [
        ([0, 0, 0], 0.5, None),
        ([10, 0, 0], 0.5, 500.0),
        ([0, 10, 0], 0.5, 1500.0),
        ([5, 5, 0], 0.5, 1000.0),
        ([5, 5, 0], 0.9, 1800.0),
        ([0, 0, 10], 0.5, 2000.0),  # above all bounds: the highest that is known
    ],
)
def test_a_quantile_lies_between_the_bounds(
    counts: list[int], share: float, value: float | None
) -> None:
    assert quantile_ms(Histogram((1.0, 2.0)), counts, share) == value
