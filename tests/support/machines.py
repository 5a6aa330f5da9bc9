"""Whole nodes of a cluster in the test's own process: real stores, a network in memory.

For `run_virtually`: blocking calls take no thread, but some virtual time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import TypeVar, TypeVarTuple

import trio
from msgspec.structs import replace

from streamd.app import App, Environment
from streamd.config.settings import ClusterConfig, ColdConfig, Config, ServerConfig
from streamd.config.subscriptions import SubscriptionsConfig
from streamd.group.stores import Stores
from streamd.node.delivery.sender import Poster
from streamd.node.node import UNGUARDED, Node
from streamd.objectstore.objects import ObjectStore
from streamd.process.metrics import Metrics
from streamd.streams.operations.hosts import HostControl
from streamd.tiering.async_store import AsyncObjectStore
from tests.sim.network import Network, Port, address_of
from tests.sim.objects import ObjectsOf, SimulatedObjects
from tests.support.directories import copy_in_use
from tests.support.threads import in_order

T = TypeVar("T")
Args = TypeVarTuple("Args")

_EPOCH_MS = 1_700_000_000_000
_BOUND_S = 60.0


async def wait_until(condition: Callable[[], bool], bound_s: float = _BOUND_S) -> None:
    """Wait, on the virtual clock, for a condition that the nodes bring about."""
    with trio.fail_after(bound_s):
        while not condition():  # noqa: ASYNC110 - no event tells of it
            await trio.sleep(0.01)


class Machine:
    """A directory, and a node that can be stopped and started. `calls` counts the node's calls of
    its disk by name; `disk_s` is the duration of such a call, in seconds."""

    server = ServerConfig(max_body_bytes=1024 * 1024)

    def __init__(
        self,
        node_id: int,
        base: Path,
        network: Network,
        store: ObjectStore | None = None,
        cold_config: ColdConfig | None = None,
    ) -> None:
        self.node_id = node_id
        self.path = base / f"n{node_id}"
        self.calls: Counter[str] = Counter()
        self.on_call: Callable[[str], None] = lambda _: None
        self.disk_s = 0.001
        # How far this node's wall clock is ahead of the others'.
        self.ahead_ms = 0
        self.running: App | None = None
        self.hosts: HostControl | None = None
        self.poster: Poster | None = None
        self._network = network
        self._store = store
        self._lives = 0
        self._life = trio.CancelScope()
        self._ended = trio.Event()
        cluster = ClusterConfig(
            name="machines",
            listen=address_of(node_id),
            bootstrap_node_id=1,
            routes=[address_of(founder) for founder in (1, 2, 3)],
        )
        server = replace(self.server, advertise=address_of(node_id))
        self._config = Config(
            server=server,
            cluster=cluster,
            cold=cold_config or ColdConfig(),
            storage=UNGUARDED,
            subscriptions=SubscriptionsConfig(allow_local_http=True),
        )

    def _now_ms(self) -> int:
        return _clock_ms() + self.ahead_ms

    @property
    def app(self) -> App:
        """The node with its service, which must be up."""
        assert self.running is not None
        return self.running

    @property
    def node(self) -> Node:
        """The node, which must be up."""
        return self.app.node

    @property
    def metrics(self) -> Metrics:
        return self.node.metrics

    @property
    def leads(self) -> bool:
        return self.running is not None and self.node.group.view.leads

    @property
    def is_ready(self) -> bool:
        return self.running is not None and self.node.is_ready()

    async def run(self) -> None:
        """Start the node, and return when it has been killed."""
        self._life, self._ended = trio.CancelScope(), trio.Event()
        self._network.power_on(self.node_id)
        stores = Stores.open(self.path, self.node_id, self._config.cluster)
        app = App(self._config, stores, self._environment())
        try:
            with self._life:
                async with app.running():
                    self.running = app
                    await trio.sleep_forever()
        finally:
            self.running = None
            stores.close()
            self._ended.set()

    async def kill(self) -> None:
        """End the node without a chance to clean up: it continues from a copy of the present files,
        because this process still holds those that it had open."""
        self.running = None
        self._lives += 1
        old, self.path = self.path, self.path.with_name(f"n{self.node_id}.{self._lives}")
        copy_in_use(old, self.path)
        self._network.end_of(self.node_id, powerless=False)
        self._life.cancel()
        await self._ended.wait()

    def _environment(self) -> Environment:
        return Environment(
            clock_ms=self._now_ms,
            random=Random(100 * self._lives + self.node_id),
            secrets=Random(1000 * self._lives + self.node_id),
            run_blocking=self._run_blocking,
            open_log_thread=in_order(self._run_blocking),
            network=Port(self._network, self.node_id),
            cold=self._cold(),
            hosts=self.hosts,
            poster=self.poster,
        )

    def _cold(self) -> AsyncObjectStore | None:
        if self._store is None:
            return None
        return AsyncObjectStore(
            self._store,
            run_blocking=self._run_blocking,
            random=Random(self.node_id),
            max_requests=4,
        )

    async def _run_blocking(
        self,
        call: Callable[[*Args], T],
        *args: *Args,
        limiter: trio.CapacityLimiter | None = None,
    ) -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        async with limiter or trio.CapacityLimiter(1):
            result = call(*args)
            name = getattr(call, "__name__", "")
            self.calls[name] += 1
            self.on_call(name)
            # A thread cannot be cancelled, but these end with the process.
            with trio.CancelScope(shield=self.running is not None):
                await trio.sleep(self.disk_s)
            return result


def _clock_ms() -> int:
    return _EPOCH_MS + int(trio.current_time() * 1000)


class Machines:
    """Three machines on one network; with a `store` they share it as their cold store, with only a
    `cold_config` the simulated `objects`."""

    def __init__(
        self,
        base: Path,
        nursery: trio.Nursery,
        cold_config: ColdConfig | None = None,
        store: ObjectStore | None = None,
    ) -> None:
        self.network = Network(Random(7), Counter())
        self.objects = SimulatedObjects(Random(7), _clock_ms)
        if store is None and cold_config is not None:
            store = ObjectsOf(self.objects)
        self.all = [
            Machine(node_id, base, self.network, store, cold_config) for node_id in (1, 2, 3)
        ]
        self._nursery = nursery
        for machine in self.all:
            self.start(machine)

    def start(self, machine: Machine) -> None:
        """Start the node of a machine that has none."""
        self._nursery.start_soon(machine.run)

    async def leader(self) -> Machine:
        await wait_until(lambda: any(machine.leads for machine in self.all))
        return next(machine for machine in self.all if machine.leads)

    def part(self, one: Machine, other: Machine) -> None:
        """Cut the link between the two, and no other."""
        self.network.cut([(one.node_id, other.node_id), (other.node_id, one.node_id)])

    def heal(self) -> None:
        self.network.cut([])


Scenario = Callable[[Machines], Awaitable[None]]
# Plays a scenario to its end.
Play = Callable[[Scenario], None]


async def all_ready(machines: Machines) -> tuple[Machine, Machine, Machine]:
    """The leader and the two others, once all are ready."""
    leader = await machines.leader()
    await wait_until(lambda: all(machine.is_ready for machine in machines.all))
    second, third = (machine for machine in machines.all if machine is not leader)
    return leader, second, third


async def play(
    scenario: Scenario,
    base: Path,
    cold_config: ColdConfig | None = None,
    *,
    store: ObjectStore | None = None,
) -> None:
    """Play a scenario with three machines that have just been started."""
    async with trio.open_nursery() as nursery:
        await scenario(Machines(base, nursery, cold_config, store))
        nursery.cancel_scope.cancel()
