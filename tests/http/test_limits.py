"""The administration of limits, on both servers and at every node of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.http.authorized import PLACES, Authorized, authorized

PATH = "/cluster/limits/buckets/agents"
NUMBERS = count()


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


# -- quotas ----------------------------------------------------------------------------------------

TEXT = {"Content-Type": "text/plain"}


def told(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


@pytest.fixture
def bucket(place: Authorized) -> Iterator[str]:
    """A bucket that may keep ten bytes in two streams."""
    name = f"bucket-{next(NUMBERS)}"
    limits = {"max_bytes": 10, "max_streams": 2}
    path = f"/cluster/limits/buckets/{name}"
    assert place.ask("PUT", path, json=limits).status_code == 200
    assert place.ask("PUT", f"/{name}").status_code == 201
    yield name
    assert place.ask("DELETE", path).status_code == 204


def test_writes_beyond_a_quota_are_refused_at_every_node_alike(
    bucket: str, place: Authorized
) -> None:
    stream = f"/{bucket}/s"
    assert place.ask("PUT", stream, headers=TEXT, content=b"12345678").status_code == 201
    batch = b"\0\0\0\1x\0\0\0\2yz"
    for _ in place.urls:
        full = (507, "QUOTA_EXCEEDED")
        assert told(place.ask("POST", stream, headers=TEXT, content=b"abc")) == full
        closing = {**TEXT, "Stream-Closed": "true"}
        assert told(place.ask("POST", stream, headers=closing, content=b"abc")) == full
        answer = place.ask("POST", f"{stream}/append-batch", headers=TEXT, content=batch)
        assert told(answer) == full
        assert told(place.ask("PUT", f"/{bucket}/t", headers=TEXT, content=b"abc")) == full
        snapshot = f"{stream}/snapshot/0000000000000001_0000000000000008"
        assert told(place.ask("PUT", snapshot, headers=TEXT, content=b"x" * 11)) == full
    assert place.ask("POST", stream, headers=TEXT, content=b"ab").status_code == 204
    assert place.ask("PUT", f"/{bucket}/t", headers=TEXT).status_code == 201
    fork = {"Stream-Forked-From": f"/v1/stream/{bucket}/s"}
    for _ in place.urls:
        assert told(place.ask("PUT", f"/{bucket}/u", headers=TEXT)) == (403, "TOO_MANY_STREAMS")
        assert told(place.ask("PUT", f"/{bucket}/f", headers=fork)) == (403, "TOO_MANY_STREAMS")
    assert place.ask("GET", stream).content == b"12345678ab"
    assert place.ask("POST", stream, headers={"Stream-Closed": "true"}).status_code == 204
    assert place.ask("DELETE", stream).status_code == 204
    assert place.ask("PUT", f"/{bucket}/u", headers=TEXT, content=b"0123456789").status_code == 201


def test_a_producers_repeated_request_is_a_duplicate_in_a_full_bucket(
    bucket: str, place: Authorized
) -> None:
    stream = f"/{bucket}/s"
    place.ask("PUT", stream, headers=TEXT)
    first, second = (
        {**TEXT, "Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": seq} for seq in "01"
    )
    assert place.ask("POST", stream, headers=first, content=bytes(10)).status_code == 200
    for _ in place.urls:
        again = place.ask("POST", stream, headers=first, content=bytes(10))
        assert (again.status_code, again.headers["Producer-Seq"]) == (204, "0")
        refused = place.ask("POST", stream, headers=second, content=b"x")
        assert told(refused) == (507, "QUOTA_EXCEEDED")
    assert place.ask("PUT", f"/cluster/limits/buckets/{bucket}", json={}).status_code == 200
    assert place.ask("POST", stream, headers=second, content=b"x").status_code == 200


def test_a_bucket_shows_what_it_keeps_and_what_it_may_keep(bucket: str, place: Authorized) -> None:
    place.ask("PUT", f"/{bucket}/s", headers=TEXT, content=b"1234")
    for url in place.urls:
        shown = place.ask("GET", f"/{bucket}", url=url).json()
        assert shown["kept_bytes"] == 4
        assert shown["kept_streams"] == shown["streams"] == 1
        assert shown["limits"] == {"max_bytes": 10, "max_streams": 2}
    assert told(place.ask("POST", f"/{bucket}/s", headers=TEXT, content=bytes(7)))[0] == 507

    def is_shown(url: str) -> bool:
        metrics = place.ask("GET", "/metrics", url=url).text
        return (
            f'streamd_bucket_bytes{{bucket="{bucket}"}} 4.0' in metrics
            and f'streamd_bucket_streams{{bucket="{bucket}"}} 1.0' in metrics
            and 'streamd_quota_refusals_total{result="bucket-full"}' in metrics
        )

    for url in place.urls:
        place.until(partial(is_shown, url))


@pytest.mark.long
def test_streams_from_before_the_first_quota_are_counted_soon(tmp_path: Path) -> None:
    with authorized("cluster", tmp_path) as place:
        for number in range(300):
            path = f"/v1/stream/older/s-{number}"
            assert place.ask("PUT", path, headers=TEXT, content=b"12").status_code == 201
        assert place.ask("GET", "/older").json()["kept_bytes"] is None
        place.ask("PUT", "/cluster/limits/buckets/older", json={"max_bytes": 601})
        for url in place.urls:
            place.until(
                lambda url=url: place.ask("GET", "/older", url=url).json()["kept_bytes"] == 600
            )
        new = "/v1/stream/older/new"
        assert told(place.ask("PUT", new, headers=TEXT, content=b"12")) == (507, "QUOTA_EXCEEDED")
        assert place.ask("PUT", new, headers=TEXT, content=b"1").status_code == 201
