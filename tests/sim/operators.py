"""Operators, who change the members and hand over the lead while things go wrong."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation


class Operator:
    def __init__(self, simulation: Simulation, random: Random) -> None:
        self._simulation = simulation
        self._random = random

    async def run(self) -> None:
        await trio.sleep_forever()
