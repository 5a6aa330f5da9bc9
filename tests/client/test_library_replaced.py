"""Followers whose stream is deleted and created again, or goes back to an earlier state."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest

import streamd.client as library
from streamd.client import Client, Stream, StreamReplaced
from streamd.client.core import reading
from streamd.client.core.steps import Answer, Send
from tests.client.drivers import KINDS, connected
from tests.client.flows import emitted
from tests.client.test_flows import Network
from tests.support.server_process import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server") / "data") as server:
        yield server


@pytest.fixture(params=KINDS)
def stream(request: pytest.FixtureRequest, server: ServerProcess) -> Iterator[Stream]:
    """A JSON stream with two messages."""
    with connected(request.param, server.url) as client:
        stream = client.stream(f"demo/{uuid4()}")
        stream.create("application/json", data="[1, 2]")
        yield stream


def replace(stream: Stream, *messages: int) -> None:
    stream.delete()
    stream.create("application/json")
    stream.append_json(*messages)


@pytest.mark.parametrize("live", ["sse", "long-poll"])
def test_a_follower_ahead_of_a_stream_that_replaced_its_own_ends(
    stream: Stream, live: library.Live
) -> None:
    with stream.follow_json(live=live) as messages:
        assert [next(messages), next(messages)] == [1, 2]
        replace(stream, 3)
        stream.close()
        with pytest.raises(StreamReplaced):
            next(messages)


def test_a_follower_shows_nothing_of_a_longer_stream_that_replaced_its_own(stream: Stream) -> None:
    """Its offset exists there, and what precedes it would be left out."""
    with stream.follow_json(live="long-poll") as messages:
        assert [next(messages), next(messages)] == [1, 2]
        replace(stream, 3, 4, 5)
        with pytest.raises(StreamReplaced):
            next(messages)


def test_a_read_mixes_no_two_streams(server: ServerProcess) -> None:
    with Client(server.url) as client:
        stream = client.stream(f"demo/{uuid4()}")
        _fill(stream)
        chunks = stream.read(max_bytes=60_000)
        next(chunks)
        stream.delete()
        _fill(stream)
        with pytest.raises(StreamReplaced):
            list(chunks)


def _fill(stream: Stream) -> None:
    stream.create()
    for _ in range(4):
        stream.append(b"x" * 50_000)


def test_a_state_of_a_stream_that_was_replaced_begins_again(stream: Stream) -> None:
    with stream.state(live="long-poll") as state:
        assert next(state).json() is None
        assert next(state).json() == [1, 2]
        replace(stream, 3, 4, 5)
        stream.close()
        assert [part.json() for part in state] == [None, [3, 4, 5]]


# --- server-sent events, which have no ETag


def _offset(number: int) -> str:
    return f"{number:016}_{number * 2:016}"


def _piece(incarnation: int, at: int, end: int) -> Answer:
    etag = f'"{incarnation}:{_offset(at)}:{_offset(end)}"'
    headers = {
        "ETag": etag, "Stream-Next-Offset": _offset(end), "Stream-Up-To-Date": "true",
        "Content-Type": "application/json",
    }  # fmt: skip
    return Answer(200, headers, b"[%d]" % end if end > at else b"[]")


def _follower(answers: Callable[[Send], Any]) -> tuple[Network, Iterator[Any]]:
    network = Network(answers)
    return network, emitted(reading.follow(network.session(), "/x", "-1", "sse"), network)


def test_events_are_followed_only_of_the_stream_that_was_read() -> None:
    incarnation = 1

    def answer(send: Send) -> Answer:
        if "live=" in send.url:
            network.now_s += 60
            return Answer(200, {}, b"")
        at = 0 if "offset=-1" in send.url else 1
        return _piece(incarnation, at, 1)

    network, chunks = _follower(answer)
    assert next(chunks).json() == [1]
    incarnation = 2
    with pytest.raises(StreamReplaced):
        next(chunks)
    urls = [send.url.partition("?")[2] for send in network.sent]
    assert urls == [
        "offset=-1", f"live=sse&offset={_offset(1)}", f"offset={_offset(1)}",
    ]  # fmt: skip


def test_what_was_appended_while_no_events_came_is_shown_by_the_check() -> None:
    end = 1

    def answer(send: Send) -> Answer:
        nonlocal end
        if "live=" in send.url:
            network.now_s += 60
            end = 2
            return Answer(200, {}, b"")
        return _piece(1, 0 if "offset=-1" in send.url else 1, end)

    network, chunks = _follower(answer)
    assert [next(chunks).json(), next(chunks).json()] == [[1], [2]]
