"""Signed URLs that end while something is under way, what made-up ones cost, and where they leave
traces."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from streamd.auth import signed_urls, tokens
from streamd.auth.signed_urls import Grant
from streamd.config.settings import AuthConfig
from streamd.http.access import signatures
from streamd.http.protocol import fields
from streamd.streams.commands import Result
from streamd.streams.token_commands import CreateToken, RevokeToken, RotateToken
from tests.http.authorized import authorized
from tests.http.serving import PATIENCE_S, RawClient, Serving, serving, until
from tests.http.test_signed_urls import value
from tests.support import prefork
from tests.support.server_process import ServerProcess

ROOT = tokens.mint(1, b"root" * 5)
SIGNER = tokens.mint(2, b"sign" * 5).encode()
OTHER = tokens.mint(2, b"more" * 5).encode()
PATH = "/v1/stream/live/s"
TEXT = {"Content-Type": "text/plain"}
WITH_ROOT = {"Authorization": f"Bearer {ROOT}"}
LIVE = "?offset=-1&live=sse"


@asynccontextmanager
async def guarded(tmp_path: Path, **settings: Any) -> AsyncIterator[Serving]:
    """A server that requires tokens, with a stream and a token that signs."""
    auth = AuthConfig(mode="required", root_token=ROOT)
    async with serving(tmp_path, auth=auth, **settings) as server:
        await make_signer(server)
        async with server.client(headers=WITH_ROOT) as client:
            assert (await client.put(PATH, headers=TEXT)).status_code == 201
        yield server


async def make_signer(server: Serving, ttl_ms: int | None = None, *, signs: bool = True) -> None:
    key = signed_urls.public_key_of(SIGNER) if signs else b""
    scopes = ["read:live/*", "append:live/*"]
    command = CreateToken(2, "signer", tokens.digest_of(SIGNER), scopes, ttl_ms, key)
    assert (await server.node.group.writes.propose(command)).result is Result.CREATED


def signature(
    expires_s: int | None = None, *, token: bytes = SIGNER, token_id: int = 2, path: str = PATH
) -> str:
    """The parameter's value for GET of the stream at the host x."""
    expires_s = int(time.time()) + 600 if expires_s is None else expires_s
    return signed_urls.sign(token, Grant(token_id, expires_s, ("GET",), b"x", path.encode(), False))


