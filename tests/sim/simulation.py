"""Whole nodes under a schedule of faults, all of it replayable from one seed.

Real stores in a directory of their own, the real group, transport and HTTP handlers; time, the
network, threads and chance are simulated.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from contextlib import nullcontext
from pathlib import Path as FilePath
from random import Random
from zlib import crc32

import trio

from streamd.raft.messages import Message
from tests.jepsen_like import history
from tests.jepsen_like.checker import check
from tests.jepsen_like.history import Recorder
from tests.sim.clients import Client, Workload
from tests.sim.cold import ColdStore, small_packs
from tests.sim.faults import Faults
from tests.sim.focus import Focus
from tests.sim.host import Host
from tests.sim.message_faults import MessageFaults
from tests.sim.network import Network
from tests.sim.operators import Operator
from tests.sim.persisting import PersistPoints
from tests.sim.recovery import Recovery
from tests.sim.runtime import run_virtually
from tests.sim.settings import small_limits
from tests.sim.short_lived_streams import ShortLivedStreams
from tests.sim.watch import InvariantBroken, Watch
from tests.sim.zombies import Zombies

FOUNDERS = (1, 2, 3)


class Simulation:
    """One run. `counted` counts what the schedule caused; `digest` is of every message."""

    def __init__(
        self,
        seed: int,
        seconds: float,
        base: FilePath,
        focus: Focus | None = None,
        *,
        cold: bool = False,
        zombies: bool = False,
    ) -> None:
        self.random = Random(seed)
        self.seconds = seconds
        self.focus = focus
        self.counted: Counter[str] = Counter()
        self.digest = 0
        self.base = base
        self.history_file = base / "history.jsonl"
        self.watch = Watch(self.counted)
        self.store = ColdStore(seed, self.counted) if cold else None
        self.network = Network(self._own_random(), self.counted)
        self.message_faults = MessageFaults(self._own_random(), self.counted)
        self.points = PersistPoints()
        self.hosts: dict[int, Host] = {}
        self.supervisor: trio.Nursery | None = None
        # A node that no client asks because it is not to recover.
        self.given_up: Host | None = None
        self._has_zombies = zombies

    def _own_random(self) -> Random:
        return Random(self.random.getrandbits(64))

    async def run(self) -> None:
        """Raises `InvariantBroken`, or what ended a node."""
        with Recorder(self.history_file, lambda: int(trio.current_time() * 1e9)) as recorder:
            async with trio.open_nursery() as nursery:
                self.supervisor = nursery
                nursery.start_soon(self._pull_plugs_in_the_end)
                nursery.start_soon(self.message_faults.deliver_late, self._deliver)
                for node_id in FOUNDERS:
                    self.add_host(node_id)
                workload = Workload(self._own_random(), self.serving, recorder, self.counted)
                await workload.create_all()
                await self._sessions_are_open()
                zombies = Zombies(workload, self._own_random()) if self._has_zombies else None
                await self._break_things(workload, zombies)
                await Recovery(self, workload).run()
                if zombies is not None:
                    await zombies.judge()
                nursery.cancel_scope.cancel()

    async def _pull_plugs_in_the_end(self) -> None:
        """Also if the run fails: a paused machine would make everything wait for its threads."""
        try:
            await trio.sleep_forever()
        finally:
            for host in self.hosts.values():
                host.pull_plug()

    async def _sessions_are_open(self) -> None:
        """From here on no write may end with an unknown outcome, unless nothing is decided for
        long."""
        while not all(host.has_session for host in self.hosts.values()):  # noqa: ASYNC110
            await trio.sleep(0.1)

    def serving(self) -> list[Host]:
        """The nodes that clients may ask, up or down."""
        hosts = self.hosts.values()
        return [host for host in hosts if not host.retired and host is not self.given_up]

    def _deliver(self, message: Message) -> bool:
        return self.hosts[message.to].take_late(message)

    # -- hosts --------------------------------------------------------------------------------

    def add_host(self, node_id: int) -> Host:
        host = self.hosts[node_id] = Host(
            node_id,
            FOUNDERS,
            self.base,
            self._own_random(),
            self.network,
            self.message_faults,
            self.points,
            self.counted,
            self.watch,
            self.store,
        )
        self.start(host)
        return host

    def start(self, host: Host) -> None:
        """Start a process that is down, or once it is."""
        assert self.supervisor is not None
        if not host.is_up and not host.retired:
            self.supervisor.start_soon(host.run)

    # -- the run ------------------------------------------------------------------------------

    async def _break_things(self, workload: Workload, zombies: Zombies | None) -> None:
        faults = Faults(self, self._own_random(), self.focus)
        operator = Operator(self, self._own_random())
        pause_s = self.random.choice((0.05, 0.15, 0.4))
        clients = self.random.choice((2, 4, 6))
        if self.focus is not None:
            pause_s, clients = self.focus.client_pause_s, self.focus.clients
        async with trio.open_nursery() as nursery:
            for number in range(clients):
                nursery.start_soon(Client(workload, f"c{number}").run, pause_s)
            nursery.start_soon(ShortLivedStreams(workload, self._own_random()).run)
            if zombies is not None:
                nursery.start_soon(zombies.run)
            async with trio.open_nursery() as meddling:
                meddling.start_soon(faults.run)
                if self.focus is None:
                    meddling.start_soon(operator.run)
                if self.store is not None:
                    meddling.start_soon(self.store.break_now_and_then)
                await trio.sleep(self.seconds)
                for host in self.hosts.values():
                    host.pause(False)  # Otherwise a client waiting for its answer could not leave.
                meddling.cancel_scope.cancel()
            if self.store is not None:
                self.store.heal()
            await self._end(faults, workload)
            await trio.sleep(2)
            workload.running = False

    async def _end(self, faults: Faults, workload: Workload) -> None:
        """End the faults: heal all, all but one, or finish with the loss of everything in
        memory."""
        ending = self.random.choice(("healed", "all but one", "power lost"))
        self.counted[f"endings: {ending}"] += 1
        if ending == "all but one":
            await faults.heal()
            await trio.sleep(2)
            self.given_up = await faults.break_for_good()
            await Recovery(self, workload).until_writable()
            self.given_up = None
        elif ending == "power lost":
            await faults.lose_power()
        await faults.heal()

    def judge(self) -> None:
        """Raises `InvariantBroken` for a history that should not be."""
        operations = history.load([self.history_file])
        report = check(operations, {f"n{node_id}" for node_id in self.watch.removed})
        self.counted += Counter({f"ops: {k}": v for k, v in report.counts.items()})
        self.digest = crc32(self.history_file.read_bytes(), self.network.digest)
        if report.findings:
            shown = "\n".join(str(finding) for finding in report.findings[:5])
            raise InvariantBroken(f"{len(report.findings)} findings:\n{shown}")


def run_seed(
    seed: int,
    seconds: float = 25.0,
    focus: Focus | None = None,
    *,
    cold: bool = False,
    zombies: bool = False,
) -> Simulation:
    """With `cold`, over an object store that all nodes share; with `zombies`, some of the clients
    are workers that fall asleep.

    Raises with the line that replays it, whatever goes wrong.
    """
    shared = FilePath("/dev/shm")
    base = tempfile.mkdtemp(dir=shared if os.access(shared, os.W_OK) else None)
    limits = focus.limits if focus is not None else {}
    try:
        with small_limits(Random(seed), limits), small_packs(seed) if cold else nullcontext():
            simulation = Simulation(
                seed, seconds, FilePath(base), focus, cold=cold, zombies=zombies
            )
            with simulation.points.installed():
                run_virtually(seed, simulation.run)
            simulation.judge()
            return simulation
    except Exception as error:
        test = "test_planted_bugs" if focus is not None else "test_simulation"
        test = "test_cold" if cold else "test_zombies" if zombies else test
        replay = f"SEED={seed} .venv/bin/python -m pytest tests/sim/{test}.py"
        raise InvariantBroken(f"{innermost(error)!r}\nreplay with: {replay}") from error
    finally:
        if kept := os.environ.get("SIM_KEEP"):
            shutil.copytree(base, f"{kept}/{seed}", dirs_exist_ok=True)
        shutil.rmtree(base, ignore_errors=True)


def innermost(error: BaseException) -> BaseException:
    """What went wrong, without the groups that nurseries put around it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
