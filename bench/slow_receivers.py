"""Deliveries of webhooks to receivers that answer, beside ones that do not.

In every other turn all receivers of a node answer; in the others some have all the places that they
can get, which hang, send their answer a byte at a time, or send a gigabyte. A delivery is timed
from the append that causes it until the receiver has the request. The receivers share the node's
process.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec
import trio

from bench.lines import Line
from streamd.app import App, Environment
from streamd.config.settings import Config
from streamd.config.subscriptions import SubscriptionsConfig
from streamd.group.stores import Stores
from streamd.node.node import Node
from streamd.process.threads import in_thread
from streamd.streams import keys
from streamd.streams.commands import Append, Command, Create, Outcome
from streamd.streams.model import Settings
from streamd.streams.subscriptions.commands import PutSubscription
from streamd.streams.subscriptions.model import SubscriptionConfig
from streamd.streams.subscriptions.paths import path_of

_GOOD, _BAD_OF_A_KIND = 64, 50
_APPENDERS = 8
_DELIVERIES_IN_TURN = 400
_TURNS = 4
_DRIP_S = 0.1
_GIGABYTE, _PIECE = 2**30, bytes(2**16)
_DONE = b'HTTP/1.1 200 OK\r\nContent-Length: 13\r\nConnection: close\r\n\r\n{"done":true}'

Behaviour = Callable[[trio.abc.Stream], Awaitable[None]]


class _Notified(msgspec.Struct):
    subscription_id: str


async def _hang(stream: trio.abc.Stream) -> None:
    await trio.sleep_forever()


async def _drip(stream: trio.abc.Stream) -> None:
    with suppress(trio.BrokenResourceError):
        for byte in _DONE:
            await stream.send_all(bytes([byte]))
            await trio.sleep(_DRIP_S)


async def _flood(stream: trio.abc.Stream) -> None:
    await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % _GIGABYTE)
    with suppress(trio.BrokenResourceError):
        for _ in range(_GIGABYTE // len(_PIECE)):
            await stream.send_all(_PIECE)


# Each at a host of its own, as those of strangers are.
_BAD: dict[str, Behaviour] = {"127.0.0.2": _hang, "127.0.0.3": _drip, "127.0.0.4": _flood}


class _Receivers:
    """The receivers of a node's webhooks, and who waits for one."""

    def __init__(self) -> None:
        self.urls: dict[str, str] = {}
        self.arrived: dict[str, trio.Event] = {}
        # Set while all of them answer.
        self._well_behaved = trio.Event()
        self._well_behaved.set()

    def misbehave(self) -> None:
        self._well_behaved = trio.Event()

    def behave(self) -> None:
        """Break off what has not been answered; its repetition will be."""
        self._well_behaved.set()

    async def listen(self, nursery: trio.Nursery) -> None:
        every: dict[str, Behaviour] = {"127.0.0.1": self._answer}
        every |= {host: partial(self._keep, behave) for host, behave in _BAD.items()}
        for host, behave in every.items():
            [listener] = await trio.open_tcp_listeners(0, host=host)
            self.urls[host] = f"http://{host}:{listener.socket.getsockname()[1]}/"
            nursery.start_soon(trio.serve_listeners, partial(self._serve, behave), [listener])

    async def _serve(self, behave: Behaviour, stream: trio.abc.Stream) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async with stream:
                raw = b""
                # The body is one object, and the request has nothing after it.
                while not raw.endswith(b"}"):
                    if not (piece := await stream.receive_some()):
                        return
                    raw += piece
                body = raw.partition(b"\r\n\r\n")[2]
                name = msgspec.json.decode(body, type=_Notified).subscription_id
                if name in self.arrived:
                    self.arrived[name].set()
                await behave(stream)

    async def _keep(self, behave: Behaviour, stream: trio.abc.Stream) -> None:
        if self._well_behaved.is_set():
            await self._answer(stream)
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(behave, stream)
            await self._well_behaved.wait()
            nursery.cancel_scope.cancel()

    async def _answer(self, stream: trio.abc.Stream) -> None:
        await stream.send_all(_DONE)


