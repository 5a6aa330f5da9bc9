"""Limits of rates on one node: what is refused, for how long, and what a refusal leaves as it was.

The clock of the limits stands still unless a test advances it. `test_rates_on_all_adapters`
has what differs between servers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import trio

from streamd.auth import tokens
from streamd.auth.signed_urls import public_key_of
from streamd.config.settings import AuthConfig
from streamd.http.access import rates
from streamd.http.protocol.connections import Channel
from streamd.http.protocol.messages import Request
from streamd.http.protocol.routing import resolve
from streamd.streams.commands import Result, SetLimits
from streamd.streams.limits import Limits
from streamd.streams.token_commands import CreateToken
from tests.http.serving import RawClient, Serving, serving, until
from tests.http.test_signed_urls import value

ROOT = tokens.mint(1, b"root" * 5)
CI = tokens.mint(2, b"cici" * 5)
OTHER = tokens.mint(3, b"more" * 5)
STREAM = "/v1/stream/agents/s"
BINARY = {"Content-Type": "application/octet-stream"}
TEXT = {"Content-Type": "text/plain"}
STRANGER = "127.0.0.2"


class Clock:
    """That of the limits, in seconds."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def prompt_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Send refusals soon; how late they come has tests of its own."""
    monkeypatch.setattr(rates, "LATE_S", 0.0)
    monkeypatch.setattr(rates, "PAUSE_S", 0.01)


