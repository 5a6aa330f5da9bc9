"""Limits of rates over the wire: in both versions of HTTP, with workers, and in a cluster.

What is limited here is owed for a long time once it is used, so that no test depends on its speed.
"""

from __future__ import annotations

from collections.abc import Iterator

import httpx
import pytest

from tests.http.authorized import PLACES, Authorized, authorized

BINARY = {"Content-Type": "application/octet-stream"}
HOURS = 10_000


@pytest.fixture(scope="module", params=PLACES)
def place(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Authorized]:
    with authorized(request.param, tmp_path_factory.mktemp("rates")) as found:
        yield found


class Tenant:
    """A token of its own, and a stream in a bucket of its own."""

    def __init__(self, place: Authorized, bucket: str) -> None:
        self.place = place
        self.path = f"/v1/stream/{bucket}/s"
        self.bucket = bucket
        self.token = place.token(f"admin:{bucket}/*")
        self.name = f"token-{self.numbered}"
        assert place.ask("PUT", self.path, self.token, headers=BINARY).status_code == 201

    @property
    def numbered(self) -> int:
        listed = self.place.ask("GET", "/auth/tokens").json()["tokens"]
        return len(listed) - 1

    def append(self, size: int = 1, url: str | None = None) -> httpx.Response:
        return self.place.ask(
            "POST", self.path, self.token, headers=BINARY, content=b"x" * size, url=url
        )

    def limit(self, kind: str, **limits: int) -> None:
        name = self.name if kind == "identities" else self.bucket
        path = f"/cluster/limits/{kind}/{name}"
        assert self.place.ask("PUT", path, json=limits).status_code == 200
        for url in self.place.urls:
            self.place.until(lambda url=url: self.place.ask("GET", path, url=url).json() == limits)


@pytest.mark.parametrize("kind", ["identities", "buckets"])
def test_each_node_refuses_for_itself_what_is_beyond_a_limit(kind: str, place: Authorized) -> None:
    tenant = Tenant(place, f"each-{kind}")
    tenant.limit(kind, bytes_in_per_s=1)
    for url in place.urls:
        assert tenant.append(HOURS, url).status_code == 204, "through followers as well"
    policy = "identity" if kind == "identities" else "bucket"
    for url in place.urls:
        answer = tenant.append(url=url)
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "TOO_MANY_REQUESTS")
        assert HOURS / 2 < int(answer.headers["Retry-After"]) <= HOURS
        assert answer.headers["RateLimit-Policy"].startswith(f'"{policy}-bytes-in-per-s";q=1;')
    other = Tenant(place, f"others-{kind}")
    assert all(other.append(url=url).status_code == 204 for url in place.urls)


def test_a_refused_producer_continues_where_it_was(place: Authorized) -> None:
    tenant = Tenant(place, "produce")

    def produce(seq: int) -> int:
        numbers = {"Producer-Id": "p", "Producer-Epoch": "0", "Producer-Seq": str(seq)}
        answer = place.ask(
            "POST", tenant.path, tenant.token, headers={**BINARY, **numbers}, content=b"xx",
            url=place.urls[0],
        )  # fmt: skip
        return answer.status_code

    tenant.limit("buckets", bytes_in_per_s=1)
    assert tenant.append(HOURS, place.urls[0]).status_code == 204
    assert produce(0) == 429
    tenant.limit("buckets")
    assert [produce(0), produce(1), produce(1)] == [200, 200, 204]


def test_what_is_read_counts_wherever_it_is_read(place: Authorized) -> None:
    tenant = Tenant(place, "reads")
    assert tenant.append(HOURS).status_code == 204
    tenant.limit("identities", bytes_out_per_s=1)
    plain = {"Accept-Encoding": "identity"}
    for url in place.urls:
        answer = place.ask("GET", tenant.path, tenant.token, headers=plain, url=url)
        assert len(answer.content) == HOURS
        # Through each worker, none of which may answer for itself.
        for _ in range(4):
            with httpx.Client(http2=not place.speaks_1_1, http1=place.speaks_1_1) as client:
                headers = {"Authorization": f"Bearer {tenant.token}"}
                again = client.get(f"{url}{tenant.path}?offset=now", headers=headers)
            assert (again.status_code, again.json()["error"]["code"]) == (429, "TOO_MANY_REQUESTS")


def test_connections_are_counted_until_they_are_closed(place: Authorized) -> None:
    tenant = Tenant(place, "connections")
    tenant.limit("identities", connections=2)
    url = place.urls[0]
    headers = {"Authorization": f"Bearer {tenant.token}"}
    clients = [
        httpx.Client(http2=not place.speaks_1_1, http1=place.speaks_1_1, headers=headers)
        for _ in range(4)
    ]
    try:
        for _ in range(3):
            statuses = [client.head(url + tenant.path).status_code for client in clients[:2]]
            assert statuses == [200, 200]
        refused = clients[2].get(url + tenant.path)
        assert refused.status_code == 429
        assert refused.headers["RateLimit-Policy"].startswith('"identity-connections";q=2;')
        clients[0].close()
        place.until(lambda: clients[3].head(url + tenant.path).status_code == 200)
    finally:
        for client in clients:
            client.close()
