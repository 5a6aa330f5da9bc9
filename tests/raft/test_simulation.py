"""Random schedules find no broken promise, and a core with a planted bug does not pass.

Each commit has seeds of its own. `SEEDS=5000 pytest tests/raft/test_simulation.py` runs more of
them, `SEED=17` just that one.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

import pytest

from tests.raft.simulation import run_seed
from tests.support.seeds import replayed, seeds, seeds_until

STEPS = 6000
SEEDS = int(os.environ.get("SEEDS", "150"))
# So many run in a test that is not long.
QUICK = 40
# How many more look for what is rare.
MORE_SEEDS = 1000

EXPECTED = (
    "committed",
    "crashes",
    "power losses",
    "writes lost",
    "entries lost",
    "confirmations taken back",
    "links: isolated",
    "links: mute",
    "links: deaf",
    "links: bridge",
    "disks stalled",
    "leaders with stalled disks stepped down",
    "pauses",
    "suffixes replaced",
    "messages lost",
    "messages duplicated",
    "messages overtaken by others",
    "leaders deposed",
    "leaders stepped down",
    "leaders removed",
    "campaigns by transfer",
    "configurations proposed",
    "configurations refused",
    "joint configurations",
    "compactions",
    "snapshots installed",
    "snapshots failed",
    "reads answered at a leader",
    "reads answered at a follower",
    "proposals refused",
    "proposals refused during a transfer",
)


def test_invariants_hold_under_random_faults() -> None:
    for seed in seeds(QUICK):
        run_seed(seed, STEPS)


@pytest.mark.long
def test_invariants_hold_while_every_fault_comes_about(summary: Callable[[str], None]) -> None:
    counted: Counter[str] = Counter()
    ran = 0

    def missing() -> list[str]:
        return [what for what in EXPECTED if not counted[what]]

    for seed in seeds_until(lambda: not missing(), SEEDS, MORE_SEEDS):
        simulation = run_seed(seed, STEPS)
        ran += 1
        counted += simulation.counted
        counted["committed"] += simulation.checker.committed_index
    summary(f"hearts, {ran} seeds: {dict(counted)}")
    if replayed() is None:
        assert not missing(), f"no schedule ever brought this about: {missing()}"


def test_a_seed_replays_exactly() -> None:
    for seed in seeds(SEEDS if SEEDS > 300 else 15):
        first, second = run_seed(seed, STEPS), run_seed(seed, STEPS)
        assert first.digest == second.digest
        assert first.counted == second.counted
