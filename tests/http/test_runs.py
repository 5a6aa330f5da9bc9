"""Requests that come together are answered as if each came alone, byte for byte."""

from __future__ import annotations

import re
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from streamd.group.admission import Admission
from streamd.group.proposals import OutcomeUnknown, Proposal
from streamd.http.door.arrivals import Arrivals
from streamd.http.protocol.messages import Request
from streamd.http.streams import writes
from streamd.streams.commands import SetLimits
from streamd.streams.limits import Limits
from tests.http.serving import PATIENCE_S, Serving, serving, until
from tests.support.long import first_quick

MOST_BYTES = 40
CONNECTIONS = 6
_DATE = re.compile(rb"\r\nDate: [^\r]*")


def request(method: str, path: str, body: bytes = b"", **headers: object) -> bytes:
    """A request as it goes on the wire; the names of headers are written with underscores."""
    lines = [f"{method} {path} HTTP/1.1", "Host: x"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


text = partial(request, Content_Type="text/plain")
json = partial(request, Content_Type="application/json")
STREAMS = ("/v1/stream/a", "/v1/stream/b", "/full/s")
BEGIN = [
    request("PUT", "/full"),
    *(text("PUT", path) for path in STREAMS),
    json("PUT", "/v1/stream/j"),
    text("PUT", "/v1/stream/still", b"still"),
]
BODIES = st.sampled_from((b"x", b"y", b"two", b"six", b"z" * MOST_BYTES, b"z" * (MOST_BYTES + 1)))
# They differ in nothing but their bodies.
ALIKE = st.builds(
    text, st.just("POST"), st.just("/v1/stream/a"), st.sampled_from((b"x", b"y", b"z"))
)
APPENDS = st.builds(text, st.just("POST"), st.sampled_from(STREAMS), BODIES)
# Without a DELETE, which a task carries out, later than what came with it.
OTHERS = st.sampled_from(
    [
        json("POST", "/v1/stream/j", b'{"a": 1}'),
        json("POST", "/v1/stream/j", b"[1, 2]"),
        json("POST", "/v1/stream/j", b"[]"),
        json("POST", "/v1/stream/j", b"[1,,]"),
        json("POST", "/v1/stream/a", b"1"),
        text("POST", "/v1/stream/absent", b"x"),
        text("POST", "/v1/stream/a"),
        text("POST", "/v1/stream/b", b"last", Stream_Closed="true"),
        request("POST", "/v1/stream/b", Stream_Closed="true"),
        request("POST", "/v1/stream/a", b"no type"),
        text("POST", "/v1/stream/a", b"x", Content_Encoding="gzip"),
        text("POST", "/v1/stream/a", b"x", Stream_Seq="1"),
        text("POST", "/v1/stream/a", b"x", Stream_Seq="2"),
        text("POST", "/v1/stream/a", b"x", If_Match="*"),
        text("POST", "/v1/stream/a", b"x", If_Match='"1:0:0"'),
        text("PUT", "/v1/stream/b"),
        text("PUT", "/v1/stream/new", b"first"),
        text("POST", "/full/s/append-batch", b"\0\0\0\1x\0\0\0\2yz"),
        text("POST", "/full/s/append-batch", b"\0\0\0\2x"),
        request("GET", "/v1/stream/still"),
        request("HEAD", "/v1/stream/still"),
        request("GET", "/v1/nowhere"),
        request("PATCH", "/v1/stream/a"),
        b"malformed\r\n\r\n",
    ]
)
PRODUCERS = st.builds(
    partial(text, "POST", "/v1/stream/a", b"x", Producer_Id="p"),
    Producer_Epoch=st.integers(0, 1),
    Producer_Seq=st.integers(0, 2),
)
TOGETHER = st.lists(st.one_of(ALIKE, ALIKE, APPENDS, OTHERS, PRODUCERS), max_size=CONNECTIONS)


class Clients:
    """Connections of blocking sockets, so that nothing else happens between two sends."""

    def __init__(self, server: Serving) -> None:
        self._server = server
        self._sockets: list[socket.socket] = []

    async def connect(self, count: int = CONNECTIONS) -> None:
        """Connect until the server has accepted so many connections."""
        for _ in range(count - len(self._sockets)):
            self._sockets.append(socket.create_connection(("127.0.0.1", self._server.port)))
        await until(lambda: self._server.connections == count)

    def place_of(self, address: object) -> int:
        """Which connection has this address of its own."""
        return [one.getsockname() for one in self._sockets].index(address)

    def send(self, place: int, data: bytes) -> None:
        self._sockets[place].sendall(data)

    def send_all(self, requests: Sequence[bytes]) -> None:
        """Send a request on each connection."""
        for place, one in enumerate(requests):
            self.send(place, one)

    async def answer(self, place: int, *, to_head: bool) -> bytes:
        """The next answer but for its date. The connection is replaced if that is its last."""
        found = b""
        with trio.fail_after(PATIENCE_S):
            while not _is_whole(found, to_head=to_head):
                await trio.lowlevel.wait_readable(self._sockets[place])
                data = self._sockets[place].recv(65536)
                assert data, f"closed after {found!r}"
                found += data
        if b"\r\nConnection: close\r\n" in found:
            self.close(place)
            await until(lambda: self._server.connections == len(self._sockets))
            await self.connect(len(self._sockets) + 1)
            self._sockets.insert(place, self._sockets.pop())
        return _DATE.sub(b"", found)

    def close(self, place: int) -> None:
        self._sockets.pop(place).close()

    def close_all(self) -> None:
        while self._sockets:
            self.close(0)


def _is_whole(answer: bytes, *, to_head: bool) -> bool:
    head, end, body = answer.partition(b"\r\n\r\n")
    size = re.search(rb"\r\nContent-Length: (\d+)", head)
    return bool(end) and (to_head or size is None or len(body) == int(size[1]))


@asynccontextmanager
async def clients_of(
    directory: Path, *, has_rates: bool = False
) -> AsyncIterator[tuple[Serving, Clients]]:
    async with serving(directory, max_body_bytes=MOST_BYTES) as server:
        clients = Clients(server)
        propose = server.node.group.writes.propose
        await propose(SetLimits("bucket", "full", Limits(max_stream_bytes=30)))
        if has_rates:
            await propose(SetLimits("identity", "anonymous", Limits(requests_per_s=1_000_000)))
        await clients.connect()
        try:
            yield server, clients
        finally:
            clients.close_all()


async def alone(
    clients: Clients, requests: Sequence[bytes], order: Sequence[int] = ()
) -> list[bytes]:
    """The answers to requests of which each is answered before the next is sent: in an `order` of
    their places first, if one is given, and then the others."""
    answers = [b""] * len(requests)
    for place in dict.fromkeys((*order, *range(len(requests)))):
        one = requests[place]
        clients.send(place, one)
        answers[place] = await clients.answer(place, to_head=one.startswith(b"HEAD"))
    return answers


async def together(clients: Clients, requests: Sequence[bytes]) -> list[bytes]:
    """The answers to requests that the server gets in one turn."""
    clients.send_all(requests)
    return [
        await clients.answer(place, to_head=one.startswith(b"HEAD"))
        for place, one in enumerate(requests)
    ]


@contextmanager
def order_of_arrival(clients: Clients) -> Iterator[list[int]]:
    """The places of the requests that the server begins in the block, as it meets them: the system
    reports connections that are ready in any order."""
    order: list[int] = []
    serve = Arrivals.serve

    def noted(arrivals: Arrivals, connections: Sequence[Any], requests: Sequence[Request]) -> None:
        peers = (connection.transport._sock.getpeername() for connection in connections)
        order.extend(map(clients.place_of, peers))
        serve(arrivals, connections, requests)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Arrivals, "serve", noted)
        yield order


