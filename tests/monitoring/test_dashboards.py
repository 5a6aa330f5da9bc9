"""The dashboards are those of their description, and show only what a running node exports."""

from __future__ import annotations

import re
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.docs.reference import registered
from tests.http.pki import make_pki
from tests.jepsen_like.cluster_processes import ClusterProcesses
from tests.monitoring.dashboards import DIRECTORY, files, queries
from tests.monitoring.panels import DASHBOARDS, Dashboard
from tests.monitoring.rules import FILES, rules
from tests.support.ports import unused_port
from tests.support.server_process import ServerProcess

_NAME = re.compile(r"\b(?:streamd|process)_\w+")
_AFTER_BY = re.compile(r"(?:\bby \(|\bby \([^)]*, )(\w+)")
_LEGEND = re.compile(r"\{\{(\w+)\}\}")
# Prometheus itself adds these, and a scrape `cluster`.
_OF_THE_SCRAPE = {"instance", "job", "cluster"}
# Of series that begin with the first refusal.
_SELDOM = {"limit", "result"}
# Exported only where there are workers, an identity provider, an audit trail or targets of heads.
_ELSEWHERE = {
    "streamd_worker_restarts_total",
    "streamd_jwks_age_seconds",
    "streamd_audit_failing",
    "streamd_audit_entries_total",
}


def test_the_files_are_those_of_the_description() -> None:
    """`make fix` writes them."""
    assert {path.name: path.read_text() for path in DIRECTORY.iterdir()} == files()


def _collect(text: bytes, found: dict[str, set[str]]) -> None:
    """Add the labels of each metric, by the name by which Prometheus keeps it."""
    for family in text_string_to_metric_families(text.decode()):
        name = f"{family.name}_total" if family.type == "counter" else family.name
        found.setdefault(name, set())  # one without a series yet has no sample
        for sample in family.samples:
            found.setdefault(sample.name, set()).update(sample.labels)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, set[str]]:
    """The labels of each metric that a node exports: one with a cold store, TLS and a listener for
    operators, and one of a cluster."""
    directory = tmp_path_factory.mktemp("nodes")
    pki, operators = make_pki(directory), f"127.0.0.1:{unused_port()}"
    environment = {
        "STREAMD_SERVER_TLS_CERT": str(pki.certificate),
        "STREAMD_SERVER_TLS_KEY": str(pki.key),
        "STREAMD_ADMIN_LISTEN": operators,
        "STREAMD_ADMIN_TLS": "false",
        "STREAMD_COLD_BACKEND": "fs",
        "STREAMD_COLD_FS_PATH": str(directory / "cold"),
    }
    found: dict[str, set[str]] = {}
    with (
        ServerProcess(directory / "data", environment=environment),
        urlopen(f"http://{operators}/metrics", timeout=20) as response,
    ):
        _collect(response.read(), found)
    with ClusterProcesses(directory, count=2, proxied=False) as cluster:
        answer = cluster.leader().get("/metrics")
        assert answer is not None
        _collect(answer[1], found)
    return found


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda one: one.uid)
def test_each_panel_shows_what_a_node_exports(
    dashboard: Dashboard, exported: dict[str, set[str]]
) -> None:
    for query in queries(dashboard):
        names = set(_NAME.findall(query.expression))
        assert names, query
        assert names <= exported.keys(), query
        labels = set(_LEGEND.findall(query.legend)) | set(_AFTER_BY.findall(query.expression))
        known = set().union(*(exported[name] for name in names))
        assert labels - known <= _OF_THE_SCRAPE | _SELDOM, query


def test_each_metric_of_a_node_is_on_the_page(exported: dict[str, set[str]]) -> None:
    page = {metric.name for metric in registered()}
    unknown = {re.sub(r"_(bucket|sum|count)$", "", name) for name in exported} - page
    assert {name for name in unknown if name.startswith("streamd_")} == set()


def test_each_rule_asks_for_what_a_node_exports(exported: dict[str, set[str]]) -> None:
    for file in FILES:
        for rule in rules(file):
            names = set(_NAME.findall(rule["expr"])) - _ELSEWHERE
            recorded = {name for name in names if f":{name}:" in rule["expr"]}
            assert names - recorded <= exported.keys(), rule
