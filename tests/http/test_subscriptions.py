"""Subscriptions over HTTP: they are administered, claimed and acknowledged by permission."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import count
from typing import Any

import httpx
import pytest

from tests.http.authorized import PLACES, ROOT, Authorized, authorized

ALL = "/v1/stream/__ds/subscriptions"
_numbers = count()


@pytest.fixture(scope="module", params=PLACES)
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Authorized]:
    directory = tmp_path_factory.mktemp("subscribed")
    with authorized(request.param, directory) as found:
        yield found


def told(answer: httpx.Response) -> tuple[int, str]:
    """The status and the code of an error."""
    return answer.status_code, answer.json()["error"]["code"]


class Pool:
    """A pull-wake subscription of the streams in a bucket of its own, and the requests of its
    worker, which has a token for it alone."""

    def __init__(self, place: Authorized, *, lease_ttl_ms: int = 30_000) -> None:
        self.place = place
        self.bucket = f"pool-{next(_numbers)}"
        self.id = f"{self.bucket}/..".replace("/", "\u2044")
        self.path = f"{ALL}/{self.id}"
        self.wakes = f"{self.bucket}-wakes/wakes"
        self.token = place.token(
            f"subscribe:{self.bucket}*", f"append:{self.bucket}*", f"read:{self.bucket}*"
        )
        self.config = {
            "type": "pull-wake",
            "pattern": f"{self.bucket}/*",
            "wake_stream": self.wakes,
            "lease_ttl_ms": lease_ttl_ms,
        }
        self.write(self.wakes, [])
        assert self.put().status_code == 201

    def ask(self, method: str, path: str = "", **body: Any) -> httpx.Response:
        """A request about the subscription."""
        return self.place.ask(method, self.path + path, self.token, **body)

    def put(self, **changes: object) -> httpx.Response:
        return self.ask("PUT", json={**self.config, **changes})

    def write(self, path: str, messages: object) -> None:
        """Create a stream with messages, or append them."""
        url = f"/v1/stream/{path}"
        made = self.place.ask("PUT", url, json=[])
        assert made.status_code in (200, 201), made.text
        if messages:
            assert self.place.ask("POST", url, json=messages).status_code == 204

    def events(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.place.ask("GET", f"/v1/stream/{self.wakes}").json()
        return found

    def claim(self, worker: str = "worker-1") -> httpx.Response:
        return self.ask("POST", "/claim", json={"worker": worker})

    def act(self, act: str, claimed: dict[str, Any], **body: object) -> httpx.Response:
        """Acknowledge or release what was claimed."""
        named = {"wake_id": claimed["wake_id"], "generation": claimed["generation"]}
        path = f"{self.path}/{act}"
        return self.place.ask("POST", path, claimed["token"], json={**named, **body})

    def acks(self, claimed: dict[str, Any]) -> list[dict[str, str]]:
        return [{"stream": one["path"], "offset": one["tail_offset"]} for one in claimed["streams"]]


def test_a_worker_claims_acknowledges_and_is_woken_again(place: Authorized) -> None:
    pool = Pool(place)
    assert told(pool.claim()) == (409, "NO_PENDING_WORK")
    pool.write(f"{pool.bucket}/one", [1, 2])
    [event] = pool.events()
    assert {**event, "ts": 0} == {
        "type": "wake",
        "subscription_id": pool.id,
        "stream": f"{pool.bucket}/one",
        "generation": 1,
        "ts": 0,
    }
    claimed = pool.claim().json()
    assert claimed["generation"] == 1
    assert claimed["lease_ttl_ms"] == 30_000
    [stream] = claimed["streams"]
    assert stream == {
        "path": f"{pool.bucket}/one",
        "link_type": "glob",
        "acked_offset": "0000000000000000_0000000000000000",
        "tail_offset": stream["tail_offset"],
        "has_pending": True,
    }
    busy = pool.claim("worker-2")
    assert told(busy) == (409, "ALREADY_CLAIMED")
    assert busy.json()["error"]["current_holder"] == "worker-1"
    assert busy.json()["error"]["generation"] == 1

    beats = pool.act("ack", claimed).json()
    assert (beats["ok"], beats["next_wake"]) == (True, False)
    renewed = {**claimed, "token": beats["token"]}
    done = pool.act("ack", renewed, acks=pool.acks(claimed), done=True)
    assert (done.status_code, done.json()) == (200, {"ok": True, "next_wake": False})
    again = pool.act("ack", claimed, acks=pool.acks(claimed), done=True)
    assert told(again) == (409, "FENCED")

    pool.write(f"{pool.bucket}/two", [3])
    second = pool.claim().json()
    assert second["generation"] == 2
    assert [one["path"] for one in second["streams"] if one["has_pending"]] == [
        f"{pool.bucket}/two"
    ]
    assert pool.act("release", second).status_code == 204
    assert told(pool.act("release", second)) == (409, "FENCED")
    # What was given back wakes the next worker.
    assert [one["generation"] for one in pool.events()] == [1, 2, 3]


def test_a_subscription_is_confirmed_or_in_the_way(place: Authorized) -> None:
    pool = Pool(place)
    assert pool.put().status_code == 200
    assert pool.put(streams=[], description=None).status_code == 200
    assert told(pool.put(lease_ttl_ms=1_000)) == (409, "SUBSCRIPTION_ALREADY_EXISTS")
    record = pool.ask("GET").json()
    assert record == pool.put().json()
    assert record["id"] == record["subscription_id"] == pool.id
    assert record["type"] == "pull-wake"
    assert record["webhook"] is None
    assert record["wake_stream"] == pool.wakes
    assert record["status"] == "active"
    assert record["created_at"].endswith("Z")
    assert pool.ask("HEAD").status_code == 200
    assert pool.ask("DELETE").status_code == 204
    assert told(pool.ask("DELETE")) == (404, "SUBSCRIPTION_NOT_FOUND")
    assert told(pool.ask("GET")) == (404, "SUBSCRIPTION_NOT_FOUND")
    assert told(pool.claim()) == (404, "SUBSCRIPTION_NOT_FOUND")


def test_nothing_of_a_deleted_subscription_acts_on_its_successor(place: Authorized) -> None:
    pool = Pool(place)
    pool.write(f"{pool.bucket}/one", [1])
    claimed = pool.claim().json()
    assert pool.ask("DELETE").status_code == 204
    assert told(pool.act("ack", claimed, done=True)) == (404, "SUBSCRIPTION_NOT_FOUND")
    assert pool.put().status_code == 201
    assert told(pool.act("ack", claimed, done=True)) == (404, "SUBSCRIPTION_NOT_FOUND")
    pool.write(f"{pool.bucket}/one", [2])
    assert pool.claim().json()["generation"] > claimed["generation"]


def test_streams_are_named_and_no_longer_named(place: Authorized) -> None:
    pool = Pool(place)
    further = f"{pool.bucket}-more/a/b"
    named = {"streams": [f"{pool.bucket}/one", f"/{further}/"]}
    assert pool.ask("POST", "/streams", json=named).status_code == 204
    assert pool.ask("POST", "/streams", json=named).status_code == 204
    listed = {one["path"]: one["link_type"] for one in pool.ask("GET").json()["streams"]}
    assert listed == {f"{pool.bucket}/one": "explicit", further: "explicit"}
    assert pool.ask("DELETE", f"/streams/{further.replace('/', '%2F')}").status_code == 204
    assert pool.ask("DELETE", f"/streams/{further}").status_code == 204
    assert pool.ask("DELETE", f"/streams/{pool.bucket}/one").status_code == 204
    pool.write(f"{pool.bucket}/one", [1])
    listed = {one["path"]: one["link_type"] for one in pool.ask("GET").json()["streams"]}
    assert listed == {f"{pool.bucket}/one": "glob"}


def test_streams_and_subscriptions_are_listed_in_pages(place: Authorized) -> None:
    pool = Pool(place)
    names = [f"{pool.bucket}/{number}" for number in range(5)]
    for name in names:
        pool.write(name, [1])
    found: list[str] = []
    query = "?limit=2"
    while query:
        page = pool.ask("GET", query).json()
        assert len(page["streams"]) <= 2
        found += [one["path"] for one in page["streams"]]
        assert page["has_more"] is (page["next_cursor"] is not None)
        query = f"?limit=2&after={page['next_cursor']}" if page["has_more"] else ""
    assert found == names
    other = Pool(place)
    ids: list[str] = []
    query = "?limit=1"
    while query:
        page = place.ask("GET", ALL + query, ROOT).json()
        ids += [one["id"] for one in page["subscriptions"]]
        query = f"?limit=1&after={page['next_cursor']}" if page["has_more"] else ""
    assert {pool.id, other.id} <= set(ids)
    assert len(ids) == len(set(ids))
    mine = place.ask("GET", ALL, pool.token).json()["subscriptions"]
    assert [one["id"] for one in mine] == [pool.id]


def test_a_test_wakes_without_an_append(place: Authorized) -> None:
    pool = Pool(place)
    woken = pool.ask("POST", "/test", json={}).json()
    assert woken == pool.ask("POST", "/test", json={}).json()
    claimed = pool.claim().json()
    assert (claimed["wake_id"], claimed["generation"]) == (woken["wake_id"], woken["generation"])
    assert pool.act("ack", claimed, done=True).json() == {"ok": True, "next_wake": False}


def test_a_stranger_learns_nothing_of_a_subscription(place: Authorized) -> None:
    pool = Pool(place)
    stranger = place.token("subscribe:other/*", f"read:{pool.bucket}/*", "append:*")
    for method, path, body in (
        ("GET", "", {}),
        ("DELETE", "", {}),
        ("POST", "/streams", {"json": {"streams": ["other/a"]}}),
        ("DELETE", "/streams/other%2Fa", {}),
        ("POST", "/test", {"json": {}}),
        ("POST", "/claim", {"json": {"worker": "w"}}),
    ):
        refused = place.ask(method, pool.path + path, stranger, **body)
        missing = place.ask(method, f"{ALL}/none{path}", stranger, **body)
        assert told(refused) == (404, "SUBSCRIPTION_NOT_FOUND"), (method, path)
        assert refused.content == missing.content
        assert place.ask(method, pool.path + path, None, **body).status_code == 401
    assert place.ask("GET", ALL, stranger).json()["subscriptions"] == []
    assert place.ask("GET", ALL, None).status_code == 401
    made = place.ask("PUT", pool.path, stranger, json=pool.config)
    assert told(made) == (403, "INSUFFICIENT_SCOPE")
    wider = pool.ask("POST", "/streams", json={"streams": ["other/a"]})
    assert told(wider) == (403, "INSUFFICIENT_SCOPE")


def test_only_the_token_of_the_wake_acknowledges(place: Authorized) -> None:
    pool, other = Pool(place), Pool(place)
    for one in (pool, other):
        one.write(f"{one.bucket}/one", [1])
    claimed, others = pool.claim().json(), other.claim().json()
    for token in (None, ROOT, pool.token, claimed["token"][:-1], claimed["token"] + "x"):
        for act in ("ack", "callback", "release"):
            refused = pool.place.ask("POST", f"{pool.path}/{act}", token, json={})
            assert told(refused) == (401, "TOKEN_INVALID")
            assert refused.headers["www-authenticate"].startswith("Bearer ")
    # Another subscription's token is of no use, nor is that of another wake.
    borrowed = {**claimed, "token": others["token"]}
    assert told(pool.act("ack", borrowed)) == (409, "FENCED")
    moved = place.ask(
        "POST",
        f"{pool.path}/ack",
        others["token"],
        json={"wake_id": others["wake_id"], "generation": others["generation"]},
    )
    assert told(moved) == (404, "SUBSCRIPTION_NOT_FOUND")
    for wrong in ({"generation": 9}, {"wake_id": "w_0"}):
        assert told(pool.act("ack", {**claimed, **wrong})) == (409, "FENCED")
    assert pool.act("callback", claimed, acks=pool.acks(claimed), done=True).status_code == 200


@pytest.mark.parametrize(
    ("ack", "status"),
    [
        ({"stream": "{bucket}/none", "offset": "0000000000000000_0000000000000000"}, 409),
        ({"stream": "{bucket}/one", "offset": "0000000000000009_0000000000000099"}, 409),
        ({"stream": "{bucket}/one", "offset": "-1"}, 409),
        ({"stream": "{bucket}/one", "offset": "now"}, 409),
        ({"stream": "{bucket}//one", "offset": "0000000000000000_0000000000000000"}, 400),
        ({"stream": "{bucket}/one"}, 400),
    ],
)
def test_a_wrong_acknowledgement_changes_nothing(
    place: Authorized, ack: dict[str, str], status: int
) -> None:
    pool = Pool(place)
    pool.write(f"{pool.bucket}/one", [1])
    claimed = pool.claim().json()
    wrong = {**ack, "stream": ack["stream"].format(bucket=pool.bucket)}
    refused = pool.act("ack", claimed, acks=[*pool.acks(claimed), wrong], done=True)
    codes = {409: "INVALID_OFFSET", 400: "INVALID_REQUEST"}
    assert told(refused) == (status, codes[status])
    [stream] = pool.ask("GET").json()["streams"]
    assert stream["has_pending"]
    assert pool.act("ack", claimed, acks=pool.acks(claimed), done=True).status_code == 200


PULL = {"type": "pull-wake", "pattern": "a/*", "wake_stream": "wakes/a"}
HOOK = {"type": "webhook", "pattern": "a/*", "webhook": {"url": "https://a.example/hook"}}


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ({}, "Object missing required field `type`"),
        ({"type": "push"}, "type: Invalid enum value 'push'"),
        ({**PULL, "lease_ttl_ms": 999}, "lease_ttl_ms: Expected `int` >= 1000"),
        ({**PULL, "lease_ttl_ms": 600_001}, "lease_ttl_ms: Expected `int` <= 600000"),
        ({**PULL, "lease_ttl_ms": 1.5}, "lease_ttl_ms: Expected `int`, got `float`"),
        ({**PULL, "lease": 1}, "Object contains unknown field `lease`"),
        ({**PULL, "pattern": ""}, "pattern or streams is needed"),
        ({**PULL, "pattern": "a/b*"}, "pattern: the segment 'b*' has a star among"),
        ({**PULL, "pattern": "a//b"}, "pattern: it has an empty segment"),
        ({**PULL, "pattern": None, "streams": []}, "pattern or streams is needed"),
        (
            {**PULL, "streams": ["a/../b"]},
            "streams: the path 'a/../b' has an empty segment, or one",
        ),
        ({**PULL, "streams": ["__ds/a"]}, "streams: the path '__ds/a' is reserved"),
        ({**PULL, "streams": ["a\\b"]}, "streams: the path 'a\\\\b' has a control character"),
        ({**PULL, "streams": ["a" * 1014]}, "streams: a stream's path has at most 1013 bytes"),
        ({**PULL, "streams": ["wakes/a"]}, "streams: the wake stream cannot be one of them"),
        ({**PULL, "streams": ["a"] * 1001}, "streams: Expected `array` of length <= 1000"),
        ({**PULL, "wake_stream": None}, "wake_stream is needed for pull-wake"),
        ({**HOOK, "webhook": None}, "webhook.url is needed for a webhook"),
        ({**HOOK, "webhook": {"url": 1}}, "webhook.url: Expected `str`, got `int`"),
        ({**HOOK, "description": "a" * 1025}, "description: Expected `str` of length <= 1024"),
    ],
)
def test_a_fault_of_a_body_is_named(place: Authorized, body: dict[str, object], fault: str) -> None:
    refused = place.ask("PUT", f"{ALL}/faulty", json=body)
    assert told(refused) == (400, "INVALID_REQUEST")
    assert fault in refused.json()["error"]["message"]
    assert place.ask("GET", f"{ALL}/faulty").status_code == 404


@pytest.mark.parametrize(
    "url", ["http://a.example/", "https://10.0.0.1/", "https://user@a.example/", "https://[::1]/"]
)
def test_a_webhook_leads_to_a_public_place_over_tls(place: Authorized, url: str) -> None:
    refused = place.ask("PUT", f"{ALL}/faulty", json={**HOOK, "webhook": {"url": url}})
    assert told(refused) == (400, "WEBHOOK_URL_REJECTED")
    assert refused.json()["error"]["message"].startswith("webhook.url: ")


@pytest.mark.parametrize("query", ["limit=0", "limit=1001", "after=%ff"])
def test_a_wrong_page_is_refused_before_anything_is_made(place: Authorized, query: str) -> None:
    refused = place.ask("PUT", f"{ALL}/faulty?{query}", json=PULL)
    assert told(refused) == (400, "INVALID_REQUEST")
    assert place.ask("GET", f"{ALL}/faulty").status_code == 404


def test_wakes_of_a_webhook_are_not_claimed(place: Authorized) -> None:
    path = f"{ALL}/hook-{next(_numbers)}"
    assert place.ask("PUT", path, json=HOOK).status_code == 201
    refused = place.ask("POST", f"{path}/claim", json={"worker": "w"})
    assert told(refused) == (400, "INVALID_REQUEST")
    assert "sent to a webhook" in refused.json()["error"]["message"]


def test_a_large_body_is_refused(place: Authorized) -> None:
    body = {**PULL, "description": " " * 1024 * 1024}
    assert told(place.ask("PUT", f"{ALL}/faulty", json=body)) == (413, "BODY_TOO_LARGE")


def test_pages_of_other_origins_administer_no_subscriptions(place: Authorized) -> None:
    pool = Pool(place)
    foreign = {"Origin": "https://evil.example"}
    for method, path in (("PUT", ""), ("GET", ""), ("POST", "/claim"), ("POST", "/test")):
        refused = place.ask(method, pool.path + path, headers=foreign, json={})
        assert told(refused) == (403, "ORIGIN_NOT_ALLOWED")
        assert "access-control-allow-origin" not in refused.headers
    embedded = place.ask("GET", pool.path, headers={"Sec-Fetch-Site": "cross-site"})
    assert told(embedded) == (403, "ORIGIN_NOT_ALLOWED")
    form = place.ask("POST", f"{pool.path}/claim", data={"worker": "w"})
    assert told(form) == (415, "UNSUPPORTED_MEDIA_TYPE")
    # A receiver's page that has the token of a wake may acknowledge: others have none.
    pool.write(f"{pool.bucket}/one", [1])
    claimed = pool.claim().json()
    beat = place.ask(
        "POST",
        f"{pool.path}/ack",
        claimed["token"],
        headers=foreign,
        json={"wake_id": claimed["wake_id"], "generation": claimed["generation"]},
    )
    assert beat.status_code == 200


def test_anyone_may_know_the_keys_by_which_webhooks_are_signed(place: Authorized) -> None:
    made = place.ask("PUT", f"{ALL}/hook-{next(_numbers)}", json=HOOK)
    assert made.status_code == 201
    signing = made.json()["webhook"]["signing"]
    found = place.ask("GET", "/v1/stream/__ds/jwks.json", None)
    assert found.headers["content-type"] == "application/jwk-set+json"
    assert found.headers["cache-control"] == "public, max-age=300"
    assert found.headers["access-control-allow-origin"] == "*"
    assert signing["alg"] == "ed25519"
    assert signing["jwks_url"].endswith("/v1/stream/__ds/jwks.json")
    [key] = [one for one in found.json()["keys"] if one["kid"] == signing["kid"]]
    assert {**key, "x": ""} == {
        "kty": "OKP", "crv": "Ed25519", "kid": signing["kid"], "use": "sig", "alg": "EdDSA", "x": ""
    }  # fmt: skip


def test_a_token_makes_as_many_subscriptions_as_its_limits_allow(place: Authorized) -> None:
    pool = Pool(place)
    owner = pool.ask("GET").json()["owner"]
    limits = f"/cluster/limits/identities/{owner}"
    assert place.ask("PUT", limits, json={"max_subscriptions": 2}).status_code == 200
    one, two = (f"{ALL}/{pool.bucket}-{name}" for name in ("one", "two"))
    assert place.ask("PUT", one, pool.token, json=pool.config).status_code == 201
    for url in place.urls:
        refused = place.ask("PUT", two, pool.token, url=url, json=pool.config)
        assert told(refused) == (409, "TOO_MANY_SUBSCRIPTIONS")
        assert owner in refused.json()["error"]["message"]
        assert pool.ask("PUT", json=pool.config, url=url).status_code == 200, "it is repeated"
        listed = place.ask("GET", ALL, pool.token, url=url).json()
        assert (listed["owned"], listed["max_subscriptions"]) == (2, 2)

    def is_shown(url: str) -> bool:
        metrics = place.ask("GET", "/metrics", url=url).text
        return (
            f'streamd_identity_subscriptions{{identity="{owner}"}} 2.0' in metrics
            and 'streamd_quota_refusals_total{result="owns-too-many-subscriptions"}' in metrics
        )

    for url in place.urls:
        place.until(partial(is_shown, url))
    assert place.ask("PUT", two, json=pool.config).status_code == 201, "root has no limits"
    assert place.ask("GET", two).json()["owner"] is None
    for path in (one, two, pool.path):
        assert place.ask("DELETE", path).status_code == 204
    assert place.ask("GET", ALL, pool.token).json()["owned"] == 0
    assert place.ask("DELETE", limits).status_code == 204
