"""A wait of a client may be interrupted at any moment, and repeated: every message once, in order.

The clock is the test's own, so a wait of a minute takes none, and the same seed interrupts at the
same moments.
"""

from __future__ import annotations

import gc
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from functools import partial
from random import Random
from typing import Any, TypeVar

import anyio
import pytest

from streamd.client import AsyncClient, MemoryPositions, StreamPositions
from streamd.state import collection
from streamd.state.db import StreamDB
from tests.client.virtual import AsyncNetwork, Network, Server, connected, connected_blocking, run

T = TypeVar("T")

BACKENDS = (pytest.param("asyncio", marks=pytest.mark.long), "trio")
SEEDS = range(4)
PATH = "/v1/stream/demo/x"
NAME = "demo/x"
# Less than any connection needs, what some need, and more than most do.
PATIENCE_S = {"never": (0.05,), "seldom": (0.01, 0.1, 0.5), "often": (0.1, 1.0, 30.0)}
LONG_S = 3600.0


class Impatient:
    """Repeats each wait until it ends, and interrupts it again and again."""

    def __init__(self, random: Random, waits_s: tuple[float, ...]) -> None:
        self._random = random
        self._waits_s = waits_s
        self.interruptions = 0

    async def __call__(self, call: Callable[[], Awaitable[T]]) -> T:
        with anyio.fail_after(LONG_S):
            while True:
                with anyio.move_on_after(self._random.choice(self._waits_s)):
                    return await call()
                self.interruptions += 1

    async def all(self, iteration: AsyncIterator[T]) -> list[T]:
        found: list[T] = []
        while True:
            try:
                found.append(await self(lambda: anext(iteration)))
            except StopAsyncIteration:
                return found


async def messages(chunks: AsyncIterator[Any], impatient: Impatient) -> list[Any]:
    """The messages of chunks, or of a snapshot and chunks."""
    found = await impatient.all(chunks)
    return [each for chunk in found if hasattr(chunk, "up_to_date") for each in chunk.json()]


# Each reads the whole stream in its own way.
FOLLOWING: dict[str, Callable[[AsyncClient, Impatient], Awaitable[list[Any]]]] = {
    "events": lambda c, i: messages(c.stream(NAME).follow(live="sse"), i),
    "long-poll": lambda c, i: messages(c.stream(NAME).follow(live="long-poll"), i),
    "json": lambda c, i: i.all(c.stream(NAME).follow_json()),
    "state": lambda c, i: messages(c.stream(NAME).state(), i),
}
READING: dict[str, Callable[[AsyncClient, Impatient], Awaitable[list[Any]]]] = {
    "read": lambda c, i: messages(c.stream(NAME).read(), i),
    "read-json": lambda c, i: i.all(c.stream(NAME).read_json()),
}


async def write(server: Server, random: Random) -> None:
    """Messages come now and then, with silence between."""
    for number in range(10, 30):
        await anyio.sleep(random.choice([0.0, 0.2, 1.0, 20.0]))
        server.append(PATH, number)
    server.closed.add(PATH)


@pytest.mark.parametrize(
    "patience",
    [*(pytest.param(one, marks=pytest.mark.long) for one in ("never", "seldom")), "often"],
)
@pytest.mark.parametrize("faults", [pytest.param(0, marks=pytest.mark.long), 10])
@pytest.mark.parametrize("way", FOLLOWING)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_follower_that_is_interrupted_gets_every_message_once(
    backend: str, way: str, faults: int, patience: str
) -> None:
    for seed in SEEDS if patience != "never" else SEEDS[:1]:
        random, server = Random(seed), Server()
        server.append(PATH, *range(10))

        async def main(random: Random = random, server: Server = server, seed: int = seed) -> None:
            network = AsyncNetwork(server, random, faults)
            async with connected(network, random) as client, anyio.create_task_group() as tasks:
                tasks.start_soon(write, server, random)
                impatient = Impatient(random, PATIENCE_S[patience])
                assert await FOLLOWING[way](client, impatient) == list(range(30)), seed
                assert impatient.interruptions, "the test interrupts"

        run(backend, main)


@pytest.mark.parametrize("backend", BACKENDS)
def test_interruptions_cost_a_follower_no_request_and_no_time(backend: str) -> None:
    """Counted as failures they would be followed by longer and longer pauses."""
    random, server = Random(0), Server()
    server.append(PATH, *range(10))

    async def main() -> None:
        async with connected(AsyncNetwork(server, random), random) as client:
            messages = client.stream(NAME).follow_json()
            impatient = Impatient(random, (0.15,))
            for number in range(10):
                assert await impatient(lambda: anext(messages)) == number
            for _ in range(50):  # A quiet stream, asked whether it has news.
                with anyio.move_on_after(0.15):
                    await anext(messages)
            asked, began = server.requests, anyio.current_time()
            server.append(PATH, 10)
            assert await impatient(lambda: anext(messages)) == 10
            assert anyio.current_time() - began < 3
            assert server.requests == asked
            await messages.close()

    run(backend, main)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_interrupted_pause_ends_when_it_would_have_ended(backend: str) -> None:
    random, server = Random(0), Server()
    server.append(PATH, "news")

    async def main() -> None:
        network = AsyncNetwork(server, random, faults=100)
        async with connected(network, random) as client:
            messages = client.stream(NAME).follow_json()
            with anyio.move_on_after(60):
                await anext(messages)
            network._faults = 0
            began = anyio.current_time()
            assert await Impatient(random, (0.01,))(lambda: anext(messages)) == "news"
            assert anyio.current_time() - began < 8
            await messages.close()

    run(backend, main)


