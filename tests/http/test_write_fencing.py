"""The rules of write fencing, WF-01 to WF-28, against a real server (docs/write-fencing.md).

Leases and tokens end by the server's clock, which the tests advance.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.http.fencing import (
    FENCE,
    LEASE_MS,
    SERVICE,
    Fenced,
    error,
    fenced,
    producing,
    under,
)
from tests.node.delivery.receivers import answers, receiver

# A token is good for so long after its lease.
GRACE_MS = 5_000


@pytest.fixture
async def at(tmp_path: Path) -> AsyncIterator[Fenced]:
    """A server that requires tokens."""
    async with fenced(tmp_path) as found:
        yield found


# -- creating a fenced stream (section 3) ----------------------------------------------------------


async def test_wf_01_a_repeated_put_must_ask_for_the_same_fence(at: Fenced) -> None:
    assert (await at.create("fence/a", **FENCE)).status_code == 201
    assert (await at.create("fence/a", **FENCE)).status_code == 200
    assert (await at.create("fence/a")).status_code == 409
    assert (await at.create("fence/b")).status_code == 201
    refused = await at.create("fence/b", **FENCE)
    assert (refused.status_code, error(refused)["code"]) == (409, "STREAM_EXISTS")
    # Any other value counts as absent.
    assert (await at.create("fence/b", **{"Write-Fence": "yes"})).status_code == 200


async def test_wf_02_put_and_head_say_that_a_stream_is_fenced(at: Fenced) -> None:
    for _ in range(2):
        assert (await at.create("fence/a", **FENCE)).headers["write-fence"] == "true"
    assert (await at.head("fence/a")).headers["write-fence"] == "true"
    assert "write-fence" not in (await at.create("fence/b")).headers
    assert "write-fence" not in (await at.head("fence/b")).headers


async def test_wf_03_a_fork_does_not_inherit_the_fence(at: Fenced) -> None:
    await at.create("fence/a", **FENCE)
    source = {"Stream-Forked-From": "/v1/stream/fence/a"}
    forked = await at.create("fence/b", **source)
    assert (forked.status_code, forked.headers.get("write-fence")) == (201, None)
    assert "write-fence" not in (await at.head("fence/b")).headers
    assert (await at.create("fence/c", **source, **FENCE)).headers["write-fence"] == "true"


async def test_wf_04_a_cluster_that_may_not_use_fences_yet_refuses_them(at: Fenced) -> None:
    at.server.node.group.state.header.features = 6
    refused = await at.create("fence/a", **FENCE)
    assert (refused.status_code, error(refused)["code"]) == (501, "WRITE_FENCE_UNAVAILABLE")
    assert (await at.ask("HEAD", "fence/a", SERVICE)).status_code == 404


# -- the write token (section 4) -------------------------------------------------------------------


async def test_wf_05_the_write_token_of_a_claim_writes(at: Fenced) -> None:
    path, claim = await at.claimed("wf05")
    headers = under(claim, "p", claim.generation, 0)
    written = await at.post(path, headers)
    assert written.status_code == 200, written.text
    assert written.headers["producer-epoch"] == str(claim.generation)
    assert written.headers["stream-next-offset"] == await at.tail(path)
    assert (await at.post(path, headers)).status_code == 204
    # Its carriers are equal.
    triple = producing("p", claim.generation, 1)
    assert (await at.post(path, {"electric-claim-token": claim.write_token, **triple})).is_success
    bearer = {"Authorization": f"Bearer {claim.write_token}"}
    assert (await at.post(path, {**bearer, **producing("p", claim.generation, 2)})).is_success


async def test_wf_06_a_write_token_is_for_the_streams_of_its_subscription(at: Fenced) -> None:
    _, claim = await at.claimed("wf06")
    await at.create("fence/other", **FENCE)
    before = await at.tail("fence/other")
    for credentials in ({}, SERVICE):
        headers = {**credentials, **under(claim, "p", claim.generation, 0)}
        refused = await at.post("fence/other", headers)
        assert (refused.status_code, error(refused)["code"]) == (403, "FORBIDDEN")
    assert await at.tail("fence/other") == before


async def test_wf_06_a_token_alone_does_not_tell_whether_a_stream_exists(at: Fenced) -> None:
    _, claim = await at.claimed("alone")
    await at.create("fence/open")
    await at.subscribe("open", "fence/open")
    headers = under(claim, "p", claim.generation, 0)
    answers = [await at.post(path, headers) for path in ("fence/open", "fence/none")]
    assert {answer.status_code for answer in answers} == {403}
    assert answers[0].content == answers[1].content


async def test_wf_07_an_expired_or_invalid_token_is_401(at: Fenced) -> None:
    path, claim = await at.claimed("wf07")
    before = await at.tail(path)
    tampered = claim.write_token[:-1] + ("A" if claim.write_token[-1] != "A" else "B")
    for credentials in ({}, SERVICE):
        for bad in ("x", tampered, claim.token.replace("dsc_", "dsw_"), claim.token):
            refused = await at.post(path, {**credentials, **under(bad, "p", claim.generation, 0)})
            assert (refused.status_code, error(refused)["code"]) == (401, "UNAUTHENTICATED")
    at.clock.ahead_ms += LEASE_MS + GRACE_MS + 1
    for credentials in ({}, SERVICE):
        refused = await at.post(path, {**credentials, **under(claim, "p", claim.generation, 0)})
        assert (refused.status_code, error(refused)["code"]) == (401, "UNAUTHENTICATED")
        assert error(refused)["reason"] == "credential"
    assert await at.tail(path) == before


async def test_a_malformed_carrier_does_not_give_way_to_another(at: Fenced) -> None:
    path, claim = await at.claimed("carriers")
    triple = producing("p", claim.generation, 0)
    bearer = {"Authorization": f"Bearer {claim.write_token}"}
    twice = f"{claim.write_token}, {claim.write_token}"
    for name in ("Write-Token", "electric-claim-token"):
        for value in ("", twice):
            for credentials in (bearer, SERVICE):
                refused = await at.post(path, {**credentials, **triple, name: value})
                assert refused.status_code == 401, refused.text
    await at.create("fence/plain")
    assert (await at.post("fence/plain", {**SERVICE, "Write-Token": ""})).status_code == 401


async def test_wf_08_a_token_is_good_from_the_moment_it_is_given_out(at: Fenced) -> None:
    for turn in range(5):
        path, claim = await at.claimed(f"wf08-{turn}")
        assert (await at.post(path, under(claim, "p", claim.generation, 0))).status_code == 200


# -- classes of writes (section 5) -----------------------------------------------------------------


async def test_wf_09_an_asserted_fence_without_a_token_is_401_on_every_stream(at: Fenced) -> None:
    _, claim = await at.claimed("wf09")
    await at.create("fence/plain")
    for path in ("fence/wf09", "fence/plain", "fence/none"):
        for shown in (
            {},
            {"Write-Token": "x"},
            {"Write-Token": claim.token},
            {"Authorization": f"Bearer {claim.token}"},
        ):
            refused = await at.post(path, {**SERVICE, **FENCE, **producing("p", 1, 0), **shown})
            assert (refused.status_code, error(refused)["code"]) == (401, "UNAUTHENTICATED")
    asserted = {**FENCE, **under(claim, "p", claim.generation, 0)}
    assert (await at.post("fence/wf09", asserted)).status_code == 200


async def test_wf_10_a_fenced_write_needs_a_producer(at: Fenced) -> None:
    path, claim = await at.claimed("wf10")
    before = await at.tail(path)
    refused = await at.post(path, {"Write-Token": claim.write_token})
    assert refused.status_code == 400
    wanted = "fenced write requires Producer-Id, Producer-Epoch, and Producer-Seq"
    assert wanted in error(refused)["message"]
    assert error(refused)["reason"] == "producer_required"
    assert await at.tail(path) == before


async def test_wf_11_the_epoch_is_the_generation_of_the_claim(at: Fenced) -> None:
    path, claim = await at.claimed("wf11")
    for epoch in (claim.generation - 1, claim.generation + 1):
        refused = await at.post(path, under(claim, "p", epoch, 0))
        assert (refused.status_code, error(refused)["reason"]) == (409, "epoch")
    assert await at.tail(path) == "0" * 16 + "_" + "0" * 16


async def test_wf_12_a_claim_that_has_a_successor_writes_nothing(at: Fenced) -> None:
    path, first = await at.claimed("wf12")
    assert (await at.post(path, under(first, "p", first.generation, 0))).status_code == 200
    at.clock.ahead_ms += LEASE_MS
    second = await at.claim("wf12", "worker-B")
    assert second.generation > first.generation
    before = await at.tail(path)
    for headers in (under(first, "p", first.generation, 1), under(first, "q", first.generation, 0)):
        for close in ({}, {"Stream-Closed": "true"}):
            refused = await at.post(path, {**headers, **close})
            assert (refused.status_code, error(refused)["code"]) == (409, "FENCED")
    assert await at.tail(path) == before
    assert (await at.post(path, under(second, "p", second.generation, 0))).status_code == 200


async def test_wf_13_a_lapsed_lease_fences_without_a_successor(at: Fenced) -> None:
    path, claim = await at.claimed("wf13")
    assert (await at.post(path, under(claim, "p", claim.generation, 0))).status_code == 200
    before = await at.tail(path)
    at.clock.ahead_ms += LEASE_MS
    refused = await at.post(path, under(claim, "p", claim.generation, 1))
    assert (refused.status_code, error(refused)["code"]) == (409, "FENCED")
    assert await at.tail(path) == before


async def test_wf_14_an_open_write_needs_a_credential(at: Fenced) -> None:
    path, _ = await at.claimed("wf14")
    assert (await at.post(path, SERVICE)).status_code == 204
    before = await at.tail(path)
    refused = await at.post(path, {})
    assert (refused.status_code, error(refused)["code"]) == (401, "AUTHENTICATION_REQUIRED")
    assert set(error(refused)) == {"code", "message"}
    assert await at.tail(path) == before


async def test_wf_15_a_token_of_a_wake_writes_nothing(at: Fenced) -> None:
    path, claim = await at.claimed("wf15")
    assert claim.body["wake_token"] == claim.token
    before = await at.tail(path)
    bearer = {"Authorization": f"Bearer {claim.token}"}
    for headers in (bearer, {**bearer, **producing("p", claim.generation, 0)}):
        refused = await at.post(path, headers)
        assert (refused.status_code, error(refused)["reason"]) == (403, "wake_token")
    assert await at.tail(path) == before


# -- bound producers (section 6) -------------------------------------------------------------------


async def test_wf_16_an_open_write_with_the_id_of_a_bound_producer_is_refused(at: Fenced) -> None:
    path, claim = await at.claimed("wf16")
    await at.post(path, under(claim, "p", claim.generation, 0))
    before = await at.tail(path)
    refused = await at.post(path, {**SERVICE, **producing("p", claim.generation + 1, 0)})
    assert (refused.status_code, error(refused)["reason"]) == (409, "bound")
    assert error(refused)["generation"] == claim.generation
    assert await at.tail(path) == before


async def test_wf_17_a_repetition_without_the_token_is_refused(at: Fenced) -> None:
    path, claim = await at.claimed("wf17")
    await at.post(path, under(claim, "p", claim.generation, 0))
    refused = await at.post(path, {**SERVICE, **producing("p", claim.generation, 0)})
    assert (refused.status_code, error(refused)["reason"]) == (409, "bound")
    assert (await at.post(path, under(claim, "p", claim.generation, 0))).status_code == 204


async def test_wf_18_other_producers_write_as_on_any_stream(at: Fenced) -> None:
    path, claim = await at.claimed("wf18")
    await at.post(path, under(claim, "p", claim.generation, 0))
    for epoch in (1, 2):
        written = await at.post(path, {**SERVICE, **producing("q", epoch, 0)})
        assert (written.status_code, written.headers["producer-epoch"]) == (200, str(epoch))


# -- seals (section 7) -----------------------------------------------------------------------------


async def test_wf_19_done_seals_the_generation(at: Fenced) -> None:
    path, claim = await at.claimed("wf19")
    await at.post(path, under(claim, "p", claim.generation, 0))
    tail = await at.tail(path)
    assert await at.sealed(path) is None
    assert (await at.done(claim, path)).status_code == 200
    assert await at.sealed(path) == (claim.generation, tail)
    refused = await at.post(path, under(claim, "p", claim.generation, 1))
    assert (refused.status_code, error(refused)["code"]) == (409, "FENCED")
    assert error(refused)["reason"] == "sealed"
    assert await at.tail(path) == tail


async def test_wf_19_a_release_seals_the_generation(at: Fenced) -> None:
    path, claim = await at.claimed("release")
    bearer = {"Authorization": f"Bearer {claim.token}"}
    body = {"wake_id": claim.wake_id, "generation": claim.generation}
    released = await at.ask("POST", "__ds/subscriptions/release/release", bearer, json=body)
    assert released.status_code == 204
    assert await at.sealed(path) == (claim.generation, await at.tail(path))
    assert (await at.post(path, under(claim, "p", claim.generation, 0))).status_code == 409


async def test_wf_19_the_end_of_a_link_seals_the_present_claim(at: Fenced) -> None:
    path, claim = await at.claimed("unlinked")
    await at.create("fence/second", **FENCE)
    links = "__ds/subscriptions/unlinked/streams"
    body = {"streams": ["fence/second"]}
    assert (await at.ask("POST", links, SERVICE, json=body)).status_code == 204
    ended = await at.ask("DELETE", f"{links}/fence%2Funlinked", SERVICE)
    assert ended.status_code == 204
    assert await at.sealed(path) == (claim.generation, await at.tail(path))
    refused = await at.post(path, under(claim, "p", claim.generation, 0))
    assert (refused.status_code, error(refused)["reason"]) == (409, "sealed")
    assert (await at.post("fence/second", under(claim, "p", claim.generation, 0))).is_success


async def test_wf_20_head_shows_the_generation_and_the_end_of_its_writes(at: Fenced) -> None:
    path, claim = await at.claimed("wf20")
    written = await at.post(path, under(claim, "p", claim.generation, 0))
    await at.post(path, SERVICE)
    assert (await at.done(claim, path)).status_code == 200
    assert await at.sealed(path) == (claim.generation, written.headers["stream-next-offset"])


async def test_wf_21_a_successor_seals_its_predecessor_at_its_last_write(at: Fenced) -> None:
    path, first = await at.claimed("wf21")
    written = await at.post(path, under(first, "p", first.generation, 0))
    await at.post(path, SERVICE)
    at.clock.ahead_ms += LEASE_MS
    second = await at.claim("wf21", "worker-B")
    assert second.generation > first.generation
    assert await at.sealed(path) == (first.generation, written.headers["stream-next-offset"])
    assert (await at.post(path, under(second, "p", second.generation, 0))).status_code == 200


async def test_wf_22_a_repeated_done_changes_no_seal(at: Fenced) -> None:
    path, claim = await at.claimed("wf22")
    await at.post(path, under(claim, "p", claim.generation, 0))
    assert (await at.done(claim, path)).status_code == 200
    sealed = await at.sealed(path)
    again = await at.done(claim, path)
    assert (again.status_code, error(again)["code"]) == (409, "FENCED")
    assert await at.sealed(path) == sealed
    following = await at.claim("wf22")
    assert following.generation > claim.generation
    assert (await at.post(path, under(following, "p", following.generation, 0))).is_success


async def test_wf_23_a_subscription_that_is_made_again_is_not_sealed(at: Fenced) -> None:
    path, first = await at.claimed("wf23")
    await at.post(path, under(first, "p", first.generation, 0))
    tail = await at.tail(path)
    await at.delete("wf23")
    assert await at.sealed(path) == (first.generation, tail)
    await at.subscribe("wf23", path)
    second = await at.claim("wf23")
    # Its generations go on, so the same producer does, too.
    assert second.generation > first.generation
    assert (await at.post(path, under(first, "p", first.generation, 1))).status_code == 409
    assert (await at.post(path, under(second, "p", second.generation, 0))).status_code == 200
    assert await at.sealed(path) == (first.generation, tail)


# -- what a refusal tells (section 8) --------------------------------------------------------------


async def test_wf_24_a_409_names_reason_generation_and_holder(at: Fenced) -> None:
    path, claim = await at.claimed("wf24")
    refused = await at.post(path, under(claim, "p", claim.generation + 1, 0))
    told = error(refused)
    assert told.pop("message")
    assert told == {
        "code": "FENCED",
        "reason": "epoch",
        "generation": claim.generation,
        "current_holder": "worker-A",
    }
    at.clock.ahead_ms += LEASE_MS
    refused = await at.post(path, under(claim, "p", claim.generation, 0))
    assert "current_holder" not in error(refused)


async def test_wf_25_a_409_has_a_gap_that_stops_any_producer(at: Fenced) -> None:
    path, claim = await at.claimed("wf25")
    refused = await at.post(path, under(claim, "p", claim.generation + 1, 3))
    assert refused.status_code == 409
    assert refused.headers["producer-epoch"] == str(claim.generation)
    assert refused.headers["producer-expected-seq"] == "3"
    assert refused.headers["producer-received-seq"] == "3"
    assert "stream-next-offset" not in refused.headers


async def test_wf_26_who_shows_no_token_learns_nothing(at: Fenced) -> None:
    path, claim = await at.claimed("wf26")
    await at.create("fence/other", **FENCE)
    triple = producing("p", 8, 0)
    for headers, where in (
        ({**SERVICE, **FENCE, **triple}, path),
        ({**SERVICE, **triple, "Write-Token": "x"}, path),
        ({"Write-Token": "x", **triple}, path),
        ({**under(claim, "p", claim.generation, 0)}, "fence/other"),
        ({**triple, "Write-Token": claim.token}, path),
    ):
        refused = await at.post(where, headers)
        assert refused.status_code in (401, 403)
        if refused.status_code == 401:
            assert "Bearer" in refused.headers["www-authenticate"]
        assert set(error(refused)) <= {"code", "message", "reason"}
        assert not [name for name in refused.headers if name.startswith(("producer-", "stream-"))]


async def test_a_fence_comes_before_all_other_rules(at: Fenced) -> None:
    path, claim = await at.claimed("order")
    close = {**under(claim, "p", claim.generation, 0), "Stream-Closed": "true"}
    assert (await at.post(path, close)).status_code == 200
    refused = await at.post(path, under(claim, "p", claim.generation + 1, 7))
    assert error(refused)["reason"] == "epoch"
    # And after it come the others.
    closed = await at.post(path, under(claim, "p", claim.generation, 1))
    assert error(closed)["code"] == "STREAM_CLOSED"


# -- deliveries (section 9) ------------------------------------------------------------------------


async def test_wf_27_a_webhook_gives_a_token_that_writes_and_is_sealed(tmp_path: Path) -> None:
    async with receiver(answers()) as hook, fenced(tmp_path) as at:
        path = "fence/wf27"
        await at.create(path, **FENCE)
        asked = {
            "type": "webhook",
            "streams": [path],
            "webhook": {"url": hook.url},
            "lease_ttl_ms": LEASE_MS,
        }
        made = await at.ask("PUT", "__ds/subscriptions/wf27", SERVICE, json=asked)
        assert made.status_code == 201, made.text
        assert (await at.post(path, SERVICE)).status_code == 204
        await hook.count(1)
        told = json.loads(hook.requests[0].body)
        generation, token = told["generation"], told["write_token"]
        assert (await at.post(path, under(token, "p", generation, 0))).status_code == 200
        tail = await at.tail(path)
        bearer = {"Authorization": f"Bearer {told['callback_token']}"}
        callback = "__ds/subscriptions/wf27/callback"
        body = {"wake_id": told["wake_id"], "generation": generation}
        renewed = await at.ask("POST", callback, bearer, json=body)
        assert renewed.json()["write_token"]
        verified = await at.verify("wf27", {"Write-Token": token})
        assert verified.json()["holder"] == told["wake_id"]
        body |= {"acks": [{"stream": path, "offset": tail}], "done": True}
        assert (await at.ask("POST", callback, bearer, json=body)).status_code == 200
        assert await at.sealed(path) == (generation, tail)
        late = await at.post(path, under(token, "p", generation, 1))
        assert (late.status_code, error(late)["code"]) == (409, "FENCED")
        assert await at.tail(path) == tail


async def test_wf_28_a_heartbeat_renews_the_token_and_done_seals(at: Fenced) -> None:
    path, first = await at.claimed("wf28")
    await at.post(path, under(first, "p", first.generation, 0))
    at.clock.ahead_ms += LEASE_MS - 1_000
    renewed = await at.renewed(first)
    assert renewed.write_token != first.write_token
    at.clock.ahead_ms += LEASE_MS - 1_000
    assert (await at.post(path, under(renewed, "p", first.generation, 1))).status_code == 200
    tail = await at.tail(path)
    assert (await at.done(renewed, path)).json() == {"ok": True, "next_wake": False}
    assert await at.sealed(path) == (first.generation, tail)
    for token in (first.write_token, renewed.write_token):
        refused = await at.post(path, under(token, "p", first.generation, 2))
        assert refused.status_code in (401, 409)
    assert await at.tail(path) == tail


async def test_nc_03_the_answer_to_done_is_as_for_any_subscription(at: Fenced) -> None:
    path, claim = await at.claimed("nc03")
    await at.post(path, under(claim, "p", claim.generation, 0))
    assert (await at.done(claim, path)).text == '{"ok":true,"next_wake":false}'


async def test_nc_02_an_asserted_fence_is_401_on_a_stream_without_one(at: Fenced) -> None:
    await at.create("fence/plain")
    refused = await at.post("fence/plain", FENCE)
    assert (refused.status_code, error(refused)["code"]) == (401, "UNAUTHENTICATED")


# -- where nobody needs a token --------------------------------------------------------------------


async def test_nc_01_and_04_other_streams_take_what_they_always_took(tmp_path: Path) -> None:
    async with fenced(tmp_path, "none") as at:
        path, claim = await at.claimed("nc")
        await at.create("fence/plain")
        for epoch in ("5", "6"):
            written = await at.post("fence/plain", producing("p", int(epoch), 0))
            assert (written.status_code, written.headers["producer-epoch"]) == (200, epoch)
        for shown in (
            {"Authorization": "Bearer not-a-real-credential"},
            {"Authorization": f"Bearer {claim.token}"},
            {"electric-claim-token": "of-another-server"},
            {"Write-Token": claim.write_token},
        ):
            assert (await at.post("fence/plain", shown)).status_code == 204
        # The fence holds all the same.
        assert (await at.post(path, {})).status_code == 204
        for token, status in (("x", 401), (claim.token, 401), (claim.write_token, 200)):
            answer = await at.post(path, under(token, "p", claim.generation, 0))
            assert answer.status_code == status, answer.text
        assert (await at.post(path, producing("p", claim.generation, 1))).status_code == 409
        at.clock.ahead_ms += LEASE_MS
        assert (await at.post(path, under(claim, "p", claim.generation, 1))).status_code == 409
