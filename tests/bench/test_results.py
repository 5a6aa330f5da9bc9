"""Medians, ratios, percentiles, and the bars that are set on them."""

from __future__ import annotations

import pytest

from bench import figures
from bench.bars import BARS, Bar, Verdict, evaluate
from bench.figures import percentile
from bench.results import Results


def measured(**by_server: float) -> Results:
    results = Results()
    for server, value in by_server.items():
        results.add(server.replace("_", "-"), {figures.CREATE.rate: value})
    return results


def test_the_value_is_the_median_of_the_rounds() -> None:
    results = Results()
    for value in (5.0, 900.0, 7.0):
        results.add("streamd", {figures.CREATE.rate: value})
    assert results.value(figures.CREATE.rate, "streamd") == 7.0


def test_a_missing_measurement_has_no_value_and_no_ratio() -> None:
    results = measured(streamd=1.0)
    assert results.value(figures.CREATE.rate, "node-memory") is None
    assert results.value(figures.CATCH_UP_RATE, "streamd") is None
    assert results.ratio(figures.CREATE.rate, "streamd", "node-memory") is None


def test_a_ratio_is_ours_divided_by_theirs() -> None:
    results = measured(streamd=30.0, node_memory=40.0)
    assert results.ratio(figures.CREATE.rate, "streamd", "node-memory") == 0.75


def test_no_ratio_by_zero() -> None:
    results = measured(streamd=30.0, node_memory=0.0)
    assert results.ratio(figures.CREATE.rate, "streamd", "node-memory") is None


def test_a_count_is_not_compared() -> None:
    results = Results()
    for server in ("streamd", "node-memory"):
        results.add(server, {figures.IDLE_COUNT: 10})
    assert results.ratio(figures.IDLE_COUNT, "streamd", "node-memory") is None


def test_a_failed_run_keeps_the_other_rounds() -> None:
    results = measured(streamd=30.0)
    results.fail("streamd", (figures.CREATE.rate,), "round 2: no answer")
    results.fail("streamd", (figures.CATCH_UP_RATE,), "round 2: no answer")
    assert results.value(figures.CREATE.rate, "streamd") == 30.0
    assert results.tried(figures.CATCH_UP_RATE)
    assert not results.tried(figures.SMALL_READ.rate)


def test_a_remark_is_kept_once() -> None:
    results = Results()
    results.remark("slow")
    results.remark("slow")
    assert results.remarks == ["slow"]


@pytest.mark.parametrize(
    ("values", "percent", "expected"),
    [([4.0], 50, 4.0), ([3.0, 1.0, 2.0, 4.0], 50, 2.0), (list(range(1, 201)), 99, 198)],
)
def test_percentiles_are_by_nearest_rank(
    values: list[float], percent: float, expected: float
) -> None:
    assert percentile(values, percent) == expected


def test_no_values_have_no_percentile() -> None:
    with pytest.raises(ValueError, match="no values"):
        percentile([], 50)


HIGHER = Bar("create", figures.CREATE.rate, 0.6, "node-memory")
LOWER = Bar("latency", figures.SSE_1000.p99, 0.25, "node-memory")
ABSOLUTE = Bar("start", figures.IDLE_START, 2)


@pytest.mark.parametrize(
    ("bar", "value", "met"),
    [
        (HIGHER, 0.6, True),
        (HIGHER, 0.59, False),
        (LOWER, 0.25, True),
        (LOWER, 0.26, False),
        (ABSOLUTE, 2.0, True),
        (ABSOLUTE, 2.01, False),
        (HIGHER, None, None),
    ],
)
def test_a_bar_is_met_or_missed(bar: Bar, value: float | None, met: bool | None) -> None:
    assert Verdict(bar, value).met is met


def test_bars_describe_themselves() -> None:
    assert [bar.describe() for bar in (HIGHER, LOWER, ABSOLUTE)] == [
        "≥ 0.6 × node-memory",
        "≤ 0.25 × node-memory",
        "≤ 2 s",
    ]


def test_every_bar_is_evaluated_measured_or_not() -> None:
    verdicts = evaluate(measured(streamd=30.0, node_memory=40.0))
    assert [verdict.bar for verdict in verdicts] == list(BARS)
    assert [verdict.measured for verdict in verdicts if verdict.met is not None] == [0.75]


@pytest.mark.parametrize(("count", "met"), [(99_999, None), (100_000, True)])
def test_too_few_idle_streams_prove_nothing(count: int, met: bool | None) -> None:
    results = Results()
    results.add(
        "streamd",
        {figures.IDLE_COUNT: count, figures.IDLE_START: 1.0, figures.IDLE_MEMORY: 100.0},
    )
    idle = [verdict.met for verdict in evaluate(results) if verdict.bar.needs_idle_streams]
    assert idle == [met, met]