@pytest.mark.parametrize("way", READING)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_read_that_is_interrupted_gets_every_message_once(backend: str, way: str) -> None:
    for seed in SEEDS:
        random, server = Random(seed), Server()
        server.append(PATH, *range(20))

        async def main(random: Random = random, server: Server = server, seed: int = seed) -> None:
            async with connected(AsyncNetwork(server, random, 10), random) as client:
                impatient = Impatient(random, PATIENCE_S["seldom"])
                assert await READING[way](client, impatient) == list(range(20)), seed

        run(backend, main)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_download_that_is_interrupted_has_every_byte_once(backend: str) -> None:
    for seed in SEEDS:
        random, server = Random(seed), Server()

        async def main(random: Random = random, server: Server = server, seed: int = seed) -> None:
            async with connected(AsyncNetwork(server, random), random) as client:
                impatient = Impatient(random, PATIENCE_S["seldom"])
                answer, *pieces = await impatient.all(client.download("/download"))
                assert not isinstance(answer, bytes)
                assert b"".join(p for p in pieces if isinstance(p, bytes)) == server.download, seed
                assert server.requests == 1

        run(backend, main)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_append_with_a_key_that_is_interrupted_is_stored_once(backend: str) -> None:
    for seed in SEEDS:
        random, server = Random(seed), Server()
        server.append(PATH)

        async def main(random: Random = random, server: Server = server) -> None:
            async with connected(AsyncNetwork(server, random, 10), random) as client:
                stream = client.stream(NAME, content_type="application/json")
                # A call that is cancelled ends: it must last as long as a request may take.
                impatient = Impatient(random, (0.1, 1.0, 5.0))
                for number in range(10):
                    key = f"order-{number}"
                    await impatient(lambda n=number, k=key: stream.append_json(n, once=k))
                answers = [
                    lambda: stream.head(),
                    lambda: stream.snapshot.read(),
                    lambda: stream.bootstrap(),
                ]
                for call in answers:
                    await impatient(call)
                found = await impatient(stream.bootstrap)
                assert found.json() == list(range(10))

        run(backend, main)
        assert server.records[PATH] == list(range(10)), seed


@pytest.mark.parametrize("patience", PATIENCE_S)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_producer_whose_waits_are_interrupted_stores_each_append_once(
    backend: str, patience: str
) -> None:
    for seed in SEEDS:
        random, server = Random(seed), Server()
        server.append(PATH)

        async def main(random: Random = random, server: Server = server) -> None:
            async with connected(AsyncNetwork(server, random, 10), random) as client:
                impatient = Impatient(random, PATIENCE_S[patience])
                stream = client.stream(NAME, content_type="application/json")
                async with stream.producer(max_batch_bytes=8, max_queued_bytes=16) as producer:
                    for number in range(40):
                        await impatient(lambda n=number: producer.append_json(n))
                        if random.randrange(10) == 0:
                            await impatient(producer.flush)
                            assert server.records[PATH] == list(range(number + 1))
                    assert (await impatient(producer.close_stream)).closed

        run(backend, main)
        assert server.records[PATH] == list(range(40)), seed
        assert PATH in server.closed


