"""Signed URLs on both servers, with workers, and at every node of a cluster."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from streamd.auth import signed_urls
from streamd.auth.signed_urls import Grant
from streamd.auth.tokens import MAX_TOKEN_ID, mint
from tests.http.authorized import PLACES, ROOT, Authorized, authorized

TEXT = {"Content-Type": "text/plain"}
PATH = "/v1/stream/signed/s"
DAY_S = 86_400


@pytest.fixture(scope="module", params=PLACES)
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Authorized]:
    # A reader that does not end, but should, has nothing to hear.
    quiet = {f"STREAMD_SERVER_SSE_{each}_MS": "600000" for each in ("LIFETIME", "HEARTBEAT")}
    with authorized(request.param, tmp_path_factory.mktemp("signed"), **quiet) as found:
        for name in ("s", "s2", "other"):
            found.ask("PUT", f"/v1/stream/signed/{name}", headers=TEXT, content=f"of {name}")
        yield found


@pytest.fixture(scope="module")
def token(place: Authorized) -> str:
    return place.token("read:signed/*", "append:signed/*", "create:signed/*", "fork:signed/*")


def value(
    token: str,
    url: str,
    *methods: str,
    prefix: bool = False,
    expires_in_s: float = 60,
    host: str | None = None,
) -> str:
    """The parameter's value, as the holder of a token makes it without a server."""
    own_host, path = signed_urls.host_and_path(url)
    token_id = int(token.split("_")[1], 16)
    expires_s = int(time.time() + expires_in_s)
    given = host.encode() if host else own_host
    in_order = signed_urls.methods_in_order(methods or ("GET",)) or ()
    grant = Grant(token_id, expires_s, in_order, given, path, prefix)
    return signed_urls.sign(token.encode(), grant)


def told(answer: httpx.Response) -> tuple[int, str | None]:
    """Status and code of an answer."""
    is_error = answer.status_code >= 400 and answer.content
    return answer.status_code, answer.json()["error"]["code"] if is_error else None


INVALID = (401, "INVALID_SIGNED_URL")


def ask(
    place: Authorized, url: str, method: str, path: str, signed: str, **given: Any
) -> httpx.Response:
    joint = "&" if "?" in path else "?"
    return place.ask(method, f"{path}{joint}signed={signed}", None, url=url, **given)


def test_a_signed_url_reads_at_every_node_to_whose_host_it_was_signed(
    place: Authorized, token: str
) -> None:
    for url in place.urls:
        signed = value(token, url + PATH)
        for _ in range(2):
            answer = ask(place, url, "GET", PATH, signed)
            assert (answer.status_code, answer.content) == (200, b"of s")
            assert answer.headers["cache-control"].startswith("private")
        assert ask(place, url, "HEAD", PATH, signed).status_code == 200


def test_readers_move_on_with_the_parameters_of_the_protocol(place: Authorized, token: str) -> None:
    url = place.urls[-1]
    signed = value(token, url + PATH)
    first = ask(place, url, "GET", PATH + "?offset=-1", signed)
    offset = first.headers["stream-next-offset"]
    live = ask(place, url, "GET", f"{PATH}?live=long-poll&timeout=0.1&offset={offset}", signed)
    assert live.status_code == 204


def test_a_stolen_url_is_good_for_nothing_else(place: Authorized, token: str) -> None:
    url = place.urls[0]
    signed = value(token, url + PATH)
    for path in (
        "/v1/stream/signed/other",
        "/v1/stream/signed/s2",
        "/v1/stream/signed/none",
        "/v1/stream/signed",
        "/v1/stream/signed/s/more",
        "/v1/stream/signed/S",
        "/v1/stream/signed/s%20",
        "/v1/stream/signed/s%3F",
        "/signed/s",
        "/signed/s/bootstrap",
        "/signed",
        "/signed/streams",
        "/metrics",
        "/cluster/status",
        "/auth/tokens",
        "/auth/sign",
    ):
        assert told(ask(place, url, "GET", path, signed)) == INVALID, path
    for method in ("POST", "PUT", "DELETE"):
        assert told(ask(place, url, method, PATH, signed, headers=TEXT, content=b"x")) == INVALID


@pytest.mark.parametrize(
    "path",
    ["/v1/stream/signed//s", "/v1/stream/signed/%2e%2e/signed/s", "/v1/stream/signed%2Fs",
     "/v1/stream/signed/s%00", "/v1/stream/signed/s%5C"],
)  # fmt: skip
def test_a_path_with_two_meanings_is_refused_as_ever(
    path: str, place: Authorized, token: str
) -> None:
    url = place.urls[0]
    signed = value(token, f"{url}/v1/stream/signed", prefix=True)
    raw = httpx.URL(url).copy_with(raw_path=f"{path}?signed={signed}".encode())
    answer = place.send(httpx.Request("GET", raw))
    assert told(answer) == (400, "INVALID_PATH")


