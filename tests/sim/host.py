"""A machine with a node: its processes, one after the other, its disk and its clock."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import TypeVar, TypeVarTuple

import trio

from streamd.app import Environment
from streamd.cluster.cluster import Cluster
from streamd.config.settings import ClusterConfig, ColdConfig, Config, ServerConfig
from streamd.group.stores import Stores
from streamd.http.application import HttpApplication
from streamd.http.protocol.messages import Request, Response
from streamd.node.node import UNGUARDED, Node
from streamd.raft.messages import Message
from streamd.storage.errors import StorageError
from streamd.storage.install import install
from streamd.tiering.async_store import AsyncObjectStore
from tests.sim.application import CountingHub, SimulatedApp
from tests.sim.cold import ColdStore
from tests.sim.disk import Disk, Trap
from tests.sim.message_faults import MessageFaults
from tests.sim.network import Network, Port, address_of
from tests.sim.persisting import Crashed, PersistPoints
from tests.sim.watch import Watch
from tests.support.front_door import answer
from tests.support.threads import in_order

T = TypeVar("T")
Args = TypeVarTuple("Args")

# The range of a blocking call's duration while the disk is healthy.
DISK_S = (0.0002, 0.002)

_EPOCH_MS = 1_700_000_000_000


class NotThere(Exception):
    """No process listens: the request had no effect."""


class ConnectionLost(Exception):
    """The node ended with the request."""


class Life:
    """One process, from its start to its end."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.scope = trio.CancelScope()
        self.is_dead = False
        self.has_failed_disk = False
        self.stop = trio.Event()
        self.ended = trio.Event()
        self.node: Node | None = None
        self.application: HttpApplication | None = None
        # Threads, which a cancelled task waits for, and requests, which belong to clients.
        self.calls: dict[int, trio.CancelScope] = {}
        self.requests: dict[int, trio.CancelScope] = {}

    def end_requests(self) -> None:
        """Nothing is served from now on, and no thread continues."""
        self.node = self.application = None
        for scope in (*self.calls.values(), *self.requests.values()):
            scope.cancel()


