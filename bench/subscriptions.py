"""`python -m bench.subscriptions`: what subscriptions cost a client that appends.

A pattern is matched when a stream is made, and when it is next written after a subscription was
made. Appends go to two nodes in turn, one without subscriptions and one with a thousand, each of
which has one of a thousand streams: first while nobody acknowledges anything, so that all work is
pending, then with workers who claim each wake and acknowledge everything. The nodes share a
process, so both have the same disk, caches and neighbours, and their turns are short.
"""

from __future__ import annotations

import gc
import statistics
import time
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import NamedTuple

import click
import trio

from bench.lines import Line, own_directory, report
from bench.slow_receivers import delivering
from streamd.app import App, Environment
from streamd.config.settings import Config
from streamd.group.stores import Stores
from streamd.node.node import Node
from streamd.process.threads import in_thread
from streamd.streams import keys
from streamd.streams.commands import Append, Command, Create, Outcome, Result
from streamd.streams.model import Settings
from streamd.streams.subscriptions.commands import AcknowledgeWake, ClaimWake, PutSubscription
from streamd.streams.subscriptions.globs import PatternIndex
from streamd.streams.subscriptions.model import MAX_LINKS, Ack, SubscriptionConfig, WakeStamp
from streamd.streams.subscriptions.paths import path_of

_DATA_DIR = Path(__file__).parents[1] / "build" / "bench"
_STREAMS, _PATTERNS = 100_000, 1_000
_SUBSCRIPTIONS = 1_000
_MESSAGE = b"." * 100
_WRITERS = 500
_APPENDS_IN_TURN = 10_000
# Of a subscription's stream, between two acknowledgements.
_APPENDS_BETWEEN = 10
_JSON = Settings("application/json")
_AT_LEAST = 85


# -- matching --------------------------------------------------------------------------------------


def _patterns() -> Iterator[str]:
    """As many kinds of patterns as users write, and many of each."""
    for number in range(_PATTERNS):
        tenant = f"tenant-{number // 4}"
        yield (f"{tenant}/*", f"{tenant}/**", f"*/{tenant}/log", f"{tenant}/*/events")[number % 4]


def _paths(count: int) -> list[str]:
    tails = "session", "session/log", "agents/events", "a/b/c/d"
    return [f"tenant-{n % 1000}/{tails[n % 4]}-{n}" for n in range(count)]


def matching() -> Iterator[Line]:
    """How long a path takes to be matched."""
    index = PatternIndex()
    for number, pattern in enumerate(_patterns()):
        index.add(number, pattern)
    paths = _paths(_STREAMS)
    started = time.process_time()
    found = sum(len(index.matching(path)) for path in paths)
    took_s = time.process_time() - started
    yield Line(f"match of {_STREAMS:,} streams, {_PATTERNS:,} patterns", took_s, "s")
    yield Line("one match", took_s / len(paths) * 1e6, "µs", below=25)
    yield Line("subscriptions found by it", found / len(paths), "")


# -- appends ---------------------------------------------------------------------------------------


@asynccontextmanager
async def _running(directory: Path) -> AsyncIterator[Node]:
    stores = await in_thread(Stores.open, directory, 1)
    try:
        app = App(Config(), stores, Environment(random=Random(1)))
        async with app.running():
            yield app.node
    finally:
        stores.close()


