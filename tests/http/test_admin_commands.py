"""Admin commands over HTTP that a cluster must refuse."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest

from streamd.http.router import describe
from tests.support.ports import unused_port
from tests.support.server_process import ServerProcess
from tests.support.wire import checked_client

JSON = {"Content-Type": "application/json"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A cluster of one node."""
    environment = {
        "STREAMD_CLUSTER_NAME": "alone",
        "STREAMD_CLUSTER_LISTEN": f"127.0.0.1:{unused_port()}",
    }
    data_dir: Path = tmp_path_factory.mktemp("alone") / "data"
    with (
        ServerProcess(data_dir, environment=environment) as process,
        checked_client(base_url=process.url) as client,
    ):
        yield client


def assert_documented(path: str, method: str, answer: httpx.Response) -> None:
    document = describe()
    responses = document["paths"][path][method]["responses"]
    content = responses[str(answer.status_code)]["content"]["application/json"]
    schema = {**content["schema"], "components": document["components"]}
    jsonschema_rs.validate(schema, answer.json())


@pytest.mark.parametrize(
    "address", ["", "here", "here:", "here:port", "here:99999", ":1", "a:1:2", "h\0st:1"]
)
def test_a_malformed_address_is_400_at_once(cluster: httpx.Client, address: str) -> None:
    answer = cluster.post("/cluster/add", json={"address": address}, timeout=2)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_REQUEST")


@pytest.mark.parametrize("body", [b"[]", b"{", b"\xff", b'{"address":' + b"[" * 100_000])
def test_a_body_that_is_not_a_json_object_is_400(cluster: httpx.Client, body: bytes) -> None:
    answer = cluster.post("/cluster/add", content=body, headers=JSON)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_REQUEST")


@pytest.mark.parametrize("node_id", [0, -1, 2**63, 10**30, 1.5, "1", True])
@pytest.mark.parametrize("operation", ["promote", "remove", "transfer"])
def test_a_malformed_node_id_is_400(cluster: httpx.Client, operation: str, node_id: Any) -> None:
    answer = cluster.post(f"/cluster/{operation}", json={"node_id": node_id})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_REQUEST")


@pytest.mark.parametrize(
    ("operation", "command", "status"),
    [
        ("promote", {"node_id": 7}, 404),
        ("remove", {"node_id": 7}, 404),
        ("remove", {"node_id": 1}, 409),
        ("transfer", {}, 404),
        ("transfer", {"node_id": 1}, 200),
        ("snapshot", {}, 200),
        ("transfer-leader", {}, 404),
        ("transfer-leader", {"node_id": 1}, 200),
        ("trigger-snapshot", {}, 200),
        ("purge-log", {}, 200),
    ],
)
def test_a_cluster_of_one_node_answers_as_documented(
    cluster: httpx.Client, operation: str, command: dict[str, Any], status: int
) -> None:
    answer = cluster.post(f"/cluster/{operation}", json=command)
    assert answer.status_code == status
    assert_documented(f"/cluster/{operation}", "post", answer)


def test_the_status_of_a_cluster_of_one_node_is_as_documented(cluster: httpx.Client) -> None:
    answer = cluster.get("/cluster/status")
    assert answer.json()["members"]
    assert_documented("/cluster/status", "get", answer)


def test_the_status_of_the_cold_store_has_another_name(cluster: httpx.Client) -> None:
    for path in ("/cluster/cold", "/cluster/hot-cold-stats"):
        answer = cluster.get(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "NO_COLD_STORE")
        assert_documented(path, "get", answer)
