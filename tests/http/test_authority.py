"""What a token permits: every route and method, on both servers and at every node of a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest

from streamd.auth.scopes import VERBS
from streamd.http.access.needs import OPEN, SERVER, Need
from streamd.http.router import RESOURCES, Resource, find
from streamd.http.routes import OPERATIONS, STREAMS, Handler, Path, Route
from tests.http.authorized import PLACES, Authorized, authorized, example

UNKNOWN = "sd_0123456789abcdef_" + "a" * 32
TEXT = {"Content-Type": "text/plain"}
CLOSE = {"Stream-Closed": "true"}
JSON: dict[str, Any] = {"json": {}}
BATCH = b"\0\0\0\1x"
SNAPSHOT = "/agents/walk/snapshot/0000000000000000_0000000000000000"


class Case(NamedTuple):
    """A request, and the scopes that it needs, all of them; no others are in the tables of the
    code under test."""

    method: str
    path: str
    scopes: list[str]
    headers: Mapping[str, str] = MappingProxyType({})
    body: Mapping[str, Any] = MappingProxyType({})


STREAM = "/v1/stream/agents/walk"
CASES = [
    Case("GET", STREAM, ["read:agents/walk"]),
    Case("HEAD", STREAM, ["read:agents/walk"]),
    Case("PUT", STREAM, ["create:agents/walk"], TEXT),
    Case("POST", STREAM, ["append:agents/walk"], TEXT, {"content": b"x"}),
    Case(
        "POST", STREAM, ["append:agents/walk", "close:agents/walk"], CLOSE | TEXT, {"content": b"x"}
    ),
    Case("POST", STREAM, ["append:agents/walk", "close:agents/walk"], CLOSE),
    Case("DELETE", STREAM, ["delete:agents/walk"]),
    Case(
        "PUT",
        "/v1/stream/agents/fork",
        ["create:agents/fork", "read:agents/walk", "fork:agents/walk"],
        {"Stream-Forked-From": STREAM},
    ),
    # The same stream at its other address, and with escapes.
    Case("GET", "/agents/walk", ["read:agents/walk"]),
    Case("GET", "/v1/stream/%61gents/w%61lk", ["read:agents/walk"]),
    Case("POST", "/agents/w%61lk", ["append:agents/walk"], TEXT, {"content": b"x"}),
    Case("GET", "/v1/stream/alone", ["read:_default/alone"]),
    Case("GET", "/v1/stream/agents/a/b", ["read:agents/a/b"]),
    Case("GET", "/v1/stream/cluster/status", ["read:cluster/status"]),
    Case("GET", STREAM + "?offset=-1&live=long-poll&timeout=0.1", ["read:agents/walk"]),
    Case("POST", "/agents/walk/append-batch", ["append:agents/walk"], TEXT, {"content": BATCH}),
    Case("GET", "/agents/walk/snapshot", ["read:agents/walk"]),
    Case("HEAD", "/agents/walk/snapshot", ["read:agents/walk"]),
    Case("GET", SNAPSHOT, ["read:agents/walk"]),
    Case("HEAD", SNAPSHOT, ["read:agents/walk"]),
    Case("PUT", SNAPSHOT, ["snapshot:agents/walk"], TEXT, {"content": b"x"}),
    Case("DELETE", SNAPSHOT, ["snapshot:agents/walk"]),
    Case("GET", "/agents/walk/bootstrap", ["read:agents/walk"]),
    Case("HEAD", "/agents/walk/bootstrap", ["read:agents/walk"]),
    Case("GET", "/agents", ["list:agents/"]),
    Case("HEAD", "/agents", ["list:agents/"]),
    Case("PUT", "/agents", ["admin:agents/"]),
    Case("DELETE", "/agents", ["admin:agents/"]),
    Case("GET", "/agents/streams", ["list:agents/"]),
    Case("HEAD", "/agents/streams", ["list:agents/"]),
    Case("GET", "/metrics", ["operate:metrics"]),
    Case("HEAD", "/metrics", ["operate:metrics"]),
    Case("GET", "/cluster/status", ["operate:cluster/status"]),
    Case("GET", "/cluster/stream", ["operate:cluster/stream"]),
    Case("GET", "/cluster/history", ["operate:cluster/history"]),
    Case("GET", "/cluster/cold", ["operate:cluster/cold"]),
    Case("GET", "/cluster/nodes/1", ["operate:cluster/nodes"]),
    Case("GET", "/cluster/debug/nodes/1/log", ["operate:cluster/debug/nodes"]),
    Case("GET", "/cluster/debug/tasks", ["operate:cluster/debug/tasks"]),
    Case("GET", "/cluster/debug/memory", ["operate:cluster/debug/memory"]),
    Case("GET", "/cluster/debug/profile?seconds=0", ["operate:cluster/debug/profile"]),
    Case("GET", "/cluster/log-head", ["operate:cluster/log-head"]),
    Case("POST", "/cluster/log-key/rotate", ["operate:cluster/log-key/rotate"], {}, JSON),
    Case(
        "POST",
        "/cluster/subscription-keys/rotate",
        ["operate:cluster/subscription-keys/rotate"],
        {},
        JSON,
    ),
    Case("POST", "/cluster/snapshot", ["operate:cluster/snapshot"], {}, JSON),
    Case("POST", "/cluster/cold/flush", ["operate:cluster/cold/flush"], {}, JSON),
    Case("POST", "/cluster/cold/gc", ["operate:cluster/cold/gc"], {}, JSON),
    Case("POST", "/cluster/cold/scrub", ["operate:cluster/cold/scrub"], {}, JSON),
    # The bodies are wrong: what they ask for would break the cluster.
    Case("POST", "/cluster/add", ["operate:cluster/add"], {}, JSON),
    Case("POST", "/cluster/promote", ["operate:cluster/promote"], {}, JSON),
    Case("POST", "/cluster/remove", ["operate:cluster/remove"], {}, JSON),
    Case(
        "POST", "/cluster/transfer", ["operate:cluster/transfer"], {}, {"json": {"node_id": "no"}}
    ),
    Case("GET", "/cluster/operations", ["operate:cluster/operations"]),
    Case("POST", "/cluster/operations", ["operate:cluster/operations"], {}, JSON),
    Case("GET", "/cluster/operations/9", ["operate:cluster/operations"]),
    *(
        Case("POST", f"/cluster/operations/9/{act}", ["operate:cluster/operations"], {}, JSON)
        for act in ("pause", "resume", "cancel", "done")
    ),
    Case("GET", "/cluster/features", ["operate:cluster/features"]),
    Case("POST", "/cluster/features", ["operate:cluster/features"], {}, JSON),
    Case("GET", "/cluster/hot-cold-stats", ["operate:cluster/cold"]),
    Case("POST", "/cluster/trigger-snapshot", ["operate:cluster/snapshot"], {}, JSON),
    Case("POST", "/cluster/purge-log", ["operate:cluster/snapshot"], {}, JSON),
    Case(
        "POST",
        "/cluster/transfer-leader",
        ["operate:cluster/transfer"],
        {},
        {"json": {"node_id": "no"}},
    ),
    Case("GET", "/cluster/limits", ["operate:cluster/limits"]),
    *(
        Case(method, f"/cluster/limits/{kinds}/none", [f"operate:cluster/limits/{kinds}"], {}, body)
        for kinds in ("buckets", "identities")
        for method, body in (("GET", {}), ("PUT", JSON), ("DELETE", {}))
    ),
    Case("GET", "/auth/tokens", ["admin:*"]),
    Case("POST", "/auth/tokens", ["admin:*"], {}, JSON),
    Case("GET", "/auth/tokens/nobody", ["admin:*"]),
    Case("DELETE", "/auth/tokens/nobody", ["admin:*"]),
    Case("POST", "/auth/tokens/nobody/rotate", ["admin:*"], {}, JSON),
    # Any token may ask for a signature, and gets it for what it permits itself.
    Case("POST", "/auth/sign", ["read:agents/walk"], {}, {"json": {"url": STREAM}}),
]
# Any token may ask, and sees the buckets that it may list.
KNOWN = [Case("GET", "/", []), Case("HEAD", "/", []), Case("GET", "/console/session", [])]
PUBLIC = [
    *("/healthz", "/readyz/local", "/readyz/cluster", "/openapi.json"),
    *("/console", "/console/main.js"),
]
# These ask for the token of a wake instead.
OF_WAKES = {
    f"/v1/stream/__ds/subscriptions/{{subscription}}/{act}"
    for act in ("ack", "callback", "release", "claim/verify")
}
KEYS = "/v1/stream/__ds/jwks.json"


def lesser(case: Case) -> Iterator[list[str]]:
    """Scopes that come near to those of the case and do not suffice."""
    if case.scopes == ["admin:*"]:
        yield ["admin:a*", "admin:auth/*", *(f"{verb}:*" for verb in VERBS if verb != "admin")]
        return
    for missing in case.scopes:
        verb, _, target = missing.partition(":")
        others = [other for other in VERBS if other not in (verb, "admin", "list", "operate")]
        near = [f"{verb}:{target.rstrip('/')}x*"]
        near += [f"{verb}:{target.upper()}"] if verb != "list" else []
        if verb != "operate":
            near += [f"{other}:*" for other in others]
        near += ["list:*"] if verb != "list" else []
        near += ["operate:*"] if verb != "operate" else ["admin:cluster/*", "admin:m*", "read:*"]
        if verb in ("read", "append"):
            near += [f"{verb}:{target}/*", f"{verb}:{target.split('/')[0]}/", f"{verb}:_default/*"]
            near.remove(f"{verb}:_default/*") if target.startswith("_default/") else None
        rest = [scope for scope in case.scopes if scope != missing]
        yield [*rest, *(scope for scope in near if scope not in case.scopes)]


@pytest.fixture(scope="module", params=PLACES)
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Authorized]:
    directory = tmp_path_factory.mktemp("authorized")
    with authorized(request.param, directory) as found:
        yield found


def test_the_walk_visits_every_route_and_method() -> None:
    walked = {(resource_of(case), case.method) for case in CASES + KNOWN}
    # What a subscription needs is not in the head of a request: see test_subscriptions.py.
    judged = [one for one in RESOURCES.values() if one.label != "subscription"]
    handled = {(one, method) for one in judged for method in one.routes}
    assert {pair for pair in walked if not pair[0].is_operation} == handled
    operated = {
        (case.method, resource_of(case).scopes(case.method, None, {}))
        for case in CASES + KNOWN
        if resource_of(case).is_operation
    }
    for route in OPERATIONS:
        if route.needs is not OPEN and route.method != "HEAD":
            assert (route.method, route.needs(None, {})) in operated, route


def resource_of(case: Case) -> Resource:
    return find(case.path.partition("?")[0].encode()).resource


def test_a_path_that_is_like_an_operations_path_is_not_an_operation() -> None:
    for path in (b"/openapi-json", b"/openapi.json/", b"//metrics", b"/metrics\n", b"/Metrics"):
        resource = find(path).resource
        assert not (resource.is_operation and resource.routes)
        if resource.is_operation:
            assert resource.scopes("GET", None, {}) == (Need("admin", SERVER),)


def told(answer: Any) -> tuple[int, str | None]:
    """Status and code of an error."""
    is_error = answer.status_code >= 400 and answer.content
    return answer.status_code, answer.json()["error"]["code"] if is_error else None


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.method} {case.path}")
def test_a_request_needs_all_of_its_scopes(case: Case, place: Authorized) -> None:
    def ask(token: str | None) -> tuple[int, str | None]:
        headers = case.headers
        return told(place.ask(case.method, case.path, token, headers=headers, **case.body))

    shown = case.method != "HEAD"
    assert ask(None) == (401, "AUTHENTICATION_REQUIRED" if shown else None)
    assert ask(UNKNOWN) == (401, "INVALID_TOKEN" if shown else None)
    for scopes in lesser(case):
        assert ask(place.token(*scopes)) == (403, "INSUFFICIENT_SCOPE" if shown else None), scopes
    status, code = ask(place.token(*case.scopes))
    assert status not in (401, 403), code


@pytest.mark.parametrize("path", PUBLIC)
def test_probes_need_no_token(path: str, place: Authorized) -> None:
    assert place.ask("GET", path, None).status_code == 200


@pytest.mark.parametrize("path", ["/v1/stream/agents/walk", "/agents/streams"])
def test_a_preflight_request_needs_no_token(path: str, place: Authorized) -> None:
    answer = place.ask("OPTIONS", path, None)
    assert answer.status_code == 204
    assert "Authorization" in answer.headers["access-control-allow-headers"]


@pytest.mark.parametrize("token", [None, UNKNOWN, "narrow"])
def test_a_refusal_does_not_tell_whether_a_stream_exists(
    token: str | None, place: Authorized
) -> None:
    if token == "narrow":
        token = place.token("read:other/*", "append:other/*", "list:other/")
    place.ask("PUT", "/v1/stream/there/there", headers=TEXT)
    for method, path in (
        ("GET", "/v1/stream/there/{}"),
        ("POST", "/v1/stream/there/{}"),
        ("DELETE", "/v1/stream/there/{}"),
        ("GET", "/there/{}/bootstrap"),
        ("GET", "/v1/stream/{}/there"),
        ("GET", "/{}/streams"),
    ):
        there, nowhere = (
            place.ask(method, path.format(name), token, headers=TEXT) for name in ("there", "gone")
        )
        assert there.status_code in (401, 403)
        assert there.status_code == nowhere.status_code
        assert there.content == nowhere.content
        differing = {"date"}
        assert {k: v for k, v in there.headers.items() if k not in differing} == {
            k: v for k, v in nowhere.headers.items() if k not in differing
        }


def test_a_refusal_says_what_is_missing_as_rfc_6750_does(place: Authorized) -> None:
    none, wrong = place.ask("GET", STREAM, None), place.ask("GET", STREAM, UNKNOWN)
    narrow = place.ask("GET", STREAM, place.token("read:other/*"))
    assert none.headers["www-authenticate"] == 'Bearer realm="streamd"'
    assert wrong.headers["www-authenticate"] == 'Bearer realm="streamd", error="invalid_token"'
    assert narrow.headers["www-authenticate"] == (
        'Bearer realm="streamd", error="insufficient_scope"'
    )


def test_other_credentials_are_no_token(place: Authorized) -> None:
    token = place.token("read:*")
    for value in (f"Basic {token}", token, f"Bearer {token}, Bearer {token}", "Bearer", ""):
        answer = place.ask("GET", STREAM, None, headers={"Authorization": value})
        assert told(answer) == (401, "INVALID_TOKEN")


def test_a_listing_shows_only_what_its_reader_may_read(place: Authorized) -> None:
    for name in ("a", "run-1", "run-2", "runs", "x"):
        place.ask("PUT", f"/v1/stream/listed/{name}", headers=TEXT)
    token = place.token("list:listed/", "read:listed/run-*", "read:listed/x", "read:other/a")

    def names(query: str, token: str) -> tuple[list[str], Any]:
        body = place.ask("GET", f"/listed/streams{query}", token).json()
        return [one["stream_id"] for one in body["streams"]], body["next_cursor"]

    assert names("", token)[0] == ["run-1", "run-2", "x"]
    assert names("?prefix=run", token)[0] == ["run-1", "run-2"]
    assert names("?prefix=run-2", token)[0] == ["run-2"]
    assert names("?prefix=a", token)[0] == []
    assert names("?limit=2", token) == (["run-1", "run-2"], "run-2")
    assert names("?limit=2&after=run-2", token)[0] == ["x"]
    assert names("", place.token("list:*"))[0] == []
    assert names("", place.token("admin:listed/*"))[0] == ["a", "run-1", "run-2", "runs", "x"]


def test_a_listing_of_buckets_shows_those_that_its_reader_may_list(place: Authorized) -> None:
    for bucket in ("seen-1", "seen-2", "seen-3"):
        place.ask("PUT", f"/{bucket}")
    token = place.token("list:seen-1/", "list:seen-2/*", "read:seen-3/*", "admin:seen-3/s")

    def names(query: str, token: str) -> list[str]:
        body = place.ask("GET", f"/{query}", token).json()
        return [one["bucket_id"] for one in body["buckets"]]

    assert names("", token) == ["seen-1", "seen-2"]
    assert names("?limit=1&after=seen-1", token) == ["seen-2"]
    assert names("?prefix=seen-3", token) == []
    assert names("?prefix=seen", place.token("list:*")) == ["seen-1", "seen-2", "seen-3"]
    assert names("", place.token("read:*")) == []
    assert told(place.ask("GET", "/", None)) == (401, "AUTHENTICATION_REQUIRED")
    assert told(place.ask("GET", "/", UNKNOWN)) == (401, "INVALID_TOKEN")


def test_what_one_token_has_read_is_not_repeated_to_a_stranger(place: Authorized) -> None:
    path = "/v1/stream/repeated/s?offset=-1"
    place.ask("PUT", "/v1/stream/repeated/s", headers=TEXT, content=b"mine")
    # Connections of their own, so that each process of the server gets some.
    once = {"Connection": "close"} if place.speaks_1_1 else {}
    for _ in range(10):
        assert place.ask("GET", path, headers=once).content == b"mine"
    for method in ("GET", "HEAD"):
        for token in (None, UNKNOWN, place.token("read:other/*")):
            for _ in range(5):
                answer = place.ask(method, path, token, headers=once)
                assert answer.status_code == (401 if token in (None, UNKNOWN) else 403)


def test_no_shared_cache_may_keep_what_a_token_protects(place: Authorized) -> None:
    place.ask("PUT", "/v1/stream/cached/s", headers=TEXT, content=b"x" * 4000)
    answer = place.ask("GET", "/v1/stream/cached/s?offset=-1")
    assert answer.headers["cache-control"].startswith("private, max-age=60")
    assert answer.headers["vary"] == "Accept-Encoding, Authorization"
    small = place.ask("GET", "/v1/stream/cached/s?offset=-1", headers={"If-None-Match": "*"})
    assert small.status_code == 304
    assert small.headers["cache-control"].startswith("private")


def test_a_revoked_token_is_refused_by_every_node(place: Authorized) -> None:
    place.ask("PUT", "/v1/stream/revoked/s", headers=TEXT)
    token = place.token("read:revoked/*")
    found = next(
        one
        for one in place.ask("GET", "/auth/tokens").json()["tokens"]
        if one["scopes"] == ["read:revoked/*"]
    )
    assert place.ask("DELETE", f"/auth/tokens/{found['id']}").status_code == 204
    for url in place.urls:
        # A linearizable read knows all that was acknowledged before it.
        answer = place.ask("GET", "/v1/stream/revoked/s", token, url=url)
        assert told(answer) == (401, "INVALID_TOKEN")


def test_no_route_can_be_written_down_without_its_scopes_and_a_description() -> None:
    known = OPERATIONS[0]
    new: dict[str, Any] = {"method": "GET", "path": Path("/new"), "handler": Handler(handle)}
    Route(**new, needs=OPEN, doc=known.doc)
    for missing in ({"doc": known.doc}, {"needs": OPEN}):
        with pytest.raises(TypeError, match="missing 1 required positional argument"):
            Route(**new, **missing)


async def handle() -> None:
    """Answer nothing."""


def test_only_probes_and_the_document_are_open_to_anyone() -> None:
    is_open = [route.path.template for route in STREAMS + OPERATIONS if route.needs is OPEN]
    found = {template if template in OF_WAKES else example(template) for template in is_open}
    assert found == {*PUBLIC, KEYS} | OF_WAKES


def test_a_revocation_holds_at_every_node_while_the_leader_changes(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    directory = tmp_path_factory.mktemp("changing")
    with authorized("cluster", directory) as place:
        place.ask("PUT", "/v1/stream/changing/s", headers=TEXT)
        for _ in range(3):
            token = place.token("read:changing/*", "append:changing/*")
            name = place.named(token)
            assert place.ask("DELETE", f"/auth/tokens/{name}").status_code == 204
            place.ask("POST", "/cluster/transfer", json={})
            refused = dict.fromkeys(place.urls, False)
            while not all(refused.values()):
                for url in place.urls:
                    answer = place.ask("GET", "/v1/stream/changing/s", token, url=url)
                    # 503 while nobody leads; never an answer.
                    assert answer.status_code in (401, 503), (url, answer.text)
                    refused[url] |= answer.status_code == 401
