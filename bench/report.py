"""The tables, as Markdown and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from bench import figures
from bench.bars import OURS, Verdict, evaluate
from bench.figures import Figure
from bench.results import Results

_NOTHING = "–"
_BEGIN = "<!-- bench:start -->"
_END = "<!-- bench:end -->"


@dataclass(frozen=True)
class Setting:
    """What a reader must know beside the figures."""

    date: str
    cpu: str
    system: str
    pinning: str
    load_average: float
    """Of the minute before the run: what else the machine was doing."""
    disk: str
    rounds: int
    duration_s: float
    tools: str
    versions: Mapping[str, str]
    """By server."""
    acknowledged: Mapping[str, str]
    """By server: what an acknowledged append means."""


def markdown(results: Results, setting: Setting) -> str:
    """Both tables and the notes below them."""
    parts = [
        figures_table(results, list(setting.versions)),
        "",
        bars_table(evaluate(results)),
        "",
        *setting_lines(setting),
        *(f"- Note: {remark}." for remark in results.remarks),
        *(f"- Failed: {failure}" for failure in results.failures),
    ]
    return "\n".join(parts) + "\n"


def figures_table(results: Results, servers: Sequence[str]) -> str:
    """One row for each figure, one column for each server, then streamd's ratio to each peer."""
    peers = [server for server in servers if server != OURS] if OURS in servers else []
    head = ["measurement", "unit", *servers, *(f"{OURS} / {peer}" for peer in peers)]
    rows = [
        [
            f"{figure.title} ({'lower' if figure.lower_is_better else 'higher'} is better)"
            if figure.comparable
            else figure.title,
            figure.unit,
            *(_cell(results, figure, server) for server in servers),
            *(ratio(results.ratio(figure, OURS, peer)) for peer in peers),
        ]
        for figure in figures.ALL
        if results.tried(figure)
    ]
    return _table(head, rows, left=2)


def bars_table(verdicts: Sequence[Verdict]) -> str:
    """The figures to reach."""
    rows = [
        [
            verdict.bar.title,
            verdict.bar.describe(),
            _measured(verdict),
            {True: "met", False: "**missed**", None: "not measured"}[verdict.met],
        ]
        for verdict in verdicts
    ]
    return _table(["figure to reach", "bar", "measured", "verdict"], rows, left=2)


def setting_lines(setting: Setting) -> list[str]:
    """The machine, the versions, and what the servers promise."""
    return [
        (
            f"- {setting.date}; {setting.cpu}; {setting.system}; {setting.pinning}; load average "
            f"of the minute before: {setting.load_average:.2f}."
        ),
        (
            f"- Medians of {setting.rounds} alternating round(s), {setting.duration_s:g} s per "
            f"run; {setting.tools}."
        ),
        f"- Disk: {setting.disk}.",
        *(
            f"- {name}: {setting.versions[name]}. Acknowledged means: {setting.acknowledged[name]}."
            for name in setting.versions
        ),
    ]


def to_json(results: Results, setting: Setting) -> str:
    """Everything, the single rounds included."""
    document = {
        "setting": asdict(setting),
        "figures": [_figure_json(figure, results) for figure in figures.ALL],
        "bars": [
            {
                "title": verdict.bar.title,
                "figure": verdict.bar.figure.key,
                "bar": verdict.bar.describe(),
                "measured": verdict.measured,
                "met": verdict.met,
            }
            for verdict in evaluate(results)
        ],
        "remarks": results.remarks,
        "failures": results.failures,
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def write_markdown(path: Path, text: str) -> None:
    """Write a file; in one that has the bench markers, replace only what is between them."""
    before = path.read_text() if path.exists() else ""
    if _BEGIN in before and _END in before:
        head, _, rest = before.partition(_BEGIN)
        text = f"{head}{_BEGIN}\n{text}{_END}{rest.partition(_END)[2]}"
    path.write_text(text)


def number(value: float | None) -> str:
    """Three digits or more, whatever the size."""
    if value is None:
        return _NOTHING
    if value == 0 or value >= 100:
        return f"{value:,.0f}"
    digits = 1 if value >= 10 else 2 if value >= 1 else 3
    return f"{value:.{digits}f}"


def ratio(value: float | None) -> str:
    """A ratio with its sign."""
    if value is None:
        return _NOTHING
    return f"{value:.0f}×" if value >= 100 else f"{value:.1f}×" if value >= 10 else f"{value:.2f}×"


def _cell(results: Results, figure: Figure, server: str) -> str:
    value = results.value(figure, server)
    if value is None and (figure.key, server) in results.failed:
        return "failed"
    return number(value)


def _measured(verdict: Verdict) -> str:
    if verdict.bar.peer is not None:
        return ratio(verdict.measured)
    value = number(verdict.measured)
    return value if verdict.measured is None else f"{value} {verdict.bar.figure.unit}"


def _figure_json(figure: Figure, results: Results) -> dict[str, object]:
    samples = results.samples.get(figure.key, {})
    return {
        **asdict(figure),
        "median": {server: results.value(figure, server) for server in samples},
        "rounds": {server: list(values) for server, values in samples.items()},
    }


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int) -> str:
    """A table whose columns after the first `left` are aligned to the right."""
    rule = ["---" if column < left else "---:" for column in range(len(head))]
    return "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows))
