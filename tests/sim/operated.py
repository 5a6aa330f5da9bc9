"""A cluster of whole nodes in virtual time, whose hosts do what operations ask of them.

Every restart and stop is checked when it is ordered: it must be on record, must not leave fewer
voters than a quorum, nor end the leader, nor repeat what took effect, nor come before the cluster
was well for the operation's window.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

import trio

from streamd.group.proposals import Unavailable
from streamd.streams.operations.hosts import Host, HostError
from streamd.streams.operations.model import Operation, report
from streamd.streams.operations.requests import Begin, OperationRequest
from tests.sim.network import address_of
from tests.support.machines import Machine, Machines, all_ready, wait_until

# Longer than any operation here takes, with leaders killed.
BOUND_S = 380.0
# So long may a leader take to see that a node is gone, or back.
_NOTICED_S = 3.0


class InvariantBroken(AssertionError):
    """An operation did what none may do."""


class SimulatedHosts:
    """Restarts machines, at the order of whichever leader. An order takes effect even if that
    leader is gone."""

    def __init__(self, machines: Machines, nursery: trio.Nursery, random: Random) -> None:
        self.machines = machines
        self.restarts: Counter[int] = Counter()
        self.stopped: list[int] = []
        self.fails = 0
        self._nursery = nursery
        self._random = random
        # Nodes that are down by an order, and since when others are up or down.
        self._down: set[int] = set()
        self._starting: set[int] = set()
        self.changed_at: dict[int, float] = {}
        # When the restart of a step was over: by operation, step and node.
        self._effects: dict[tuple[int, int, int], float] = {}

    def machine(self, node_id: int) -> Machine:
        return next(one for one in self.machines.all if one.node_id == node_id)

    async def restart(self, host: Host) -> str:
        key = self._check(host, "restart")
        await self._order(lambda machine: self._restart(machine, key), self.machine(host.node_id))
        return ""

    async def stop(self, host: Host) -> str:
        self._check(host, "stop")
        await self._order(self._stop, self.machine(host.node_id))
        return ""

    async def install(self, host: Host, release: str) -> str:
        raise HostError(f"{release} cannot be installed on node {host.node_id}")

    async def _order(self, what: Callable[[Machine], Any], machine: Machine) -> None:
        """What was ordered is done, whether the one that ordered it lives to see it or not."""
        done = trio.Event()

        async def work() -> None:
            await trio.sleep(self._random.random())
            await what(machine)
            done.set()

        self._nursery.start_soon(work)
        await done.wait()
        if self.fails:
            self.fails -= 1
            raise HostError("the connection to the host was lost")

    async def _restart(self, machine: Machine, key: tuple[int, int, int]) -> None:
        self.restarts[machine.node_id] += 1
        self._down.add(machine.node_id)
        if machine.running is not None:
            await machine.kill()
        await trio.sleep(1 + self._random.random())
        await self.start(machine)
        await wait_until(lambda: machine.is_ready, BOUND_S)
        self._down.discard(machine.node_id)
        self._effects[key] = trio.current_time()

    async def start(self, machine: Machine) -> None:
        """Start a node that is down, unless another one does."""
        if machine.running is None and machine.node_id not in self._starting:
            self._starting.add(machine.node_id)
            self.machines.start(machine)
            await wait_until(lambda: machine.running is not None)
            self._starting.discard(machine.node_id)

    async def _stop(self, machine: Machine) -> None:
        self.stopped.append(machine.node_id)
        if machine.running is not None:
            await machine.kill()

    # -- what must hold -----------------------------------------------------------------------

    def _check(self, host: Host, deed: str) -> tuple[int, int, int]:
        """Raises `InvariantBroken` if this must not be done now. Returns the operation, the number
        of the step, and the node."""
        node_id = host.node_id
        leader = next((one for one in self.machines.all if one.leads), None)
        if leader is None:
            return 0, 0, node_id
        operation = leader.node.group.state.operations.current
        record = None if operation is None else operation.step
        step = None if record is None or not record.is_begun else record.step
        if operation is None or step is None or (step.deed, step.node_id) != (deed, node_id):
            raise InvariantBroken(f"{deed} of node {node_id} is not on record: {operation}")
        what = f"{deed} of node {node_id}"
        if leader.node_id == node_id:
            raise InvariantBroken(f"{what}, which leads")
        voters = {*leader.node.group.view.configuration.voters}
        left = {one for one in voters - {node_id} if self._is_up(one)}
        if node_id in voters and len(left) < len(voters) // 2 + 1:
            raise InvariantBroken(f"{what} leaves {left} of {voters}")
        if self._down - {node_id}:
            raise InvariantBroken(f"{what} while {self._down} are restarted")
        key = operation.operation_id, operation.current, node_id
        if trio.current_time() - self._effects.get(key, trio.current_time()) > _NOTICED_S:
            raise InvariantBroken(f"{what} although it was restarted already")
        self._check_window(operation, what)
        return key

    def _is_up(self, node_id: int) -> bool:
        """Whether a node is up, or so it seems to a leader that cannot know better yet."""
        recently = trio.current_time() - self.changed_at.get(node_id, 0.0) < _NOTICED_S
        return self.machine(node_id).is_ready or recently

    def _check_window(self, operation: Operation, what: str) -> None:
        record = operation.step
        assert record is not None, "it is on record"
        if operation.current and record.attempts == 1:
            before = operation.steps[operation.current - 1]
            waited_ms = record.attempted_at_ms - before.ended_at_ms
            if waited_ms < operation.arguments.window_ms:
                raise InvariantBroken(f"{what} {waited_ms} ms after the step before it")


class Operated:
    """Machines, their hosts, and an operator."""

    def __init__(self, machines: Machines, nursery: trio.Nursery, random: Random) -> None:
        self.machines = machines
        self.hosts = SimulatedHosts(machines, nursery, random)
        self.random = random
        for machine in machines.all:
            machine.hosts = self.hosts

    def add_machine(self, node_id: int) -> Machine:
        first = self.machines.all[0]
        machine = Machine(node_id, first.path.parent, self.machines.network)
        machine.hosts = self.hosts
        self.machines.all.append(machine)
        self.machines.start(machine)
        return machine

    async def ready(self) -> Machine:
        """The leader, once all machines are ready and the features are raised."""
        leader, *_ = await all_ready(self.machines)
        await wait_until(lambda: leader.node.group.state.header.features >= 6)
        return leader

    async def ask(self, request: OperationRequest) -> dict[str, Any]:
        """Ask a node that is up. Raises `Unavailable` if none is."""
        up = [one for one in self.machines.all if one.is_ready]
        if not up:
            raise Unavailable("no node is up")
        operations = self.random.choice(up).node.operations
        assert operations is not None
        return await operations.perform(request)

    async def begin(self, request: Begin) -> int:
        """The id of an operation that has begun."""
        return int((await self.ask(request))["id"])

    async def kill(self, machine: Machine, down_s: float) -> None:
        """A fault: the node ends, and comes back later."""
        self.hosts.changed_at[machine.node_id] = trio.current_time()
        await machine.kill()
        await trio.sleep(down_s)
        await self.bring_back(machine)

    async def bring_back(self, machine: Machine) -> None:
        """Start a node that is down, unless an order has stopped it for good."""
        if machine.node_id not in self.hosts.stopped:
            self.hosts.changed_at[machine.node_id] = trio.current_time()
            await self.hosts.start(machine)

    def record(self, operation_id: int) -> Operation | None:
        """The newest version that a node has."""
        found = [
            record
            for one in self.machines.all
            if one.running is not None
            for record in [one.node.group.state.operations.records.get(operation_id)]
            if record is not None
        ]
        return max(found, key=lambda one: one.version, default=None)

    async def ended(self, operation_id: int) -> Operation:
        """The record of an operation once it has ended, checked."""

        def has_ended() -> bool:
            record = self.record(operation_id)
            return record is not None and record.has_ended

        try:
            await wait_until(has_ended, BOUND_S)
        except trio.TooSlowError:
            raise InvariantBroken(f"it does not end: {self.record(operation_id)}") from None
        record = self.record(operation_id)
        assert record is not None
        self.check_end(record)
        return record

    def check_end(self, record: Operation) -> None:
        """What must hold of an operation that has ended."""
        if record.state == "done" and not all(one.ended_at_ms for one in record.steps):
            raise InvariantBroken(f"done, and a step is not: {report(record)}")
        leader = next((one for one in self.machines.all if one.leads), None)
        if leader is not None:
            configuration = leader.node.group.view.configuration
            members = configuration.voters, configuration.learners
            if members != (record.voters, record.learners):
                raise InvariantBroken(f"the members are {members}: {report(record)}")


def address(node_id: int) -> str:
    return address_of(node_id)
