"""The chart for Kubernetes: what it makes is valid, strictly, and its nodes form a cluster."""

from __future__ import annotations

import subprocess
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

import streamd
from tests.packaging.declared import image_settings, nodes, serve_and_archive
from tests.packaging.installed import ROOT, output
from tests.support.helm import helm_or_skip
from tests.support.minio import MinioServer
from tests.support.tools import BUILDING, needs

pytestmark = [
    pytest.mark.long,
    needs(BUILDING, find_spec("kubernetes_validate") is not None),
]

CHART = ROOT / "packaging" / "helm" / "streamd"
# The oldest and the newest that the chart is for.
KUBERNETES = ("1.28", "1.34")
BUCKET = "streamd-cold"
EVERYTHING = (
    "cold.enabled=true",
    f"cold.bucket={BUCKET}",
    "cold.endpoint=http://minio:9000",
    "imagePullSecrets[0].name=registry",
    "storage.storageClassName=fast",
    "serviceMonitor.enabled=true",
    "serviceMonitor.labels.release=prometheus",
    "settings.STREAMD_LOG_FORMAT=json",
    "tolerations[0].operator=Exists",
    "nodeSelector.disk=local",
)


def helm(*words: str | Path) -> str:
    return output(helm_or_skip(), *words, cwd=ROOT)


def made(*values: str) -> dict[tuple[str, str], Any]:
    """What a release named `prod` with these values consists of, by kind and name."""
    given = [word for value in values for word in ("--set", value)]
    documents = yaml.safe_load_all(helm("template", "prod", CHART, *given))
    return {(each["kind"], each["metadata"]["name"]): each for each in documents}


@pytest.fixture(scope="module")
def everything() -> dict[tuple[str, str], Any]:
    return made(*EVERYTHING)


def test_helm_has_nothing_to_say_about_it() -> None:
    said = helm("lint", "--strict", CHART)
    assert "[WARNING]" not in said
    assert "[ERROR]" not in said


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("values", [(), EVERYTHING], ids=["defaults", "everything"])
def test_kubernetes_accepts_what_it_makes(version: str, values: tuple[str, ...]) -> None:
    import kubernetes_validate

    kinds = set()
    for (kind, _), each in made(*values).items():
        if kind != "ServiceMonitor":  # Prometheus Operator has its schema.
            kubernetes_validate.validate(each, version, strict=True)
            kinds.add(kind)
    assert kinds == {"Service", "StatefulSet", "PodDisruptionBudget"}


def test_the_chart_is_of_this_release() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    release = streamd.__version__.partition(".dev")[0]
    assert (chart["version"], chart["appVersion"]) == (release, release)


def test_a_disruption_takes_one_node_at_most(everything: dict[tuple[str, str], Any]) -> None:
    budget = everything["PodDisruptionBudget", "prod"]["spec"]
    pods = everything["StatefulSet", "prod"]["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["selector"] == pods["selector"]


def test_prometheus_finds_each_node_and_has_a_token(
    everything: dict[tuple[str, str], Any],
) -> None:
    monitor = everything["ServiceMonitor", "prod"]
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    (endpoint,) = monitor["spec"]["endpoints"]
    headless = everything["Service", "prod-peers"]["spec"]
    assert headless["clusterIP"] == "None"
    assert endpoint["port"] in [port["name"] for port in headless["ports"]]
    assert endpoint["authorization"]["credentials"]["key"] == "token"


def pod_settings(container: dict[str, Any], pod: str) -> dict[str, str]:
    """What the command of a pod gives to streamd, as variables."""
    declared = {each["name"]: each.get("value", "from elsewhere") for each in container["env"]}
    shell, (script,) = container["command"], container["args"]
    assert script.endswith("exec streamd serve\n")
    shown = subprocess.run(
        [*shell, script.replace("exec streamd serve", "exec env -0")],
        env={"PATH": "/usr/bin:/bin", **declared, "POD": pod},
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    variables = dict(line.split("=", 1) for line in shown.split("\0") if line)
    return {name: value for name, value in variables.items() if name.startswith("STREAMD_")}


def test_its_nodes_form_a_cluster_with_the_store(
    everything: dict[tuple[str, str], Any], store: MinioServer, tmp_path: Path
) -> None:
    pods = everything["StatefulSet", "prod"]["spec"]
    (container,) = pods["template"]["spec"]["containers"]
    names = [f"prod-{ordinal}" for ordinal in range(pods["replicas"])]
    declared = {
        f"{name}.prod-peers.default.svc.cluster.local": {
            **image_settings(),
            **pod_settings(container, name),
        }
        for name in names
    }
    with ExitStack() as running:
        cluster = nodes(declared, store, tmp_path)
        for node in cluster:
            running.callback(node.kill)
        serve_and_archive(cluster, store, BUCKET)