@pytest.mark.parametrize(
    "has_rates", first_quick([False, True]), ids=["without limits", "with limits of rates"]
)
@settings(max_examples=15)
@given(batches=st.lists(TOGETHER, max_size=4))
def test_requests_that_come_together_are_answered_as_if_each_came_alone(
    batches: list[list[bytes]], has_rates: bool
) -> None:
    async def all_together(directory: Path) -> tuple[list[list[bytes]], list[list[int]]]:
        async with clients_of(directory, has_rates=has_rates) as (_, clients):
            found, orders = [await alone(clients, [one]) for one in BEGIN], []
            for batch in batches:
                with order_of_arrival(clients) as order:
                    found.append(await together(clients, batch))
                orders.append(order)
            return found + await contents(clients), orders

    async def each_alone(directory: Path, orders: Sequence[Sequence[int]]) -> list[list[bytes]]:
        async with clients_of(directory, has_rates=has_rates) as (_, clients):
            found = [await alone(clients, [one]) for one in BEGIN]
            for batch, order in zip(batches, orders, strict=True):
                found.append(await alone(clients, batch, order))
            return found + await contents(clients)

    async def contents(clients: Clients) -> list[list[bytes]]:
        paths = (*STREAMS, "/v1/stream/j", "/v1/stream/new")
        return [await alone(clients, [request("GET", path)]) for path in paths]

    async def both() -> None:
        with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
            found, orders = await all_together(Path(first))
            assert found == await each_alone(Path(second), orders)

    trio.run(both)


