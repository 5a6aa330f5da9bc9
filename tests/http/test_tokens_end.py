"""Tokens that end while something is under way, and requests refused by their heads."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from streamd.auth import tokens
from streamd.config.settings import AuthConfig
from streamd.http.access import authority
from streamd.http.application import HttpApplication
from streamd.http.protocol.messages import Audience, Request, Response
from streamd.streams.commands import Result
from streamd.streams.token_commands import CreateToken, RevokeToken, RotateToken
from tests.http.serving import PATIENCE_S, RawClient, Serving, serving, until

ROOT = tokens.mint(1, b"root" * 5)
READER = tokens.mint(2, b"read" * 5)
OTHER = tokens.mint(2, b"more" * 5)
TRIMMER = tokens.mint(3, b"trim" * 5)
OPERATOR = tokens.mint(4, b"oper" * 5)
PATH = "/v1/stream/live/s"


def digest(token: str) -> bytes:
    return tokens.digest_of(token.encode())


@asynccontextmanager
async def guarded(tmp_path: Path, **settings: Any) -> AsyncIterator[Serving]:
    """A server that requires tokens, with a stream and a token that may read it."""
    auth = AuthConfig(mode="required", root_token=ROOT)
    async with serving(tmp_path, auth=auth, **settings) as server:
        await make_reader(server)
        async with server.client(headers={"Authorization": f"Bearer {ROOT}"}) as client:
            made = await client.put(PATH, headers={"Content-Type": "text/plain"})
            assert made.status_code == 201
        yield server


async def make_reader(server: Serving, ttl_ms: int | None = None) -> None:
    command = CreateToken(2, "reader", digest(READER), ["read:live/*"], ttl_ms)
    outcome = await server.node.group.writes.propose(command)
    assert outcome.result is Result.CREATED


async def revoke(server: Serving) -> None:
    outcome = await server.node.group.writes.propose(RevokeToken(2))
    assert outcome.result is Result.DELETED


async def get(client: RawClient, query: str, token: str = READER) -> None:
    await client.send(
        f"GET {PATH}{query} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n\r\n".encode()
    )


async def test_an_sse_reader_ends_after_a_whole_event_when_its_token_is_revoked(
    tmp_path: Path,
) -> None:
    async with guarded(tmp_path) as server, server.connect() as client:
        await get(client, "?offset=-1&live=sse")
        assert (await client.read_head()).status == 200
        await client.read_through(b'"upToDate":true')
        await revoke(server)
        while await client.read_chunk():
            pass  # `RawClient` checks that events are whole.
        # The connection is kept, and the token is not.
        await get(client, "?offset=-1&live=sse")
        assert (await client.read_response()).code == "INVALID_TOKEN"


async def test_an_sse_reader_gets_nothing_that_came_after_its_token_was_revoked(
    tmp_path: Path,
) -> None:
    """An operator may write a secret as soon as a revocation is acknowledged."""
    async with guarded(tmp_path) as server, server.connect() as client:
        await get(client, "?offset=-1&live=sse")
        assert (await client.read_head()).status == 200
        await client.read_through(b'"upToDate":true')
        async with server.client(headers={"Authorization": f"Bearer {ROOT}"}) as writer:
            text = {"Content-Type": "text/plain"}
            assert (await writer.post(PATH, headers=text, content=b"before")).status_code == 204
            assert b"before" in await client.read_through(b'"upToDate":true')
            await revoke(server)
            assert (await writer.post(PATH, headers=text, content=b"secret")).status_code == 204
        received = b""
        while chunk := await client.read_chunk():
            received += chunk
        assert b"secret" not in received


async def test_an_sse_reader_that_lags_ends_too_when_its_token_is_revoked(tmp_path: Path) -> None:
    """It need not be at the tail: a slow one may have hours of records before it."""
    mib, backlog = 1024 * 1024, 16
    async with guarded(tmp_path) as server, server.connect(receive_buffer=4096) as client:
        headers = {"Authorization": f"Bearer {ROOT}", "Content-Type": "text/plain"}
        async with server.client(headers=headers) as writer:
            for _ in range(backlog):
                assert (await writer.post(PATH, content=b"x" * mib)).status_code == 204
        await get(client, "?offset=-1&live=sse")
        assert (await client.read_head()).status == 200
        got = len(await client.read_chunk())
        await revoke(server)
        while chunk := await client.read_chunk():
            got += len(chunk)
        assert got < backlog * mib, "it was sent all records"


async def test_other_readers_continue_when_a_token_is_revoked(tmp_path: Path) -> None:
    async with guarded(tmp_path) as server, server.connect() as mine, server.connect() as other:
        for client, token in ((mine, READER), (other, ROOT)):
            await get(client, "?offset=-1&live=sse", token)
            assert (await client.read_head()).status == 200
            await client.read_through(b'"upToDate":true')
        await revoke(server)
        while await mine.read_chunk():
            pass
        async with server.client(headers={"Authorization": f"Bearer {ROOT}"}) as writer:
            text = {"Content-Type": "text/plain"}
            assert (await writer.post(PATH, headers=text, content=b"on")).status_code == 204
        assert b"data:on" in await other.read_through(b'"upToDate":true')


async def test_a_long_poll_is_401_when_its_token_is_revoked(tmp_path: Path) -> None:
    async with guarded(tmp_path) as server, server.connect() as client:
        await get(client, "?offset=-1&live=long-poll")
        await until(lambda: server.hub.present)
        await revoke(server)
        assert (await client.read_response()).code == "INVALID_TOKEN"


async def test_a_snapshot_is_not_published_once_its_token_is_revoked(tmp_path: Path) -> None:
    """It would cut the log. A slow upload may begin days before it ends."""
    async with guarded(tmp_path) as server, server.connect() as client:
        outcome = await server.node.group.writes.propose(
            CreateToken(3, "trimmer", digest(TRIMMER), ["snapshot:live/*"])
        )
        assert outcome.result is Result.CREATED
        headers = {"Authorization": f"Bearer {ROOT}", "Content-Type": "text/plain"}
        async with server.client(headers=headers) as root:
            tail = (await root.post(PATH, content=b"one")).headers["stream-next-offset"]
            await client.send(
                f"PUT /live/s/snapshot/{tail} HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n"
                f"Authorization: Bearer {TRIMMER}\r\n\r\nabc".encode()
            )
            await until(lambda: server.service.uploads.held)
            assert (await server.node.group.writes.propose(RevokeToken(3))).result is Result.DELETED
            await client.send(b"11")
            assert (await client.read_response()).code == "INVALID_TOKEN"
            assert (await root.get("/live/s/snapshot")).status_code == 404


async def test_an_operation_shows_nothing_if_its_token_was_revoked_meanwhile(
    tmp_path: Path,
) -> None:
    async with guarded(tmp_path) as server:
        command = CreateToken(4, "operator", digest(OPERATOR), ["operate:*"])
        assert (await server.node.group.writes.propose(command)).result is Result.CREATED

        async def wait_for_leader(_: Request) -> Response:
            assert (await server.node.group.writes.propose(RevokeToken(4))).result is Result.DELETED
            return Response(200, body=b"what only operators may see")

        headers = {b"host": b"localhost", b"authorization": f"Bearer {OPERATOR}".encode()}
        channel: Any = None  # Nothing waits for the client.
        request = Request("GET", b"/cluster/status", b"at=leader", headers, b"", channel)
        application = HttpApplication(server.service, wait_for_leader, server.service.server)
        answer = await application.handle(request)
        assert isinstance(answer, Response)
        assert answer.status == 401
        assert answer.audience is Audience.OWN_PAGES


@pytest.mark.parametrize("live", ["sse", "long-poll"])
async def test_a_live_reader_ends_when_its_token_expires(tmp_path: Path, live: str) -> None:
    async with guarded(tmp_path) as server, server.connect() as client:
        await revoke(server)
        await make_reader(server, ttl_ms=1500)
        await get(client, f"?offset=-1&live={live}")
        if live == "sse":
            assert (await client.read_head()).status == 200
            while await client.read_chunk():
                pass
        else:
            # A change of tokens, such as the one above, may end a long-poll early.
            while (answer := await client.read_response()).status == 204:
                await get(client, "?offset=-1&live=long-poll")
            assert answer.code == "INVALID_TOKEN"
        await get(client, "?offset=-1")
        assert (await client.read_response()).code == "INVALID_TOKEN"


async def test_an_sse_reader_with_a_former_secret_ends_with_the_overlap(tmp_path: Path) -> None:
    async with (
        guarded(tmp_path, sse_lifetime_ms=600_000) as server,
        server.connect() as client,
    ):
        await get(client, "?offset=-1&live=sse")
        assert (await client.read_head()).status == 200
        await client.read_through(b'"upToDate":true')
        await server.node.group.writes.propose(RotateToken(2, digest(OTHER), 1500))
        with trio.fail_after(PATIENCE_S):
            while await client.read_chunk():
                pass


async def test_a_token_expires_by_log_time(tmp_path: Path) -> None:
    async with guarded(tmp_path) as server, server.connect() as client:
        await revoke(server)
        await make_reader(server, ttl_ms=60_000)
        await get(client, "")
        assert (await client.read_response()).status == 200
        server.clock.ahead_ms += 60_000
        await get(client, "")
        assert (await client.read_response()).code == "INVALID_TOKEN"
        server.clock.ahead_ms -= 60_000
        await server.node.group.writes.propose(RevokeToken(99))
        await get(client, "")
        assert (await client.read_response()).status == 200


async def test_both_secrets_are_taken_during_a_rotation(tmp_path: Path) -> None:
    async with guarded(tmp_path) as server, server.connect() as client:
        await server.node.group.writes.propose(RotateToken(2, digest(OTHER), 60_000))
        for token in (READER, OTHER):
            await get(client, "", token)
            assert (await client.read_response()).status == 200
        server.clock.ahead_ms += 60_000
        await get(client, "", READER)
        assert (await client.read_response()).code == "INVALID_TOKEN"
        await get(client, "", OTHER)
        assert (await client.read_response()).status == 200


@pytest.mark.parametrize(
    ("request_line", "headers"),
    [
        ("POST /v1/stream/live/s", "Content-Length: 1000000"),
        ("POST /v1/stream/live/s", "Transfer-Encoding: chunked"),
        ("PUT /live/s/snapshot/0000000000000000_0000000000000000", "Content-Length: 1000000"),
        ("POST /v1/stream/live/s", "Content-Length: 1000000\r\nExpect: 100-continue"),
        ("POST /auth/tokens", "Content-Length: 1000000\r\nContent-Type: application/json"),
    ],
)
@pytest.mark.parametrize("token", [None, READER])
async def test_a_body_is_not_waited_for_if_its_head_is_refused(
    tmp_path: Path, request_line: str, headers: str, token: str | None
) -> None:
    async with guarded(tmp_path) as server, server.connect() as client:
        sent = f"Authorization: Bearer {token}\r\n" if token else ""
        head = f"{request_line} HTTP/1.1\r\nHost: localhost\r\n{sent}{headers}\r\n\r\n"
        await client.send(head.encode())
        answer = await client.read_response()
        assert answer.status == (403 if token else 401)
        assert server.bodies.held == 0
        client.finish_sending()
        assert await client.closed()


async def test_a_refused_request_without_a_body_keeps_its_connection(tmp_path: Path) -> None:
    async with guarded(tmp_path) as server, server.connect() as client:
        for _ in range(3):
            await client.send(f"GET {PATH} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert (await client.read_response()).code == "AUTHENTICATION_REQUIRED"
        await get(client, "")
        assert (await client.read_response()).status == 200


async def test_many_tokens_leave_a_bounded_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authority, "MAX_KNOWN", 3)
    async with guarded(tmp_path) as server, server.connect() as client:
        known = server.service.authority._known
        for spaces in range(1, 10):
            # Other bytes, the same token.
            token = " " * spaces + READER
            await get(client, "", token)
            assert (await client.read_response()).status == 200
            assert len(known) <= 3
        for number in range(5):
            await get(client, "", tokens.mint(number, b"away" * 5))
            assert (await client.read_response()).code == "INVALID_TOKEN"
        assert len(known) <= 3


async def test_without_the_requirement_only_tokens_are_closed(tmp_path: Path) -> None:
    auth = AuthConfig(mode="none", root_token=ROOT)
    async with serving(tmp_path, auth=auth) as server, server.client() as client:
        assert (await client.put(PATH)).status_code == 201
        assert (await client.get("/metrics")).status_code == 200
        answer = await client.get("/auth/tokens")
        assert answer.json()["error"]["code"] == "AUTHENTICATION_REQUIRED"
        root = {"Authorization": f"Bearer {ROOT}"}
        assert (await client.get("/auth/tokens", headers=root)).json() == {"tokens": []}
        # What nobody asked for is not looked at.
        wrong = {"Authorization": "Bearer wrong"}
        assert (await client.get(PATH, headers=wrong)).status_code == 200


async def test_no_answer_but_the_first_has_a_secret_or_its_hash(tmp_path: Path) -> None:
    async with guarded(tmp_path) as server:
        async with server.client(headers={"Authorization": f"Bearer {ROOT}"}) as client:
            body = {"name": "ci", "scopes": ["read:*"]}
            made = await client.post("/auth/tokens", json=body)
            secret = made.json()["token"]
            assert made.headers["cache-control"] == "no-store"
            shown = [await client.get("/auth/tokens"), await client.get("/auth/tokens/ci")]
            rotated = await client.post("/auth/tokens/ci/rotate", json={})
            assert rotated.json()["token"] != secret
            assert rotated.json()["about"]["id"] == made.json()["about"]["id"]
        hidden = secret.rpartition("_")[2], digest(secret).hex()
        assert not any(one in answer.text for answer in [*shown, rotated] for one in hidden)
