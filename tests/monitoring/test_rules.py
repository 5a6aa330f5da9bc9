"""The rules for Prometheus are valid, fire for what they are for, and lead to a runbook."""

from __future__ import annotations

import re
import subprocess

import yaml

from tests.monitoring.rules import CASES, FILES, ROOT, alerts, rules
from tests.support.prometheus import prometheus_or_skip

_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_SEVERITIES = {"critical", "warning", "info"}


def _promtool(*arguments: object) -> None:
    command = [str(prometheus_or_skip() / "promtool"), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_promtool_accepts_the_rules() -> None:
    _promtool("check", "rules", "--lint=all", "--lint-fatal", *FILES)


def test_each_alert_fires_in_its_case_and_stays_quiet_in_the_other() -> None:
    _promtool("test", "rules", CASES)


def test_each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    checks = [
        (case["name"], check["alertname"], bool(check["exp_alerts"]))
        for case in yaml.safe_load(CASES.read_text())["tests"]
        for check in case["alert_rule_test"]
    ]
    names = {alert["alert"] for alert in alerts()}
    assert {name for case, name, fires in checks if fires and case == f"{name} fires"} == names
    assert {name for case, name, _ in checks if case == f"{name} is quiet"} == names
    assert not any(fires for case, _, fires in checks if case.endswith("is quiet"))


def test_each_alert_says_how_grave_it_is_and_after_how_long_it_fires() -> None:
    for alert in alerts():
        assert alert["labels"]["severity"] in _SEVERITIES, alert
        assert "for" in alert, alert
        assert set(alert["annotations"]) == {"summary", "runbook"}, alert


def test_each_alert_leads_to_a_heading_of_the_runbook() -> None:
    page = "docs/operations.md"
    headings = {
        re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-")
        for heading in _HEADING.findall((ROOT / page).read_text())
    }
    for alert in alerts():
        file, _, anchor = alert["annotations"]["runbook"].partition("#")
        assert file == page
        assert anchor in headings, alert["alert"]


def test_the_table_of_alerts_is_that_of_the_rules() -> None:
    """With severity and time; a link leads to the same entry."""
    row = re.compile(
        r"^\| \[(Streamd\w+)\]\((#\w+)\) \| (\w+) \| .+ \| (\w+) \| .+ \|$", re.MULTILINE
    )
    listed = row.findall((ROOT / "docs" / "operations.md").read_text())
    assert listed == [
        (
            alert["alert"],
            "#" + alert["annotations"]["runbook"].partition("#")[2],
            alert["labels"]["severity"],
            alert["for"],
        )
        for alert in alerts()
    ]


def test_recorded_series_are_named_as_prometheus_advises() -> None:
    """By `level:metric:operations`."""
    for rule in rules(FILES[0]):
        assert re.fullmatch(r"(?:instance|cluster):streamd_\w+:\w+", rule["record"])
