"""Clients and producers of servers that refuse for now, or for lack of room."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import httpx
import pytest

import streamd.client as library
from streamd.client import Client
from tests.client.drivers import KINDS, connected
from tests.support.server_process import ServerProcess

_MAX_BODY_BYTES = 2000


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    environment = {"STREAMD_SERVER_MAX_BODY_BYTES": str(_MAX_BODY_BYTES)}
    directory = tmp_path_factory.mktemp("server") / "data"
    with ServerProcess(directory, environment=environment) as server:
        yield server


@pytest.fixture(params=KINDS)
def client(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[Client]:
    with connected(request.param, server.url) as client:
        yield client


def limited(server: ServerProcess, **limits: int) -> str:
    """A bucket with these limits."""
    bucket = f"b-{uuid4()}"
    answer = httpx.put(f"{server.url}/cluster/limits/buckets/{bucket}", json=limits)
    assert answer.is_success, answer.text
    return bucket


def refusals(server: ServerProcess) -> float:
    """How many requests the server has refused with 429."""
    lines = httpx.get(f"{server.url}/metrics").text.splitlines()
    counts = [line.split()[-1] for line in lines if line.startswith("streamd_rate_limited_total")]
    return sum(map(float, counts))


# Of a rate of 30 bytes a second it takes four seconds.
LARGE = "x" * 120


def test_a_client_beyond_its_rate_waits_and_loses_nothing(
    client: Client, server: ServerProcess
) -> None:
    stream = client.stream(f"{limited(server, bytes_in_per_s=30)}/x")
    before = refusals(server)
    stream.create("application/json")
    stream.append_json(LARGE)
    stream.append_json(2)
    assert list(stream.read_json()) == [LARGE, 2]
    assert refusals(server) > before


def test_a_producer_beyond_its_rate_stores_all_once(client: Client, server: ServerProcess) -> None:
    stream = client.stream(f"{limited(server, bytes_in_per_s=30)}/x")
    stream.create("application/json")
    before = refusals(server)
    with stream.producer(max_batch_bytes=4) as producer:
        producer.append_json(LARGE)
        for number in range(10):
            producer.append_json(number)
    assert list(stream.read_json()) == [LARGE, *range(10)]
    assert refusals(server) > before


@pytest.mark.parametrize("kind", KINDS)
def test_a_client_that_does_not_wait_learns_when_it_may_ask_again(
    kind: str, server: ServerProcess
) -> None:
    with connected(kind, server.url, retry_for_s=0) as client:
        stream = client.stream(f"{limited(server, bytes_in_per_s=1)}/x")
        stream.create("application/json")
        stream.append_json(LARGE)
        with pytest.raises(library.TooManyRequests) as refused:
            stream.append_json(2)
        assert refused.value.status == 429
        assert 60 < int(refused.value.headers["Retry-After"]) <= len(LARGE) + 4
        assert list(stream.read_json()) == [LARGE]


def test_a_producer_ends_when_the_quota_is_used_up(client: Client, server: ServerProcess) -> None:
    stream = client.stream(f"{limited(server, max_stream_bytes=100)}/x")
    stream.create("text/plain")

    def run() -> None:
        with stream.producer("writer", max_batch_bytes=30, linger_s=60) as producer:
            for number in range(20):
                producer.append(f"{number:09} ")

    with pytest.raises(library.QuotaExceeded) as refused:
        run()
    assert refused.value.status == 507
    kept = b"".join(chunk.data for chunk in stream.read())
    assert kept == b"".join(b"%09d " % number for number in range(len(kept) // 10))
    assert len(kept) == 90, "whole batches of three"
    with stream.producer("writer") as producer:
        producer.append("0123456789")  # what is left


def test_a_producer_whose_batch_is_too_large_stores_none_of_it(client: Client) -> None:
    stream = client.stream(f"demo/{uuid4()}")
    stream.create("text/plain")

    def run(**settings: int) -> None:
        with stream.producer(**settings) as producer:  # type: ignore[arg-type]
            for _ in range(60):
                producer.append("x" * 100)

    with pytest.raises(library.TooLarge) as refused:
        run(linger_s=60)
    assert refused.value.status == 413
    assert stream.head().next_offset.startswith("0" * 16)
    run(max_batch_bytes=_MAX_BODY_BYTES // 2)
    assert stream.head().next_offset.startswith(f"{60:016}")
