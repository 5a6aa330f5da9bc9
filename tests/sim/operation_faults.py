"""Faults during an operation, from a seed: nodes are killed, orders get lost, it is paused."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import trio

from streamd.group.proposals import OutcomeUnknown, Unavailable
from streamd.protocol.problems import ProblemError
from streamd.streams.operations.requests import Cancel, Pause, Resume
from tests.sim.operated import InvariantBroken, Operated
from tests.support.machines import Machine


async def kill_at_version(operated: Operated, operation_id: int, version: int) -> None:
    """Kill the leader as soon as it has applied that version of the record."""
    while True:
        for machine in operated.machines.all:
            if machine.leads:
                record = machine.node.group.state.operations.records.get(operation_id)
                if record is not None and record.version >= version:
                    await operated.kill(machine, 3.0)
                    return
        await trio.sleep(0.001)


@dataclass(frozen=True)
class Mix:
    """What goes wrong: the share of leaders among those that are killed, the seconds between two
    kills and those that nodes stay down, and the seconds between two pauses."""

    leaders: float = 0.7
    kills_s: float = 12.0
    down_s: tuple[float, ...] = (0.5, 4.0, 20.0)
    pauses_s: float = 3.0


async def kill_now_and_then(operated: Operated, mix: Mix, random: Random) -> None:
    """Kill one node at a time."""
    while True:
        await trio.sleep(random.expovariate(1 / mix.kills_s))
        up = [one for one in operated.machines.all if one.is_ready]
        victim = _victim(up, mix.leaders, random)
        if victim is not None and len(up) == len(operated.machines.all):
            operated.hosts.fails = random.choice((0, 0, 1))
            await operated.kill(victim, random.choice(mix.down_s))


def _victim(up: list[Machine], share: float, random: Random) -> Machine | None:
    is_leader = random.random() < share
    fitting = [one for one in up if one.leads is is_leader]
    return random.choice(fitting) if fitting else None


async def pause_now_and_then(
    operated: Operated, operation_id: int, mix: Mix, random: Random
) -> None:
    """Pause and resume. While it is paused nothing may be begun."""
    while True:
        await trio.sleep(random.expovariate(1 / mix.pauses_s))
        try:
            paused = await operated.ask(Pause(operation_id))
        except ProblemError:
            continue
        except (Unavailable, OutcomeUnknown):
            # It may be paused all the same.
            await insist(operated, Resume(operation_id))
            continue
        await trio.sleep(random.random() * 2)
        record = operated.record(operation_id)
        if record is not None and record.state == "running" and not record.cancel_asked:
            raise InvariantBroken(f"it goes on after a pause at version {paused['version']}")
        await insist(operated, Resume(operation_id))


async def cancel(operated: Operated, operation_id: int, random: Random) -> None:
    """Cancel the operation at some time."""
    await trio.sleep(random.random() * 60)
    await insist(operated, Cancel(operation_id))


async def insist(operated: Operated, request: Cancel | Resume) -> None:
    """Ask until there is an answer, which may be a refusal."""
    while True:
        try:
            await operated.ask(request)
            return
        except ProblemError:
            return
        except (Unavailable, OutcomeUnknown):
            await trio.sleep(0.5)
