"""What `streamd.client` is given: it is kept as it is, or refused with a sentence."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from streamd.client import AsyncClient, Client
from streamd.client.names import BadName
from streamd.state.db.snapshots import Compactor
from tests.client.drivers import KINDS, connected
from tests.support.server_process import ServerProcess


def test_a_created_stream_has_the_lifetime_it_was_given(client: Client) -> None:
    assert client.stream(f"demo/{uuid4()}").create(ttl_s=60).ttl_s == 60
    until = "2099-01-01T00:00:00Z"
    assert client.stream(f"demo/{uuid4()}").create(expires_at=until).expires_at == until


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("root", ["/v1/stream", "/v1/stream/", "/"])
def test_a_url_may_be_that_below_which_the_streams_are(
    server: ServerProcess, kind: str, root: str
) -> None:
    name = f"demo/{uuid4()}"
    with connected(kind, server.url + root) as client:
        client.stream(name).create("text/plain", data="here")
    with Client(server.url) as client:
        assert [chunk.data for chunk in client.stream(name).read()] == [b"here"]


@pytest.mark.parametrize(
    ("value", "error", "place"),
    [
        (float("nan"), ValueError, "message 1 is nan"),
        ({"a": [1.0, float("inf")]}, ValueError, r'message 1\["a"\]\[1\] is inf'),
        ({"a": b"x"}, TypeError, r'message 1\["a"\] is bytes'),
        ([bytearray(b"x")], TypeError, r"message 1\[0\] is bytearray"),
        (({1, 2},), TypeError, r"message 1\[0\] is a set"),
        ({b"key": 1}, TypeError, "keys of JSON are text"),
    ],
)
def test_what_json_does_not_have_is_refused_with_its_place(
    client: Client, value: Any, error: type[Exception], place: str
) -> None:
    stream = client.stream(f"demo/{uuid4()}")
    stream.create("application/json")
    with pytest.raises(error, match=place):
        stream.append_json(0, value)
    with stream.producer() as producer, pytest.raises(error, match=place):
        producer.append_json(0, value)
    assert list(stream.read_json()) == []


def test_a_value_that_holds_itself_is_refused(client: Client) -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(ValueError, match="nested"):
        client.stream("demo/x").append_json(value)


@pytest.mark.parametrize("make", [Client, AsyncClient])
def test_a_client_says_that_it_cannot_be_pickled(make: Callable[[str], Any]) -> None:
    with pytest.raises(TypeError, match="make one in each process"):
        pickle.dumps(make("http://127.0.0.1:1"))


def test_a_bucket_whose_name_is_too_short_for_snapshots_is_refused_at_once() -> None:
    stream = AsyncClient("http://127.0.0.1:1").stream("ab/x")
    with pytest.raises(BadName, match="no snapshots"):
        Compactor(stream, 10)
