"""Faults: of the network, of machines, of all of them at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from itertools import permutations
from random import Random
from typing import TYPE_CHECKING

import trio

from tests.sim.disk import Trap
from tests.sim.host import DISK_S, ConnectionLost, Host, NotThere

if TYPE_CHECKING:
    from tests.sim.focus import Focus
    from tests.sim.simulation import Simulation

Fault = Callable[[], Awaitable[None]]
Link = tuple[int, int]


class Faults:
    """Each seed has its own mix, since faults that are rare everywhere would never be combined; or
    `focus` gives one."""

    def __init__(self, simulation: Simulation, random: Random, focus: Focus | None = None) -> None:
        self._simulation = simulation
        self._random = random
        self._network = simulation.network
        self._counted = simulation.counted
        if focus is None:
            self._weights = self._any_mix()
            self._mean_pause_s = random.choice((0.5, 1.5, 4.0))
            self._at_leaders = 0.5
            self._lasting_s: tuple[float, ...] = (0.3, 1.5, 4.0, 8.0)
        else:
            self._weights = {partial(fault, self): weight for fault, weight in focus.faults.items()}
            self._mean_pause_s = focus.mean_pause_s
            self._at_leaders = focus.at_leaders
            self._lasting_s = focus.lasting_s

    def _any_mix(self) -> dict[Fault, float]:
        often = (0.0, 0.0, 1.0, 4.0)
        choices: dict[Fault, tuple[float, ...]] = {
            self.partition: (0.0, 1.0, 3.0),
            self.break_connections: often,
            self.delay: often,
            self.muddle_messages: often,
            self.crash: (0.0, 1.0, 3.0),
            self.crash_leader_while_it_writes: often,
            self.crash_at_a_write: often,
            self.crash_at_a_flush: often,
            self.tear_write: often,
            self.crash_while_starting: often,
            self.fail_writes: often,
            self.damage_log: often,
            self.keep_the_only_copy_damaged: often,
            self.restart: often,
            self.lose_power: often,
            self.pause: often,
            self.skew_clock: often,
            self.slow_disk: often,
            self.compact: (1.0, 4.0),
            self.let_one_lag: often,
        }
        return {fault: self._random.choice(weights) for fault, weights in choices.items()}

    async def run(self) -> None:
        """Break something now and then until cancelled."""
        async with trio.open_nursery() as nursery:
            while True:
                await trio.sleep(self._random.expovariate(1 / self._mean_pause_s))
                faults, weights = list(self._weights), list(self._weights.values())
                nursery.start_soon(self._random.choices(faults, weights)[0])

    async def heal(self) -> None:
        """End all faults and start every machine."""
        self._network.cut(())
        self._network.slow.clear()
        self._simulation.message_faults.heal()
        for host in self._simulation.hosts.values():
            host.pause(False)
            host.disk.disarm()
            host.crash_in_install = False
            host.disk_s = DISK_S
            host.skew_ms, host.drift = 0, 1.0
            self._simulation.start(host)

    async def break_for_good(self) -> Host | None:
        """Cut one voter off until all is healed; None if the others need it."""
        leader = next((host.node for host in self._hosts() if host.leads), None)
        if leader is None:
            return None
        configuration = leader.group.view.configuration
        halves = [half for half in (configuration.voters, configuration.voters_outgoing) if half]
        if min(map(len, halves)) < 3:
            return None
        hosts = self._simulation.hosts
        voters = [hosts[voter] for voter in sorted(set().union(*halves))]
        victim = next((host for host in voters if not host.is_whole), self._random.choice(voters))
        kind = self._random.choice(("down", "paused", "slow disk", "isolated", "mute", "deaf"))
        self._counted[f"lasting: {kind}"] += 1
        if kind == "down":
            await victim.kill(powerless=True)
        elif kind == "paused":
            victim.pause(True)
        elif kind == "slow disk":
            victim.disk_s = (0.5, 4.0)
        else:
            ids = [host.node_id for host in self._hosts()]
            self._network.cut(self._links(kind, ids, victim.node_id))
        return victim

    # -- targets ------------------------------------------------------------------------------

    def _hosts(self) -> list[Host]:
        return [host for host in self._simulation.hosts.values() if not host.retired]

    def _victim(self) -> Host:
        """Often the leader, where faults have the most effect."""
        leaders = [host for host in self._hosts() if host.leads]
        return self._random.choice(
            leaders if leaders and self._random.random() < self._at_leaders else self._hosts()
        )

    def _some_time_s(self) -> float:
        return self._random.choice(self._lasting_s) * self._random.uniform(0.5, 1.5)

    # -- the network --------------------------------------------------------------------------

    async def partition(self) -> None:
        await self._cut(self._random.choice(("isolated", "mute", "deaf", "bridge", "split")))

    async def isolate(self) -> None:
        await self._cut("isolated")

    async def deafen(self) -> None:
        """Its messages arrive, and it hears no answer."""
        await self._cut("deaf")

    async def _cut(self, kind: str) -> None:
        ids = [host.node_id for host in self._hosts()]
        self._counted[f"partitions: {kind}"] += 1
        self._network.cut(self._links(kind, ids, self._victim().node_id))
        await trio.sleep(self._some_time_s())
        self._network.cut(())

    def _links(self, kind: str, ids: list[int], victim: int) -> list[Link]:
        links = list(permutations(ids, 2))
        if kind == "isolated":
            return [link for link in links if victim in link]
        if kind == "mute":
            return [link for link in links if link[0] == victim]
        if kind == "deaf":
            return [link for link in links if link[1] == victim]
        side = set(self._random.sample(ids, len(ids) // 2))
        if kind == "bridge":
            # Two sides that cannot reach each other, and one node that reaches both.
            links = [link for link in links if victim not in link]
        return [link for link in links if (link[0] in side) != (link[1] in side)]

    async def break_connections(self) -> None:
        for _ in range(self._random.choice((1, 3, 10))):
            self._counted["connections broken"] += 1
            self._network.break_connection()
            await trio.sleep(self._random.random() * 0.05)

    async def delay(self) -> None:
        self._counted["slow links"] += 1
        victim = self._victim().node_id
        most_s = self._random.choice((0.05, 0.3, 1.5))
        for link in permutations([host.node_id for host in self._hosts()], 2):
            if victim in link or self._random.random() < 0.2:
                self._network.slow[link] = most_s
        await trio.sleep(self._some_time_s())
        self._network.slow.clear()

    async def muddle_messages(self) -> None:
        message_faults = self._simulation.message_faults
        message_faults.lost = self._random.choice((0.0, 0.1, 0.3))
        message_faults.doubled = self._random.choice((0.0, 0.1, 0.3))
        message_faults.kept = self._random.choice((0.0, 0.1, 0.3))
        message_faults.kept_s = self._random.choice((0.05, 0.5, 5.0))
        await trio.sleep(self._some_time_s())
        message_faults.heal()

    # -- machines -----------------------------------------------------------------------------

    async def crash(self) -> None:
        await self._crash_for(self._victim(), self._some_time_s())

    async def crash_leader_while_it_writes(self) -> None:
        """While it is writing to the disk."""
        leaders = [host for host in self._hosts() if host.leads]
        if leaders:
            leader = self._random.choice(leaders)
            with trio.move_on_after(1.0):
                await leader.next_write()
            self._counted["crashes between write and answer"] += 1
            await self._crash_for(leader, self._random.uniform(0.1, 2))

    async def _crash_for(self, host: Host, seconds: float) -> None:
        powerless = self._random.random() < 0.5
        self._counted["power losses" if powerless else "crashes"] += 1
        await host.kill(powerless=powerless)
        await trio.sleep(seconds)
        self._simulation.start(host)

    async def crash_at_a_write(self) -> None:
        """Right before or right after any write."""
        await self._trap(self._victim(), self._random.choice((1, 2, 5, 20)))

    async def crash_at_a_flush(self) -> None:
        """The same while the state is stored, since the log is written far more often."""
        host = self._victim()
        self._set_trap(host, self._random.choice((1, 2, 3)), database="state")
        await self._trap(host)

    async def crash_while_starting(self) -> None:
        host = self._victim()
        await host.kill(powerless=self._random.random() < 0.5)
        self._counted["crashes while starting"] += 1
        self._set_trap(host, self._random.choice((1, 2, 3, 5)))
        self._simulation.start(host)
        await trio.sleep(0.01)
        await self._trap(host)

    async def tear_write(self) -> None:
        """Power fails in the middle of a write to log or state."""
        host = self._victim()
        self._set_trap(host, self._random.choice((1, 2, 5)), Trap.CRASH_DURING)
        await self._trap(host)

    async def fail_writes(self) -> None:
        """A write is answered with an error; what was written before may be lost as well."""
        kind = self._random.choice((Trap.IO_ERROR, Trap.FULL))
        await self._trap(self._victim(), self._random.choice((1, 3, 10)), kind)

    async def _trap(self, host: Host, writes: int = 0, kind: Trap | None = None) -> None:
        """End a process at a write, and start it again."""
        if writes:
            self._set_trap(host, writes, kind)
        life = host.life
        with trio.move_on_after(3):
            if life is not None:
                await life.ended.wait()
        host.disk.disarm()
        await trio.sleep(self._random.random())
        self._simulation.start(host)

    def _set_trap(
        self, host: Host, writes: int, kind: Trap | None = None, database: str | None = None
    ) -> None:
        if kind is None:
            kind = self._random.choice((Trap.CRASH_BEFORE, Trap.CRASH_DURING, Trap.CRASH_AFTER))
        powerless = kind is Trap.CRASH_DURING or self._random.random() < 0.5
        host.disk.set_trap(kind, writes, powerless=powerless, database=database)

    async def damage_log(self) -> None:
        """Of one node, while all others have their whole logs."""
        hosts = self._hosts()
        if len(hosts) < 3 or not all(host.is_whole for host in hosts):
            return
        host = self._victim()
        await host.kill(powerless=False)
        self._damage_log(host)
        await trio.sleep(self._random.random())
        self._simulation.start(host)

    async def keep_the_only_copy_damaged(self) -> None:
        """Entries that two of three nodes have are damaged at one of them while the other is down;
        the third, which has never seen them, must not lead with the vote of the first."""
        hosts = self._hosts()
        leaders = [host for host in hosts if host.leads]
        if len(hosts) != 3 or not leaders or not all(host.is_whole for host in hosts):
            return
        leader = leaders[0]
        damaged, ignorant = self._random.sample([host for host in hosts if host is not leader], 2)
        ids = [host.node_id for host in hosts]
        self._network.cut(self._links("isolated", ids, ignorant.node_id))
        await trio.sleep(self._random.uniform(0.1, 1))
        if not all(host.is_whole for host in hosts):
            return
        for host in (leader, damaged):
            await host.kill(powerless=False)
        self._damage_log(damaged)
        self._network.cut(())
        self._simulation.start(damaged)
        self._counted["only copies damaged"] += 1
        await trio.sleep(self._random.uniform(2, 5))
        self._simulation.start(leader)

    def _damage_log(self, host: Host) -> None:
        if self._random.random() < 0.5:
            self._counted["bit flips"] += host.disk.flip_bit("log")
        else:
            self._counted["logs cut short"] += host.disk.cut_short("log")

    async def restart(self) -> None:
        host = self._victim()
        if not host.paused:
            self._counted["orderly restarts"] += 1
            await host.stop()
            await trio.sleep(self._random.random())
            self._simulation.start(host)

    async def lose_power(self) -> None:
        """All machines at once; they restart one after the other."""
        self._counted["power losses of all"] += 1
        hosts = self._hosts()
        powerless = self._random.random() < 0.7
        for host in hosts:
            await host.kill(powerless=powerless)
        for host in self._random.sample(hosts, len(hosts)):
            await trio.sleep(self._random.random())
            self._simulation.start(host)

    async def pause(self) -> None:
        host = self._victim()
        self._counted["pauses"] += 1
        host.pause(True)
        await trio.sleep(self._some_time_s())
        host.pause(False)

    async def skew_clock(self) -> None:
        host = self._victim()
        self._counted["clock skews"] += 1
        host.skew_ms = self._random.choice((-3_600_000, -5_000, 0, 5_000, 3_600_000))
        host.drift = self._random.choice((1.0, 1.0, 0.9, 1.1))

    async def slow_disk(self) -> None:
        host = self._victim()
        self._counted["slow disks"] += 1
        host.disk_s = self._random.choice(((0.01, 0.1), (0.1, 0.6), (0.5, 4.0)))
        await trio.sleep(self._some_time_s())
        host.disk_s = DISK_S

    # -- logs ---------------------------------------------------------------------------------

    async def compact(self) -> None:
        if self._random.random() < 0.2:
            await self.compact_and_crash()
        else:
            await self._compact_at(self._victim())

    async def compact_and_crash(self) -> None:
        """Right after the compaction, which must not come too early."""
        host = self._victim()
        await self._compact_at(host)
        await self._crash_for(host, self._random.random())

    async def _compact_at(self, host: Host) -> None:
        with suppress(NotThere, ConnectionLost):
            await host.ask(lambda node: node.group.storage.compact())
            self._counted["compactions asked for"] += 1

    async def let_one_lag(self) -> None:
        """A node is down or cut off while the others compact their logs: it will need a Raft
        snapshot."""
        host = self._random.choice(self._hosts())
        host.crash_in_install = self._random.random() < 0.4
        await self._let_lag_beyond_the_log(host)
        # And again, perhaps in the middle of the transfer.
        await self._trap(host, self._random.choice((0, 5, 10, 20, 40)))

    async def interrupt_install(self) -> None:
        """The same, and only the installation is interrupted, at a node whose log is compacted."""
        host = self._random.choice(self._hosts())
        await self._compact_at(host)
        host.crash_in_install = True
        await self._let_lag_beyond_the_log(host)
        await self._trap(host)

    async def crash_after_install(self) -> None:
        """The same, and the node ends right after the installation."""
        host = self._random.choice(self._hosts())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._let_lag_beyond_the_log, host)
            with trio.move_on_after(5):
                await host.next_install()
                await self._crash_for(host, 0.1)

    async def need_a_raft_snapshot(self) -> None:
        """The same, and nothing is interrupted."""
        await self._let_lag_beyond_the_log(self._random.choice(self._hosts()))

    async def _let_lag_beyond_the_log(self, host: Host) -> None:
        if self._random.random() < 0.5:
            await host.kill(powerless=False)
            await self._compact_others(host)
            self._simulation.start(host)
        else:
            ids = [other.node_id for other in self._hosts()]
            self._network.cut(self._links("isolated", ids, host.node_id))
            await self._compact_others(host)
            self._network.cut(())

    async def _compact_others(self, host: Host) -> None:
        await trio.sleep(self._random.uniform(0.5, 2))
        for other in self._hosts():
            if other is not host:
                await self._compact_at(other)