class Host:
    """`disk_s` is how long a blocking call takes, from and to; `skew_ms` how wrong the clock is."""

    def __init__(
        self,
        node_id: int,
        founders: Sequence[int],
        base: Path,
        random: Random,
        network: Network,
        message_faults: MessageFaults,
        points: PersistPoints,
        counted: Counter[str],
        watch: Watch,
        store: ColdStore | None = None,
    ) -> None:
        self.node_id = node_id
        self.life: Life | None = None
        self.retired = False
        self.disk_s = DISK_S
        self.skew_ms = 0
        self.drift = 1.0
        self.paused = False
        self.crash_in_install = False
        self.disk = Disk(base / f"n{node_id}", random, counted)
        self._resumed = trio.lowlevel.ParkingLot()
        self._written = trio.lowlevel.ParkingLot()
        self._installed = trio.lowlevel.ParkingLot()
        self._random = random
        self._network = network
        self._message_faults = message_faults
        self._points = points
        self._counted = counted
        self._watch = watch
        self._store = store
        watch.add_machine(node_id)
        address = address_of(node_id)
        cluster = ClusterConfig(
            name="sim",
            listen=address,
            bootstrap_node_id=founders[0],
            routes=[address_of(founder) for founder in founders],
        )
        self._config = Config(
            server=ServerConfig(advertise=address, max_body_bytes=1024 * 1024),
            cluster=cluster,
            cold=ColdConfig() if store is None else store.config,
            storage=UNGUARDED,
        )

    @property
    def node(self) -> Node | None:
        """The node, while its process is up."""
        return self.life.node if self.life is not None else None

    @property
    def has_session(self) -> bool:
        """Whether the node's process numbers its packages."""
        return self.node is not None and self.node.metrics.sessions_opened > 0

    @property
    def leads(self) -> bool:
        return self.node is not None and self.node.group.view.leads

    @property
    def is_whole(self) -> bool:
        """Whether the node is up and has everything that it ever confirmed."""
        node = self.node
        return node is not None and node.group.view.may_vote and node.stores.log.lost_below is None

    @property
    def is_up(self) -> bool:
        """Whether a process is up that is not stopping."""
        life = self.life
        return life is not None and not (life.stop.is_set() or life.has_failed_disk)

    def clock_ms(self) -> int:
        return _EPOCH_MS + self.skew_ms + int(trio.current_time() * 1000 * self.drift)

    # -- its processes ------------------------------------------------------------------------

    async def run(self) -> None:
        """Start the process, unless it is up, and return when it has ended."""
        while self.life is not None:
            if self.is_up:
                return
            # The task that stops it may be cancelled before it has stopped, and would not have
            # started it again.
            await self.life.ended.wait()
        life = self.life = Life(self.disk.path)
        self._network.power_on(self.node_id)
        self._counted["installs completed at start"] += (self.disk.path / "install").exists()
        stores = None
        try:
            with life.scope:
                stores = self._now(life, Stores.open, life.path, self.node_id, self._config.cluster)
                if stores is not None:
                    await self._run(life, stores)
            if stores is not None and not life.is_dead:
                closing, stores = stores, None
                self._now(life, closing.close)
        except* StorageError:
            # It may be killed while it ends: requests to an object store are waited for.
            failed_now = self.disk.has_failed and not life.is_dead
            if not (life.has_failed_disk or failed_now):
                raise
            if not life.is_dead:
                self._counted["processes ended by storage errors"] += 1
                self.disk.leave(powerless=True)
        finally:
            if self.life is life:
                self._network.end_of(self.node_id, powerless=False)
                self.life = None
            if stores is not None:
                # Only to release what the dead process holds in ours.
                with suppress(StorageError):
                    stores.close()
            if self.disk.path == life.path:
                self.disk.leave(powerless=False)
            shutil.rmtree(life.path, ignore_errors=True)
            life.ended.set()

    def _now(self, life: Life, call: Callable[[*Args], T], *args: *Args) -> T | None:
        """Make a call in the process at once; None if the process ended inside the call."""
        try:
            with self._points.of(self.disk):
                return call(*args)
        except Crashed as crash:
            self._end(life, powerless=crash.powerless)
            return None

    async def _run(self, life: Life, stores: Stores) -> None:
        run_blocking = self._run_blocking(life)
        environment = Environment(
            clock_ms=self.clock_ms,
            random=Random(self._random.getrandbits(64)),
            secrets=Random(self._random.getrandbits(64)),
            run_blocking=run_blocking,
            open_log_thread=in_order(run_blocking),
            network=Port(self._network, self.node_id),
            cold=self._cold(life),
        )
        hub = CountingHub(self.clock_ms, self._counted)
        app = SimulatedApp(self._config, stores, environment, hub=hub)
        app.call_now = partial(self._now, life)
        assert app.cluster is not None
        self._count_forwards(app.cluster)
        self._sort_messages(app.cluster)
        try:
            async with app.running(), trio.open_nursery() as nursery:
                self._freeze_ticks(app.node)
                self._watch.follow(app.node, is_damaged=self.disk.is_damaged)
                life.node, life.application = app.node, app.application
                await life.stop.wait()
                led = app.node.group.view.leads
                await app.node.hand_over()
                self._counted["leaderships handed over"] += led and not app.node.group.view.leads
                self._count_cold()
                life.node = life.application = None
                nursery.cancel_scope.cancel()
        except* Crashed:
            assert life.is_dead
        finally:
            self._counted["packages resent"] += app.metrics.packages_resent
            self._counted["sessions opened"] += app.metrics.sessions_opened
            # As a server does before it closes the stores.
            life.end_requests()

    def _cold(self, life: Life) -> AsyncObjectStore | None:
        if self._store is None:
            return None
        return AsyncObjectStore(
            self._store.open(),
            run_blocking=_Requests(self, life, self._store),
            random=Random(self.node_id),
            max_requests=4,
        )

    def _count_cold(self) -> None:
        if self._store is not None:
            self._store.count(self)

    def _count_forwards(self, cluster: Cluster) -> None:
        send_package = cluster.send_package

        async def counting(leader_id: int, payload: bytes) -> bytes:
            decision = await send_package(leader_id, payload)
            self._counted["forwarded packages"] += 1
            return decision

        cluster.send_package = counting  # type: ignore[method-assign]

    def _sort_messages(self, cluster: Cluster) -> None:
        take = cluster.on_messages

        def sorting(peer_id: int, group_id: int, messages: list[Message]) -> None:
            arriving = self._message_faults.sort(messages)
            if arriving:
                take(peer_id, group_id, arriving)

        cluster.on_messages = sorting  # type: ignore[method-assign]

    def take_late(self, message: Message) -> bool:
        """Take a message that was sent long ago, if the node is up."""
        if self.node is None or self.paused:
            return False
        self.node.group.step([message])
        return True

    def _freeze_ticks(self, node: Node) -> None:
        """The node's own timers must not tell it that time passes while it is paused."""
        tick = node.group._core.tick

        def tick_unless_paused() -> None:
            if not self.paused:
                tick()

        node.group._core.tick = tick_unless_paused  # type: ignore[method-assign]

    async def kill(self, *, powerless: bool) -> None:
        """End the process now; the disk keeps what it has by now, or only what was synced."""
        life = self.life
        if life is not None:
            self._counted["crashes during calls"] += bool(life.calls)
            self._count_cold()
            self.disk.leave(powerless=powerless)
            self._end(life, powerless=powerless)
            await life.ended.wait()

    def pull_plug(self) -> None:
        """End the process now, without restarting it."""
        if self.life is not None:
            self._end(self.life, powerless=True)

    def _end(self, life: Life, *, powerless: bool) -> None:
        life.is_dead = True
        if self.life is life:
            self.life = None
            self._network.end_of(self.node_id, powerless=powerless)
        life.scope.cancel()
        life.end_requests()

    async def stop(self) -> None:
        """End the process in order."""
        life = self.life
        if life is not None and life.node is not None:
            life.stop.set()
            await life.ended.wait()

    async def retire(self) -> None:
        """The node was removed from the cluster, and ends permanently."""
        self.retired = True
        await self.kill(powerless=False)
        self.disk.wipe()

    # -- time ---------------------------------------------------------------------------------

    def pause(self, paused: bool) -> None:
        """SIGSTOP and SIGCONT, as far as others can tell."""
        self.paused = paused
        self._network.freeze(self.node_id, paused)
        if not paused:
            self._resumed.unpark_all()

    async def next_write(self) -> None:
        """Return right after a write to the disk that nothing knows of yet."""
        await self._written.park()

    async def next_install(self) -> None:
        """Return right after the installation of a Raft snapshot that nothing knows of yet."""
        await self._installed.park()

    async def call(self, life: Life, call: Callable[[*Args], T], *args: *Args) -> T:
        """Run a thread's call, unless the process ends during it."""
        if call is install and self.crash_in_install:
            self.crash_in_install = False
            self._counted["crashes in the midst of an install"] += 1
            kind = self._random.choice((Trap.CRASH_BEFORE, Trap.CRASH_AFTER))
            powerless = self._random.random() < 0.5
            self.disk.set_trap(kind, self._random.randint(1, 8), powerless=powerless)
        try:
            with self._points.of(self.disk):
                result = call(*args)
        except Crashed as crash:
            self._end(life, powerless=crash.powerless)
            await trio.sleep_forever()
            raise
        except StorageError:
            life.has_failed_disk = life.has_failed_disk or self.disk.has_failed
            raise
        if call is install:
            self._installed.unpark_all()
        if getattr(call, "__name__", "") == "_store_blocking":
            self._watch.after_write(self.node_id)
            self._written.unpark_all()
        return result

    async def awake(self) -> None:
        while self.paused:
            await self._resumed.park()

    def _run_blocking(self, life: Life) -> _RunBlocking:
        return _RunBlocking(self, life, self._random)

    # -- clients ------------------------------------------------------------------------------

    async def request(self, request: Request) -> Response:
        """Let the node answer a client. Raises `NotThere`, `ConnectionLost`."""
        await trio.sleep(self._random.uniform(0.0001, 0.002))
        await self.awake()

        async def handle(life: Life) -> Response:
            assert life.application is not None
            response = await answer(life.application, request)
            await self.awake()
            await trio.sleep(self._random.uniform(0.0001, 0.002))
            assert isinstance(response, Response)
            return response

        return await self._within(handle)

    async def ask(self, what: Callable[[Node], Awaitable[T]]) -> T:
        """Call something at the node. Raises `NotThere`, `ConnectionLost`."""

        async def do(life: Life) -> T:
            assert life.node is not None
            return await what(life.node)

        return await self._within(do)

    async def _within(self, what: Callable[[Life], Awaitable[T]]) -> T:
        """Run something that ends with the process."""
        life = self.life
        if life is None or life.node is None:
            raise NotThere
        with trio.CancelScope() as scope:
            life.requests[id(scope)] = scope
            try:
                return await what(life)
            except StorageError as error:
                if not self.disk.has_failed:
                    raise
                raise ConnectionLost from error
            finally:
                del life.requests[id(scope)]
        raise ConnectionLost


