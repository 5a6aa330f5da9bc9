"""The tables and the text under them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench import figures, report
from bench.bars import BARS, Verdict
from bench.report import Setting
from bench.results import Results

SETTING = Setting(
    date="2026-01-02",
    cpu="a processor",
    system="Linux 6",
    pinning="server pinned to core 0, load to core 1",
    load_average=0.25,
    disk="ext4, the same for every server",
    rounds=3,
    duration_s=5.0,
    tools="wrk 4.1.0",
    versions={"streamd": "streamd 1", "node-memory": "reference 2"},
    acknowledged={"streamd": "durable", "node-memory": "nothing is durable"},
)


@pytest.fixture
def results() -> Results:
    results = Results()
    results.add("streamd", {figures.CREATE.rate: 12_345.6, figures.SSE_1000.p99: 5.0})
    results.add("node-memory", {figures.CREATE.rate: 10_000.0, figures.SSE_1000.p99: 40.0})
    return results


def test_one_row_per_figure_with_its_ratio(results: Results) -> None:
    assert report.figures_table(results, ["streamd", "node-memory"]).splitlines() == [
        "| measurement | unit | streamd | node-memory | streamd / node-memory |",
        "| --- | --- | ---: | ---: | ---: |",
        "| create a stream, 64 connections (higher is better) | 1/s | 12,346 | 10,000 | 1.23× |",
        "| SSE to 1000 subscribers: p99 (lower is better) | ms | 5.00 | 40.0 | 0.12× |",
    ]


def test_without_streamd_there_are_no_ratios(results: Results) -> None:
    head = report.figures_table(results, ["node-memory"]).splitlines()[0]
    assert head == "| measurement | unit | node-memory |"


def test_a_failure_differs_from_a_missing_figure(results: Results) -> None:
    results.fail("node-memory", (figures.CATCH_UP_RATE,), "no answer")
    row = report.figures_table(results, ["streamd", "node-memory"]).splitlines()[3]
    assert row.endswith("| MB/s | – | failed | – |")


def test_the_table_of_bars_shows_met_and_missed() -> None:
    append_64, *_, memory = BARS
    rows = report.bars_table(
        [Verdict(append_64, 1.25), Verdict(append_64, 2.1), Verdict(memory, None)]
    ).splitlines()[2:]
    assert rows == [
        "| append, 64 connections, processor time | ≤ 1.4 × rust | 1.25× | met |",
        "| append, 64 connections, processor time | ≤ 1.4 × rust | 2.10× | **missed** |",
        "| memory with 100,000 idle streams | ≤ 300 MB | – | not measured |",
    ]


def test_an_absolute_bar_shows_its_unit() -> None:
    assert "| 1.25 s | met |" in report.bars_table([Verdict(BARS[-2], 1.25)])


def test_the_conditions_of_the_run_are_listed_under_the_tables(results: Results) -> None:
    results.remark("only 10 streams")
    results.fail("node-memory", (), "round 1: no answer")
    text = report.markdown(results, SETTING)
    for expected in (
        "2026-01-02; a processor; Linux 6; server pinned to core 0",
        "Medians of 3 alternating round(s), 5 s per run; wrk 4.1.0.",
        "Disk: ext4",
        "- streamd: streamd 1. Acknowledged means: durable.",
        "- node-memory: reference 2. Acknowledged means: nothing is durable.",
        "- Note: only 10 streams.",
        "- Failed: round 1: no answer",
    ):
        assert expected in text


def test_json_keeps_the_single_rounds(results: Results) -> None:
    results.add("streamd", {figures.CREATE.rate: 10_000.0})
    document = json.loads(report.to_json(results, SETTING))
    create = next(each for each in document["figures"] if each["key"] == "create.rate")
    assert create["rounds"]["streamd"] == [12_345.6, 10_000.0]
    assert create["median"]["streamd"] == pytest.approx(11_172.8)
    assert len(document["bars"]) == len(BARS)
    assert document["setting"]["cpu"] == "a processor"


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0, "0"), (0.0456, "0.046"), (1.234, "1.23"), (45.67, "45.7"), (9876.5, "9,876")],
)
def test_numbers_are_shown_with_three_digits(value: float | None, text: str) -> None:
    assert report.number(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (0.456, "0.46×"), (23.44, "23.4×"), (123.4, "123×")]
)
def test_ratios_are_shown_with_a_factor(value: float | None, text: str) -> None:
    assert report.ratio(value) == text


def test_a_markdown_file_is_written_whole(tmp_path: Path) -> None:
    file = tmp_path / "out.md"
    file.write_text("old\n")
    report.write_markdown(file, "new\n")
    assert file.read_text() == "new\n"


def test_between_its_marks_only_the_tables_change(tmp_path: Path) -> None:
    file = tmp_path / "readme.md"
    file.write_text("before\n<!-- bench:start -->\nold\n<!-- bench:end -->\nafter\n")
    report.write_markdown(file, "new\n")
    assert file.read_text() == ("before\n<!-- bench:start -->\nnew\n<!-- bench:end -->\nafter\n")
