"""Keys of an identity provider: fetched, kept, renewed; and what its failures cost."""

from __future__ import annotations

import gzip
import logging
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from streamd.auth.identity import Undecided
from streamd.config.auth import JwtConfig
from streamd.config.settings import ConfigError
from streamd.http.credentials import identity_provider
from streamd.http.credentials.identity_provider import MAX_KEY_SET_BYTES, IdentityProvider
from tests.auth.provider import AUDIENCE, ISSUER, claims, key_set, signing_key
from tests.http.pki import Pki, make_pki
from tests.http.serving import until
from tests.support.key_server import KeyServer, key_server

ONE, TWO = signing_key("one"), signing_key("two")


@pytest.fixture(scope="module")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Pki:
    return make_pki(tmp_path_factory.mktemp("pki"))


def config(jwks: str, **settings: Any) -> JwtConfig:
    return JwtConfig(issuer=ISSUER, audience=AUDIENCE, jwks=jwks, **settings)


class Following:
    """A provider whose keys are followed, and how often they changed."""

    def __init__(self, settings: JwtConfig) -> None:
        self.provider = IdentityProvider(settings, Random(1))
        self.changes = 0

    def changed(self) -> None:
        self.changes += 1

    def ask(self, token: bytes) -> str:
        """The name that a JWT stands for, or what became of it."""
        try:
            found = self.provider.identify(token, int(time.time() * 1000))
        except Undecided:
            return "undecided"
        return "refused" if found is None else found.name

    def says(self, token: bytes, wanted: str) -> Callable[[], bool]:
        return lambda: self.ask(token) == wanted


@asynccontextmanager
async def following(settings: JwtConfig) -> AsyncIterator[Following]:
    found = Following(settings)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(found.provider.follow, found.changed)
        yield found
        nursery.cancel_scope.cancel()


def jwt(key: Any = ONE, **others: Any) -> bytes:
    token: bytes = key.sign(claims(time.time(), **others))
    return token


# -- a URL --


async def test_a_jwt_is_known_once_the_keys_are_fetched() -> None:
    with key_server(key_set(ONE)) as server:
        before = Following(config(server.url))
        assert before.ask(jwt()) == "undecided"
        async with following(config(server.url)) as found:
            await until(found.says(jwt(), "jwt:ada"))
            assert found.changes == 1
            assert server.asked == ["/keys"]


async def test_an_unknown_key_lets_the_provider_be_asked_at_once_and_then_not_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with key_server(key_set(ONE)) as server:
        async with following(config(server.url)) as found:
            await until(found.says(jwt(), "jwt:ada"))
            server.publish(key_set(ONE, TWO))
            # It has just been asked.
            for _ in range(100):
                assert found.ask(jwt(TWO)) == "refused"
            assert len(server.asked) == 1
            monkeypatch.setattr(identity_provider, "ASK_AGAIN_S", 0.0)
            assert found.ask(jwt(TWO)) == "undecided"
            monkeypatch.setattr(identity_provider, "ASK_AGAIN_S", 3600.0)
            await until(found.says(jwt(TWO), "jwt:ada"))
            for _ in range(100):
                assert found.ask(jwt(signing_key("three"))) == "refused"
            assert len(server.asked) == 2


async def test_keys_are_fetched_again_and_again_and_one_that_was_removed_is_forgotten() -> None:
    with key_server(key_set(ONE, TWO)) as server:
        async with following(config(server.url, jwks_refresh_ms=20)) as found:
            await until(found.says(jwt(TWO), "jwt:ada"))
            await until(lambda: len(server.asked) > 3)
            assert found.changes == 1
            server.publish(key_set(ONE))
            await until(lambda: found.ask(jwt(TWO)) != "jwt:ada")
            assert found.ask(jwt(ONE)) == "jwt:ada"
            assert found.changes == 2


def fail_with_garbage(server: KeyServer) -> None:
    server.publish(b"<html>sorry</html>")


def fail_with_no_keys(server: KeyServer) -> None:
    server.publish(b'{"keys": []}')


def fail_with_an_error(server: KeyServer) -> None:
    server.publish(key_set(TWO), 500)


def fail_with_a_redirect(server: KeyServer) -> None:
    server.publish(key_set(TWO), 302, Location=f"{server.url}/elsewhere")


def fail_with_a_coded_answer(server: KeyServer) -> None:
    server.publish(gzip.compress(key_set(TWO)), Content_Encoding="gzip")


def fail_without_an_answer(server: KeyServer) -> None:
    server.disconnect()


def fail_with_too_much(server: KeyServer) -> None:
    server.send_for_ever(100 * 1024 * 1024)


def fail_with_a_large_set(server: KeyServer) -> None:
    server.publish(key_set(TWO) + b" " * MAX_KEY_SET_BYTES)


def fail_by_silence(server: KeyServer) -> None:
    server.hang()


def fail_by_slowness(server: KeyServer) -> None:
    server.trickle(key_set(TWO))


