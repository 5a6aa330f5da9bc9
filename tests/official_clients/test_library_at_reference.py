"""`streamd.client` at the reference server, from npm: what it promises holds there, too."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest

from streamd.client import (
    AlreadyExists,
    Client,
    MemoryEpochs,
    NotFound,
    ProducerFenced,
    Snapshot,
    StreamClosed,
)
from tests.client.drivers import KINDS, connected
from tests.client.test_following import losing_answers
from tests.official_clients.test_npm_client import running

pytestmark = pytest.mark.long


@pytest.fixture(name="port", scope="module")
def _port() -> Iterator[int]:
    with running("reference.mjs") as reference:
        yield int(reference.says())


@pytest.fixture(name="client", params=KINDS)
def _client(request: pytest.FixtureRequest, port: int) -> Iterator[Client]:
    with connected(request.param, f"http://127.0.0.1:{port}") as client:
        yield client


@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
def test_a_producer_stores_each_append_once_in_order(client: Client, kind: str) -> None:
    stream = client.stream(f"demo/{uuid4()}", content_type=kind)
    stream.create(kind)
    with stream.producer("writer") as producer:
        for number in range(50):
            producer.append(f"{number} ")
        assert producer.flush() is not None
        producer.append("50 ", close=True)
    if kind == "text/plain":
        found = b"".join(chunk.data for chunk in stream.read()).split()
        assert found == [b"%d" % number for number in range(51)]
    else:
        assert list(stream.follow_json()) == list(range(51))


@pytest.mark.parametrize("kind", KINDS)
def test_lost_answers_double_nothing(port: int, kind: str) -> None:
    """The answer to a repetition names no offset there."""
    name = f"demo/{uuid4()}"
    with connected(kind, f"http://127.0.0.1:{port}") as client:
        client.stream(name).create("application/json")
    with losing_answers(port) as (url, lost), connected(kind, url) as client:
        stream = client.stream(name)
        assert stream.head().closed is False, "the server has answered, so it is asked again"
        for number in range(4):
            appended = stream.append_json(number, once=f"key-{number}")
            assert appended.next_offset == stream.head().next_offset
        assert not stream.append_json("again", once="key-0").is_new
        with stream.producer("p", epochs=MemoryEpochs()) as producer:
            for number in range(4, 8):
                producer.append_json(number)
                producer.flush()
        assert lost
    with connected(kind, f"http://127.0.0.1:{port}") as client:
        assert list(client.stream(name).read_json()) == list(range(8))


def test_a_closed_stream_and_a_fenced_producer_are_known_by_headers(client: Client) -> None:
    stream = client.stream(f"demo/{uuid4()}", content_type="application/json")
    stream.create("application/json")
    epochs = MemoryEpochs()

    def overtaken() -> None:
        with stream.producer("p", epochs=epochs) as first:
            first.append_json(1)
            first.flush()
            with stream.producer("p", epochs=epochs) as second:
                second.append_json(2)
            first.append_json(3)

    with pytest.raises(ProducerFenced):
        overtaken()
    with pytest.raises(AlreadyExists):
        stream.create("text/plain")
    stream.close()
    with pytest.raises(StreamClosed):
        stream.append_json(4)
    assert list(stream.read_json()) == [1, 2]


def test_what_only_streamd_has_is_refused_clearly(client: Client) -> None:
    stream = client.stream(f"demo/{uuid4()}", content_type="text/plain")
    stream.create("text/plain", ttl_s=60)
    stream.append_many(["one"])
    with pytest.raises(NotFound, match="append each by itself"):
        stream.append_many(["two", "three"])
    with pytest.raises(NotFound):
        stream.snapshot.read()
    stream.close()
    snapshot, *chunks = stream.state()
    assert isinstance(snapshot, Snapshot)
    assert snapshot.offset == "-1"
    assert b"".join(chunk.data for chunk in chunks) == b"one"