def test_an_escaped_spelling_of_the_same_path_is_the_same(place: Authorized, token: str) -> None:
    url = place.urls[0]
    signed = value(token, url + PATH)
    assert ask(place, url, "GET", "/v1/stream/sign%65d/%73", signed).content == b"of s"


def test_a_url_signed_for_another_host_is_invalid(place: Authorized, token: str) -> None:
    url = place.urls[0]
    host = urlsplit(url).netloc
    name, _, port = host.partition(":")
    for other in ("example.com", name, f"{name}:1", f"localhost:{port}", f"{name}.:{port}"):
        assert told(ask(place, url, "GET", PATH, value(token, url + PATH, host=other))) == INVALID
    assert told(ask(place, url, "GET", PATH, value(token, url + PATH, host=host))) == (200, None)


def test_the_host_is_the_one_that_the_client_names(place: Authorized, token: str) -> None:
    """As with a proxy that passes Host on. On HTTP/2 it is in :authority."""
    url = place.urls[0]
    signed = value(token, "https://Streams.example.net:443" + PATH)
    named = {"Host": "streams.EXAMPLE.net"}
    assert ask(place, url, "GET", PATH, signed, headers=named).content == b"of s"
    assert told(ask(place, url, "GET", PATH, signed)) == INVALID


def test_a_prefix_permits_what_lies_below_it(place: Authorized, token: str) -> None:
    url = place.urls[0]
    signed = value(token, f"{url}/signed/s", prefix=True)
    for path in ("/signed/s", "/signed/s/bootstrap"):
        assert ask(place, url, "GET", path, signed).status_code == 200
    for path in ("/signed/s2", "/signed", "/signed/streams", "/v1/stream/signed/s"):
        assert told(ask(place, url, "GET", path, signed)) == INVALID
    # A length that is another prefix's is another value.
    fields = signed.split(".")
    for length in (len("/signed/s") - 1, len("/signed/s") + 1, 1, 7, 8):
        other = ".".join((*fields[:4], str(length), fields[5]))
        assert told(ask(place, url, "GET", "/signed/s", other)) == INVALID
    exact = ".".join((*fields[:4], "x", fields[5]))
    assert told(ask(place, url, "GET", "/signed/s", exact)) == INVALID


def test_the_way_to_a_snapshot_stays_open_for_a_prefix(place: Authorized, token: str) -> None:
    url = place.urls[0]
    offset = "0000000000000000_0000000000000000"
    place.ask("PUT", f"/signed/s/snapshot/{offset}", headers=TEXT, content=b"snap")
    signed = value(token, f"{url}/signed/s", prefix=True)
    found = ask(place, url, "GET", "/signed/s/snapshot", signed)
    assert found.status_code == 307
    assert place.ask("GET", found.headers["location"], None, url=url).content == b"snap"
    # Where the request was not signed, the address has no query.
    plain = place.ask("GET", "/signed/s/snapshot?signed", ROOT, url=url)
    assert "?" not in plain.headers["location"]


@pytest.mark.parametrize("expires_in_s", [-1, 0, 8 * DAY_S, 10**9])
def test_a_url_is_valid_for_a_week_at_most(
    expires_in_s: int, place: Authorized, token: str
) -> None:
    url = place.urls[0]
    signed = value(token, url + PATH, expires_in_s=expires_in_s)
    assert told(ask(place, url, "GET", PATH, signed)) == INVALID


def test_a_url_permits_no_more_than_its_token(place: Authorized) -> None:
    url = place.urls[0]
    narrow = place.token("append:signed/*", "read:other/*")
    signed = value(narrow, url + PATH, "GET", "POST", "DELETE")
    assert told(ask(place, url, "GET", PATH, signed)) == (403, "INSUFFICIENT_SCOPE")
    assert told(ask(place, url, "DELETE", PATH, signed)) == (403, "INSUFFICIENT_SCOPE")
    posted = ask(place, url, "POST", "/v1/stream/signed/s", signed, headers=TEXT, content=b"")
    assert posted.status_code == 400, "permitted, and the body is empty"
    close = {**TEXT, "Stream-Closed": "true"}
    closed = ask(place, url, "POST", PATH, signed, headers=close, content=b"x")
    assert told(closed) == (403, "INSUFFICIENT_SCOPE")


def test_an_administrators_url_makes_no_tokens(place: Authorized) -> None:
    """Not even one that is signed for that."""
    url = place.urls[0]
    admin = place.token("admin:*")
    for method, path in (("POST", "/auth/tokens"), ("GET", "/auth/tokens"), ("GET", "/metrics")):
        signed = value(admin, url + path, method)
        answer = ask(place, url, method, path, signed, json={"name": "x", "scopes": ["read:*"]})
        assert told(answer) == INVALID