@pytest.mark.long
@pytest.mark.parametrize("kind", ["memory", "stream"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_consumer_whose_waits_are_interrupted_handles_every_message_once(
    backend: str, kind: str
) -> None:
    """Also one that begins again in between: each wait was followed by a commit."""
    for seed in SEEDS:
        random, server = Random(seed), Server()
        server.append(PATH, *range(20))
        server.append("/v1/stream/positions/x")
        server.closed.add(PATH)

        async def main(random: Random = random, server: Server = server, seed: int = seed) -> None:
            positions = MemoryPositions() if kind == "memory" else StreamPositions("positions/x")
            async with connected(AsyncNetwork(server, random, 10), random) as client:
                waits = Impatient(random, PATIENCE_S["seldom"])
                # A call that is cancelled ends: it must last as long as a request may take.
                commits = Impatient(random, (0.1, 1.0, 5.0))
                found: list[int] = []
                while len(found) < 20:
                    consumer = client.stream(NAME).consumer("me", positions=positions)
                    for _ in range(min(random.randrange(1, 8), 20 - len(found))):
                        found.append(await waits(lambda c=consumer: anext(c)))
                        await commits(consumer.commit)
                    await consumer.close()
                assert found == list(range(20)), seed
                assert waits.interruptions, "the test interrupts"

        run(backend, main)


@pytest.mark.long
def test_a_blocking_consumer_that_a_signal_interrupts_handles_every_message_once() -> None:
    for seed in range(12):
        server = Server()
        server.append(PATH, *range(20))
        server.append("/v1/stream/positions/x")
        server.closed.add(PATH)
        positions = StreamPositions("positions/x")
        with connected_blocking(Network(server, Random(seed), 20)) as client:
            found: list[int] = []
            while len(found) < 20:
                consumer = client.stream(NAME).consumer("me", positions=positions)
                for _ in range(5):
                    found.append(patient_blocking(lambda c=consumer: next(c)))
                    patient_blocking(consumer.commit)
                consumer.close()
            assert found == list(range(20)), seed


class Users(StreamDB):
    users = collection(dict[str, int], type="user")


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_waits_of_a_database_may_be_interrupted(backend: str) -> None:
    def event(number: int) -> Any:
        headers = {"operation": "upsert", "txid": str(number)}
        return {"type": "user", "key": "n", "value": {"n": number}, "headers": headers}

    for seed in SEEDS:
        random, server = Random(seed), Server()
        server.append(PATH, *map(event, range(20)))

        async def main(random: Random = random, server: Server = server, seed: int = seed) -> None:
            async with connected(AsyncNetwork(server, random, 5), random) as client:
                impatient = Impatient(random, (0.1, 1.0, 8.0))
                db = Users(client.stream(NAME))
                await impatient(db.preload)
                assert db.users["n"] == {"n": 19}, seed
                await db.close()
                impatient = Impatient(random, PATIENCE_S["never"])
                async with Users(client.stream(NAME)) as db:
                    await impatient(db.ready)
                    changes = db.users.changes()
                    for number in range(20, 30):
                        server.append(PATH, event(number))
                        await impatient(lambda n=number: db.wait_for(str(n)))
                        assert (await impatient(lambda: anext(changes))).value == {"n": number}

        run(backend, main)


@pytest.mark.parametrize("ends", [pytest.param("closed", marks=pytest.mark.long), "forgotten"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_follower_that_is_cancelled_and_left_keeps_no_connection(backend: str, ends: str) -> None:
    """As a page's request does, whose reader goes away: with or without `close`."""
    random, server = Random(0), Server()
    server.append(PATH, 1)

    async def main() -> None:
        network = AsyncNetwork(server, random)
        async with connected(network, random) as client:
            for wait_s in (0.001, 1.0, 5.0, 30.0, 100.0):
                messages = client.stream(NAME).follow_json()
                with anyio.move_on_after(wait_s):
                    async for _ in messages:
                        pass
                if ends == "closed":
                    await messages.close()
                del messages
                gc.collect()
                await anyio.sleep(0.01)
                assert network.open == 0, wait_s

    run(backend, main)


# --- blocking: a signal interrupts


def patient_blocking(call: Callable[[], T]) -> T:
    for _ in range(10_000):
        try:
            return call()
        except KeyboardInterrupt:
            pass
    raise AssertionError("no progress")


def all_blocking(iteration: Iterator[T]) -> list[T]:
    found: list[T] = []
    while True:
        try:
            found.append(patient_blocking(lambda: next(iteration)))
        except StopIteration:
            return found


@pytest.mark.parametrize("way", ["sse", "long-poll", "read"])
def test_a_blocking_reader_that_a_signal_interrupts_gets_every_message_once(way: str) -> None:
    for seed in range(12):
        random, server = Random(seed), Server()
        server.append(PATH, *range(10))
        network = Network(server, random, 20)

        def news(random: Random = random, server: Server = server) -> None:
            if len(server.records[PATH]) == 40:
                server.closed.add(PATH)
            elif random.randrange(3) == 0:
                server.append(PATH, len(server.records[PATH]))

        network.news = news
        with connected_blocking(network) as client:
            stream = client.stream(NAME)
            if way == "read":
                found = all_blocking(stream.read_json())
                assert found == list(range(len(found))), seed
            else:
                assert all_blocking(stream.follow_json(live=way)) == list(range(40)), seed  # type: ignore[call-overload]


def test_a_blocking_append_with_a_key_that_a_signal_interrupts_is_stored_once() -> None:
    for seed in range(12):
        server = Server()
        server.append(PATH)
        with connected_blocking(Network(server, Random(seed), 30)) as client:
            stream = client.stream(NAME, content_type="application/json")
            for number in range(10):
                append = partial(stream.append_json, number, once=f"order-{number}")
                patient_blocking(append)
            found = patient_blocking(stream.bootstrap)
            assert found.json() == server.records[PATH] == list(range(10)), seed
