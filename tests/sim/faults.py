"""What goes wrong: to the network, to machines, to all of them at once."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation


class Faults:
    """Each seed has faults of its own: what is rare everywhere is never combined."""

    def __init__(self, simulation: Simulation, random: Random) -> None:
        self._simulation = simulation
        self._random = random
        self._network = simulation.network
        self._counted = simulation.counted

    async def run(self) -> None:
        await trio.sleep_forever()

    async def heal(self) -> None:
        pass