def test_a_url_appends_through_every_node(place: Authorized, token: str) -> None:
    path = "/v1/stream/signed/appended"
    place.ask("PUT", path, headers=TEXT)
    for url in place.urls:
        signed = value(token, url + path, "GET", "POST")
        assert ask(place, url, "POST", path, signed, headers=TEXT, content=b"x").status_code == 204
    assert place.ask("GET", path).content == b"x" * len(place.urls)


def test_a_url_makes_no_forks(place: Authorized, token: str) -> None:
    """It does not name the source."""
    url = place.urls[0]
    signed = value(token, f"{url}/v1/stream/signed/fork", "PUT")
    fork = {"Stream-Forked-From": PATH}
    answer = ask(place, url, "PUT", "/v1/stream/signed/fork", signed, headers=fork)
    assert told(answer) == (403, "INSUFFICIENT_SCOPE")
    made = ask(place, url, "PUT", "/v1/stream/signed/fork", signed, headers=TEXT)
    assert made.status_code == 201
    answer = ask(place, url, "PUT", "/v1/stream/signed/fork", signed, headers=fork)
    assert told(answer) == (403, "INSUFFICIENT_SCOPE"), "nor once it is known"


def test_one_credential_is_enough(place: Authorized, token: str) -> None:
    url = place.urls[0]
    signed = value(token, url + PATH)
    for other in (token, "nonsense"):
        answer = place.ask("GET", f"{PATH}?signed={signed}", other, url=url)
        assert told(answer) == (400, "AMBIGUOUS_CREDENTIALS")


def test_a_repeated_parameter_is_invalid(place: Authorized, token: str) -> None:
    url = place.urls[0]
    signed = value(token, url + PATH)
    good = ask(place, url, "GET", f"{PATH}?signed={signed}", signed)
    assert told(good) == INVALID
    escaped = ask(place, url, "GET", f"{PATH}?%73igned={signed}", signed)
    assert told(escaped) == (400, "INVALID_REQUEST")
    assert told(place.ask("GET", f"{PATH}?%73igned={signed}", None, url=url)) == (
        401,
        "AUTHENTICATION_REQUIRED",
    )


def test_an_answer_does_not_tell_what_is_wrong_with_a_url(place: Authorized, token: str) -> None:
    """Nor whether the stream exists, or the token."""
    url = place.urls[0]
    unknown = mint(MAX_TOKEN_ID, b"none" * 5)
    good = value(token, url + PATH)
    answers = [
        ask(place, url, "GET", f"/v1/stream/signed/{name}", signed)
        for name in ("s", "none")
        for signed in (
            "",
            "1.2.3",
            good[:-1],
            value(unknown, url + PATH),
            value(mint(int(token.split("_")[1], 16), b"evil" * 5), url + PATH),
            value(token, url + PATH, expires_in_s=-5),
            value(token, url + PATH, "POST"),
            value(token, url + "/v1/stream/signed/other"),
            value(token, url + PATH, host="elsewhere"),
        )
    ]
    heads = [{k: v for k, v in one.headers.items() if k != "date"} for one in answers]
    assert {told(one) for one in answers} == {INVALID}
    assert all(one.content == answers[0].content for one in answers)
    assert all(head == heads[0] for head in heads)
    assert heads[0]["www-authenticate"] == 'Bearer realm="streamd", error="invalid_token"'


def test_what_a_url_has_read_is_not_repeated_to_a_stranger(place: Authorized, token: str) -> None:
    url = place.urls[0]
    path = PATH + "?offset=-1"
    signed = value(token, url + PATH)
    once = {"Connection": "close"} if place.speaks_1_1 else {}
    for _ in range(6):
        assert ask(place, url, "GET", path, signed, headers=once).status_code == 200
    for _ in range(6):
        assert place.ask("GET", path, None, url=url, headers=once).status_code == 401
        broken = signed[:-2] + ("aA" if signed.endswith("Q") else "aQ")
        assert told(ask(place, url, "GET", path, broken, headers=once)) == INVALID


def test_a_revoked_tokens_urls_end_at_every_node(place: Authorized) -> None:
    token = place.token("read:signed/*")
    signed = {url: value(token, url + PATH) for url in place.urls}
    for url in place.urls:
        assert ask(place, url, "GET", PATH, signed[url]).status_code == 200
    assert place.ask("DELETE", f"/auth/tokens/{place.named(token)}").status_code == 204
    for url in place.urls:
        # A linearizable read knows all that was acknowledged before it.
        assert told(ask(place, url, "GET", PATH, signed[url])) == INVALID