async def get(client: RawClient, query: str, signed: str) -> None:
    joint = "&" if "?" in query else "?"
    target = f"{PATH}{query}{joint}signed={signed}"
    await client.send(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


async def following(client: RawClient, signed: str) -> None:
    """Begin to follow the stream, up to its tail."""
    await get(client, LIVE, signed)
    assert (await client.read_head()).status == 200
    await client.read_through(b'"upToDate":true')


async def ends(client: RawClient) -> None:
    """Wait for the end of the events; `RawClient` checks that they are whole."""
    with trio.fail_after(PATIENCE_S):
        while await client.read_chunk():
            pass


async def test_an_sse_reader_ends_with_its_url(tmp_path: Path) -> None:
    async with (
        guarded(tmp_path, sse_lifetime_ms=600_000) as server,
        server.connect() as mine,
        server.connect() as other,
    ):
        await following(other, signature())
        expires_s = int(time.time()) + 5
        await following(mine, signature(expires_s))
        await ends(mine)
        assert time.time() >= expires_s
        await get(mine, LIVE, signature(expires_s))
        assert (await mine.read_response()).code == "INVALID_SIGNED_URL"
        async with server.client(headers=WITH_ROOT) as writer:
            await writer.post(PATH, headers=TEXT, content=b"on")
        assert b"data:on" in await other.read_through(b'"upToDate":true')


async def test_a_long_poll_is_401_when_its_url_ends(tmp_path: Path) -> None:
    async with guarded(tmp_path) as server, server.connect() as client:
        signed = signature(int(time.time()) + 3)
        await get(client, "?offset=-1&live=long-poll", signed)
        # The change of tokens that made its token may end a long-poll early.
        while (answer := await client.read_response()).status == 204:
            await get(client, "?offset=-1&live=long-poll", signed)
        assert answer.code == "INVALID_SIGNED_URL"


@pytest.mark.parametrize("live", ["sse", "long-poll"])
async def test_a_reader_ends_when_the_token_of_its_url_is_revoked(
    tmp_path: Path, live: str
) -> None:
    async with guarded(tmp_path, sse_lifetime_ms=600_000) as server, server.connect() as client:
        if live == "sse":
            await following(client, signature())
        else:
            await get(client, "?offset=-1&live=long-poll", signature())
            await until(lambda: server.hub.present)
        await server.node.group.writes.propose(RevokeToken(2))
        if live == "sse":
            await ends(client)
        else:
            assert (await client.read_response()).code == "INVALID_SIGNED_URL"
        await get(client, "", signature())
        assert (await client.read_response()).code == "INVALID_SIGNED_URL"


async def test_a_reader_ends_when_the_token_of_its_url_expires(tmp_path: Path) -> None:
    async with guarded(tmp_path, sse_lifetime_ms=600_000) as server, server.connect() as client:
        await server.node.group.writes.propose(RevokeToken(2))
        await make_signer(server, ttl_ms=4000)
        await following(client, signature())
        await ends(client)


async def test_a_reader_ends_when_the_overlap_of_its_urls_secret_ends(tmp_path: Path) -> None:
    async with (
        guarded(tmp_path, sse_lifetime_ms=600_000) as server,
        server.connect() as former,
        server.connect() as present,
    ):
        await following(former, signature())
        key = signed_urls.public_key_of(OTHER)
        rotate = RotateToken(2, tokens.digest_of(OTHER), 1500, None, key)
        await server.node.group.writes.propose(rotate)
        await following(present, signature(token=OTHER))
        await ends(former)
        await get(former, "", signature())
        assert (await former.read_response()).code == "INVALID_SIGNED_URL"
        await get(former, "", signature(token=OTHER))
        assert (await former.read_response()).status == 200


async def test_a_url_ends_by_log_time(tmp_path: Path) -> None:
    """Also one that was admitted a moment ago."""
    async with guarded(tmp_path) as server, server.connect() as client:
        signed = signature()
        for ahead_ms, status in ((0, 200), (599_000, 200), (601_000, 401)):
            server.clock.ahead_ms = ahead_ms
            await get(client, "", signed)
            assert (await client.read_response()).status == status


async def test_readers_are_not_verified_again_when_another_token_changes(tmp_path: Path) -> None:
    """A thousand readers would keep the loop busy for a tenth of a second."""
    async with guarded(tmp_path) as server, server.connect() as client:
        await following(client, signature())
        known = server.service.authority._signatures._verified
        assert len(known) == 1
        known.clear()
        await server.node.group.writes.propose(CreateToken(3, "new", bytes(32), ["read:*"]))
        # As the authority does, a second later.
        server.hub.start_over(server.node.group.group_id)
        async with server.client(headers=WITH_ROOT) as writer:
            await writer.post(PATH, headers=TEXT, content=b"on")
        assert b"data:on" in await client.read_through(b'"upToDate":true')
        assert not known


# -- tokens that sign nothing ----------------------------------------------------------------------


async def test_a_token_of_an_earlier_release_signs_once_it_is_rotated(tmp_path: Path) -> None:
    async with guarded(tmp_path) as server, server.connect() as client:
        await server.node.group.writes.propose(RevokeToken(2))
        await make_signer(server, signs=False)
        await get(client, "", signature())
        answer = await client.read_response()
        assert answer.code == "INVALID_SIGNED_URL"
        assert b"rotate it" in answer.body
        async with server.client() as holder:
            asked = {"Authorization": f"Bearer {SIGNER.decode()}"}
            refused = await holder.post("/auth/sign", json={"url": PATH}, headers=asked)
            assert refused.json()["error"]["code"] == "CANNOT_SIGN"
            assert "rotate it" in refused.text
            made = await holder.post("/auth/tokens/signer/rotate", json={}, headers=WITH_ROOT)
            asked = {"Authorization": f"Bearer {made.json()['token']}"}
            signed = await holder.post("/auth/sign", json={"url": PATH}, headers=asked)
            assert (await holder.get(signed.json()["url"])).status_code == 200
        # Nothing was signed with the secret before, although it is still valid.
        await get(client, "", signature())
        assert (await client.read_response()).code == "INVALID_SIGNED_URL"


async def test_where_nobody_needs_a_token_a_signature_is_not_looked_at(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.client() as client:
        await client.put(PATH, headers=TEXT, content=b"x")
        for signed in ("", "nonsense", signature()):
            assert (await client.get(f"{PATH}?signed={signed}")).content == b"x"


# -- the price of made-up signatures ---------------------------------------------------------------


def forged(number: int) -> str:
    """A value with the form, the token and the fields of a good one."""
    return signature(token=tokens.mint(2, number.to_bytes(20, "big")).encode())


async def codes(client: RawClient, values: list[str]) -> list[str]:
    found = []
    for each in values:
        await get(client, "", each)
        answer = await client.read_response()
        found.append("" if answer.status == 200 else answer.code)
    return found


async def test_a_flood_of_wrong_signatures_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signatures, "_PERIOD_S", 3600.0)
    monkeypatch.setattr(signatures, "MAX_FAILURES", 5)
    async with (
        guarded(tmp_path) as server,
        server.connect() as client,
        server.connect(source="127.0.0.2") as elsewhere,
    ):
        known, fresh = signature(), signature(int(time.time()) + 601)
        assert await codes(client, [known]) == [""]
        found = await codes(client, [forged(number) for number in range(8)])
        assert found == ["INVALID_SIGNED_URL"] * 5 + ["TOO_MANY_REQUESTS"] * 3
        # What was verified before continues, and others are not concerned.
        assert await codes(client, [known]) == [""]
        assert await codes(client, [fresh]) == ["TOO_MANY_REQUESTS"]
        assert await codes(elsewhere, [fresh, forged(9)]) == ["", "INVALID_SIGNED_URL"]
        key = signed_urls.public_key_of(OTHER)
        await server.node.group.writes.propose(
            CreateToken(9, "nine", bytes(32), ["read:*"], None, key)
        )
        assert await codes(client, [signature(token=OTHER, token_id=9)]) == [""]
        monkeypatch.setattr(server.service.authority._signatures, "_period_ends", 0.0)
        assert await codes(client, [fresh]) == [""]


async def test_what_cannot_be_valid_is_not_verified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signatures, "MAX_FAILURES", 0)
    async with guarded(tmp_path) as server, server.connect() as client:
        good = signature()
        for bad in (
            "",
            "x" * 4000,
            good[:-1],
            signature(token_id=77),
            signature(int(time.time()) - 1),
            signature(int(time.time()) + 30 * 86_400),
            good.replace("GET", "POST"),
            good.replace(".x.", ".9999."),
            good.replace(".x.", ".5."),
        ):
            # The first signature that is looked at would be one too many.
            assert await codes(client, [bad]) == ["INVALID_SIGNED_URL"], bad
        assert await codes(client, [good]) == ["TOO_MANY_REQUESTS"]
        assert server.service.authority._signatures._failures.total() == 0