class _Deliveries:
    """A node whose webhooks are counted."""

    def __init__(self, node: Node, receivers: _Receivers) -> None:
        self._node, self.receivers = node, receivers

    async def _do(self, command: Command) -> Outcome:
        return await self._node.group.writes.propose(command)

    async def subscribe(self, count: int, host: str) -> list[bytes]:
        """Make streams, each with a webhook to a host."""
        found = [keys.stream_key(host.encode(), b"s%d" % number) for number in range(count)]
        for key in found:
            await self._do(Create(key, Settings("text/plain"), implicit_bucket=True))
            config = SubscriptionConfig("webhook", path_of(key), self.receivers.urls[host])
            await self._do(PutSubscription(_name_of(key), config))
        return found

    async def append(self, key: bytes) -> None:
        await self._do(Append(key, "text/plain", b"x", [1]))

    async def turn(self, streams: list[bytes]) -> Turn:
        """Append to streams, to each once what was there is delivered."""
        took_s: list[float] = []

        async def appender(number: int) -> None:
            own = streams[number::_APPENDERS]
            for count in range(_DELIVERIES_IN_TURN // _APPENDERS):
                key = own[count % len(own)]
                arrived = self.receivers.arrived[_name_of(key)] = trio.Event()
                started = time.perf_counter()
                await self.append(key)
                await arrived.wait()
                took_s.append(time.perf_counter() - started)

        started = time.perf_counter()
        async with trio.open_nursery() as nursery:
            for number in range(_APPENDERS):
                nursery.start_soon(appender, number)
        rate = len(took_s) / (time.perf_counter() - started)
        return Turn(rate, statistics.quantiles(took_s, n=100)[98] * 1e3)


class Turn(NamedTuple):
    """Deliveries a second, and how long all but one of a hundred take, in milliseconds."""

    per_s: float
    p99_ms: float


def _name_of(key: bytes) -> str:
    return path_of(key).replace("/", "-")


@asynccontextmanager
async def _running(directory: Path) -> AsyncIterator[_Deliveries]:
    config = Config(subscriptions=SubscriptionsConfig(allow_local_http=True))
    stores = await in_thread(Stores.open, directory, 1)
    receivers = _Receivers()
    try:
        app = App(config, stores, Environment(random=Random(1)))
        async with trio.open_nursery() as nursery, app.running():
            await receivers.listen(nursery)
            await app.node.keyring.ensure()
            yield _Deliveries(app.node, receivers)
            nursery.cancel_scope.cancel()
    finally:
        stores.close()


async def _compare(directory: Path) -> tuple[list[Turn], list[Turn]]:
    alone: list[Turn] = []
    beside: list[Turn] = []
    async with _running(directory / "deliveries") as deliveries:
        streams = await deliveries.subscribe(_GOOD, "127.0.0.1")
        of_bad = [key for host in _BAD for key in await deliveries.subscribe(_BAD_OF_A_KIND, host)]
        await deliveries.turn(streams)
        for _ in range(_TURNS):
            alone.append(await deliveries.turn(streams))
            deliveries.receivers.misbehave()
            for key in of_bad:
                await deliveries.append(key)
            # An attempt costs the same whatever the receiver does: not the first ones of all are
            # measured, but what it costs that they go on.
            await deliveries.turn(streams)
            beside.append(await deliveries.turn(streams))
            deliveries.receivers.behave()
            await deliveries.turn(streams)
    return alone, beside


def delivering(directory: Path) -> Iterator[Line]:
    """What receivers that do not answer cost the deliveries to those that do."""
    alone, beside = trio.run(_compare, directory)
    rates = [statistics.median(turn.per_s for turn in turns) for turns in (alone, beside)]
    waits = [statistics.median(turn.p99_ms for turn in turns) for turns in (alone, beside)]
    yield Line("deliveries to receivers that answer", rates[0], "/s")
    yield Line("99 % of them within", waits[0], "ms")
    yield Line(f"the same beside {_BAD_OF_A_KIND * len(_BAD)} that do not", rates[1], "/s")
    yield Line("99 % of those within", waits[1], "ms")
    yield Line("the rate beside them", rates[1] / rates[0] * 100, "%")
    yield Line("the wait beside them", waits[1] / waits[0], "x")
