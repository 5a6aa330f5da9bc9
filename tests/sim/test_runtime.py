"""A run that gets stuck ends like any other failure, and leaves no task."""

from __future__ import annotations

import pytest
import trio

from tests.sim import simulation
from tests.sim.host import Host
from tests.sim.recovery import Recovery
from tests.sim.runtime import Stuck, run_virtually
from tests.sim.simulation import run_seed
from tests.sim.watch import InvariantBroken


async def wait_for_ever() -> None:
    with trio.CancelScope(shield=True):
        await trio.sleep_forever()


async def wait_for_ever_in_the_end() -> None:
    try:
        await wait_for_ever()
    finally:
        await wait_for_ever()


async def do_nothing_for_ever() -> None:
    while True:
        with trio.CancelScope(shield=True):
            await trio.sleep(10)


async def many_wait() -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait_for_ever)
        nursery.start_soon(do_nothing_for_ever)
        nursery.start_soon(trio.sleep_forever)


@pytest.mark.parametrize(
    "main", [wait_for_ever, wait_for_ever_in_the_end, do_nothing_for_ever, many_wait]
)
def test_a_stuck_run_is_cancelled_though_it_is_shielded(main: object) -> None:
    with pytest.raises(Stuck):
        run_virtually(1, main)  # type: ignore[arg-type]


@pytest.mark.long
def test_a_stuck_run_names_its_seed_and_does_not_affect_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = run_seed(3, seconds=2)

    async def wait_with_all_paused(self: Recovery) -> None:
        for host in self._simulation.hosts.values():
            host.pause(True)
        await trio.sleep_forever()

    with monkeypatch.context() as patch:
        patch.setattr(simulation.Recovery, "run", wait_with_all_paused)
        patch.setattr(Host, "pull_plug", lambda _: None)
        with pytest.raises(InvariantBroken, match=r"Stuck(?s:.*)SEED=3 "):
            run_seed(3, seconds=2)
    assert run_seed(3, seconds=2).digest == before.digest