async def test_many_urls_leave_a_bounded_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signatures, "MAX_VERIFIED", 3)
    async with guarded(tmp_path) as server, server.connect() as client:
        for seconds in range(100, 110):
            assert await codes(client, [signature(int(time.time()) + seconds)] * 2) == ["", ""]
            assert len(server.service.authority._signatures._verified) <= 3


async def test_a_body_is_not_waited_for_if_the_url_is_wrong(tmp_path: Path) -> None:
    async with guarded(tmp_path) as server, server.connect() as client:
        head = f"POST {PATH}?signed={signature()} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000"
        await client.send(f"{head}\r\n\r\n".encode())
        assert (await client.read_response()).code == "INVALID_SIGNED_URL"
        assert server.bodies.held == 0


# -- redirects and traces --------------------------------------------------------------------------


def test_a_signed_write_is_forwarded_where_others_are_redirected(tmp_path: Path) -> None:
    with authorized("cluster", tmp_path, STREAMD_SERVER_NON_LEADER="redirect") as place:
        token = place.token("append:live/*", "create:live/*", "read:live/*")
        statuses = set()
        for url in place.urls:
            signed = value(token, url + PATH, "PUT", "POST", "GET")
            for method in ("PUT", "POST"):
                answer = place.ask(
                    method, f"{PATH}?signed={signed}", None, url=url, headers=TEXT, content=b"x"
                )
                assert answer.status_code in (200, 201, 204), answer.text
            statuses.add(place.ask("POST", PATH, url=url, headers=TEXT, content=b"").status_code)
        assert 307 in statuses, "the others are"
        assert place.ask("GET", PATH, url=place.urls[0]).content.count(b"x") == len(place.urls) + 1


