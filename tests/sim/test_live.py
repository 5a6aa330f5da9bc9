"""Live readers that stay with their node, whatever happens to it, get everything once."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from random import Random

import pytest
import trio

from streamd.config.settings import ServerConfig
from streamd.group.proposals import Unavailable
from streamd.http.door.parking import wait
from streamd.http.protocol.connections import Buffer
from streamd.http.protocol.messages import LiveResponse, Parked, Request, Response
from tests.sim.runtime import run_virtually
from tests.support.long import first_quick
from tests.support.machines import Machine, Machines, Scenario, play, wait_until
from tests.support.nodes import append, create, read_all

Play = Callable[[Scenario], None]

# Only appends may wake readers: no heartbeat and no end of a response helps.
_SERVER = ServerConfig(sse_heartbeat_ms=3_600_000, sse_lifetime_ms=7_200_000)
# How long a socket may be full, and how long writers pause at most.
_FULL_S, _PAUSE_S = 0.05, 0.1
_DATA = re.compile(rb"^event: data\ndata:(.*)$", re.MULTILINE)


@pytest.fixture(name="play", params=first_quick(range(3)))
def _play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Play:
    """Plays a scenario with three machines, in several orders of what happens at one time."""
    monkeypatch.setattr(Machine, "server", _SERVER)
    monkeypatch.setattr("streamd.storage.raft_snapshots.PIECE_BYTES", 2_000)
    return lambda scenario: run_virtually(request.param, partial(play, scenario, tmp_path))


class Tail:
    """A client that follows a stream at one node; its socket takes an event whole or in part, at
    random."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.received = b""
        self.partial_writes = 0
        self._left = b""
        self._random = Random(machine.node_id)

    @property
    def data(self) -> bytes:
        return b"".join(_DATA.findall(self.received))

    async def run(self) -> None:
        """Follow from the start until cancelled."""
        query = b"offset=-1&live=sse"
        request = Request("GET", b"/bucket/a", query, {}, b"", self)
        application = self.machine.app.application
        response = await application.handle(request)
        assert isinstance(response, LiveResponse)
        left: Response | LiveResponse | Parked | None = await response.run(self)
        while left is not None:
            assert not isinstance(left, Response | LiveResponse)
            left = await wait(application, left, self)
        raise AssertionError("the response ended")

    # -- the channel --------------------------------------------------------------------------

    def piece(self, data: bytes) -> None:
        return None

    def keep(self, rest: bytes) -> None:
        self._left += rest

    def try_send(self, data: bytes) -> bool:
        assert not self._left, "the rest of an event has to be written first"
        taken = self._random.choice((0, len(data) // 2, len(data)))
        self.received += data[:taken]
        self._left = data[taken:]
        self.partial_writes += bool(self._left)
        return not self._left

    async def flush(self) -> None:
        if self._left:
            await trio.sleep(self._random.uniform(0, _FULL_S))
            self.received += self._left
            self._left = b""

    async def send(self, data: Buffer) -> None:
        await self.flush()
        self.received += data

    async def wait_disconnected(self) -> None:
        await trio.sleep_forever()


async def append_all(machine: Machine, numbers: range) -> None:
    """Append numbers, each once, through a node that may not know its leader yet."""
    random = Random(machine.node_id)
    for number in numbers:
        await trio.sleep(random.uniform(0, _PAUSE_S))
        while True:
            with suppress(Unavailable):
                await machine.node.group.writes.propose(append("a", b"<%04d>" % number))
                break


async def followed_everywhere(machines: Machines, nursery: trio.Nursery) -> list[Tail]:
    """A reader at each node, and a stream for them."""
    await wait_until(lambda: all(machine.is_ready for machine in machines.all))
    leader = await machines.leader()
    await leader.node.group.writes.propose(create("a"))
    await append_all(leader, range(20))
    tails = [Tail(machine) for machine in machines.all]
    for tail in tails:
        nursery.start_soon(tail.run)
    return tails


async def assert_all_told(tails: list[Tail], numbers: range) -> None:
    expected = b"".join(b"<%04d>" % number for number in numbers)
    for tail in tails:
        await wait_until(lambda tail=tail: len(tail.data) >= len(expected))
        assert tail.data == expected
        assert await read_all(tail.machine.node, "a") == expected
        assert tail.partial_writes, "hollow: its socket took everything"


def test_live_readers_continue_at_a_node_that_gets_a_raft_snapshot(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        async with trio.open_nursery() as nursery:
            tails = await followed_everywhere(machines, nursery)
            leader = await machines.leader()
            lagging, other = (machine for machine in machines.all if machine is not leader)
            await append_all(lagging, range(20, 40))
            machines.network.cut(_both_ways(lagging, leader, other))
            await append_all(leader, range(40, 80))
            for machine in (leader, other):
                await machine.node.group.storage.compact()
            # Longer than the silence limit of a connection: bytes sent into it are lost.
            await trio.sleep(10)
            machines.heal()
            await wait_until(lambda: lagging.calls["install"] == 1)
            await assert_all_told(tails, range(80))
            await append_all(await machines.leader(), range(80, 100))
            await assert_all_told(tails, range(100))
            nursery.cancel_scope.cancel()

    play(scenario)


def test_live_readers_continue_at_a_deposed_leader(play: Play) -> None:
    async def scenario(machines: Machines) -> None:
        async with trio.open_nursery() as nursery:
            tails = await followed_everywhere(machines, nursery)
            deposed = await machines.leader()
            others = [machine for machine in machines.all if machine is not deposed]
            machines.network.cut(_both_ways(deposed, *others))
            await wait_until(lambda: any(machine.leads for machine in others))
            successor = next(machine for machine in others if machine.leads)
            await append_all(successor, range(20, 60))
            machines.heal()
            await wait_until(lambda: not deposed.leads)
            await append_all(deposed, range(60, 80))
            await assert_all_told(tails, range(80))
            nursery.cancel_scope.cancel()

    play(scenario)


def _both_ways(one: Machine, *others: Machine) -> list[tuple[int, int]]:
    return [
        way
        for other in others
        for way in ((one.node_id, other.node_id), (other.node_id, one.node_id))
    ]
