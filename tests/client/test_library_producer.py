"""Producers against real servers that die, over connections that are cut."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from random import Random
from uuid import uuid4

import pytest

import streamd.client as library
from streamd.client import Client
from tests.client.drivers import KINDS, connected
from tests.jepsen_like.cluster_processes import ClusterProcesses
from tests.support.cutting_proxy import CuttingProxy
from tests.support.server_process import ServerProcess


@pytest.mark.parametrize("count", [500, pytest.param(5000, marks=pytest.mark.long)])
def test_what_was_appended_is_stored_at_the_end_of_the_block(client: Client, count: int) -> None:
    stream = client.stream(f"demo/{uuid4()}")
    stream.create("application/json")
    with stream.producer() as producer:
        for number in range(count):
            producer.append_json({"n": number})
        producer.append("[5000, 5001]")
    assert list(stream.read_json()) == [
        *({"n": number} for number in range(count)), 5000, 5001,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        "demo/{}",
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in ("demo/deeper/{}", "{}", "a/{}", "Demo/{}", "admin/{}", "demo/{}..x")
        ),
    ],
)
def test_each_append_of_bytes_is_a_record_whatever_the_stream_is_called(
    client: Client, name: str
) -> None:
    stream = client.stream(name.format(uuid4()))
    stream.create("application/octet-stream")
    with stream.producer() as producer:
        for number in range(700):
            producer.append(b"%d," % number)
        last = producer.flush()
    assert last is not None
    assert last.next_offset == stream.head().next_offset
    assert int(last.next_offset[:16]) == 700
    content = b"".join(chunk.data for chunk in stream.read())
    assert content == b"".join(b"%d," % number for number in range(700))


def test_a_producer_closes_its_stream_after_all_that_it_appended(client: Client) -> None:
    for closes_with_data in (True, False):
        stream = client.stream(f"demo/{uuid4()}")
        stream.create("text/plain")
        with stream.producer() as producer:
            producer.append("a")
            if closes_with_data:
                producer.append("b", close=True)
            else:
                producer.append("b")
                assert producer.close_stream().closed
            with pytest.raises(ValueError, match="closed"):
                producer.append("c")
        assert stream.head().closed
        assert b"".join(chunk.data for chunk in stream.read()) == b"ab"


def test_an_error_ends_the_producer_and_reaches_every_later_call(client: Client) -> None:
    stream = client.stream(f"demo/{uuid4()}")
    stream.create("text/plain")

    def run() -> None:
        with stream.producer() as producer:
            producer.append("a")
            producer.flush()
            stream.close()
            producer.append("b")
            for call in (producer.flush, lambda: producer.append("c")):
                with pytest.raises(library.StreamClosed):
                    call()

    with pytest.raises(library.StreamClosed):  # at the end of the block
        run()
    assert b"".join(chunk.data for chunk in stream.read()) == b"a"


def test_a_block_that_raises_passes_its_error_on(client: Client) -> None:
    stream = client.stream(f"demo/{uuid4()}")
    stream.create("text/plain")
    with pytest.raises(KeyError), stream.producer():
        raise KeyError


def test_what_is_not_json_is_refused_before_it_is_sent(client: Client) -> None:
    stream = client.stream(f"demo/{uuid4()}")
    stream.create("application/json")
    with stream.producer() as producer:
        for wrong in ("1, 2", "[]", "", "[1"):
            with pytest.raises(ValueError):  # noqa: PT011
                producer.append(wrong)
        producer.append("1")
    assert list(stream.read_json()) == [1]


@pytest.mark.parametrize("remembers", [True, False], ids=["file", "clock"])
def test_a_later_start_takes_over_and_the_former_is_fenced(
    client: Client, tmp_path: Path, remembers: bool
) -> None:
    epochs = library.FileEpochs(tmp_path / "epochs") if remembers else None
    stream = client.stream(f"demo/{uuid4()}")
    stream.create("application/json")

    def run() -> None:
        with stream.producer("me", epochs=epochs) as former:
            former.append_json(1)
            former.flush()
            with stream.producer("me", epochs=epochs) as later:
                later.append_json(2)
            former.append_json(3)

    with pytest.raises(library.ProducerFenced):
        run()
    assert list(stream.read_json()) == [1, 2]


@pytest.mark.parametrize("kind", KINDS)
def test_appends_are_stored_once_however_connections_are_cut(tmp_path: Path, kind: str) -> None:
    seed = 11
    random = Random(seed)
    print("seed", seed)
    with ServerProcess(tmp_path / "data") as server, Client(server.url) as direct:
        stream = direct.stream("demo/log")
        stream.create("application/json")
        with (
            CuttingProxy(server.port, lambda: random.randrange(1, 12_000)) as proxy,
            connected(kind, proxy.url, retry_for_s=60) as client,
            client.stream("demo/log").producer(max_batch_bytes=500, linger_s=0) as producer,
        ):
            for number in range(3000):
                producer.append_json(number)
        assert proxy.cuts > 0
        assert list(stream.read_json()) == list(range(3000))


@pytest.mark.parametrize("kind", KINDS)
def test_appends_are_stored_once_by_a_server_that_is_killed(tmp_path: Path, kind: str) -> None:
    with (
        ServerProcess(tmp_path / "data") as server,
        connected(kind, server.url, retry_for_s=60) as client,
    ):
        stream = client.stream("demo/log")
        stream.create("application/json")
        numbers = itertools.count()
        with stream.producer(max_batch_bytes=300, max_queued_bytes=3000) as producer:
            for _ in range(3):
                for number in itertools.islice(numbers, 500):
                    producer.append_json(number)
                server.kill()
                server.start()
            server.wait_ready()
        assert list(stream.read_json()) == list(range(next(numbers)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.long
def test_appends_are_stored_once_by_a_cluster_whose_leader_dies(tmp_path: Path, kind: str) -> None:
    with ClusterProcesses(tmp_path, proxied=False) as cluster:
        leader = cluster.leader()
        nodes = [leader, *(node for node in cluster.alive if node is not leader)]
        with connected(kind, [node.url for node in nodes], retry_for_s=60) as client:
            stream = client.stream("demo/log")
            stream.create("application/json")
            with stream.producer(max_batch_bytes=300, max_queued_bytes=3000) as producer:
                dies = threading.Timer(0.2, leader.kill)
                dies.start()
                for number in range(3000):
                    producer.append_json(number)
                dies.join()
            assert list(stream.read_json()) == list(range(3000))