@pytest.mark.parametrize(
    "place", ["HTTP/1.1", "HTTP/2", pytest.param("workers", marks=pytest.mark.long)]
)
def test_a_signed_url_is_in_no_log_metric_error_or_file(tmp_path: Path, place: str) -> None:
    environment = {
        "STREAMD_AUTH_MODE": "required",
        "STREAMD_ROOT_TOKEN": ROOT,
        "STREAMD_LOG_LEVEL": "debug",
        "STREAMD_LOG_FORMAT": "json",
        "STREAMD_LOG_AUDIT": str(tmp_path / "audit"),
        "STREAMD_SERVER_WORKERS": "2" if place == "workers" else "1",
    }
    is_2 = place == "HTTP/2"
    answers: list[str] = []
    statuses = set()
    with (
        ServerProcess(
            tmp_path / "data",
            flags=["--http", "hypercorn"] if is_2 else [],
            environment=environment,
        ) as process,
        httpx.Client(base_url=process.url, http1=not is_2, http2=is_2) as client,
    ):
        made = client.post(
            "/auth/tokens", json={"name": "s", "scopes": ["read:*", "create:*"]}, headers=WITH_ROOT
        ).json()
        token = made["token"]
        signed = value(token, process.url + PATH, "GET", "PUT", "POST")
        name = signed.split(".")[-1]
        client.put(f"{PATH}?signed={signed}", headers=TEXT, content=b"x")
        for method, path in (
            ("GET", PATH),
            ("GET", PATH + "?offset=wrong"),
            ("GET", PATH + "?offset=-1&live=sse&timeout=1"),
            ("HEAD", PATH),
            ("POST", PATH),
            ("DELETE", PATH),
            ("GET", PATH + "/other"),
            ("GET", "/live/s/snapshot"),
            ("GET", "/live/s/bootstrap"),
            ("GET", "/metrics"),
            ("PATCH", PATH),
            ("GET", PATH + "%zz"),
            ("GET", PATH + "?signed=" + signed),
            ("GET", PATH + "?" + "a" * 9000),
        ):
            joint = "&" if "?" in path else "?"
            with client.stream(method, f"{path}{joint}signed={signed}") as answer:
                # Of live events only the first.
                body = next(answer.iter_bytes(), b"")
                statuses.add(answer.status_code)
                answers.append(str(answer.headers) + body.decode())
        with client.stream("GET", f"{PATH}?offset=-1&live=sse&signed={signed}") as cut:
            next(cut.iter_bytes())
        assert statuses == {200, 400, 401, 403, 405, 414}
        answers.append(client.get("/metrics", headers=WITH_ROOT).text)
        answers.append(client.get("/cluster/status", headers=WITH_ROOT).text)
        assert process.stop() == 0
    assert '"event"' in process.output, "it logs"
    held = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert b"INVALID_SIGNED_URL" in (tmp_path / "audit").read_bytes()
    for hidden in (name, token):
        assert hidden not in process.output
        assert not any(hidden in answer for answer in answers)
        assert not any(hidden.encode() in content for content in held)


