"""What metrics say of subscriptions, and what is refused while members may not understand them."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from streamd.config.settings import AuthConfig
from streamd.group import log_formats
from streamd.group.log_formats import OPERATIONS_FORMAT
from streamd.http.subscriptions import administering
from streamd.node.delivery.keyring import Keyring
from streamd.node.delivery.webhooks import Webhooks
from tests.http.authorized import ROOT
from tests.http.serving import Serving, serving

ALL = "/v1/stream/__ds/subscriptions"
PULL = {"type": "pull-wake", "pattern": "a/*", "wake_stream": "wakes/a", "lease_ttl_ms": 5_000}


async def put(client: httpx.AsyncClient, name: str, **changes: object) -> None:
    made = await client.put(f"{ALL}/{name}", json={**PULL, **changes})
    assert made.status_code == 201, made.text


def states(server: Serving) -> dict[str, int]:
    """How many subscriptions are in each state, of those that any is in."""
    text = server.node.metrics.exposition().decode()
    lines = [line for line in text.splitlines() if line.startswith("streamd_subscriptions{")]
    found = {line.split('"')[1]: int(float(line.split()[-1])) for line in lines}
    assert set(found) == {"idle", "waiting", "leased", "failed"}
    return {state: number for state, number in found.items() if number}


async def reported(client: httpx.AsyncClient) -> dict[str, Any]:
    """What the status says of subscriptions, without zeros."""
    found = (await client.get("/cluster/status")).json()["subscriptions"]
    return {name: told for name, told in found.items() if told}


def value(server: Serving, name: str) -> float:
    text = server.node.metrics.exposition().decode()
    [line] = [line for line in text.splitlines() if line.startswith(f"streamd_{name} ")]
    return float(line.split()[-1])


async def test_the_metrics_say_which_subscriptions_wait_for_whom(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        assert states(server) == {}
        await client.put("/v1/stream/wakes/a", json=[])
        await put(client, "one")
        await put(client, "two", pattern=None, streams=["a/1", "b/1"])
        await put(client, "three", wake_stream="wakes/none")
        assert states(server) == {"idle": 3}
        assert value(server, "subscription_oldest_wake_seconds") == 0
        await client.put("/v1/stream/a/1", json={"n": 1})
        await client.put("/v1/stream/a/2", json={"n": 1})
        # The wake stream of the third one does not exist.
        assert states(server) == {"waiting": 2, "failed": 1}
        assert value(server, "subscription_pending_streams") == 2 + 1 + 2
        server.clock.ahead_ms += 60_000
        assert 60 <= value(server, "subscription_oldest_wake_seconds") < 120
        found = await reported(client)
        ages = [found.pop(name) for name in ("oldest_waiting_ms", "oldest_failed_ms")]
        assert all(60_000 <= age < 120_000 for age in ages)
        assert found == {"waiting": 2, "failed": 1, "pending_streams": 5}
        claimed = (await client.post(f"{ALL}/one/claim", json={"worker": "w"})).json()
        assert states(server) == {"waiting": 1, "failed": 1, "leased": 1}
        await client.delete(f"{ALL}/two")
        await client.delete(f"{ALL}/three")
        assert value(server, "subscription_oldest_wake_seconds") == 0
        body = {name: claimed[name] for name in ("wake_id", "generation")}
        body["acks"] = [
            {"stream": one["path"], "offset": one["tail_offset"]} for one in claimed["streams"]
        ]
        done = await client.post(
            f"{ALL}/one/ack",
            json={**body, "done": True},
            headers={"Authorization": f"Bearer {claimed['token']}"},
        )
        assert done.json() == {"ok": True, "next_wake": False}
        assert states(server) == {"idle": 1}
        assert value(server, "subscription_pending_streams") == 0
        assert await reported(client) == {"idle": 1}


async def test_a_token_of_a_wake_ends_with_its_lease(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        await client.put("/v1/stream/wakes/a", json=[])
        await put(client, "one")
        await client.put("/v1/stream/a/1", json={"n": 1})
        claimed = (await client.post(f"{ALL}/one/claim", json={"worker": "w"})).json()
        body = {name: claimed[name] for name in ("wake_id", "generation")}
        headers = {"Authorization": f"Bearer {claimed['token']}"}
        renewed = (await client.post(f"{ALL}/one/ack", json=body, headers=headers)).json()
        # Beyond the lease and what a token outlives it by.
        server.clock.ahead_ms += 60_000
        await client.post("/v1/stream/a/1", json={"n": 2})
        for token in (claimed["token"], renewed["token"]):
            late = await client.post(
                f"{ALL}/one/ack", json=body, headers={"Authorization": f"Bearer {token}"}
            )
            assert (late.status_code, late.json()["error"]["code"]) == (401, "TOKEN_EXPIRED")
        # The next worker gets what was left.
        again = (await client.post(f"{ALL}/one/claim", json={"worker": "v"})).json()
        assert again["generation"] == 2
        assert [one["has_pending"] for one in again["streams"]] == [True]


async def test_a_node_that_cannot_make_tokens_takes_no_claim(tmp_path: Path) -> None:
    """Its answer would be lost with the lease, and the work would wait for that to lapse."""
    async with serving(tmp_path) as server, server.client() as client:
        await client.put("/v1/stream/wakes/a", json=[])
        await put(client, "one")
        await client.put("/v1/stream/a/1", json={"n": 1})
        elsewhere = Keyring(server.node.group, Webhooks(sealing_secret=b"t" * 64), Random(1))
        await elsewhere.rotate()
        for _ in range(2):
            refused = await client.post(f"{ALL}/one/claim", json={"worker": "w"})
            assert refused.json()["error"]["code"] == "SUBSCRIPTION_KEYS_SEALED"
        shown = (await client.get(f"{ALL}/one")).json()
        assert shown["wake"]["holder"] is None
        await server.node.keyring.rotate()
        assert (await client.post(f"{ALL}/one/claim", json={"worker": "w"})).status_code == 200


async def test_a_page_ends_where_enough_was_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a token each stream that a subscription names is looked up among its scopes."""
    monkeypatch.setattr(administering, "_MAX_LOOKED_AT", 7)
    async with serving(tmp_path) as server, server.client() as client:
        for name in ("one", "two", "three", "four"):
            await put(client, name, pattern=None, streams=[f"a/{n}" for n in range(3)])
        first = (await client.get(f"{ALL}?limit=100")).json()
        assert [one["id"] for one in first["subscriptions"]] == ["one", "two"]
        assert first["has_more"]
        second = (await client.get(f"{ALL}?limit=100&after={first['next_cursor']}")).json()
        assert [one["id"] for one in second["subscriptions"]] == ["three", "four"]
        assert not second["has_more"]


