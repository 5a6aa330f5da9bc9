"""Appends under a key, and signed URLs: the same tests for blocking calls, asyncio and Trio."""

from __future__ import annotations

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any
from uuid import uuid4

import httpx
import pytest

import streamd.client as library
from streamd.client import Client, Stream
from tests.client.drivers import KINDS, connected
from tests.http.authorized import authorized
from tests.support.cutting_proxy import CuttingProxy
from tests.support.server_process import ServerProcess


@pytest.fixture
def stream(client: Client) -> Stream:
    """A JSON stream without messages."""
    stream = client.stream(f"demo/{uuid4()}")
    stream.create("application/json")
    return stream


# --- once


def test_an_append_under_a_key_is_stored_once(client: Client, stream: Stream) -> None:
    first = stream.append_json({"order": 17}, once="order-17")
    stream.append_json("between")
    again = client.stream(stream.name).append_json({"order": 17}, once="order-17")
    assert (first.is_new, again.is_new) == (True, False)
    assert again.next_offset == first.next_offset, "where the first one ended"
    assert list(stream.read_json()) == [{"order": 17}, "between"]


def test_the_first_of_two_appends_under_a_key_counts(stream: Stream) -> None:
    assert stream.append("[1]", once="key").is_new
    assert not stream.append("[2]", once="key").is_new
    assert list(stream.read_json()) == [1]


def test_several_parts_are_stored_together_once(client: Client) -> None:
    for kind in ("application/json", "text/plain"):
        stream = client.stream(f"demo/{uuid4()}")
        stream.create(kind)
        tries = [stream.append_many(["1", "2"], once="both").is_new for _ in range(3)]
        assert tries == [True, False, False]
        assert b"".join(chunk.data for chunk in stream.read()).strip(b"[]") in (b"12", b"1,2")


def test_a_close_with_an_append_under_a_key_may_be_repeated(stream: Stream) -> None:
    first = stream.append_json("last", once="end", close=True)
    again = stream.append_json("last", once="end", close=True)
    assert (first.closed, again.closed, again.is_new) == (True, True, False)
    with pytest.raises(library.StreamClosed):
        stream.append_json("later", once="another")


def test_a_condition_is_of_the_first_append_under_a_key(stream: Stream) -> None:
    etag = stream.head().etag
    assert stream.append_json(1, once="key", if_match=etag).is_new
    assert not stream.append_json(1, once="key", if_match=etag).is_new, "the first has changed it"
    with pytest.raises(library.PreconditionFailed):
        stream.append_json(2, once="other", if_match=etag)


def test_a_stream_that_was_created_again_knows_no_keys(stream: Stream) -> None:
    stream.append_json(1, once="key")
    stream.delete()
    stream.create("application/json")
    assert stream.append_json(2, once="key").is_new


def test_a_key_that_is_a_producer_of_the_stream_is_refused(stream: Stream) -> None:
    with stream.producer("writer") as producer:
        producer.append_json(1)
    with pytest.raises(library.ProducerFenced):
        stream.append_json(2, once="writer")


@pytest.mark.parametrize("key", ["a\r\nX: y", " a", "grün"])
def test_what_no_header_can_carry_is_no_key(stream: Stream, key: str) -> None:
    with pytest.raises(ValueError, match="the header Producer-Id cannot hold"):
        stream.append_json(1, once=key)
    with pytest.raises(library.InvalidRequest):
        stream.append_json(1, once="k" * 257)
    assert list(stream.read_json()) == []


@pytest.mark.parametrize(
    "wrong", [5, b"x", ("a", 0, 1), ("a",), ("a", "0"), (b"a", 0), ["a", None], ()], ids=repr
)
def test_a_key_is_text_or_a_pair_of_an_id_and_a_number(stream: Stream, wrong: Any) -> None:
    with pytest.raises(TypeError, match="pair of an id and a number"):
        stream.append_json(1, once=wrong)
    with pytest.raises(ValueError, match="from 0"):
        stream.append_json(1, once=("a", -1))
    assert list(stream.read_json()) == []


@pytest.mark.parametrize("kind", KINDS)
def test_appends_under_keys_survive_connections_that_are_cut(
    kind: str, server: ServerProcess
) -> None:
    # Each is enough for a request, and not for its answer.
    lengths = iter([420, 500])
    with (
        CuttingProxy(server.port, lambda: next(lengths, None)) as proxy,
        connected(kind, proxy.url, retry_for_s=60) as client,
        Client(server.url) as direct,
    ):
        stream = direct.stream(f"demo/{uuid4()}")
        stream.create("application/json")
        cut = client.stream(stream.name).append_json("a", once="a")
        assert (proxy.cuts, cut.is_new) == (2, False), "an earlier try had stored it"
        assert client.stream(stream.name).append_json("b", once="b").is_new
        assert list(stream.read_json()) == ["a", "b"]


