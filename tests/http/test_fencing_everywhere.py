"""Write fencing in both versions of HTTP, through workers, and through followers of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.http.authorized import PLACES, ROOT, Authorized, authorized

JSON = {"Content-Type": "application/json"}
FENCE = {"Write-Fence": "true", **JSON}
STREAM = "/v1/stream/fence/session"
SUBSCRIPTION = "/v1/stream/__ds/subscriptions/session"


@pytest.fixture(scope="module", params=PLACES)
def servers(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Authorized]:
    with authorized(request.param, tmp_path_factory.mktemp("fencing")) as found:
        yield found


def test_a_claim_writes_at_every_node_until_it_ends(servers: Authorized) -> None:
    """Each request goes to the next node."""
    assert servers.ask("PUT", "/v1/stream/wakes", headers=JSON).status_code == 201
    made = servers.ask("PUT", STREAM, headers=FENCE)
    assert (made.status_code, made.headers["write-fence"]) == (201, "true")
    config = {"type": "pull-wake", "streams": ["fence/session"], "wake_stream": "wakes"}
    assert servers.ask("PUT", SUBSCRIPTION, json=config).status_code == 201
    first = claim(servers, "worker-A")
    token = {"Write-Token": first["write_token"]}
    producer = {"Producer-Id": "p", "Producer-Epoch": str(first["generation"])}
    for seq in range(len(servers.urls)):
        sent = {**JSON, **token, **producer, "Producer-Seq": str(seq)}
        assert servers.ask("POST", STREAM, None, headers=sent, content=b"1").status_code == 200
        verified = servers.ask("POST", f"{SUBSCRIPTION}/claim/verify", None, headers=token)
        assert verified.json()["holder"] == "worker-A"
    tail = servers.ask("HEAD", STREAM).headers["stream-next-offset"]
    body = {
        "wake_id": first["wake_id"],
        "generation": first["generation"],
        "acks": [{"stream": "fence/session", "offset": tail}],
        "done": True,
    }
    done = servers.ask("POST", f"{SUBSCRIPTION}/ack", first["token"], json=body)
    assert done.json() == {"ok": True, "next_wake": False}
    second = claim(servers, "worker-B")
    assert second["generation"] > first["generation"]
    for _ in servers.urls:
        sent = {**JSON, **token, **producer, "Producer-Seq": "7"}
        refused = servers.ask("POST", STREAM, None, headers=sent, content=b"1")
        assert (refused.status_code, refused.json()["error"]["code"]) == (409, "FENCED")
        assert refused.headers["producer-expected-seq"] == "7"
        verified = servers.ask("POST", f"{SUBSCRIPTION}/claim/verify", None, headers=token)
        assert verified.status_code == 409
        seal = servers.ask("HEAD", STREAM).headers
        assert seal["write-fence-sealed-generation"] == str(first["generation"])
        assert seal["write-fence-sealed-offset"] == tail
        for headers, shown, status in (
            (JSON, ROOT, 204),
            ({**JSON, "Write-Fence": "true"}, ROOT, 401),
            (JSON, None, 401),
            (JSON, first["token"], 403),
        ):
            answer = servers.ask("POST", STREAM, shown, headers=headers, content=b"1")
            assert answer.status_code == status, answer.text


def claim(servers: Authorized, worker: str) -> dict[str, Any]:
    answer = servers.ask("POST", f"{SUBSCRIPTION}/claim", json={"worker": worker})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found
