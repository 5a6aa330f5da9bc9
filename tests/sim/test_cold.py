"""Whole nodes over an object store that fails as they do: I1 and I7, the reads at the end cold.

Each commit has seeds of its own, beside those that once failed; a test for each.
`SEEDS=3000 pytest tests/sim/test_cold.py` runs a twentieth as many; `SEED=17` replays just that.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

import pytest

from tests.sim.simulation import run_seed
from tests.support.seeds import one_each, replayed, seeds

SEEDS = max(12, int(os.environ.get("SEEDS", "240")) // 20)
# So many of them are not long.
QUICK = 1
# This one is run a second time.
REPEATED = seeds(1)[0]
# How many look for what every schedule may lack.
MOST_SEEDS = 100
# A member that had joined and never voted could not start with a damaged log.
ONCE_FAILED = (340129, 340176, 340213)

EXPECTED = (
    "elections",
    "leaders deposed",
    "Raft snapshot installs",
    "crashes during calls",
    "power losses of all",
    "streams created again",
    "short-lived streams gone",
    "store: away",
    "store: errors",
    "store: lost replies",
    "store: slow",
    "store: flipped bits",
    "store: flipped bit",
    "store: refusal",
    "store: lost reply to put",
    "store: lost reply to get",
    "store: delete",
    "cold: reads",
    "cold: slices in the end",
    "cold: packs in the end",
    "cold: dropped slices",
    "cold: deleted packs",
    "cold: repacked packs",
    "cold: deleted orphans",
    "trees compared",
)


@pytest.mark.parametrize("seed", one_each(SEEDS, QUICK, ONCE_FAILED))
def test_promises_hold_over_a_failing_store(seed: int) -> None:
    simulation = run_seed(seed, cold=True)
    if seed == REPEATED:
        again = run_seed(seed, cold=True)
        assert again.digest == simulation.digest, f"seed {seed} does not replay"


@pytest.mark.long
@pytest.mark.skipif(replayed() is not None, reason="not all faults come about with one seed")
def test_every_fault_comes_about(summary: Callable[[str], None]) -> None:
    counted: Counter[str] = Counter()
    slowest_ms = ran = 0

    def missing() -> list[str]:
        return [what for what in EXPECTED if not counted[what]]

    for seed in seeds(SEEDS + MOST_SEEDS)[SEEDS:]:
        simulation = run_seed(seed, cold=True)
        ran += 1
        slowest_ms = max(slowest_ms, simulation.counted.pop("slowest drain, ms", 0))
        simulation.counted.pop("slowest recovery, ms", 0)
        counted += simulation.counted
        if not missing():
            break
    summary(f"cold store, {ran} seeds, slowest drain {slowest_ms} ms: {dict(counted)}")
    assert not missing(), f"no schedule ever brought this about: {missing()}"