def test_live_readers_at_every_node_end_when_the_token_of_their_url_is_revoked(
    place: Authorized,
) -> None:
    token = place.token("read:signed/*")
    with ExitStack() as readers:
        followed = [
            readers.enter_context(place.following(PATH, None, url, value(token, url + PATH)))
            for url in place.urls
        ]
        for lines in followed:
            assert any("upToDate" in line for line in lines)
        assert place.ask("DELETE", f"/auth/tokens/{place.named(token)}").status_code == 204
        for lines in followed:
            assert not any("upToDate" in line for line in lines), "it ends without news"


def test_a_listing_shows_what_the_token_may_read(place: Authorized) -> None:
    token = place.token("read:signed/s2", "list:signed/")
    url = place.urls[-1]
    answer = ask(place, url, "GET", "/signed/streams", value(token, f"{url}/signed/streams"))
    assert [one["stream_id"] for one in answer.json()["streams"]] == ["s2"]


def test_a_rotated_tokens_urls_are_valid_for_the_overlap(place: Authorized) -> None:
    token = place.token("read:signed/*")
    former = {url: value(token, url + PATH) for url in place.urls}
    name = place.named(token)

    def rotate(overlap_s: int) -> str:
        made = place.ask("POST", f"/auth/tokens/{name}/rotate", json={"overlap_s": overlap_s})
        found: str = made.json()["token"]
        return found

    present = rotate(3600)
    for url in place.urls:
        place.until(lambda url=url: place.is_known(present, url))
        assert ask(place, url, "GET", PATH, former[url]).status_code == 200
        assert ask(place, url, "GET", PATH, value(present, url + PATH)).status_code == 200
    present = rotate(0)
    for url in place.urls:
        assert told(ask(place, url, "GET", PATH, former[url])) == INVALID
        place.until(lambda url=url: place.is_known(present, url))
        assert ask(place, url, "GET", PATH, value(present, url + PATH)).status_code == 200


# -- the server signs ------------------------------------------------------------------------------


def test_the_holder_of_a_token_has_the_server_sign(place: Authorized, token: str) -> None:
    for url in place.urls:
        body = {"url": url + PATH, "expires_in_s": 60}
        answer = place.ask("POST", "/auth/sign", token, url=url, json=body)
        assert answer.headers["cache-control"] == "no-store"
        made = answer.json()
        assert made["url"] == f"{url}{PATH}?signed={made['signed']}"
        assert 50_000 < made["expires_at_ms"] - time.time() * 1000 < 70_000
        assert place.ask("GET", made["url"].removeprefix(url), None, url=url).content == b"of s"


def test_a_path_alone_is_signed_for_the_host_that_is_asked(place: Authorized, token: str) -> None:
    url = place.urls[0]
    body = {"url": "/signed/s?offset=-1", "methods": ["POST", "GET"], "prefix": True}
    made = place.ask("POST", "/auth/sign", token, url=url, json=body).json()
    assert made["url"] == f"{url}/signed/s?offset=-1&signed={made['signed']}"
    assert ".GET-POST." in made["signed"]
    assert ask(place, url, "GET", "/signed/s/bootstrap", made["signed"]).status_code == 200


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"url": "/agents/s"}, (403, "INSUFFICIENT_SCOPE")),
        ({"url": PATH, "methods": ["GET", "DELETE"]}, (403, "INSUFFICIENT_SCOPE")),
        ({"url": "/metrics"}, (400, "INVALID_REQUEST")),
        ({"url": "/signed/s/bootstrap", "methods": ["PUT"]}, (400, "INVALID_REQUEST")),
        ({"url": "/signed/s%2Fb"}, (400, "INVALID_REQUEST")),
        ({"url": "signed/s"}, (400, "INVALID_REQUEST")),
        ({"url": PATH, "methods": []}, (400, "INVALID_REQUEST")),
        ({"url": PATH, "methods": ["PATCH"]}, (400, "INVALID_REQUEST")),
        ({"url": PATH, "expires_in_s": 7 * DAY_S + 1}, (400, "INVALID_REQUEST")),
        ({"url": PATH, "expires_in_s": 0}, (400, "INVALID_REQUEST")),
        ({"url": PATH, "more": 1}, (400, "INVALID_REQUEST")),
        ({}, (400, "INVALID_REQUEST")),
    ],
)
def test_a_url_that_would_permit_nothing_is_not_signed(
    body: dict[str, Any], error: tuple[int, str], place: Authorized, token: str
) -> None:
    assert told(place.ask("POST", "/auth/sign", token, json=body)) == error


def test_a_root_token_signs_no_urls(place: Authorized) -> None:
    """Other nodes would not know it."""
    answer = place.ask("POST", "/auth/sign", ROOT, json={"url": PATH})
    assert told(answer) == (409, "CANNOT_SIGN")
    signed = value(ROOT, place.urls[0] + PATH)
    refused = ask(place, place.urls[0], "GET", PATH, signed)
    assert told(refused) == INVALID
    assert "a root token" in refused.json()["error"]["message"]
