"""Whole nodes over an object store that fails as they do: I1 and I7, the reads at the end cold.

`SEEDS=3000 pytest tests/sim/test_cold.py` runs a twentieth as many; `SEED=17` replays just that.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

from tests.sim.simulation import run_seed

SEEDS = max(12, int(os.environ.get("SEEDS", "240")) // 20)

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
)


def test_promises_hold_over_a_failing_store(summary: Callable[[str], None]) -> None:
    only = os.environ.get("SEED")
    counted: Counter[str] = Counter()
    slowest_ms = 0
    seeds = [int(only)] if only else range(SEEDS)
    for seed in seeds:
        simulation = run_seed(seed, cold=True)
        if only or seed == 0:
            again = run_seed(seed, cold=True)
            assert again.digest == simulation.digest, f"seed {seed} does not replay"
        slowest_ms = max(slowest_ms, simulation.counted.pop("slowest drain, ms", 0))
        simulation.counted.pop("slowest recovery, ms", 0)
        counted += simulation.counted
    summary(f"cold store, {len(seeds)} seeds, slowest drain {slowest_ms} ms: {dict(counted)}")
    if not only:
        missing = [what for what in EXPECTED if not counted[what]]
        assert not missing, f"no schedule ever brought this about: {missing}"
