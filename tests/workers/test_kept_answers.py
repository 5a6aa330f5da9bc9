"""An answer that a worker keeps is the one that the group's process would give."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
import trio
import trio.testing

from streamd.http.protocol.application import Later
from streamd.http.protocol.messages import LiveResponse, Parked, Request, Response
from streamd.http.sockets.outgoing import Outgoing
from streamd.process.metrics import Metrics
from streamd.streams.commands import Append
from streamd.workers.desk import Desk
from streamd.workers.link import Link
from streamd.workers.messages import (
    Answer,
    Forward,
    Piece,
    ToWorker,
    decode_from_worker,
    decode_to_worker,
)
from streamd.workers.versions import Versions, VersionsView
from tests.workers.processes import Client, on_each_worker, with_workers

STREAM = "/bucket/s"
BINARY = {"Content-Type": "application/octet-stream"}
# No stream has this tag, and an answer to a condition is never one that was kept.
FRESH = {"If-None-Match": '"none"'}


class Seen(NamedTuple):
    """What a client sees of an answer, whenever it was made."""

    status: int
    headers: dict[str, str]
    body: bytes


def see(client: Client, method: str, path: str, headers: dict[str, str] | None = None) -> Seen:
    response = client.ask(method, path, headers=headers)
    shown = {name: value for name, value in response.getheaders() if name != "Date"}
    return Seen(response.status, shown, response.read())


def change(client: Client, random: Random, tails: list[str]) -> None:
    """Change the stream in some way; `tails` are the offsets at which its records begin."""

    def ask(method: str, path: str, body: bytes = b"", **headers: str) -> str:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        response = client.ask(method, path, body, {**BINARY, **named})
        response.read()
        assert response.status < 300, (method, path, response.status)
        return response.headers.get("Stream-Next-Offset", "")

    match random.choice(("append",) * 6 + ("snapshot", "recreate", "expiring", "fork", "close")):
        case "append":
            tails.append(ask("POST", STREAM, random.randbytes(random.randint(1, 600))))
        case "snapshot":
            ask("PUT", f"{STREAM}/snapshot/{tails[-1]}", b"state")
        case "close":
            ask("POST", STREAM, Stream_Closed="true")
            ask("DELETE", STREAM)
            tails[:] = [ask("PUT", STREAM)]
        case "recreate":
            ask("DELETE", STREAM)
            tails[:] = [ask("PUT", STREAM)]
        case "expiring":
            ask("DELETE", STREAM)
            tails[:] = [ask("PUT", STREAM, Stream_TTL="3600")]
        case "fork":
            ask("PUT", f"{STREAM}-{random.randbytes(4).hex()}")


@pytest.mark.long
def test_kept_answers_are_those_that_would_be_made_now(tmp_path: Path) -> None:
    seed = 13
    print(f"seed {seed}")
    random = Random(seed)
    with with_workers(tmp_path) as server:
        clients = on_each_worker(server)
        clients[0].ask("PUT", "/bucket").read()
        first = clients[0].ask("PUT", STREAM, headers=BINARY)
        first.read()
        tails = [first.headers["Stream-Next-Offset"]]
        for _ in range(60):
            change(random.choice(clients), random, tails)
            paths = [STREAM] + [
                f"{STREAM}?offset={offset}" for offset in ("-1", "now", *random.choices(tails, k=2))
            ]
            for client in clients:
                for path in paths:
                    method = "HEAD" if path == STREAM else "GET"
                    fresh = see(client, method, path, FRESH)
                    assert see(client, method, path) == fresh
                    assert see(client, method, path) == fresh, "perhaps as it was kept"
                    if tag := fresh.headers.get("ETag"):
                        condition = {"If-None-Match": tag}
                        assert see(client, method, path, condition).status == 304
                    assert see(client, method, path) == fresh, "not what a condition was answered"


class OneStream:
    """An application with one stream, whose reads show its newest record."""

    def __init__(self) -> None:
        self.newest = b"old"

    def takes_pieces(self, path: bytes) -> bool:
        return False

    def refusal(self, request: Request) -> Response | None:
        return None

    async def foreseen(self, request: Request) -> Response | None:
        return None

    def begin(self, requests: Sequence[Request], later: Later) -> Sequence[Response]:
        return [Response(200, b"", self.newest, shows=b"key") for _ in requests]

    async def handle(self, request: Request) -> Response | LiveResponse:
        raise AssertionError("all is answered at once")

    def resume(self, parked: Parked) -> Response | Parked | None:
        raise AssertionError("nothing is parked")

    async def go_on(self, parked: Parked) -> Response | Parked | None:
        raise AssertionError("nothing is parked")


def a_read(number: int) -> Forward:
    return Forward(number, "GET", b"/bucket/s", b"", {}, b"", b"http", "127.0.0.1")


async def test_an_answer_that_waits_for_room_is_not_kept_as_newer_than_it_is() -> None:
    """A write that is acknowledged meanwhile, at another worker, must end the answer."""
    ours, its = socket.socketpair()
    answers: list[Answer] = []

    def take(message: ToWorker) -> None:
        if isinstance(message, Answer):
            answers.append(message)

    link, worker = Link(ours, decode_from_worker), Link(its, decode_to_worker)
    application, versions = OneStream(), Versions()
    view = VersionsView(versions.fileno)
    async with trio.open_nursery() as nursery:
        desk = Desk(
            link, application, {}, Metrics(), Outgoing(1 << 30), versions, (), nursery,
            lambda: None, lambda *_: None,
        )  # fmt: skip
        link.send(Piece([0], b"x" * 16_000_000))
        nursery.start_soon(desk.serve)
        await receive(worker, a_read(1))
        application.newest = b"new"
        versions.applied([Append(b"key", "", b"new", [3])])
        nursery.start_soon(worker.run, take)
        await trio.testing.wait_all_tasks_blocked(0.01)
        await receive(worker, a_read(2))
        nursery.cancel_scope.cancel()
    late, prompt = answers
    assert (late.body, late.stamp) == (b"old", None)
    assert prompt.body == b"new"
    assert prompt.stamp is not None
    assert view.holds(prompt.stamp)


async def receive(worker: Link[ToWorker], request: Forward) -> None:
    """Let the group's process receive a request, and do what it can about it."""
    worker.send(request)
    worker.flush()
    await trio.testing.wait_all_tasks_blocked(0.01)
