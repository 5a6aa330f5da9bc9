"""Operators change the members and transfer leadership during faults."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

import trio

from streamd.cluster.administration import Add, AdminCommand, Promote, Remove, Transfer
from streamd.group.proposals import OutcomeUnknown, Unavailable
from streamd.node.node import Node
from streamd.protocol.problems import ProblemError
from tests.sim.host import ConnectionLost, Host, NotThere
from tests.sim.network import address_of

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation

MAX_HOSTS = 6
_MIN_VOTERS = 3
_PATIENCE_S = 12.0


class Operator:
    """Carries out one operation at a time, at any reachable node. Ids are never reused."""

    def __init__(self, simulation: Simulation, random: Random) -> None:
        self._simulation = simulation
        self._random = random
        self._counted = simulation.counted
        self._pause_s = random.choice((1.0, 3.0, 1000.0))

    async def run(self) -> None:
        while True:
            await trio.sleep(self._random.expovariate(1 / self._pause_s))
            node = self._any_host().node
            if node is None:
                continue
            configuration = node.group.view.configuration
            voters, learners = configuration.voters, configuration.learners
            if learners and self._random.random() < 0.8:
                await self._promote(self._random.choice(learners), voters)
            elif voters and self._fewest_voters() > _MIN_VOTERS and self._random.random() < 0.6:
                await self._remove(self._random.choice(voters))
            elif self._random.random() < 0.5:
                await self._add(configuration.members())
            elif voters:
                await self._transfer(self._random.choice((*voters, None)))

    def _any_host(self) -> Host:
        hosts = [host for host in self._simulation.hosts.values() if not host.retired]
        return self._random.choice(hosts)

    def _fewest_voters(self) -> int:
        """As any node has it, because the node that is asked may not know yet of the last removal.
        Of the voters that remain the leader sees that enough may vote; but of two that are left,
        one may be damaged afterwards."""
        nodes = [host.node for host in self._simulation.hosts.values()]
        known = [node.group.view.configuration.voters for node in nodes if node is not None]
        return min((len(voters) for voters in known if voters), default=0)

    async def _add(self, members: set[int]) -> None:
        hosts = self._simulation.hosts
        spare = [i for i, host in hosts.items() if i not in members and not host.retired]
        if not spare and len(hosts) < MAX_HOSTS:
            spare = [max(hosts) + 1]
            self._simulation.add_host(spare[0])
            await trio.sleep(0.5)
        if spare and await self._have(Add(address_of(spare[0]))):
            self._counted["members added"] += 1

    async def _promote(self, node_id: int, voters: tuple[int, ...]) -> None:
        """A new node replaces a voter, or becomes one more."""
        others = [voter for voter in voters if voter != node_id]
        replacing = self._random.choice(others) if self._random.random() < 0.4 else None
        if await self._have(Promote(node_id, replacing)):
            self._counted["members promoted"] += 1
            if replacing is not None:
                await self._retire(replacing)

    async def _remove(self, node_id: int) -> None:
        if await self._have(Remove(node_id)):
            await self._retire(node_id)

    async def _retire(self, node_id: int) -> None:
        self._counted["members removed"] += 1
        await trio.sleep(self._random.random() * 3)
        await self._simulation.hosts[node_id].retire()

    async def _transfer(self, to: int | None) -> None:
        if await self._have(Transfer(to)):
            self._counted["leads handed over"] += 1

    async def _have(self, command: AdminCommand) -> bool:
        """Ask any node; False if it refused, or the outcome is unknown."""
        host = self._any_host()
        if host.paused:
            return False
        with trio.move_on_after(_PATIENCE_S):
            try:
                await host.ask(partial(_perform, command))
                return True
            except ProblemError as error:
                self._counted[f"operators refused: {error.problem.code}"] += 1
            except (Unavailable, OutcomeUnknown, NotThere, ConnectionLost):
                self._counted["operators not answered"] += 1
        return False


async def _perform(command: AdminCommand, node: Node) -> None:
    assert node.administration is not None
    await node.administration.perform(command)
