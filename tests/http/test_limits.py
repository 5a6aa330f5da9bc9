"""The administration of limits, on both servers and at every node of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pytest

from tests.http.authorized import PLACES, Authorized, authorized

PATH = "/cluster/limits/buckets/agents"


@pytest.fixture(scope="module", params=PLACES)
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Authorized]:
    with authorized(request.param, tmp_path_factory.mktemp("limits")) as found:
        yield found


def test_limits_that_are_set_are_shown_by_every_node_until_they_are_cleared(
    place: Authorized,
) -> None:
    limits = {"max_bytes": 2**40, "requests_per_s": 100}
    answer = place.ask("PUT", PATH, json=limits)
    assert (answer.status_code, answer.json()) == (200, limits)
    for url in place.urls:
        assert place.ask("GET", PATH, url=url).json() == limits
        assert place.ask("GET", "/cluster/limits", url=url).json()["buckets"]["agents"] == limits
    assert place.ask("PUT", PATH, json={"max_streams": 0}).json() == {"max_streams": 0}
    assert place.ask("GET", PATH).json() == {"max_streams": 0}
    assert place.ask("DELETE", PATH).status_code == 204
    for url in place.urls:
        missing = place.ask("GET", PATH, url=url)
        assert (missing.status_code, missing.json()["error"]["code"]) == (404, "LIMITS_NOT_FOUND")
    again = place.ask("DELETE", PATH)
    assert (again.status_code, again.json()["error"]["code"]) == (404, "LIMITS_NOT_FOUND")


@pytest.mark.parametrize(
    "name", ["*", "jwt:someone@example.org", "cert:CN=ci,O=agents", "jwt:https://a.b/c%"]
)
def test_identities_have_any_names(name: str, place: Authorized) -> None:
    path = f"/cluster/limits/identities/{quote(name, safe='*@')}"
    assert place.ask("PUT", path, json={"live_readers": 5}).status_code == 200
    assert place.ask("GET", "/cluster/limits").json()["identities"][name] == {"live_readers": 5}
    assert place.ask("DELETE", path).status_code == 204


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        (PATH, b"", "truncated"),
        (PATH, b"[]", "object"),
        (PATH, b'{"max_bytes": -1}', "$.max_bytes"),
        (PATH, b'{"max_bytes": 9007199254740992}', "$.max_bytes"),
        (PATH, b'{"max_streams": "1"}', "$.max_streams"),
        (PATH, b'{"requests_per_s": 0}', "$.requests_per_s"),
        (PATH, b'{"max_byte": 1}', "max_byte"),
        ("/cluster/limits/identities/ci", b'{"max_bytes": 1}', "max_bytes"),
        ("/cluster/limits/buckets/" + "x" * 1100, b"{}", "name"),
    ],
)
def test_a_wrong_body_is_refused_with_the_field_at_fault(
    path: str, body: bytes, told: str, place: Authorized
) -> None:
    headers = {"Content-Type": "application/json"}
    answer = place.ask("PUT", path, headers=headers, content=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "INVALID_REQUEST")
    assert told in answer.json()["error"]["message"]


def test_a_tenants_own_administrator_cannot_raise_its_limits(place: Authorized) -> None:
    token = place.token("admin:agents/*", "operate:metrics")
    answer = place.ask("PUT", PATH, token, json={"max_bytes": 2**50})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "INSUFFICIENT_SCOPE")