class Limited:
    """A server with limits, whose clock the test advances."""

    def __init__(self, server: Serving) -> None:
        self.server = server
        self.clock = Clock()
        server.service.rates.clock = self.clock

    async def limit(self, kind: Any, name: str, **limits: int) -> None:
        outcome = await self.server.node.group.writes.propose(
            SetLimits(kind, name, Limits(**limits))
        )
        assert outcome.result is Result.DONE

    def client(self, token: str | None = CI, **settings: Any) -> httpx.AsyncClient:
        headers = {"Accept-Encoding": "identity"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        return self.server.client(headers=headers, **settings)

    async def send(
        self, client: RawClient, request: str, body: bytes = b"", *, token: str = CI, **headers: str
    ) -> None:
        lines = {"Host": "x", "Authorization": f"Bearer {token}", **BINARY, **headers}
        if body:
            lines["Content-Length"] = str(len(body))
        head = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
        await client.send(f"{request} HTTP/1.1\r\n{head}\r\n".encode() + body)


@asynccontextmanager
async def limited(
    tmp_path: Path, mode: Any = "required", **settings: Any
) -> AsyncIterator[Limited]:
    """A node with the tokens `CI` and `OTHER`, and a stream."""
    auth = AuthConfig(mode=mode, root_token=ROOT)
    async with serving(tmp_path, auth=auth, **settings) as server:
        for token_id, name, token in ((2, "ci", CI), (3, "other", OTHER)):
            digest, key = tokens.digest_of(token.encode()), public_key_of(token.encode())
            scopes = ["admin:agents/*", "admin:others/*", "operate:metrics"]
            command = CreateToken(token_id, name, digest, scopes, None, key)
            made = await server.node.group.writes.propose(command)
            assert made.result is Result.CREATED
        found = Limited(server)
        async with found.client(ROOT) as root:
            assert (await root.put(STREAM, headers=BINARY)).status_code == 201
        yield found


def refused(answer: httpx.Response, policy: str) -> bool:
    """Whether an answer is a refusal by the limit that `policy` names."""
    if answer.status_code != 429:
        return False
    assert answer.json()["error"]["code"] == "TOO_MANY_REQUESTS"
    assert int(answer.headers["Retry-After"]) >= 1
    assert answer.headers["RateLimit-Policy"].startswith(f'"{policy}";q=')
    assert answer.headers["RateLimit"].startswith(f'"{policy}";r=0')
    assert answer.headers["Cache-Control"] == "no-store"
    return True


async def append(client: httpx.AsyncClient, size: int = 1, path: str = STREAM) -> httpx.Response:
    return await client.post(path, headers=BINARY, content=b"x" * size)


# -- requests --------------------------------------------------------------------------------------


async def test_requests_beyond_the_rate_are_refused_and_others_are_not(tmp_path: Path) -> None:
    async with limited(tmp_path) as node, node.client() as mine, node.client(OTHER) as other:
        await node.limit("identity", "ci", requests_per_s=3)
        statuses = [(await append(mine)).status_code for _ in range(3)]
        statuses.append((await mine.head(STREAM)).status_code)
        assert statuses == [204, 204, 204, 429]
        answer = await append(mine)
        assert (
            answer.headers["RateLimit-Policy"] == '"identity-requests-per-s";q=3;w=1;qu="requests"'
        )
        assert answer.headers["RateLimit"] == '"identity-requests-per-s";r=0;t=1'
        assert answer.headers["Retry-After"] == "1"
        assert [(await append(other)).status_code for _ in range(9)] == [204] * 9
        assert await node.server.tail(STREAM) is None, "strangers see nothing"
        assert (await other.head(STREAM)).headers["Stream-Next-Offset"].endswith("12")


@pytest.mark.parametrize(
    ("limits", "size"),
    [
        ({"requests_per_s": 7}, 1),
        ({"requests_per_s": 1}, 1),
        ({"bytes_in_per_s": 100}, 35),
        ({"bytes_in_per_s": 100}, 2345),
        ({"requests_per_s": 2, "bytes_in_per_s": 10}, 77),
    ],
)
async def test_after_the_time_in_retry_after_the_same_request_is_served(
    limits: Mapping[str, int], size: int, tmp_path: Path
) -> None:
    async with limited(tmp_path) as node, node.client() as client:
        await node.limit("identity", "ci", **limits)
        for _ in range(5):
            while (answer := await append(client, size)).status_code == 204:
                pass
            assert answer.status_code == 429
            node.clock.now += int(answer.headers["Retry-After"])
            assert (await append(client, size)).status_code == 204


async def test_a_refusal_changes_nothing_of_a_producer(tmp_path: Path) -> None:
    async with limited(tmp_path) as node, node.client() as client:
        await node.limit("identity", "ci", requests_per_s=1)

        async def produce(seq: int) -> int:
            numbers = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": str(seq)}
            answer = await client.post(STREAM, headers={**BINARY, **numbers}, content=b"x")
            return answer.status_code

        assert [await produce(0), await produce(1), await produce(1)] == [200, 429, 429]
        node.clock.now += 1
        assert await produce(1) == 200, "as the first time"
        node.clock.now += 1
        assert await produce(1) == 204, "as a repetition"


async def test_all_that_a_bucket_gets_counts_for_it(tmp_path: Path) -> None:
    async with limited(tmp_path) as node, node.client() as mine, node.client(OTHER) as other:
        assert (await mine.put("/v1/stream/others/s", headers=BINARY)).status_code == 201
        await node.limit("bucket", "agents", requests_per_s=4)
        batch = {"Content-Type": "application/json"}
        assert (await append(mine)).status_code == 204
        assert (await append(other)).status_code == 204
        assert (await other.get("/agents/streams")).status_code == 200
        assert (await other.post("/agents/s/append-batch", headers=batch)).status_code == 409
        for path in (STREAM, "/agents", "/agents/s/bootstrap", "/agents/s/snapshot"):
            assert refused(await other.get(path), "bucket-requests-per-s")
        assert (await append(other, path="/v1/stream/others/s")).status_code == 204


async def test_strangers_do_not_use_up_what_a_bucket_has(tmp_path: Path) -> None:
    async with limited(tmp_path) as node, node.client(None) as stranger, node.client() as client:
        await node.limit("bucket", "agents", requests_per_s=1)
        for _ in range(3):
            assert (await append(stranger)).status_code == 401
            assert (await stranger.options(STREAM)).status_code == 204
        assert (await append(client)).status_code == 204


async def test_the_limits_of_the_star_are_for_each_without_its_own(tmp_path: Path) -> None:
    async with limited(tmp_path) as node, node.client() as mine, node.client(OTHER) as other:
        await node.limit("identity", "*", requests_per_s=1)
        assert [(await append(one)).status_code for one in (mine, other)] == [204, 204]
        assert [(await append(one)).status_code for one in (mine, other)] == [429, 429]
        await node.limit("identity", "ci")
        assert [(await append(one)).status_code for one in (mine, other)] == [204, 429]


async def test_a_limit_holds_from_the_moment_it_is_set(tmp_path: Path) -> None:
    async with limited(tmp_path) as node, node.client() as client:
        assert (await append(client)).status_code == 204
        await node.limit("identity", "ci", bytes_in_per_s=1)
        assert (await append(client, 100)).status_code == 204
        assert refused(await append(client), "identity-bytes-in-per-s")
        await node.limit("identity", "ci", bytes_in_per_s=1000)
        assert (await append(client)).status_code == 429, "what is owed stays owed"
        node.clock.now += 1
        assert (await append(client)).status_code == 204


# -- who counts ------------------------------------------------------------------------------------


async def test_without_tokens_each_address_is_an_identity(tmp_path: Path) -> None:
    async with (
        limited(tmp_path, "none") as node,
        node.client(None) as one,
        node.client(None, source=STRANGER) as another,
    ):
        await node.limit("identity", "anonymous", requests_per_s=2)
        assert [(await append(one)).status_code for _ in range(3)] == [204, 204, 429]
        assert [(await append(another)).status_code for _ in range(3)] == [204, 204, 429]


@pytest.mark.parametrize("path", [STREAM, "/metrics", "/auth/tokens", "/cluster/status"])
async def test_refused_credentials_count_for_their_address(path: str, tmp_path: Path) -> None:
    wrong = tokens.mint(9, b"nono" * 5)
    async with (
        limited(tmp_path) as node,
        node.client(wrong) as stranger,
        node.client(wrong, source=STRANGER) as another,
        node.client() as client,
    ):
        await node.limit("identity", "anonymous", requests_per_s=2)
        assert [(await stranger.get(path)).status_code for _ in range(3)] == [401, 401, 429]
        assert (await another.get(path)).status_code == 401
        assert (await append(client)).status_code == 204, "known senders do not"


async def test_what_a_token_may_not_do_counts_for_the_token(tmp_path: Path) -> None:
    async with limited(tmp_path) as node, node.client() as client:
        await node.limit("identity", "ci", requests_per_s=2)
        elsewhere = ("/v1/stream/elsewhere/s", "/auth/tokens", "/v1/stream/elsewhere/s")
        statuses = [(await client.get(path)).status_code for path in elsewhere]
        assert statuses == [403, 403, 429]
        assert refused(await append(client), "identity-requests-per-s")


@pytest.mark.parametrize("name", ["ci", "*"])
async def test_the_urls_of_a_token_count_for_the_token(tmp_path: Path, name: str) -> None:
    async with limited(tmp_path) as node, node.client() as mine, node.client(None) as holder:
        signed = f"{STREAM}?signed={value(CI, node.server.url + STREAM)}"
        await node.limit("identity", name, requests_per_s=3)
        asked = ((mine, STREAM), (holder, signed), (holder, signed), (mine, STREAM))
        statuses = [(await client.get(path)).status_code for client, path in asked]
        assert statuses == [200, 200, 200, 429]


async def test_administrators_are_not_kept_out(tmp_path: Path) -> None:
    async with limited(tmp_path) as node, node.client(ROOT) as root, node.client() as client:
        await node.limit("identity", "*", requests_per_s=1)
        await node.limit("bucket", "*", requests_per_s=1)
        assert [(await append(root)).status_code for _ in range(3)] == [204] * 3
        assert [(await append(client)).status_code for _ in range(2)] == [204, 429]
        for path in ("/metrics", "/healthz", "/readyz/local"):
            assert (await client.get(path)).status_code == 200, "operations are not limited"


# -- bytes -----------------------------------------------------------------------------------------


async def test_a_body_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    async with limited(tmp_path) as node, node.server.connect() as client:
        await node.limit("identity", "ci", bytes_in_per_s=1000)
        for status in (100, 429):
            await node.send(client, f"POST {STREAM}", Content_Length="5000", Expect="100-continue")
            answer = await client.read_response()
            assert answer.status == status
            if status == 100:
                await client.send(b"x" * 5000)
                assert (await client.read_response()).status == 204
        assert answer.headers["connection"] == "close"
        assert answer.headers["retry-after"] == "5"


@pytest.mark.parametrize("path", [STREAM, "/agents/s/snapshot/"])
async def test_a_body_of_unknown_length_is_paid_for_afterwards(path: str, tmp_path: Path) -> None:
    async with limited(tmp_path) as node, node.server.connect() as raw, node.client() as client:
        method = "POST"
        if path != STREAM:
            method = "PUT"
            path += (await append(client)).headers["Stream-Next-Offset"]
        await node.limit("identity", "ci", bytes_in_per_s=1000)
        await node.send(raw, f"{method} {path}", Transfer_Encoding="chunked")
        await raw.send(b"%x\r\n" % 5000 + b"x" * 5000 + b"\r\n")
        await raw.send(b"0\r\n\r\n")
        assert (await raw.read_response()).status == 204
        answer = await append(client, 1000)
        assert refused(answer, "identity-bytes-in-per-s")
        assert answer.headers["Retry-After"] == "5"


async def test_a_body_of_unknown_length_is_paid_for_even_if_it_never_ends(tmp_path: Path) -> None:
    async with limited(tmp_path) as node, node.client() as client:
        await node.limit("identity", "ci", bytes_in_per_s=1000)
        async with node.server.connect() as raw:
            await node.send(raw, f"POST {STREAM}", Transfer_Encoding="chunked")
            await raw.send(b"%x\r\n" % 5000 + b"x" * 5000 + b"\r\n")
            await until(lambda: node.server.bodies.held == 5000)
        await until(lambda: node.server.connections == 0)
        assert (await append(client, 1000)).headers["Retry-After"] == "5"


async def test_what_was_read_is_paid_for_by_the_next_read(tmp_path: Path) -> None:
    async with limited(tmp_path) as node, node.client() as client:
        assert (await append(client, 5000)).status_code == 204
        await node.limit("identity", "ci", bytes_out_per_s=1000)
        assert (await client.head(STREAM)).status_code == 200
        assert len((await client.get(STREAM)).content) == 5000
        answer = await client.get(STREAM, params={"offset": "now"})
        assert refused(answer, "identity-bytes-out-per-s")
        assert (await append(client)).status_code == 204, "writers receive nothing"
        node.clock.now += int(answer.headers["Retry-After"])
        assert (await client.get(STREAM)).status_code == 200


@pytest.mark.parametrize("path", ["/agents/s/bootstrap", "/agents/s/snapshot/"])
async def test_long_answers_are_paid_for_as_well(path: str, tmp_path: Path) -> None:
    async with limited(tmp_path) as node, node.client() as client:
        tail = (await append(client, 3000)).headers["Stream-Next-Offset"]
        if path.endswith("/"):
            path += tail
            assert (await client.put(path, content=b"x" * 3000)).status_code == 204
        await node.limit("bucket", "agents", bytes_out_per_s=1000)
        assert len((await client.get(path)).content) >= 3000
        answer = await client.get(path)
        assert refused(answer, "bucket-bytes-out-per-s")
        assert int(answer.headers["Retry-After"]) >= 3


# -- live readers and connections ------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["sse", "long-poll"])
async def test_too_many_live_readers_are_refused_until_one_has_left(
    mode: str, tmp_path: Path
) -> None:
    async with limited(tmp_path) as node, AsyncExitStack() as stack:
        await node.limit("identity", "ci", live_readers=2)
        readers = [await stack.enter_async_context(node.server.connect()) for _ in range(3)]
        under_way = node.server.hub.reading_now
        for number, reader in enumerate(readers, 1):
            await node.send(reader, f"GET {STREAM}?offset=now&live={mode}")
            if number < 3:
                await until(lambda number=number: under_way[mode] == number)
        answer = await readers[2].read_response()
        assert (answer.status, answer.code) == (429, "TOO_MANY_REQUESTS")
        assert answer.headers["ratelimit-policy"].startswith('"identity-live-readers";q=2;')
        readers[0].close()
        await until(lambda: under_way[mode] == 1)
        await node.send(readers[2], f"GET {STREAM}?offset=now&live={mode}")
        await until(lambda: under_way[mode] == 2)


async def test_an_event_stream_pauses_while_it_owes_and_is_not_cut(tmp_path: Path) -> None:
    async with limited(tmp_path) as node, node.server.connect() as reader:
        async with node.client(ROOT) as root:
            await root.put("/v1/stream/agents/text", headers=TEXT)
            await node.limit("bucket", "agents", bytes_out_per_s=100)
            await node.send(reader, "GET /v1/stream/agents/text?offset=-1&live=sse")
            await reader.read_head()
            await reader.read_through(b'"upToDate":true')
            for letter in "abc":
                content = letter.encode() * 500
                answer = await root.post("/v1/stream/agents/text", headers=TEXT, content=content)
                assert answer.status_code == 204
        seen = await reader.read_through(b'"upToDate":true')
        assert b"a" * 500 in seen
        await until(lambda: not node.server.hub.present)
        assert b"b" not in seen, "the rest waits until this is paid"
        node.clock.now += 60
        seen = await reader.read_through(b"c" * 500)
        assert b"b" * 500 in seen


async def test_a_connection_too_many_is_closed(tmp_path: Path) -> None:
    async with limited(tmp_path) as node, AsyncExitStack() as stack:
        await node.limit("identity", "ci", connections=2)
        clients = [await stack.enter_async_context(node.server.connect()) for _ in range(3)]
        for client, status in zip(clients, (200, 200, 429), strict=True):
            await node.send(client, f"HEAD {STREAM}")
            answer = await client.read_response(to_head=True)
            assert answer.status == status
        assert answer.headers["connection"] == "close"
        assert answer.headers["ratelimit-policy"].startswith('"identity-connections";q=2;')
        assert await clients[2].closed()
        clients[0].close()
        await until(lambda: node.server.connections == 1)
        client = await stack.enter_async_context(node.server.connect())
        for _ in range(3):
            await node.send(client, f"HEAD {STREAM}")
            assert (await client.read_response(to_head=True)).status == 200


async def test_a_connection_counts_for_the_sender_of_its_last_request(tmp_path: Path) -> None:
    async with (
        limited(tmp_path) as node,
        node.server.connect() as proxy,
        node.server.connect() as client,
    ):
        await node.limit("identity", "ci", connections=1)
        for connection, token, status in (
            (proxy, CI, 200), (client, CI, 429),
        ):  # fmt: skip
            await node.send(connection, f"HEAD {STREAM}", token=token)
            assert (await connection.read_response(to_head=True)).status == status
        await node.send(proxy, f"HEAD {STREAM}", token=OTHER)
        assert (await proxy.read_response(to_head=True)).status == 200
        async with node.server.connect() as another:
            await node.send(another, f"HEAD {STREAM}")
            assert (await another.read_response(to_head=True)).status == 200


# -- refusals come late ----------------------------------------------------------------------------


async def test_a_refused_connection_waits_and_no_other_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates, "LATE_S", 1000.0)
    async with limited(tmp_path) as node, node.server.connect() as noisy:
        await node.limit("identity", "ci", requests_per_s=1)
        for _ in range(50):
            await node.send(noisy, f"POST {STREAM}", b"x")
        assert (await noisy.read_response()).status == 204
        await until(lambda: len(node.server.door.parked) == 1)
        async with node.client(OTHER) as other:
            for _ in range(50):
                assert (await append(other)).status_code == 204
            metrics = (await other.get("/metrics")).text
        line = 'streamd_rate_limited_total{limit="identity_requests_per_s"} 1.0'
        assert line in metrics, "the forty-nine others wait for their turn"
        noisy.close()
        await until(lambda: not len(node.server.door.parked))


