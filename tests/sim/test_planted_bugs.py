"""The simulation of whole nodes is checked itself: each deliberate mistake is found."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import chain

import pytest

from tests.sim.planted_bugs import PLANTS, Plant
from tests.sim.simulation import run_seed
from tests.sim.watch import InvariantBroken

MAX_SEEDS = 60
# Where to look first, for those that most schedules do not meet.
LIKELY_SEEDS: dict[str, int] = {}


@pytest.mark.parametrize("plant", PLANTS, ids=lambda plant: plant.__name__)
def test_random_faults_find(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, summary: Callable[[str], None]
) -> None:
    plant(monkeypatch)
    with pytest.raises(InvariantBroken) as found:
        run_seeds(LIKELY_SEEDS.get(plant.__name__, 0))
    text = re.sub(r"\s+", " ", str(found.value))
    summary(f"{plant.__name__:52} {text[:110]}")


def run_seeds(first: int) -> None:
    for seed in chain([first], range(MAX_SEEDS)):
        run_seed(seed)
