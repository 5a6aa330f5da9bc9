"""Clients that are forked, closed, dropped, interrupted or shared by threads."""

from __future__ import annotations

import gc
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

import streamd.client as library
from streamd.client import Client, Stream
from tests.client.drivers import KINDS, connected
from tests.support.server_process import ServerProcess

_TIMEOUT_S = 60


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server") / "data") as server:
        yield server


@pytest.fixture
def stream(server: ServerProcess) -> Iterator[Stream]:
    """A JSON stream of a blocking client, with one message."""
    with Client(server.url) as client:
        stream = client.stream(f"demo/{uuid4()}")
        stream.create("application/json", data="[1]")
        yield stream


@pytest.fixture(params=KINDS)
def client(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[Client]:
    with connected(request.param, server.url) as client:
        yield client


def run(program: str, *arguments: str) -> list[str]:
    """The words that a Python program prints. Its fork is a process without this one's threads."""
    done = subprocess.run(
        [sys.executable, "-c", _FORK + program, *arguments],
        stdout=subprocess.PIPE,
        timeout=_TIMEOUT_S,
        check=True,
    )
    return done.stdout.decode().split()


_FORK = """
import os, sys
from streamd.client import Client

def in_child(act):
    sys.stdout.flush()  # else the child prints once more what the parent has not written yet
    child = os.fork()
    if not child:
        try:
            act()
        finally:
            sys.stdout.flush()
            os._exit(0)
    os.waitpid(child, 0)
"""


# --- forks


def test_a_forked_process_keeps_no_position_of_its_parents_consumer(
    stream: Stream, server: ServerProcess
) -> None:
    program = """
from streamd.client import MemoryPositions
url, name = sys.argv[1:]
client = Client(url)
consumer = client.stream(name).consumer("me", positions=MemoryPositions())
print(next(consumer))
def child():
    try:
        consumer.commit()
    except ValueError:
        print("refused")
in_child(child)
consumer.commit()
"""
    assert run(program, server.url, stream.name) == ["1", "refused"]


def test_a_forked_process_uses_connections_of_its_own(
    stream: Stream, server: ServerProcess
) -> None:
    """On a shared one, each process may receive the other's answers."""
    program = """
client = Client(sys.argv[1])
stream = client.stream(sys.argv[2])

def ask():
    stream.head()
    [connection] = client._driver.client._transport._pool.connections
    stream_of = connection._connection._network_stream
    print(*stream_of.get_extra_info("client_addr"))

ask()
in_child(ask)
ask()
"""
    words = run(program, server.url, stream.name)
    ports = words[1::2]
    assert ports[0] == ports[2] != ports[1]


@pytest.mark.parametrize("live", ["sse", pytest.param("long-poll", marks=pytest.mark.long)])
def test_a_follower_resumes_in_both_processes_after_a_fork(
    stream: Stream, server: ServerProcess, live: str
) -> None:
    program = """
stream = Client(sys.argv[1]).stream(sys.argv[2])
messages = stream.follow_json(live=sys.argv[3])
next(messages)
stream.append_json(2)
print(next(messages))
stream.append_json(3, close=True)
in_child(lambda: print(*messages))
print(*messages)
"""
    assert run(program, server.url, stream.name, live) == ["2", "3", "3"]


def test_a_producer_refuses_to_append_in_a_forked_process(
    stream: Stream, server: ServerProcess
) -> None:
    """Its threads are in the parent only: nothing would ever be sent."""
    program = """
stream = Client(sys.argv[1]).stream(sys.argv[2])
with stream.producer() as producer:
    producer.append_json(2)

    def use():
        for call in (lambda: producer.append_json(3), producer.flush, producer.close_stream):
            try:
                call()
            except ValueError as error:
                print("fork" in str(error))
        try:
            producer.__exit__(None, None, None)
        except ValueError as error:
            print("fork" in str(error))

    in_child(use)
"""
    assert run(program, server.url, stream.name) == ["True"] * 4
    assert list(stream.read_json()) == [1, 2]


# --- the end


def test_a_client_may_be_closed_twice_and_is_of_no_use_after_that(
    client: Client, stream: Stream
) -> None:
    ours = client.stream(stream.name)
    ours.head()
    client.close()
    client.close()
    for use in (ours.head, lambda: next(ours.follow()), lambda: ours.append_json(1)):
        with pytest.raises(RuntimeError, match="closed"):
            use()


def test_an_iteration_that_was_closed_has_ended(client: Client, stream: Stream) -> None:
    with client.stream(stream.name).follow_json() as messages:
        assert next(messages) == 1
    messages.close()
    assert list(messages) == []


def _connections(stream: Stream) -> list[object]:
    return stream._driver.client._transport._pool.connections  # type: ignore[attr-defined, no-any-return]


def test_an_iteration_that_is_dropped_holds_no_connection(stream: Stream) -> None:
    for message in stream.follow_json(live="sse"):
        assert message == 1
        break
    chunks = stream.follow(live="sse")
    next(chunks)
    stream.append_json(2)
    next(chunk for chunk in chunks if chunk.data)
    assert len(_connections(stream)) == 1, "it follows on it"
    del chunks
    gc.collect()
    assert _connections(stream) == []


@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_an_interrupt_ends_a_wait_and_the_next_one_resumes(
    stream: Stream, live: library.Live
) -> None:
    messages = stream.follow_json(live=live)
    next(messages)
    main = threading.main_thread().ident
    assert main is not None
    threading.Timer(0.3, lambda: signal.pthread_kill(main, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        next(messages)
    stream.append_json(2, close=True)
    assert list(messages) == [2]


# --- threads


def _in_thread(act: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """A thread that has begun, and the list that its result goes to."""
    results: list[object] = []

    def record() -> None:
        try:
            results.append(act())
        except BaseException as error:
            results.append(error)

    thread = threading.Thread(target=record, daemon=True)
    thread.start()
    return thread, results


def test_a_follower_that_waits_ends_when_another_thread_closes_it(
    client: Client, stream: Stream
) -> None:
    messages = client.stream(stream.name).follow_json(live="sse")
    assert next(messages) == 1
    stream.append_json(2)
    assert next(messages) == 2
    thread, results = _in_thread(lambda: list(messages))
    messages.close()
    thread.join(_TIMEOUT_S)
    assert results == [[]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_follower_that_pauses_ends_when_another_thread_closes_it(kind: str) -> None:
    with connected(kind, "http://127.0.0.1:9", retry_for_s=_TIMEOUT_S) as client:
        chunks = client.stream("demo/x").follow()
        thread, results = _in_thread(lambda: list(chunks))
        chunks.close()
        thread.join(_TIMEOUT_S)
        assert results == [[]]


@pytest.mark.long
def test_threads_share_a_client(client: Client, stream: Stream) -> None:
    ours = client.stream(stream.name)
    started = [_in_thread(lambda: [ours.append_json(2) for _ in range(20)]) for _ in range(8)]
    for thread, _ in started:
        thread.join(_TIMEOUT_S)
    offsets = [appended.next_offset for _, [found] in started for appended in found]  # type: ignore[attr-defined]
    assert len(set(offsets)) == 160
    assert list(stream.read_json()) == [1] + [2] * 160


def test_threads_share_an_iteration(stream: Stream) -> None:
    """Each message goes to one of them."""
    stream.append_json(*range(2, 2000), close=True)
    messages = stream.read_json()
    started = [_in_thread(lambda: list(messages)) for _ in range(4)]
    for thread, _ in started:
        thread.join(_TIMEOUT_S)
    seen = [message for _, [found] in started for message in found]  # type: ignore[attr-defined]
    assert sorted(seen) == list(range(1, 2000))


# --- memory


@pytest.mark.long
@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_a_follower_of_a_long_stream_keeps_none_of_what_it_has_shown(
    server: ServerProcess, live: str
) -> None:
    program = """
import resource
client = Client(sys.argv[1])
stream = client.stream(sys.argv[2])
stream.create()
chunks = stream.follow(live=sys.argv[3])
next(chunks)
seen = 0
for round in range(80):
    stream.append(os.urandom(1_000_000))
    while seen < (round + 1) * 1_000_000:
        seen += len(next(chunks).data)
    if round in (9, 79):
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    early_kb, late_kb = map(int, run(program, server.url, f"demo/{uuid4()}", live))
    assert late_kb - early_kb < 20_000, "70 MB were shown meanwhile"


# --- how they show, and travel


@pytest.mark.parametrize("kind", [library.Client, library.AsyncClient])
def test_objects_show_what_they_are_and_no_secrets(kind: type[Client]) -> None:
    name = kind.__name__
    prefix = name.removesuffix("Client")
    client = kind(["http://user:secret@a:1", "http://b"], token="sd_secret")
    stream = client.stream("demo/x")
    assert repr(client) == f"{name}(['http://***@a:1', 'http://b'])"
    assert repr(stream) == f"<{prefix}Stream demo/x>"
    assert repr(client.bucket("demo")) == f"<{prefix}Bucket demo>"
    assert repr(stream.snapshot) == f"<{prefix}Snapshots of demo/x>"
    assert repr(stream.producer("writer")) == f"<{prefix}Producer writer of demo/x>"


def test_what_holds_connections_cannot_be_pickled(client: Client, stream: Stream) -> None:
    with Client("http://a") as ours:
        for held in (
            ours,
            ours.stream("x"),
            ours.stream("x").follow(),
            ours.stream("x").producer(),
        ):
            with pytest.raises(TypeError):
                pickle.dumps(held)


def test_errors_keep_what_they_know_when_they_are_pickled(stream: Stream) -> None:
    at = stream.append_json(2).next_offset
    stream.snapshot.publish(at, "2", content_type="application/json")
    with pytest.raises(library.OffsetGone) as gone:
        list(stream.read())
    copy = pickle.loads(pickle.dumps(gone.value))
    assert (copy.earliest_offset, copy.status, str(copy)) == (at, 410, str(gone.value))
