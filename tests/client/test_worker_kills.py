"""Workers that are killed, and servers: no message is lost, and none has its effect twice."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from random import Random
from threading import Thread
from typing import Any

import anyio
import pytest

from streamd.client import AsyncClient, Client, LeaseLost, Wake
from tests.client.drivers import KINDS, connected
from tests.support import tether
from tests.support.server_process import ServerProcess

MESSAGES = 30
# A result is stored with the position of its message, as docs/python.md has it.
PROGRAM = """
import sys
from streamd.client import Client

with Client(sys.argv[1]) as client:
    worker, results = client.subscription("mail").worker(), client.stream("results/a")
    while True:
        with worker.next() as wake, wake.producer("results/a", "mail") as producer:
            [stream] = wake.pending
            producer.append_json({"generation": wake.generation})
            producer.flush()
            position = stream.acked_offset
            for result in results.read_json():
                position = result.get("after", position)
            for position, message in client.stream("inbox/a").read_json(position, offsets=True):
                print("got", message, flush=True)
                producer.append_json({"after": position, "message": message})
                producer.flush()
                print("stored", message, flush=True)
                wake.ack({"inbox/a": position})
                print("acknowledged", message, flush=True)
"""


def prepare(client: Client, lease_ttl_s: float = 2.0) -> None:
    for name in ("wakes/mail", "inbox/a", "results/a"):
        client.stream(name).create("application/json")
    mail = client.subscription("mail")
    mail.create(wake_stream="wakes/mail", pattern="inbox/*", lease_ttl_s=lease_ttl_s)


@pytest.mark.long
def test_a_successor_of_a_killed_worker_continues_without_loss_and_doubles_nothing(
    tmp_path: Path,
) -> None:
    random = Random(11)
    messages = list(range(MESSAGES))
    with ServerProcess(tmp_path / "data") as server, Client(server.url) as client:
        prepare(client)
        inbox = client.stream("inbox/a")
        for start in range(0, MESSAGES, 3):  # An append has one message or two.
            inbox.append_json(start)
            inbox.append_json(start + 1, start + 2)
        stored: list[int] = []
        kills = 0
        while len(stored) < MESSAGES:
            run_until_killed(server.url, random.randrange(1, 20))
            kills += 1
            results = client.stream("results/a").read_json()
            stored = [result["message"] for result in results if "message" in result]
            assert stored == messages[: len(stored)]
    assert kills > 4


def run_until_killed(url: str, lines: int) -> None:
    """Run a worker until it has written so many lines, or the last."""
    command = [sys.executable, "-c", PROGRAM, url]
    worker: subprocess.Popen[str] = tether.start(command, stdout=subprocess.PIPE, text=True)
    with worker:
        assert worker.stdout is not None
        for line in worker.stdout:
            lines -= 1
            if lines == 0 or line == f"acknowledged {MESSAGES - 1}\n":
                worker.kill()


@pytest.mark.parametrize("kind", KINDS)
def test_a_worker_waits_while_its_server_is_away(tmp_path: Path, kind: str) -> None:
    found: list[Any] = []
    with ServerProcess(tmp_path / "data") as server, connected(kind, server.url) as client:
        prepare(client)
        worker = client.subscription("mail").worker()
        client.stream("inbox/a").append_json(1)
        with worker.next():
            pass  # So it knows its wake stream.

        def work() -> None:
            with worker.next() as wake:
                found.extend(wake.pending)

        thread = Thread(target=work)
        thread.start()
        server.kill()
        server.start()
        server.wait_ready()
        client.stream("inbox/a").append_json(2)
        thread.join(60)
    assert [stream.path for stream in found] == ["inbox/a"]


async def test_a_task_learns_that_its_lease_ended_while_the_server_was_away(
    tmp_path: Path,
) -> None:
    with ServerProcess(tmp_path / "data") as server:
        with Client(server.url) as client:
            prepare(client)
            client.stream("inbox/a").append_json(1)
        async with AsyncClient(server.url) as other:

            async def work() -> None:
                async with other.subscription("mail").worker().next():
                    server.kill()
                    await anyio.sleep_forever()

            with pytest.raises(LeaseLost, match="ended before the server renewed it"):
                with anyio.fail_after(30):
                    await work()


def test_a_thread_learns_that_its_lease_ended_while_the_server_was_away(tmp_path: Path) -> None:
    def work(wake: Wake) -> None:
        server.kill()
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            wake.check()

    with ServerProcess(tmp_path / "data") as server, Client(server.url) as client:
        prepare(client)
        client.stream("inbox/a").append_json(1)
        worker = client.subscription("mail").worker()
        lost = pytest.raises(LeaseLost, match="ended before the server renewed it")
        with lost, worker.next() as wake:
            work(wake)


@pytest.mark.parametrize("kind", KINDS)
def test_a_wake_outlives_a_restart_of_the_server(tmp_path: Path, kind: str) -> None:
    with ServerProcess(tmp_path / "data") as server, connected(kind, server.url) as client:
        prepare(client, lease_ttl_s=60.0)
        client.stream("inbox/a").append_json(1)
        mail = client.subscription("mail")
        with mail.worker().next() as wake:
            server.kill()
            server.start()
            server.wait_ready()
            wake.ack({})
        assert [stream.has_pending for stream in mail.streams()] == [False]