APPEND = text("POST", "/v1/stream/a", b"x")
CREATE = text("PUT", "/v1/stream/a")


def statuses(answers: Sequence[bytes]) -> list[int]:
    return [int(answer.split(b" ", 2)[1]) for answer in answers]


async def test_appends_with_one_head_are_proposed_as_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []
    add = Admission.add

    def counted(admission: Admission, proposal: Proposal) -> None:
        counts.append(proposal.count)
        add(admission, proposal)

    async with clients_of(tmp_path) as (_, clients):
        await alone(clients, [CREATE, APPEND])
        monkeypatch.setattr(Admission, "add", counted)
        answers = await together(clients, [APPEND] * CONNECTIONS)
    assert statuses(answers) == [204] * CONNECTIONS
    assert len(set(answers)) == CONNECTIONS, "each has an offset of its own"
    assert counts == [CONNECTIONS]


async def test_each_request_of_a_run_is_charged(tmp_path: Path) -> None:
    async with clients_of(tmp_path) as (server, clients):
        await alone(clients, [CREATE, APPEND])
        limits = SetLimits("identity", "anonymous", Limits(requests_per_s=CONNECTIONS - 2))
        await server.node.group.writes.propose(limits)
        answers = await together(clients, [APPEND] * CONNECTIONS)
        assert sorted(statuses(answers)) == [204] * (CONNECTIONS - 2) + [429] * 2


async def test_a_client_that_leaves_takes_no_other_request_of_its_run_along(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with clients_of(tmp_path) as (server, clients):
        await alone(clients, [CREATE])
        group = server.node.group
        with monkeypatch.context() as patch:
            patch.setattr(group, "_propose_pending", lambda: None)
            clients.send_all([APPEND] * CONNECTIONS)
            await until(lambda: group.admission.held["waiting_commands"].now == CONNECTIONS)
            clients.close(2)
            await trio.testing.wait_all_tasks_blocked()
        answers = [await clients.answer(place, to_head=False) for place in range(CONNECTIONS - 1)]
        assert statuses(answers) == [204] * (CONNECTIONS - 1)
        assert await server.content("/v1/stream/a") == b"x" * CONNECTIONS


async def test_when_leadership_is_lost_the_outcome_of_each_request_of_a_run_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with clients_of(tmp_path) as (server, clients):
        await alone(clients, [CREATE])
        group = server.node.group
        with monkeypatch.context() as patch:
            patch.setattr(group._writer, "start_next", lambda: None)
            clients.send_all([APPEND] * CONNECTIONS)
            await until(lambda: group._applier._pending)
            group._applier.fail_all(OutcomeUnknown("the leader changed"))
            answers = [await clients.answer(place, to_head=False) for place in range(CONNECTIONS)]
        assert statuses(answers) == [503] * CONNECTIONS
        assert all(b"OUTCOME_UNKNOWN" in answer for answer in answers)
        assert server.node.metrics.outcomes_unknown == CONNECTIONS
        group._loop.wake()
        await until(lambda: not group._applier._pending)
        assert await server.content("/v1/stream/a") == b"x" * CONNECTIONS


async def test_a_bug_that_one_request_of_a_run_meets_costs_no_other_its_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    position = writes._position
    called = 0

    def fails_once(outcome: Any) -> bytes:
        nonlocal called
        called += 1
        if called == 3:
            raise ValueError
        return position(outcome)

    async with clients_of(tmp_path) as (_, clients):
        await alone(clients, [CREATE])
        monkeypatch.setattr(writes, "_position", fails_once)
        answers = await together(clients, [APPEND] * CONNECTIONS)
        assert sorted(statuses(answers)) == [204] * (CONNECTIONS - 1) + [500]
        assert statuses(await together(clients, [APPEND] * CONNECTIONS)) == [204] * CONNECTIONS