async def test_below_its_feature_level_nothing_is_proposed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_formats, "LOG_FORMAT", OPERATIONS_FORMAT)
    required = AuthConfig(mode="required", root_token=ROOT)
    headers = {"Authorization": f"Bearer {ROOT}"}
    async with serving(tmp_path, auth=required) as server, server.client() as client:
        assert server.node.log_formats.level == OPERATIONS_FORMAT
        refused = await client.put(f"{ALL}/one", json=PULL, headers=headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (
            409,
            "FEATURES_NOT_RAISED",
        )
        asked = {"name": "worker", "scopes": ["subscribe:a/*"]}
        refused = await client.post("/auth/tokens", json=asked, headers=headers)
        assert refused.json()["error"]["code"] == "FEATURES_NOT_RAISED"
        assert len(server.node.group.state.tokens) == 0
        limits = "/cluster/limits/identities/token:worker"
        both = {"requests_per_s": 100, "max_subscriptions": 1}
        refused = await client.put(limits, json=both, headers=headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (
            409,
            "FEATURES_NOT_RAISED",
        )
        assert len(server.node.group.state.limits) == 0
        rotate = "/cluster/subscription-keys/rotate"
        refused = await client.post(rotate, json={"revoke": True}, headers=headers)
        assert refused.json()["error"]["code"] == "FEATURES_NOT_RAISED"
        # What the release before has stays as it was.
        allowed = await client.put(limits, json={"requests_per_s": 100}, headers=headers)
        assert allowed.status_code == 200
        missing = await client.get(f"{ALL}/one", headers=headers)
        assert missing.json()["error"]["code"] == "SUBSCRIPTION_NOT_FOUND"
        keys = await client.get("/v1/stream/__ds/jwks.json")
        assert keys.json() == {"keys": []}