@pytest.mark.parametrize("kind", KINDS)
def test_two_clients_store_each_key_once_however_connections_are_cut(
    kind: str, server: ServerProcess
) -> None:
    seed = 3
    random = Random(seed)
    print("seed", seed)
    keys = range(30)
    with (
        CuttingProxy(server.port, lambda: random.randrange(1, 3000)) as proxy,
        connected(kind, proxy.url, retry_for_s=60) as one,
        connected(kind, proxy.url, retry_for_s=60) as other,
        Client(server.url) as direct,
    ):
        stream = direct.stream(f"demo/{uuid4()}")
        stream.create("application/json")

        def append_all(client: Client) -> list[str]:
            same = client.stream(stream.name)
            return [same.append_json(key, once=f"order-{key}").next_offset for key in keys]

        with ThreadPoolExecutor() as threads:
            offsets, as_told = threads.map(append_all, (one, other))
        assert proxy.cuts > 0
        assert list(stream.read_json()) == list(keys), "in order: each waits for the one before"
        assert offsets == as_told, "both learn where the stream ended after the key's append"


# --- signed URLs


@pytest.mark.parametrize("kind", KINDS)
def test_a_signed_url_permits_its_methods_to_anyone(kind: str, tmp_path: Path) -> None:
    with authorized("HTTP/1.1", tmp_path) as server:
        token = server.token("create:demo/*", "append:demo/*", "read:demo/*")
        with connected(kind, server.urls, token=lambda: token) as client:
            stream = client.stream("demo/x y")
            stream.create("application/json", data="[1]")
            read = stream.signed_url()
            write = stream.signed_url("POST", "GET", expires_in_s=60)
        assert httpx.get(read + "&offset=-1").json() == [1]
        assert httpx.post(read, json=[2]).status_code == 401
        assert httpx.post(write, json=[2]).status_code == 204
        assert httpx.get(write).json() == [1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_a_signed_prefix_permits_the_snapshots_of_a_stream(kind: str, tmp_path: Path) -> None:
    with authorized("HTTP/1.1", tmp_path) as server:
        token = server.token("create:demo/*", "read:demo/*", "snapshot:demo/*")
        with connected(kind, server.urls, token=token) as client:
            stream = client.stream("demo/x")
            offset = stream.create("text/plain", data="old").next_offset
            url = httpx.URL(stream.signed_url("GET", "PUT", prefix=True))
        snapshot = url.copy_with(path=f"/demo/x/snapshot/{offset}")
        assert httpx.put(snapshot, content=b"all").status_code == 204
        assert httpx.get(snapshot).content == b"all"
        assert httpx.get(url).status_code == 410
        other = url.copy_with(path=f"/demo/xy/snapshot/{offset}")
        assert httpx.get(other).status_code == 401


@pytest.mark.parametrize("kind", KINDS)
def test_a_url_is_signed_for_the_address_that_its_readers_use(kind: str) -> None:
    token = f"sd_{'0' * 16}_{'a' * 32}"
    with connected(kind, "http://10.0.0.1:4437", headers={"authorization": f"Bearer {token}"}) as c:
        stream = c.stream("demo/x")
        assert stream.signed_url().startswith("http://10.0.0.1:4437/v1/stream/demo/x?signed=1.0000")
        url = stream.signed_url(base_url="https://streams.example.net/")
        assert url.startswith("https://streams.example.net/v1/stream/demo/x?signed=1.0000")


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_signed_is_an_error(kind: str) -> None:
    token = f"sd_{'0' * 16}_{'a' * 32}"
    with connected(kind, "http://a", token=token) as client:
        stream = client.stream("demo/x")
        for wrong in (0, 7 * 86_400 + 1):
            with pytest.raises(ValueError, match="604800 seconds"):
                stream.signed_url(expires_in_s=wrong)
        with pytest.raises(ValueError, match="GET, HEAD, POST, PUT, DELETE"):
            stream.signed_url("PATCH")
        with pytest.raises(ValueError, match="BUCKET/STREAM"):
            client.stream("x").signed_url(prefix=True)
    for settings, why in (({}, "no token"), ({"token": "jwt.of.another"}, "streamd's own")):
        with (
            connected(kind, "http://a", **settings) as client,
            pytest.raises(ValueError, match=why),
        ):
            client.stream("demo/x").signed_url()


def test_cryptography_is_imported_by_the_first_signature() -> None:
    program = f"""
import sys
from streamd.client import Client
client = Client("http://a", token="sd_{"0" * 16}_{"a" * 32}")
assert not any(name.startswith(("cryptography", "streamd.auth")) for name in sys.modules)
client.stream("demo/x").signed_url()
"""
    subprocess.run([sys.executable, "-c", program], check=True)