class _RunBlocking:
    """Blocking calls take virtual time, and are done at one moment within it."""

    def __init__(self, host: Host, life: Life, random: Random) -> None:
        self._host = host
        self._life = life
        self._random = random

    async def __call__(
        self,
        call: Callable[[*Args], T],
        *args: *Args,
        limiter: trio.CapacityLimiter | None = None,
    ) -> T:
        if self._life.is_dead:
            return await self._after_death(call, *args)
        await trio.lowlevel.checkpoint_if_cancelled()
        async with limiter or nullcontext():
            # A thread cannot be cancelled; only with the process it ends at any moment.
            with trio.CancelScope(shield=True) as scope:
                self._life.calls[id(scope)] = scope
                if self._life.is_dead:
                    scope.cancel()
                try:
                    await self._take_time()
                    result = await self._host.call(self._life, call, *args)
                    await self._take_time()
                    return result
                finally:
                    del self._life.calls[id(scope)]
        return await self._after_death(call, *args)

    async def _after_death(self, call: Callable[[*Args], T], *args: *Args) -> T:
        """A dead process only releases what it holds in ours."""
        if getattr(call, "__name__", "") == "close":
            return call(*args)
        await trio.lowlevel.checkpoint()
        raise AssertionError(f"{call} outlives its process")

    async def _take_time(self) -> None:
        await trio.sleep(self._random.uniform(*self._host.disk_s) / 2)
        await self._host.awake()


class _Requests(_RunBlocking):
    """Requests to the object store, which take its time."""

    def __init__(self, host: Host, life: Life, store: ColdStore) -> None:
        super().__init__(host, life, Random(host.node_id))
        self._store = store

    async def _take_time(self) -> None:
        await trio.sleep(self._store.took_s())
        await self._host.awake()
