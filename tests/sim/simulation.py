"""Whole nodes under a schedule of faults, all of it replayable from one seed.

Real stores in a directory of their own, the real group, transport and HTTP handlers; time, the
network, threads and chance are simulated.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path as FilePath
from random import Random
from zlib import crc32

import trio

from tests.jepsen_like import history
from tests.jepsen_like.checker import check
from tests.jepsen_like.history import Recorder
from tests.sim.clients import Client, Workload
from tests.sim.faults import Faults
from tests.sim.host import Host
from tests.sim.network import Network
from tests.sim.operators import Operator
from tests.sim.recovery import Recovery
from tests.sim.runtime import run_virtually
from tests.sim.settings import small_limits
from tests.sim.watch import InvariantBroken, Watch

FOUNDERS = (1, 2, 3)


class Simulation:
    """One run. `counted` says what the schedule brought about, `digest` all that was said."""

    def __init__(self, seed: int, seconds: float, base: FilePath) -> None:
        self.random = Random(seed)
        self.seconds = seconds
        self.counted: Counter[str] = Counter()
        self.digest = 0
        self.base = base
        self.history_file = base / "history.jsonl"
        self.watch = Watch(self.counted)
        self.network = Network(self._own_random(), self.counted)
        self.hosts: dict[int, Host] = {}
        self.supervisor: trio.Nursery | None = None

    def _own_random(self) -> Random:
        return Random(self.random.getrandbits(64))

    async def run(self) -> None:
        """Raises `InvariantBroken`, or what ended a node."""
        async with trio.open_nursery() as nursery:
            self.supervisor = nursery
            for node_id in FOUNDERS:
                self.add_host(node_id)
            with Recorder(self.history_file, lambda: int(trio.current_time() * 1e9)) as recorder:
                workload = Workload(self._own_random(), self.serving, recorder, self.counted)
                await workload.create_all()
                await self._break_things(workload)
                await Recovery(self, workload).run()
            nursery.cancel_scope.cancel()
        self._judge()

    def serving(self) -> list[Host]:
        """Where clients may turn to, whether it is up or not."""
        return [host for host in self.hosts.values() if not host.retired]

    # -- hosts --------------------------------------------------------------------------------

    def add_host(self, node_id: int) -> Host:
        host = self.hosts[node_id] = Host(
            node_id,
            FOUNDERS,
            self.base,
            self._own_random(),
            self.network,
            self.counted,
            self.watch,
        )
        self.start(host)
        return host

    def start(self, host: Host) -> None:
        """Start a process that is down."""
        assert self.supervisor is not None
        if host.life is None and not host.retired:
            self.supervisor.start_soon(host.run)

    # -- the run ------------------------------------------------------------------------------

    async def _break_things(self, workload: Workload) -> None:
        faults = Faults(self, self._own_random())
        operator = Operator(self, self._own_random())
        pause_s = self.random.choice((0.02, 0.1, 0.3))
        async with trio.open_nursery() as nursery:
            for number in range(self.random.choice((2, 4, 6))):
                nursery.start_soon(Client(workload, f"c{number}").run, pause_s)
            async with trio.open_nursery() as meddling:
                meddling.start_soon(faults.run)
                meddling.start_soon(operator.run)
                await trio.sleep(self.seconds)
                meddling.cancel_scope.cancel()
            await faults.heal()
            await trio.sleep(2)
            workload.running = False

    def _judge(self) -> None:
        operations = history.load([self.history_file])
        report = check(operations)
        self.counted += Counter({f"ops: {k}": v for k, v in report.counts.items()})
        self.digest = crc32(self.history_file.read_bytes(), self.network.digest)
        if report.findings:
            shown = "\n".join(str(finding) for finding in report.findings[:5])
            raise InvariantBroken(f"{len(report.findings)} findings:\n{shown}")


def run_seed(seed: int, seconds: float = 25.0) -> Simulation:
    """Raises with the line that replays it, whatever goes wrong."""
    shared = FilePath("/dev/shm")
    base = tempfile.mkdtemp(dir=shared if os.access(shared, os.W_OK) else None)
    try:
        with small_limits(Random(seed)):
            simulation = Simulation(seed, seconds, FilePath(base))
            run_virtually(seed, simulation.run)
            return simulation
    except Exception as error:
        replay = f"SEED={seed} .venv/bin/python -m pytest tests/sim/test_simulation.py"
        raise InvariantBroken(f"{_innermost(error)!r}\nreplay with: {replay}") from error
    finally:
        if kept := os.environ.get("SIM_KEEP"):
            shutil.copytree(base, f"{kept}/{seed}", dirs_exist_ok=True)
        shutil.rmtree(base, ignore_errors=True)


def _innermost(error: BaseException) -> BaseException:
    """What went wrong, without the groups that nurseries put around it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