class Writers:
    """Appends to a node's streams, all of which are there."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.streams = [keys.stream_key(b"bench", b"s%d" % n) for n in range(_SUBSCRIPTIONS)]

    async def prepare(self) -> None:
        for key in self.streams:
            await self.do(Create(key, Settings("text/plain"), implicit_bucket=True))

    async def do(self, command: Command) -> Outcome:
        return await self.node.group.writes.propose(command)

    async def turn(self, appends: int) -> float:
        """Append so many times; returns the processor time of each, in seconds."""
        left = iter(range(appends))

        async def write() -> None:
            for number in left:
                key = self.streams[number % len(self.streams)]
                command = Append(key, "text/plain", _MESSAGE, [len(_MESSAGE)])
                await self.node.group.writes.propose(command, len(_MESSAGE))

        started = time.process_time()
        async with trio.open_nursery() as nursery:
            for _ in range(_WRITERS):
                nursery.start_soon(write)
        return (time.process_time() - started) / appends


class Subscribed(Writers):
    """With a subscription of each stream, and workers for them if they are wanted."""

    has_workers = False

    async def prepare(self) -> None:
        await super().prepare()
        wake_key = keys.stream_key(b"bench", b"wakes")
        await self.do(Create(wake_key, _JSON, implicit_bucket=True))
        for key in self.streams:
            config = SubscriptionConfig("pull-wake", path_of(key), wake_key=wake_key)
            await self.do(PutSubscription(path_of(key).replace("/", "-"), config))

    async def turn(self, appends: int) -> float:
        if not self.has_workers:
            return await super().turn(appends)
        each = _APPENDS_BETWEEN * len(self.streams)
        took_s = 0.0
        for begin in range(0, appends, each):
            count = min(each, appends - begin)
            took_s += await super().turn(count) * count
            started = time.process_time()
            async with trio.open_nursery() as nursery:
                for key in self.streams:
                    nursery.start_soon(self._work, key)
            took_s += time.process_time() - started
        return took_s / appends

    async def _work(self, key: bytes) -> None:
        name = path_of(key).replace("/", "-")
        claimed = await self.do(ClaimWake(name, "worker"))
        assert claimed.result is Result.DONE, claimed
        assert claimed.wake is not None
        stamp = WakeStamp(claimed.wake.number, claimed.wake.generation, claimed.wake.wake_id)
        stream = self.node.group.state.streams.get(key)
        assert stream is not None
        acks = [Ack(key, stream.records, stream.size)]
        done = await self.do(AcknowledgeWake(name, stamp, acks, done=True))
        assert done.result is Result.DONE, done


class Turns(NamedTuple):
    """Processor time of an append in seconds, in each turn."""

    without: list[float]
    pending: list[float]
    worked: list[float]


async def _alternate(directory: Path, appends: int) -> Turns:
    turns = Turns([], [], [])
    async with (
        _running(directory / "plain") as plain,
        _running(directory / "with") as with_some,
    ):
        writers, subscribed = Writers(plain), Subscribed(with_some)
        await writers.prepare()
        await subscribed.prepare()
        for each in (writers, subscribed):
            await each.turn(_APPENDS_IN_TURN)
        for _ in range(max(1, appends // _APPENDS_IN_TURN // 2)):
            turns.without.append(await writers.turn(_APPENDS_IN_TURN))
            subscribed.has_workers = False
            turns.pending.append(await subscribed.turn(_APPENDS_IN_TURN))
            turns.without.append(await writers.turn(_APPENDS_IN_TURN))
            subscribed.has_workers = True
            turns.worked.append(await subscribed.turn(_APPENDS_IN_TURN))
    return turns


async def _wake_all(directory: Path) -> float:
    """How long an append takes that wakes as many subscriptions as one stream may have."""
    key, wake_key = keys.stream_key(b"one", b"s"), keys.stream_key(b"one", b"wakes")
    async with _running(directory / "one") as node:
        writers = Writers(node)
        await writers.do(Create(key, Settings("text/plain"), implicit_bucket=True))
        await writers.do(Create(wake_key, _JSON, implicit_bucket=True))
        for number in range(MAX_LINKS):
            config = SubscriptionConfig("pull-wake", "one/s", wake_key=wake_key)
            await writers.do(PutSubscription(f"s{number}", config))
        started = time.process_time()
        await writers.do(Append(key, "text/plain", _MESSAGE, [len(_MESSAGE)]))
        return time.process_time() - started


def appending(directory: Path, appends: int) -> Iterator[Line]:
    """What an append costs without subscriptions and with them."""
    turns = trio.run(_alternate, directory, appends)
    without, pending, worked = (statistics.median(each) * 1e6 for each in turns)
    yield Line("append, no subscription", without, "µs")
    yield Line(f"append, {_SUBSCRIPTIONS:,} with pending work", pending, "µs")
    yield Line("the rate beside none", without / pending * 100, "%", at_least=_AT_LEAST)
    yield Line(f"append, {_SUBSCRIPTIONS:,} with workers", worked, "µs")
    each = (worked - without) * _APPENDS_BETWEEN
    yield Line("a wake, its event, a claim and an acknowledgement", each, "µs")
    woken_s = trio.run(_wake_all, directory)
    yield Line(f"append that wakes {MAX_LINKS:,} subscriptions", woken_s * 1e3, "ms")


# -- memory ----------------------------------------------------------------------------------------


async def _in_memory(directory: Path) -> tuple[float, float]:
    """Bytes of memory that a subscription takes, and one stream's link to it."""
    async with _running(directory / "memory") as node:
        writers = Subscribed(node)
        await Writers.prepare(writers)
        await writers.turn(_SUBSCRIPTIONS)
        gc.collect()
        tracemalloc.start()
        wake_key = keys.stream_key(b"bench", b"wakes")
        records = node.group.state.subscriptions
        for number in range(_SUBSCRIPTIONS):
            config = SubscriptionConfig("pull-wake", f"none/tenant-{number}/*", wake_key=wake_key)
            await writers.do(PutSubscription(f"none-{number}", config))
        assert len(records) == _SUBSCRIPTIONS
        subscriptions = await _settled_bytes(node)
        for number in range(20):
            config = SubscriptionConfig("pull-wake", "bench/*", wake_key=wake_key)
            await writers.do(PutSubscription(f"all-{number}", config))
        await writers.turn(_SUBSCRIPTIONS)
        linked = await _settled_bytes(node)
        tracemalloc.stop()
    return subscriptions / _SUBSCRIPTIONS, (linked - subscriptions) / (20 * _SUBSCRIPTIONS)


async def _settled_bytes(node: Node) -> int:
    await node.group.reads.stored()
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


def memory(directory: Path) -> Iterator[Line]:
    """What subscriptions and their links take in memory."""
    one, link = trio.run(_in_memory, directory)
    yield Line("memory of a subscription", one, "B")
    yield Line("memory of a link of a stream in memory", link, "B")


@click.command()
@click.option("--appends", default=1_000_000, show_default=True, help="To each of the two nodes.")
@click.option("--only", type=click.Choice(["matching", "appending", "delivering", "memory"]))
def main(appends: int, only: str | None) -> None:
    """Measure what subscriptions cost; the bar is 85 % of the rate without any."""
    with own_directory(_DATA_DIR, "subscriptions-", needs_wrk=False) as own:
        parts = {
            "matching": matching(),
            "appending": appending(own, appends),
            "delivering": delivering(own),
            "memory": memory(own),
        }
        report(line for name, part in parts.items() if only in (None, name) for line in part)


if __name__ == "__main__":
    main()
