"""Random schedules find no broken promise, and a core with a planted bug does not pass.

`SEEDS=5000 pytest tests/raft/test_simulation.py` runs more of them, `SEED=17` just that one.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

from tests.raft.simulation import run_seed

STEPS = 6000
SEEDS = int(os.environ.get("SEEDS", "150"))


def test_invariants_hold_under_random_faults(summary: Callable[[str], None]) -> None:
    only = os.environ.get("SEED")
    counted: Counter[str] = Counter()
    seeds = [int(only)] if only else range(SEEDS)
    for seed in seeds:
        simulation = run_seed(seed, STEPS)
        counted += simulation.counted
        counted["committed"] += simulation.checker.committed_index
    summary(f"hearts, {len(seeds)} seeds: {dict(counted)}")
    if not only and SEEDS >= 150:
        for what in (
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
        ):
            assert counted[what], f"no schedule ever brought this about: {what}"


def test_a_seed_replays_exactly() -> None:
    only = os.environ.get("SEED")
    for seed in [int(only)] if only else range(SEEDS if SEEDS > 300 else 15):
        first, second = run_seed(seed, STEPS), run_seed(seed, STEPS)
        assert first.digest == second.digest
        assert first.counted == second.counted