async def test_refusals_of_one_sender_wait_for_each_other_and_not_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates, "LATE_S", 1.0)
    async with limited(tmp_path, "none") as node:
        await node.limit("identity", "anonymous", requests_per_s=1)

        def refused_after_s(client: str) -> float:
            request = Request(
                "HEAD", STREAM.encode(), b"", {}, b"", cast("Channel", None), client=client
            )
            answer = node.server.service.rates.refusal(request, resolve(request.path))
            return 0.0 if answer is None else answer.deadline - trio.current_time()

        assert refused_after_s("a") == refused_after_s("b") == 0
        waits = [refused_after_s("a") for _ in range(10_000)]
        assert waits[1] > waits[0], "each after the one before it"
        assert waits[1000] > 2
        assert max(waits) <= rates.MOST_LATE_S
        assert refused_after_s("b") <= 1, "and not after those of others"


async def test_a_large_body_is_refused_late_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rates, "LATE_S", 0.5)
    async with limited(tmp_path) as node, node.client() as client:
        await node.limit("identity", "ci", bytes_in_per_s=1)
        assert (await append(client, 200_000)).status_code == 204
        answer = await append(client, 200_000)
        assert refused(answer, "identity-bytes-in-per-s")
        assert answer.elapsed.total_seconds() >= 0.5
