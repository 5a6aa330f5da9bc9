"""Web pages cannot administer a node, whichever server answers: every route but the public ones
takes requests that name the node, come from no other origin, and carry JSON.

The routes are taken from the table, so that a new one is among them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from streamd.http.router import find
from streamd.http.routes import OPERATIONS
from tests.http.authorized import example
from tests.http.serving import PATIENCE_S, serving
from tests.support.ports import unused_port
from tests.support.server_process import ServerProcess

JSON = {"Content-Type": "application/json"}
TEXT = {"Content-Type": "text/plain"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
EVIL = "http://evil.example"


@pytest.fixture(
    scope="module",
    params=[
        "front-door",
        pytest.param("hypercorn", marks=pytest.mark.long),
        pytest.param("hypercorn, HTTP/2", marks=pytest.mark.long),
    ],
)
def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    """A client of a cluster of one node. Its requests are wrong or change nothing."""
    stack, _, version = request.param.partition(", ")
    environment = {
        "STREAMD_CLUSTER_NAME": "alone",
        "STREAMD_CLUSTER_LISTEN": f"127.0.0.1:{unused_port()}",
        "STREAMD_SERVER_ADVERTISE": "node.example:4437",
        "STREAMD_SERVER_ALLOWED_HOSTS": "balancer.example,Streams.Example.",
    }
    data = tmp_path_factory.mktemp("data") / "data"
    http2 = bool(version)
    with (
        ServerProcess(data, flags=["--http", stack], environment=environment) as process,
        httpx.Client(
            base_url=process.url, http1=not http2, http2=http2, timeout=PATIENCE_S
        ) as client,
    ):
        yield client


class Ask(NamedTuple):
    method: str
    path: str


PATHS = sorted({example(route.path.template) for route in OPERATIONS})
PUBLIC = {
    *("/healthz", "/readyz/local", "/readyz/cluster", "/openapi.json"),
    *("/console", "/console/main.js"),
}
# Every method of every route that is not public.
ADMIN = [
    Ask(method, path)
    for path in PATHS
    if path not in PUBLIC
    for method in find(path.encode()).resource.needs
]


def ask(client: httpx.Client, asked: Ask, headers: dict[str, str]) -> httpx.Response:
    answer = client.request(asked.method, asked.path, headers=headers)
    shared = {name for name in answer.headers if name.startswith("access-control-")}
    assert not shared, f"{asked} lets pages read its answer"
    assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    return answer


def assert_refused(answer: httpx.Response, status: int, code: str, asked: Ask) -> None:
    assert answer.status_code == status, asked
    if asked.method != "HEAD":
        assert answer.json()["error"]["code"] == code


def test_the_routes_that_change_a_node_are_guarded() -> None:
    changes = {"add", "promote", "remove", "transfer", "snapshot", "cold/flush", "cold/gc"}
    assert {Ask("POST", f"/cluster/{change}") for change in changes} <= set(ADMIN)


def test_a_proper_request_is_answered(client: httpx.Client) -> None:
    for asked in ADMIN:
        answer = ask(client, asked, JSON)
        assert answer.status_code not in (403, 415, 421, 500), asked


def test_a_change_must_be_json(client: httpx.Client) -> None:
    posts = [asked for asked in ADMIN if asked.method == "POST"]
    wrong = [{}, TEXT, FORM, {"Content-Type": "multipart/form-data; boundary=x"}]
    wrong += [{"Content-Type": "text/plain; application/json"}, {"Content-Type": "json"}]
    for asked in posts:
        for headers in wrong:
            answer = ask(client, asked, headers)
            assert_refused(answer, 415, "UNSUPPORTED_MEDIA_TYPE", asked)
        utf8 = {"Content-Type": "Application/JSON; charset=utf-8"}
        assert ask(client, asked, utf8).status_code != 415


def test_a_page_of_another_origin_is_refused(client: httpx.Client) -> None:
    port = client.base_url.port
    foreign = [EVIL, "null", f"http://localhost:{port}", "http://127.0.0.1:1", "http://127.0.0.1"]
    foreign += [f"ftp://127.0.0.1:{port}", f"http://127.0.0.1:{port}/", f"{EVIL} {EVIL}"]
    for asked in ADMIN:
        for origin in foreign:
            answer = ask(client, asked, {**JSON, "Origin": origin})
            assert_refused(answer, 403, "ORIGIN_NOT_ALLOWED", asked)


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
@pytest.mark.parametrize("mode", ["no-cors", "navigate"])
def test_a_request_that_a_page_of_another_site_caused_is_refused(
    client: httpx.Client, site: str, mode: str
) -> None:
    """Browsers send no Origin with the GET of an image, a script, or a link."""
    for asked in ADMIN:
        answer = ask(client, asked, {**JSON, "Sec-Fetch-Site": site, "Sec-Fetch-Mode": mode})
        assert_refused(answer, 403, "ORIGIN_NOT_ALLOWED", asked)


@pytest.mark.parametrize("site", ["same-origin", "none"])
def test_who_types_an_address_into_a_browser_is_answered(client: httpx.Client, site: str) -> None:
    for asked in ADMIN:
        answer = ask(client, asked, {**JSON, "Sec-Fetch-Site": site})
        assert answer.status_code not in (403, 415, 421, 500), asked


def test_a_path_without_post_refuses_it_whatever_its_type(client: httpx.Client) -> None:
    for path in ("/cluster/status", "/cluster/limits/buckets/some"):
        assert ask(client, Ask("POST", path), TEXT).status_code == 405


def test_a_page_of_the_node_itself_is_answered(client: httpx.Client) -> None:
    origin = str(client.base_url).rstrip("/")
    for asked in ADMIN:
        answer = ask(client, asked, {**JSON, "Origin": origin})
        assert answer.status_code not in (403, 415, 421, 500), asked


def test_a_request_for_another_name_is_misdirected(client: httpx.Client) -> None:
    port = client.base_url.port
    foreign = ["evil.example", f"evil.example:{port}", f"localhost.evil.example:{port}"]
    foreign += ["203.0.113.7", f"[2001:db8::7]:{port}", "127.0.0.1.evil.example", "127.1"]
    for asked in ADMIN:
        for host in foreign:
            answer = ask(client, asked, {**JSON, "Host": host, "Origin": f"http://{host}"})
            assert_refused(answer, 421, "HOST_NOT_ALLOWED", asked)


def test_a_preflight_of_another_origin_gets_no_permission(client: httpx.Client) -> None:
    preflight = {
        "Origin": EVIL,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "content-type",
    }
    for asked in ADMIN:
        if asked.method == "OPTIONS":
            assert_refused(ask(client, asked, preflight), 403, "ORIGIN_NOT_ALLOWED", asked)
            plain = ask(client, asked, {})
            assert plain.status_code == 204
            assert "OPTIONS" in plain.headers["allow"]


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "LocalHost:1",
        "127.0.0.1",
        "127.0.0.9:80",
        "[::1]:4437",
        "node.example:4437",
        "node.example",
        "NODE.example.:1",
        "balancer.example",
        "streams.example:443",
    ],
)
def test_the_names_of_a_node_are_its_own(client: httpx.Client, host: str) -> None:
    answer = client.get("/cluster/status", headers={"Host": host})
    assert answer.status_code == 200


def test_an_unknown_route_is_guarded_too(client: httpx.Client) -> None:
    for path in ("/cluster/none", "/cluster", "/readyz/none"):
        assert client.get(path).status_code == 404
        assert client.get(path, headers={"Origin": EVIL}).status_code == 403


def test_public_routes_change_nothing_and_take_any_name(client: httpx.Client) -> None:
    assert set(PATHS) >= PUBLIC
    for path in PUBLIC:
        assert set(find(path.encode()).resource.needs) == {"GET", "HEAD", "OPTIONS"}
        foreign = {"Host": "prometheus.example", "Origin": EVIL}
        assert client.get(path, headers=foreign).status_code == 200


@pytest.mark.parametrize("wildcard", ["0.0.0.0:4437", "[::]:4437"])
async def test_a_node_that_listens_everywhere_takes_any_address_and_no_other_name(
    tmp_path: Path, wildcard: str
) -> None:
    async with serving(tmp_path, listen=wildcard) as server, server.client() as client:
        for host, status in (
            ("192.0.2.8:4437", 200),
            ("[2001:db8::7]", 200),
            ("localhost", 200),
            ("evil.example", 421),
        ):
            answer = await client.get("/cluster/status", headers={"Host": host})
            assert answer.status_code == status


async def test_scrapers_use_any_name_where_clients_of_streams_do(tmp_path: Path) -> None:
    async with (
        serving(tmp_path, listen="0.0.0.0:4437", allowed_hosts=[]) as server,
        server.client() as client,
    ):
        answer = await client.get("/metrics", headers={"Host": "streamd-0.streamd.svc:4437"})
        assert answer.status_code == 200
        assert "access-control-allow-origin" not in answer.headers
        foreign = {"Host": "streamd-0.streamd.svc:4437", "Origin": EVIL}
        assert (await client.get("/metrics", headers=foreign)).status_code == 403


async def test_metrics_are_not_for_a_page_whose_name_was_rebound(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        answer = await client.get("/metrics", headers={"Host": "evil.example:4437"})
        assert answer.json()["error"]["code"] == "HOST_NOT_ALLOWED"


async def test_a_request_without_a_host_cannot_administer_a_node(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.connect() as client:
        await client.send(b"GET /cluster/status HTTP/1.0\r\n\r\n")
        assert (await client.read_response()).code == "HOST_NOT_ALLOWED"


async def test_a_client_that_half_closes_after_its_request_is_answered(tmp_path: Path) -> None:
    async with serving(tmp_path) as server:
        for asked in ADMIN:
            if asked.method not in ("GET", "POST"):
                continue
            async with server.connect() as client:
                head = f"{asked.method} {asked.path} HTTP/1.1\r\nHost: localhost\r\n"
                await client.send(head.encode() + b"Content-Type: application/json\r\n\r\n")
                client.finish_sending()
                answer = await client.read_response()
                # 400: a profile needs a parameter.
                expected = (401,) if asked.path.startswith("/auth") else (200, 201, 400, 404, 409)
                assert answer.status in expected, (asked, answer)
                is_json = answer.headers["content-type"] == "application/json"
                assert json.loads(answer.body) if is_json else answer.body
