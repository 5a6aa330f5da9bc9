"""JWTs of an identity provider in place of tokens: on both servers, with workers, in a cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from streamd.auth.jwt import LEEWAY_S
from streamd.config.auth import JwtConfig
from streamd.config.settings import AuthConfig
from streamd.http.access import authority, rates
from streamd.streams.commands import Result, SetLimits
from streamd.streams.limits import Limits
from tests.auth.provider import AUDIENCE, ISSUER, SigningKey, claims, key_set, signing_key
from tests.http.authorized import PLACES, ROOT, Authorized, authorized
from tests.http.serving import serving, until
from tests.support.key_server import KeyServer, key_server

TEXT = {"Content-Type": "text/plain"}
ONE, TWO, STRANGER = signing_key("one"), signing_key("two", "ES256"), signing_key("stranger")
STREAM = "/v1/stream/agents/run-1"


def jwt(key: SigningKey = ONE, **others: Any) -> str:
    return key.sign(claims(time.time(), **others)).decode()


@pytest.fixture(scope="module")
def provider() -> Iterator[KeyServer]:
    with key_server(key_set(ONE)) as server:
        yield server


@pytest.fixture(scope="module", params=PLACES)
def place(
    request: pytest.FixtureRequest, provider: KeyServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Authorized]:
    directory = tmp_path_factory.mktemp("jwts")
    settings = {
        "STREAMD_AUTH_JWT_ISSUER": ISSUER,
        "STREAMD_AUTH_JWT_AUDIENCE": AUDIENCE,
        "STREAMD_AUTH_JWT_JWKS": provider.url,
        "STREAMD_AUTH_JWT_JWKS_REFRESH_MS": "100",
        "STREAMD_AUTH_JWT_SCOPES": "create:users/{sub}/*,read:users/{sub}/*",
        # A response that does not end otherwise makes its client fail.
        "STREAMD_SERVER_SSE_LIFETIME_MS": "3600000",
        "STREAMD_SERVER_SSE_HEARTBEAT_MS": "3600000",
    }
    with authorized(request.param, directory, **settings) as found:
        assert found.ask("PUT", STREAM, headers=TEXT, content=b"one").status_code == 201
        until_everywhere(found, jwt(), permitted=True)
        yield found


def permits(place: Authorized, token: str, url: str) -> bool:
    return place.ask("GET", STREAM, token, url=url).status_code == 200


def until_everywhere(place: Authorized, token: str, *, permitted: bool) -> None:
    for url in place.urls:
        place.until(lambda url=url: permits(place, token, url) is permitted)


def ends(lines: Iterator[str]) -> None:
    """Read to the end of a live response."""
    for _ in lines:
        pass


def code(answer: Any) -> tuple[int, str | None]:
    return answer.status_code, answer.json()["error"]["code"] if answer.content else None


def test_a_jwt_permits_what_its_claims_say(place: Authorized) -> None:
    token = jwt(scope="read:agents/* append:agents/run-1")
    for url in place.urls:
        assert place.ask("GET", STREAM, token, url=url).content.startswith(b"one")
        appended = place.ask("POST", STREAM, token, url=url, headers=TEXT, content=b"x")
        assert appended.status_code == 204
        other = place.ask("POST", STREAM + "0", token, url=url, headers=TEXT, content=b"x")
        assert code(other) == (403, "INSUFFICIENT_SCOPE")
        assert code(place.ask("GET", "/auth/tokens", token, url=url))[0] == 403


def test_a_jwt_permits_what_is_configured_for_its_subject(place: Authorized) -> None:
    for url in place.urls:
        for sub, status in (("ada", 201), ("bob", 403)):
            path = f"/v1/stream/users/{sub}/{place.urls.index(url)}"
            assert place.ask("PUT", path, jwt(), url=url, headers=TEXT).status_code == status
        hidden = place.ask("GET", "/v1/stream/users/ada/0", jwt(sub="*"), url=url)
        assert code(hidden) == (401, "INVALID_TOKEN")


@pytest.mark.parametrize(
    "token",
    [
        jwt(exp=time.time() - LEEWAY_S - 1),
        jwt(nbf=time.time() + 3600),
        jwt(aud="other"),
        jwt(iss="https://other.example"),
        jwt(exp=None),
        jwt(SigningKey("one", "EdDSA", STRANGER.private)),
        ONE.sign(claims(time.time()), {"alg": "none"}).decode(),
        ONE.sign(claims(time.time()), {"alg": "HS256"}).decode(),
        ONE.sign(claims(time.time()), {"crit": ["exp"]}).decode(),
        jwt()[:-4],
        jwt(x="a" * 8000),
        "a.b.c",
        "...",
    ],
)
def test_other_jwts_are_invalid_tokens(token: str, place: Authorized) -> None:
    for url in place.urls:
        answer = place.ask("GET", STREAM, token, url=url)
        assert code(answer) == (401, "INVALID_TOKEN")
        assert answer.headers["www-authenticate"].endswith('error="invalid_token"')


def test_a_jwt_of_an_unknown_key_is_refused_or_to_be_tried_again(place: Authorized) -> None:
    def status(url: str) -> int:
        return place.ask("GET", STREAM, jwt(STRANGER), url=url).status_code

    for url in place.urls:
        assert status(url) in (401, 503)
        place.until(lambda url=url: status(url) == 401)


def test_tokens_of_the_server_work_beside_jwts(place: Authorized) -> None:
    token = place.token("read:agents/*")
    assert place.ask("GET", STREAM, token).status_code == 200
    assert place.ask("GET", STREAM, jwt()).status_code == 200


def test_a_jwt_ends_with_its_key_and_so_do_its_readers(
    place: Authorized, provider: KeyServer
) -> None:
    provider.publish(key_set(ONE, TWO))
    until_everywhere(place, jwt(TWO), permitted=True)
    for url in place.urls:
        with place.following(STREAM, jwt(TWO), url) as lines:
            next(line for line in lines if "upToDate" in line)
            provider.publish(key_set(ONE))
            ends(lines)
        until_everywhere(place, jwt(TWO), permitted=False)
        provider.publish(key_set(ONE, TWO))
        until_everywhere(place, jwt(TWO), permitted=True)
    provider.publish(key_set(ONE))
    until_everywhere(place, jwt(), permitted=True)


def test_a_live_reader_ends_when_its_jwt_expires(place: Authorized) -> None:
    url = place.urls[-1]
    token = jwt(exp=time.time() - LEEWAY_S + 5)
    with place.following(STREAM, token, url) as lines:
        next(line for line in lines if "upToDate" in line)
        ends(lines)
    assert code(place.ask("GET", STREAM, token, url=url)) == (401, "INVALID_TOKEN")
    polled = place.ask("GET", f"{STREAM}?offset=now&live=long-poll", token, url=url)
    assert polled.status_code == 401


def test_a_provider_that_is_away_is_no_outage(place: Authorized, provider: KeyServer) -> None:
    provider.disconnect()
    asked = len(provider.asked)
    place.until(lambda: len(provider.asked) > asked + len(place.urls))
    for url in place.urls:
        assert permits(place, jwt(), url)
        assert code(place.ask("GET", STREAM, jwt(TWO), url=url)) == (503, "UNAVAILABLE")
    provider.publish(key_set(ONE))


def test_the_age_of_the_keys_is_a_metric(place: Authorized) -> None:
    text = place.ask("GET", "/metrics", ROOT).text
    assert "streamd_jwks_keys 1.0" in text
    assert "streamd_jwks_age_seconds" in text


# -- in one process --


def auth(directory: Path, **settings: Any) -> AuthConfig:
    (directory / "keys.json").write_bytes(key_set(ONE))
    jwt = JwtConfig(issuer=ISSUER, audience=AUDIENCE, jwks=str(directory / "keys.json"))
    return AuthConfig(**{"mode": "required", "root_token": ROOT, "jwt": jwt, **settings})


async def test_jwts_leave_a_bounded_trace_and_garbage_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(authority, "MAX_KNOWN", 3)
    async with serving(tmp_path, auth=auth(tmp_path)) as server, server.client() as client:
        known = server.service.authority._known
        for number in range(9):
            headers = {"Authorization": f"Bearer {jwt(scope='list:*', jti=number)}"}
            assert (await client.get("/agents", headers=headers)).status_code == 404
            assert 0 < len(known) <= 3
        before = [*known]
        for number in range(9):
            token = jwt(SigningKey("one", "EdDSA", STRANGER.private), jti=number)
            headers = {"Authorization": f"Bearer {token}"}
            assert (await client.get("/agents", headers=headers)).status_code == 401
        assert [*known] == before


async def test_a_jwt_expires_by_log_time(tmp_path: Path) -> None:
    async with serving(tmp_path, auth=auth(tmp_path)) as server, server.client() as client:
        headers = {"Authorization": f"Bearer {jwt(scope='list:*')}"}
        assert (await client.get("/agents", headers=headers)).status_code == 404
        server.clock.ahead_ms += (300 + LEEWAY_S) * 1000
        assert (await client.get("/agents", headers=headers)).status_code == 401


async def test_without_the_requirement_a_jwt_may_administer_tokens(tmp_path: Path) -> None:
    settings = auth(tmp_path, mode="none", root_token=None)
    async with serving(tmp_path, auth=settings) as server, server.client() as client:
        for scope, status in (("admin:*", 200), ("admin:a*", 403)):
            headers = {"Authorization": f"Bearer {jwt(scope=scope)}"}
            assert (await client.get("/auth/tokens", headers=headers)).status_code == status


async def test_with_jwts_a_server_knows_somebody(tmp_path: Path) -> None:
    async with serving(tmp_path, auth=auth(tmp_path, root_token=None)) as server:
        assert not server.service.authority.knows_nobody


async def test_keys_that_change_end_what_was_admitted_at_once(tmp_path: Path) -> None:
    async with serving(tmp_path, auth=auth(tmp_path)) as server, server.client() as client:
        headers = {"Authorization": f"Bearer {jwt(scope='list:*')}"}
        assert (await client.get("/agents", headers=headers)).status_code == 404
        (tmp_path / "keys.json").write_bytes(key_set(TWO))
        admitted = server.service.authority._admitted
        await until(lambda: not admitted)
        assert (await client.get("/agents", headers=headers)).status_code == 401


@pytest.mark.parametrize("path", [STREAM, "/cluster/status"])
async def test_jwts_that_cannot_be_judged_yet_count_for_their_address(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the provider is away anyone can make some up."""
    monkeypatch.setattr(rates, "LATE_S", 0.0)
    nobody = JwtConfig(issuer=ISSUER, audience=AUDIENCE, jwks="http://127.0.0.1:1/jwks")
    settings = auth(tmp_path, jwt=nobody)
    async with serving(tmp_path, auth=settings) as server, server.client() as client:
        server.service.rates.clock = lambda: 1000.0
        command = SetLimits("identity", rates.ANONYMOUS, Limits(requests_per_s=2))
        assert (await server.node.group.writes.propose(command)).result is Result.DONE
        headers = {"Authorization": f"Bearer {jwt(STRANGER)}"}
        statuses = [(await client.get(path, headers=headers)).status_code for _ in range(3)]
        assert statuses == [503, 503, 429]
