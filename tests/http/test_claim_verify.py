"""`claim/verify` (WF-29, WF-30): what a write would be told about its claim, without a write."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.http.fencing import LEASE_MS, SERVICE, Claim, Fenced, error, fenced, under
from tests.http.test_write_fencing import GRACE_MS

ENDED = {"code": "FENCED", "reason": "precheck", "message": "write token claim is fenced"}


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[Fenced]:
    """A server that requires tokens."""
    async with fenced(tmp_path) as found:
        yield found


async def verified(at: Fenced, claim: Claim) -> httpx.Response:
    answer = await at.verify(claim.subscription_id, {"Write-Token": claim.write_token})
    assert answer.headers["cache-control"] == "no-store"
    return answer


async def facts(at: Fenced, claim: Claim) -> dict[str, Any]:
    answer = await verified(at, claim)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_wf_29_a_present_claim_is_described(at: Fenced) -> None:
    path, claim = await at.claimed("live")
    found = await facts(at, claim)
    until_ms = found.pop("lease_until_ms")
    assert at.clock.now_ms() < until_ms <= at.clock.now_ms() + LEASE_MS
    assert 0 < found.pop("lease_remaining_ms") <= LEASE_MS
    assert found == {
        "generation": claim.generation,
        "wake_id": claim.wake_id,
        "holder": "worker-A",
        "streams": [path],
    }
    bearer = {"Authorization": f"Bearer {claim.write_token}"}
    assert (await at.verify("live", bearer)).status_code == 200
    # A body is not looked at.
    answer = await at.ask(
        "POST", "__ds/subscriptions/live/claim/verify", bearer, content=b"\0" * 100
    )
    assert answer.status_code == 200


async def test_wf_29_what_is_no_token_of_the_subscription_is_401(at: Fenced) -> None:
    path, claim = await at.claimed("mine")
    _, other = await at.claimed("other")
    good = {"Authorization": f"Bearer {claim.write_token}"}
    shown: list[dict[str, str]] = [
        {},
        {"Write-Token": "", **good},
        {"Write-Token": f"{claim.write_token}, {claim.write_token}"},
        *({"Write-Token": bad} for bad in ("not-a-token", claim.token, other.write_token)),
        {"Authorization": f"Bearer {claim.token}"},
        SERVICE,
    ]
    for headers in shown:
        refused = await at.verify("mine", headers)
        assert (refused.status_code, error(refused)["code"]) == (401, "TOKEN_INVALID"), headers
        assert set(error(refused)) == {"code", "message"}
    # Of a subscription that does not exist nobody learns that.
    assert (await at.verify("none", good)).status_code in (401, 409)
    assert (await at.post(path, under(claim, "p", claim.generation, 0))).status_code == 200


async def test_wf_29_an_ended_claim_is_409_as_its_write_is(at: Fenced) -> None:
    for how in ("done", "deposed", "lapsed", "deleted", "recreated"):
        path, claim = await at.claimed(how)
        match how:
            case "done":
                await at.done(claim, path)
            case "deposed":
                at.clock.ahead_ms += LEASE_MS
                await at.claim(how, "worker-B")
            case "lapsed":
                at.clock.ahead_ms += LEASE_MS
            case "deleted":
                await at.delete(how)
            case "recreated":
                await at.delete(how)
                await at.subscribe(how, path)
                await at.claim(how)
        answer = await verified(at, claim)
        assert answer.status_code == 409, (how, answer.text)
        assert error(answer) == ENDED
        refused = await at.post(path, under(claim, "p", claim.generation, 0))
        assert refused.status_code == 409, (how, refused.text)


async def test_wf_29_verifying_changes_nothing(at: Fenced) -> None:
    path, claim = await at.claimed("quiet")
    subscription = "__ds/subscriptions/quiet"
    before = (await at.ask("GET", subscription, SERVICE)).json()
    tail = await at.tail(path)
    for _ in range(5):
        await facts(at, claim)
    assert (await at.ask("GET", subscription, SERVICE)).json() == before
    assert await at.tail(path) == tail
    assert (await at.ack(claim)).status_code == 200


async def test_wf_30_verifying_does_not_renew_the_lease(at: Fenced) -> None:
    _, claim = await at.claimed("wf30")
    first = await facts(at, claim)
    left = first["lease_remaining_ms"]
    for _ in range(4):
        at.clock.ahead_ms += LEASE_MS // 5
        found = await facts(at, claim)
        assert found["lease_until_ms"] == first["lease_until_ms"]
        assert found["lease_remaining_ms"] <= left - LEASE_MS // 5
        left = found["lease_remaining_ms"]
    at.clock.ahead_ms += LEASE_MS // 5
    assert error(await verified(at, claim)) == ENDED


async def test_wf_30_a_renewed_lease_shows_in_the_next_answer(at: Fenced) -> None:
    _, claim = await at.claimed("renewed")
    first = await facts(at, claim)
    at.clock.ahead_ms += LEASE_MS // 2
    await at.renewed(claim)
    second = await facts(at, claim)
    assert second["lease_until_ms"] > first["lease_until_ms"]
    assert second["lease_remaining_ms"] <= LEASE_MS


async def test_wf_30_an_expired_token_gets_no_other(at: Fenced) -> None:
    _, claim = await at.claimed("expired")
    at.clock.ahead_ms += LEASE_MS + GRACE_MS + 1
    refused = await verified(at, claim)
    assert (refused.status_code, error(refused)["code"]) == (401, "TOKEN_EXPIRED")
    assert "token" not in refused.json()