@pytest.mark.parametrize(
    "fail",
    [
        fail_with_garbage,
        fail_with_no_keys,
        fail_with_an_error,
        fail_with_a_redirect,
        fail_with_a_coded_answer,
        fail_without_an_answer,
        fail_with_too_much,
        fail_with_a_large_set,
        fail_by_silence,
        fail_by_slowness,
    ],
)
async def test_a_provider_that_fails_leaves_the_known_keys_in_use(
    fail: Callable[[KeyServer], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity_provider, "FETCH_TIMEOUT_S", 2.0)
    with key_server(key_set(ONE)) as server:
        async with following(config(server.url, jwks_refresh_ms=20)) as found:
            await until(found.says(jwt(), "jwt:ada"))
            with capture_logs() as logs:
                fail(server)
                await until(lambda: any(one["log_level"] == "warning" for one in logs))
                asked = len(server.asked)
                await until(lambda: len(server.asked) > asked)
                assert found.ask(jwt()) == "jwt:ada"
                # It may be one that the provider has begun to use meanwhile.
                assert found.ask(jwt(TWO)) == "undecided"
                server.publish(key_set(ONE, TWO))
                await until(found.says(jwt(TWO), "jwt:ada"))
            warnings = [one for one in logs if one["log_level"] == "warning"]
            assert len(warnings) == 1, "it is reported once for each outage"
            assert "/keys/elsewhere" not in server.asked
            assert server.sent_bytes < 20 * 1024 * 1024


async def test_the_log_says_why_a_jwt_is_refused_if_it_is_to_say_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys.json"
    file.write_bytes(key_set(ONE))
    found = Following(config(str(file)))
    for level, reasons in (
        (logging.INFO, []),
        (logging.DEBUG, ["aud does not match auth.jwt.audience"]),
    ):
        caplog.set_level(level, "streamd.auth")
        with capture_logs() as logs:
            assert found.ask(jwt(aud="other")) == "refused"
        assert [entry["reason"] for entry in logs] == reasons


async def test_a_provider_that_is_away_at_the_start_is_found_later() -> None:
    with key_server(key_set(ONE)) as server:
        server.disconnect()
        async with following(config(server.url, jwks_refresh_ms=20)) as found:
            await until(lambda: len(server.asked) > 1)
            assert found.ask(jwt()) == "undecided"
            server.publish(key_set(ONE))
            await until(found.says(jwt(), "jwt:ada"))


async def test_nothing_that_a_jwt_names_is_fetched() -> None:
    with key_server(key_set(ONE)) as server, key_server(key_set(TWO)) as evil:
        async with following(config(server.url, jwks_refresh_ms=20)) as found:
            await until(found.says(jwt(), "jwt:ada"))
            for kid in ("one", "two", evil.url, f"../..{evil.url}", None):
                named = {"kid": kid, "jku": evil.url, "x5u": evil.url}
                token = TWO.sign(claims(time.time()), named)
                asked = len(server.asked)
                assert found.ask(token) != "jwt:ada"
                await until(lambda asked=asked: len(server.asked) > asked + 1)
                assert found.ask(token) != "jwt:ada"
            assert set(server.asked) == {"/keys"}
            assert evil.asked == []


async def test_keys_come_over_tls_from_a_server_of_the_configured_authority(
    pki: Pki, tmp_path: Path
) -> None:
    authority = tmp_path / "ca.pem"
    pki.authority.cert_pem.write_to_path(str(authority))
    with key_server(key_set(ONE), pki.server) as server:
        async with (
            following(config(server.url, jwks_ca=str(authority))) as known,
            following(config(server.url, jwks_refresh_ms=20)) as unknown,
        ):
            await until(known.says(jwt(), "jwt:ada"))
            await until(lambda: unknown.provider._failures > 1)
            assert unknown.ask(jwt()) == "undecided"
            # One that has no certificate for its name.
            elsewhere = server.url.replace("localhost", "127.0.0.2")
            async with following(config(elsewhere, jwks_ca=str(authority))) as other:
                await until(lambda: other.provider._failures > 0)


def test_authorities_that_cannot_be_read_prevent_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"auth\.jwt\.jwks_ca"):
        IdentityProvider(config("https://x/", jwks_ca=str(tmp_path / "none")), Random(1))


# -- a file --


async def test_a_file_is_read_at_the_start_and_when_it_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity_provider, "POLL_INTERVAL_S", 0.02)
    file = tmp_path / "keys.json"
    file.write_bytes(key_set(ONE))
    async with following(config(str(file))) as found:
        assert found.ask(jwt()) == "jwt:ada"
        assert found.ask(jwt(TWO)) == "refused"
        (tmp_path / "new").write_bytes(key_set(TWO))
        (tmp_path / "new").rename(file)
        await until(found.says(jwt(TWO), "jwt:ada"))
        assert found.ask(jwt()) == "refused"
        with capture_logs() as logs:
            file.write_bytes(b"rubbish")
            await until(lambda: logs)
            file.unlink()
        assert found.ask(jwt(TWO)) == "jwt:ada"
        file.write_bytes(key_set(ONE))
        await until(found.says(jwt(), "jwt:ada"))


@pytest.mark.parametrize("text", [None, b"", b"{}", b" " * MAX_KEY_SET_BYTES + b"{}"])
async def test_a_file_that_cannot_be_used_prevents_the_start(
    tmp_path: Path, text: bytes | None
) -> None:
    file = tmp_path / "keys.json"
    if text is not None:
        file.write_bytes(text)
    with pytest.raises(ConfigError, match=r"auth\.jwt\.jwks"):
        IdentityProvider(config(str(file)), Random(1))


def test_a_node_without_a_provider_does_not_load_what_verifies_jwts() -> None:
    """It would double the time of its start."""
    listing = "import sys, streamd.app, streamd.commands.serve; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", listing], capture_output=True, text=True, check=True
    )
    assert "streamd.app" in loaded.stdout.split()
    assert not {"jwt", "cryptography", "httpx"} & set(loaded.stdout.split())
