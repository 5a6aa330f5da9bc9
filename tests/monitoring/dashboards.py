"""Writes the dashboards of `config/grafana` from their description, `panels`.

Run as a program it writes the files; a test compares them.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from tests.monitoring.panels import DASHBOARDS, Dashboard, Panel
from tests.monitoring.rules import ROOT

DIRECTORY = ROOT / "config" / "grafana"
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
# Of Grafana's grid, which is 24 wide.
_WIDTH, _HEIGHT = 8, 7


def files() -> dict[str, str]:
    """The content of each file, by its name."""
    return {f"{one.uid}.json": json.dumps(_dashboard(one), indent=1) + "\n" for one in DASHBOARDS}


class Query(NamedTuple):
    """What a panel asks Prometheus for, and how it names the series."""

    expression: str
    legend: str


def queries(dashboard: Dashboard) -> list[Query]:
    """What all panels of a dashboard ask for."""
    return [one for _, row in dashboard.rows for panel in row for one in _queries(panel, dashboard)]


def _queries(panel: Panel, dashboard: Dashboard) -> list[Query]:
    selection = "{" + dashboard.selection + "}"
    return [
        Query(expression.replace("{selected}", selection), legend or panel.title)
        for expression, legend in panel.queries
    ]


def _dashboard(dashboard: Dashboard) -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in dashboard.rows:
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": title,
                "collapsed": False,
                "gridPos": {"x": 0, "y": y, "w": 24, "h": 1},
                "panels": [],
            }
        )
        y += 1
        for place, panel in enumerate(row):
            x, down = place % 3 * _WIDTH, place // 3 * _HEIGHT
            at = {"x": x, "y": y + down, "w": _WIDTH, "h": _HEIGHT}
            panels.append(_panel(panel, dashboard, len(panels) + 1, at))
        y += -(-len(row) // 3) * _HEIGHT
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "tags": ["streamd"],
        "schemaVersion": 38,
        "version": 1,
        "editable": True,
        "timezone": "browser",
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": _variables(dashboard)},
        "annotations": {"list": []},
        "panels": panels,
    }


def _panel(panel: Panel, dashboard: Dashboard, number: int, at: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "gridPos": at,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": _SOURCE,
                "expr": query.expression,
                "legendFormat": query.legend,
            }
            for place, query in enumerate(_queries(panel, dashboard))
        ],
    }


def _variables(dashboard: Dashboard) -> list[dict[str, Any]]:
    name = "instance" if dashboard.has_instance else "cluster"
    query = f"label_values(streamd_ready, {name})"
    return [
        {"name": "datasource", "type": "datasource", "query": "prometheus"},
        {
            "name": name,
            "type": "query",
            "datasource": _SOURCE,
            "query": {"query": query, "refId": name},
            "refresh": 2,
            "sort": 1,
            # The pattern for all also matches targets without the label.
            "includeAll": not dashboard.has_instance,
            "allValue": None if dashboard.has_instance else ".*",
            "multi": not dashboard.has_instance,
        },
    ]


def main() -> None:
    """Write the files."""
    DIRECTORY.mkdir(exist_ok=True)
    for name, content in files().items():
        (DIRECTORY / name).write_text(content)


if __name__ == "__main__":
    main()
