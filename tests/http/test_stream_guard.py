"""Web pages use streams where they have permission: by a token, or by where they come from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

import httpx
import pytest

from streamd.config.settings import ServerConfig
from streamd.http.access.page_guards import StreamGuard
from streamd.http.protocol.connections import Channel
from streamd.http.protocol.messages import Request
from streamd.protocol.problems import ProblemError
from tests.http.serving import PATIENCE_S
from tests.support.server_process import ServerProcess

TEXT = {"Content-Type": "text/plain"}
STREAM = "/v1/stream/notes"
EVIL = "http://evil.example"
APP = "https://app.example"


class Node(NamedTuple):
    """A node as it is configured."""

    listen: str = "127.0.0.1:4437"
    tokens: bool = False
    hosts: Sequence[str] = ()
    origins: Sequence[str] = ()

    def code(
        self,
        host: str | None = None,
        origin: str | None = None,
        method: str = "POST",
        fetched: tuple[str, str] | None = None,
    ) -> str | None:
        """The code of the refusal of a request, or None."""
        server = ServerConfig(
            listen=self.listen,
            allowed_hosts=list(self.hosts),
            allowed_origins=list(self.origins),
            advertise="node.example:4437",
        )
        given = ((b"host", host), (b"origin", origin))
        headers = {name: value.encode() for name, value in given if value is not None}
        if fetched is not None:
            site, mode = fetched
            headers |= {b"sec-fetch-site": site.encode(), b"sec-fetch-mode": mode.encode()}
        request = Request(method, b"/v1/stream/s", b"", headers, b"", cast("Channel", None))
        guard = StreamGuard(server, requires_tokens=self.tokens)
        codes: set[str | None] = set()
        for _ in range(2):  # The second time may be remembered.
            try:
                guard.check(request)
                codes.add(None)
            except ProblemError as error:
                codes.add(error.problem.code)
        (code,) = codes
        return code


LOCAL, OPEN = Node(), Node(listen="0.0.0.0:4437")
WITH_TOKENS = (Node(tokens=True), Node(listen="0.0.0.0:4437", tokens=True))
HOST, ORIGIN = "HOST_NOT_ALLOWED", "ORIGIN_NOT_ALLOWED"


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST.:1", "127.0.0.1:4437", "127.9.9.9", "[::1]:4437", "node.example:80"],
)
def test_a_local_node_serves_streams_under_its_own_names(host: str) -> None:
    assert LOCAL.code(host) is None


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:4437", "localhost.evil.example", "10.0.0.7", "[fe80::1]"]
)
def test_a_local_node_serves_no_name_that_was_rebound(host: str) -> None:
    assert LOCAL.code(host) == HOST
    assert LOCAL.code(host, f"http://{host}") == HOST
    assert LOCAL.code(host, method="GET") == HOST


def test_no_page_of_another_site_includes_a_stream() -> None:
    """As `<script src=…>` a stream of JavaScript would give the page its records."""
    included = ("cross-site", "no-cors")
    listed = Node(origins=[APP])
    assert LOCAL.code("localhost", method="GET", fetched=included) == ORIGIN
    assert listed.code("localhost", method="GET", fetched=included) == ORIGIN
    # With `crossorigin` browsers say which page it is.
    assert listed.code("localhost", APP, "GET", ("cross-site", "cors")) is None
    for node in (*WITH_TOKENS, Node(origins=["*"])):
        assert node.code("localhost", method="GET", fetched=included) is None


@pytest.mark.parametrize(
    "fetched",
    [("cross-site", "navigate"), ("same-site", "no-cors"), ("same-origin", "cors"), ("none", "")],
)
def test_links_and_pages_of_this_machine_lead_to_streams(fetched: tuple[str, str]) -> None:
    assert LOCAL.code("localhost", method="GET", fetched=fetched) is None


def test_a_node_that_needs_tokens_or_that_others_reach_serves_any_name() -> None:
    for node in (OPEN, *WITH_TOKENS):
        assert node.code("balancer.example") is None


def test_listed_hosts_are_the_only_further_names() -> None:
    for node in (LOCAL, OPEN, *WITH_TOKENS):
        listed = node._replace(hosts=["balancer.example"])
        assert listed.code("Balancer.Example:443") is None
        assert listed.code("node.example") is None
        assert listed.code("evil.example") == HOST


def test_a_request_without_host_comes_from_no_page() -> None:
    assert LOCAL.code() is None


@pytest.mark.parametrize(
    "origin",
    [
        "http://localhost:3000",
        "https://localhost",
        "http://127.0.0.1:8080",
        "http://[::1]:5173",
        "http://node.example:4437",
    ],
)
def test_pages_of_this_machine_and_of_the_node_use_streams(origin: str) -> None:
    for node in (LOCAL, OPEN, *WITH_TOKENS):
        assert node.code("node.example:4437", origin) is None


@pytest.mark.parametrize(
    "origin",
    [
        EVIL,
        "https://evil.example:4437",
        "null",
        "http://localhost.evil.example",
        "http://127.0.0.1.evil.example",
        "http://localhost:3000@evil.example",
        "http://node.example",
        "file://localhost",
        "chrome-extension://localhost",
        "http://203.0.113.7",
        f"{EVIL} http://localhost",
        "",
    ],
)
def test_pages_of_other_origins_use_no_streams_without_tokens(origin: str) -> None:
    for node in (LOCAL, OPEN):
        for method in ("GET", "HEAD", "POST", "PUT", "DELETE"):
            assert node.code("node.example:4437", origin, method) == ORIGIN
    for node in WITH_TOKENS:
        assert node.code("node.example:4437", origin) is None


def test_a_page_with_a_rebound_name_is_not_the_nodes_own() -> None:
    assert OPEN.code("evil.example", EVIL) == ORIGIN


def test_listed_origins_are_the_only_ones_besides_the_nodes_own() -> None:
    for node in (LOCAL, OPEN, *WITH_TOKENS):
        listed = node._replace(origins=[APP])
        assert listed.code("localhost:1", "HTTPS://APP.example") is None
        assert listed.code("localhost:1", "http://localhost:1") is None
        for other in (f"{APP}:8443", "http://app.example", EVIL, "http://localhost:3000"):
            assert listed.code("localhost:1", other) == ORIGIN


def test_all_origins_are_admitted_where_that_is_written_down() -> None:
    for node in (LOCAL, OPEN):
        assert node._replace(origins=["*"]).code("localhost", EVIL) is None


def test_a_preflight_is_answered_to_all_origins() -> None:
    assert LOCAL.code("localhost", EVIL, "OPTIONS") is None
    assert LOCAL.code("evil.example", EVIL, "OPTIONS") == HOST


# -- on all stacks --------------------------------------------------------------------------------


@pytest.fixture(
    scope="module",
    params=[
        "front-door",
        pytest.param("hypercorn", marks=pytest.mark.long),
        pytest.param("hypercorn, HTTP/2", marks=pytest.mark.long),
        pytest.param("front-door, workers", marks=pytest.mark.long),
    ],
)
def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    """A client of a local node without tokens, where `STREAM` has been read twice."""
    stack, _, kind = request.param.partition(", ")
    flags = ["--http", stack, *(["--workers", "2"] if kind == "workers" else [])]
    http2 = kind == "HTTP/2"
    data = tmp_path_factory.mktemp("data") / "data"
    with (
        ServerProcess(data, flags=flags) as process,
        httpx.Client(
            base_url=process.url, http1=not http2, http2=http2, timeout=PATIENCE_S
        ) as client,
    ):
        assert client.put(STREAM, headers=TEXT, content=b"private").status_code == 201
        for _ in range(2):
            assert client.get(STREAM).content == b"private"
        yield client


ROUTES = [
    ("GET", STREAM),
    ("HEAD", STREAM),
    ("POST", STREAM),
    ("PUT", "/v1/stream/new"),
    ("DELETE", STREAM),
    ("POST", f"{STREAM}/batch"),
    ("GET", f"{STREAM}?offset=-1&live=sse"),
    ("GET", "/bucket"),
    ("PUT", "/bucket"),
    ("GET", "/bucket/notes/bootstrap"),
    ("GET", "/bucket/streams"),
]


@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_pages_without_permission_get_a_refusal_from_every_route(
    client: httpx.Client, method: str, path: str
) -> None:
    for headers, status, code in (
        ({"Host": "evil.example"}, 421, HOST),
        ({"Origin": EVIL}, 403, ORIGIN),
    ):
        content = b"more" if method in ("POST", "PUT") else None
        answer = client.request(method, path, headers={**TEXT, **headers}, content=content)
        assert answer.status_code == status
        if method != "HEAD":
            assert answer.json()["error"]["code"] == code
    assert client.get(STREAM).content == b"private", "nothing has changed"


def test_a_page_of_this_machine_reads_and_appends(client: httpx.Client) -> None:
    page = {"Origin": "http://localhost:3000", **TEXT}
    assert client.put("/v1/stream/ours", headers=page).status_code in (200, 201)
    assert client.post("/v1/stream/ours", headers=page, content=b"x").status_code == 204
    answer = client.get("/v1/stream/ours", headers=page)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == "*"
    assert "Origin" in answer.headers["vary"], "a cache must keep it for this page only"
