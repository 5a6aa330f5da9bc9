"""The alerting and recording rules for Prometheus, as a test reads them and runs them faster."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DIRECTORY = ROOT / "config" / "prometheus"
FILES = (DIRECTORY / "recording.yml", DIRECTORY / "alerts.yml")
CASES = DIRECTORY / "alerts.test.yml"

_UNITS_S = {"s": 1, "m": 60, "h": 3600}
_DURATION = re.compile(r"(\d+)([smh])")
_WINDOW = re.compile(r"\[(\d+[smh])\]")
_HORIZON = re.compile(r"(predict_linear\([^,]*, )(\d+)\)")


def rules(file: Path) -> Iterator[dict[str, Any]]:
    """The rules of a file, of all its groups."""
    for group in yaml.safe_load(file.read_text())["groups"]:
        yield from group["rules"]


def alerts() -> list[dict[str, Any]]:
    """All alerts."""
    return list(rules(DIRECTORY / "alerts.yml"))


def write_faster(directory: Path, factor: int) -> list[Path]:
    """Copies of the rules in which each time span is `factor` times shorter, and each group is
    evaluated every second: `for`, windows, and how far a trend is followed. Thresholds stay."""
    written = []
    for file in FILES:
        content = yaml.safe_load(file.read_text())
        for group in content["groups"]:
            group["interval"] = "1s"
            for rule in group["rules"]:
                rule["expr"] = _faster(rule["expr"], factor)
                if "for" in rule:
                    rule["for"] = _divided(rule["for"], factor)
        copy = directory / file.name
        copy.write_text(yaml.safe_dump(content, sort_keys=False))
        written.append(copy)
    return written


def _faster(expression: str, factor: int) -> str:
    shorter = _WINDOW.sub(lambda match: f"[{_divided(match[1], factor)}]", expression)
    return _HORIZON.sub(lambda match: f"{match[1]}{int(match[2]) / factor:g})", shorter)


def _divided(duration: str, factor: int) -> str:
    found = _DURATION.fullmatch(duration)
    assert found is not None, duration
    return f"{round(int(found[1]) * _UNITS_S[found[2]] * 1000 / factor)}ms"
