"""Webhooks of a cluster of whole nodes, whose leader may die at each step of a delivery."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from streamd.group.proposals import OutcomeUnknown, Unavailable
from streamd.streams.commands import Append, Create, Result
from streamd.streams.keys import stream_key
from streamd.streams.model import Settings
from streamd.streams.subscriptions.commands import PutSubscription
from streamd.streams.subscriptions.model import SubscriptionConfig
from tests.sim.receivers import InvariantBroken, Outgoing, Receivers
from tests.sim.runtime import run_virtually
from tests.sim.simulation import innermost
from tests.sim.subscription_bugs import PLANTED, Plant
from tests.support.machines import Machine, Machines, all_ready, wait_until
from tests.support.seeds import one_each

TEXT = "text/plain"
NAMES = ("a", "b", "c")
KEYS = [stream_key(b"sim", name.encode()) for name in NAMES]
HOUR_MS = 3_600_000
# So long may everything take that is pending, with retries up to a minute, once all are well.
SETTLED_S = 300.0


class Woken:
    """Machines, receivers, and a client that appends."""

    def __init__(self, machines: Machines, nursery: trio.Nursery, random: Random) -> None:
        self.machines = machines
        self.nursery = nursery
        self.random = random
        self.receivers = Receivers(machines.all, nursery, random)
        self.subscriptions: list[str] = []
        for machine in machines.all:
            machine.poster = Outgoing(machine, self.receivers)

    async def propose(self, make: Callable[[], Any]) -> Result:
        """Propose at some node until the outcome is known: a repetition may take effect twice."""
        while True:
            up = [one for one in self.machines.all if one.is_ready]
            try:
                if up:
                    outcome = await self.random.choice(up).node.group.writes.propose(make())
                    return outcome.result
            except (Unavailable, OutcomeUnknown):
                pass
            await trio.sleep(0.2)

    async def begin(self, leases_ms: tuple[int, ...]) -> None:
        """Make the streams, the key and the subscriptions."""
        leader, *_ = await all_ready(self.machines)
        await wait_until(lambda: leader.node.group.state.header.features >= 7)
        await leader.node.keyring.ensure()
        for key in KEYS:
            await self.propose(lambda key=key: Create(key, Settings(TEXT), implicit_bucket=True))
        for number, lease_ms in enumerate(leases_ms):
            name, pattern = f"s{number}", "sim/*" if number % 2 else "sim/a"
            config = SubscriptionConfig(
                "webhook", pattern, f"http://127.0.0.{number + 1}/", lease_ttl_ms=lease_ms
            )
            await self.propose(lambda name=name, config=config: PutSubscription(name, config))
            self.subscriptions.append(name)

    async def append(self) -> None:
        key = self.random.choice(KEYS)
        await self.propose(lambda: Append(key, TEXT, b"x", [1]))

    async def append_now_and_then(self, pause_s: float) -> None:
        while True:
            await trio.sleep(self.random.expovariate(1 / pause_s))
            await self.append()

    async def watch(self) -> None:
        """Look at all nodes, over and over."""
        while True:
            for machine in self.machines.all:
                if machine.is_ready:
                    self.receivers.check_acknowledged(machine, KEYS)
            await trio.sleep(0.1)

    async def kill(self, machine: Machine, down_s: float) -> None:
        await machine.kill()
        machine.ahead_ms = self.random.choice((0, 0, HOUR_MS, -HOUR_MS))
        await trio.sleep(down_s)
        self.machines.start(machine)

    async def kill_now_and_then(self) -> None:
        while True:
            await trio.sleep(self.random.expovariate(1 / 8))
            up = [one for one in self.machines.all if one.is_ready]
            leading = [one for one in up if one.leads]
            if leading and len(up) == len(self.machines.all):
                victim = leading[0] if self.random.random() < 0.8 else self.random.choice(up)
                await self.kill(victim, self.random.choice((0.5, 3.0, 12.0)))

    async def settle(self) -> None:
        """Everything is well from now on: all that was appended comes to be worked through. Raises
        `InvariantBroken` if it does not."""
        self.receivers.be("done")
        for machine in self.machines.all:
            await wait_until(lambda machine=machine: machine.is_ready, SETTLED_S)
        try:
            await wait_until(self._is_settled, SETTLED_S)
        except trio.TooSlowError:
            leader = await self.machines.leader()
            left = list(leader.node.group.state.subscriptions.records.values())
            raise InvariantBroken(f"something is pending for ever: {left}") from None
        state = (await self.machines.leader()).node.group.state
        for name in self.subscriptions:
            found = state.subscriptions.by_id(name)
            assert found is not None
            for key in KEYS if found.config.pattern == "sim/*" else KEYS[:1]:
                stream = state.streams.get(key)
                processed = self.receivers.ledger(name).processed[key]
                if stream is None or processed != stream.tail.record:
                    raise InvariantBroken(f"{name}: {processed} of {key!r}, which has {stream}")

    def _is_settled(self) -> bool:
        leading = [one for one in self.machines.all if one.leads and one.is_ready]
        return bool(leading) and all(
            record.wake is None and not record.pending
            for record in leading[0].node.group.state.subscriptions.records.values()
        )


Scenario = Callable[[Woken], Awaitable[None]]


def play(
    scenario: Scenario, base: Path, seed: int = 1, leases_ms: tuple[int, ...] = (4_000,)
) -> Receivers:
    """Play a scenario, and let everything settle."""
    played: list[Receivers] = []

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            woken = Woken(Machines(base, nursery), nursery, Random(seed))
            played.append(woken.receivers)
            await woken.begin(leases_ms)
            nursery.start_soon(woken.watch)
            await scenario(woken)
            await woken.settle()
            nursery.cancel_scope.cancel()

    run_virtually(seed, run)
    return played[0]


STEPS = ("woken", "begun", "posted", "received", "answered", "ended")


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("kind", ["done", pytest.param("later", marks=pytest.mark.long)])
def test_a_wake_survives_the_leader_at_each_step(step: str, kind: str, tmp_path: Path) -> None:
    """It is acknowledged, by the wake that the leader had begun or by another."""

    async def scenario(woken: Woken) -> None:
        receivers = woken.receivers
        receivers.be(kind)
        steps: list[Machine] = []
        receivers.on_step = lambda name, machine: steps.append(machine) if name == step else None
        woken.nursery.start_soon(woken.append)

        def has_come() -> bool:
            return bool(steps) or any(
                record.generation > 0 and _step_of(record) == step
                for machine in woken.machines.all
                if machine.leads
                for record in machine.node.group.state.subscriptions.records.values()
            )

        with trio.fail_after(60):
            while not has_come():  # noqa: ASYNC110
                await trio.sleep(0.0005)
        await woken.kill(await woken.machines.leader(), 3.0)
        await woken.append()

    counted = play(scenario, tmp_path).counted
    assert counted[kind] or counted["done"], counted


def _step_of(record: Any) -> str:
    if record.wake is None:
        return "ended"
    return "begun" if record.attempts else "woken"


def run_seed(seed: int, base: Path) -> Receivers:
    """Appends and webhooks while nodes die. Raises `InvariantBroken`."""
    base.mkdir(exist_ok=True)
    random = Random(seed)
    leases_ms = tuple(random.choice((1_000, 3_000, 20_000)) for _ in range(4))

    async def scenario(woken: Woken) -> None:
        # Its successor's clock lags log time.
        (await woken.machines.leader()).ahead_ms = random.choice((0, HOUR_MS))
        async with trio.open_nursery() as meddling:
            meddling.start_soon(woken.append_now_and_then, random.choice((0.1, 0.5, 2.0)))
            meddling.start_soon(woken.kill_now_and_then)
            await trio.sleep(30)
            meddling.cancel_scope.cancel()
        for machine in woken.machines.all:
            if machine.running is None:
                woken.machines.start(machine)

    return play(scenario, base, seed, leases_ms)


@pytest.mark.parametrize("seed", one_each(12, 1))
def test_all_that_is_appended_is_acknowledged_whatever_fails(seed: int, tmp_path: Path) -> None:
    counted = run_seed(seed, tmp_path).counted
    assert counted["done"], counted
    assert counted["called back"], counted


TRIES = 4
# They are found when something stays pending, which takes five virtual minutes.
SLOW = ("leases_and_retries_end_by_the_leaders_own_clock", "next_leader_forgets_what_is_due")


def run_seeds(base: Path) -> None:
    for seed in range(TRIES):
        run_seed(seed, base / str(seed))


def parameter(plant: Plant) -> Any:
    name = plant.__name__
    return pytest.param(plant, id=name, marks=[pytest.mark.long] if name in SLOW else [])


@pytest.mark.parametrize("plant", [parameter(plant) for plant in PLANTED])
def test_schedules_find_the_mistake(
    plant: Plant,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    summary: Callable[[str], None],
) -> None:
    plant(monkeypatch)
    with pytest.raises((InvariantBroken, BaseExceptionGroup)) as found:
        run_seeds(tmp_path)
    error = innermost(found.value)
    assert isinstance(error, InvariantBroken), error
    summary(f"{plant.__name__:40} {str(error)[:110]}")