async def test_a_bug_in_a_handler_leaves_no_trace_of_the_url(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Tracebacks are logged without the values of variables."""

    def broken(query: bytes) -> None:
        raise ZeroDivisionError("planted")

    async with guarded(tmp_path) as server, server.connect() as client:
        monkeypatch.setattr(fields, "read_query", broken)
        signed = signature()
        await get(client, "", signed)
        answer = await client.read_response()
        assert answer.code == "INTERNAL"
    printed = capsys.readouterr()
    text = printed.out + printed.err
    assert "planted" in text
    assert signed.split(".")[-1] not in text + str(answer)


# -- streamd sign ----------------------------------------------------------------------------------


def streamd_sign(*arguments: str, token: str | None) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("STREAMD_")}
    if token is not None:
        environment["STREAMD_TOKEN"] = token
    return prefork.run_text("sign", *arguments, environment=environment)


def test_the_command_signs_without_a_server(tmp_path: Path) -> None:
    url = "https://streams.example.net/live/s?offset=-1"
    file = tmp_path / "token"
    file.write_bytes(SIGNER + b"\n")
    for ran in (
        streamd_sign(url, "--expires", "15m", token=SIGNER.decode()),
        streamd_sign(url, "--expires", "15m", "--token-file", str(file), token=None),
    ):
        assert (ran.returncode, ran.stderr) == (0, "")
        match = re.fullmatch(re.escape(url) + r"&signed=(\S+)\n", ran.stdout)
        assert match is not None
        found = signed_urls.parse(match[1].encode())
        assert found is not None
        assert 890 < found.expires_s - time.time() <= 900
        grant = found.grant(b"streams.example.net", b"/live/s")
        assert grant is not None
        assert signed_urls.is_signed(signed_urls.public_key_of(SIGNER), grant, found.signature)


def test_the_command_signs_methods_and_a_prefix() -> None:
    ran = streamd_sign(
        "http://h/live/", "--method", "post", "--method", "GET", "--prefix", token=SIGNER.decode()
    )
    found = signed_urls.parse(ran.stdout.strip().partition("signed=")[2].encode())
    assert found is not None
    assert (found.methods, found.prefix_bytes) == (("GET", "POST"), len("/live/"))


@pytest.mark.parametrize(
    ("arguments", "token", "why"),
    [
        (["http://h/s"], None, "signing needs a token of streamd's own"),
        (["http://h/s"], "eyJhbGciOi.J9.x", "signing needs a token of streamd's own"),
        (["http://h/s", "--expires", "8d"], SIGNER.decode(), "valid for 7d at most"),
        (["http://h/s", "--expires", "1y"], SIGNER.decode(), "not a time"),
        (["http://h/s", "--method", "PATCH"], SIGNER.decode(), "PATCH"),
        (["h/s"], SIGNER.decode(), "not a URL"),
        (["http://h/a/../b"], SIGNER.decode(), "its path"),
        (["http://h/a?signed=1.2"], SIGNER.decode(), "already signed"),
    ],
)
def test_the_command_says_why_it_signs_nothing(
    arguments: list[str], token: str | None, why: str
) -> None:
    ran = streamd_sign(*arguments, token=token)
    assert ran.returncode == 2
    assert why in ran.stderr
    assert ran.stdout == ""
    assert token is None or token not in ran.stderr
