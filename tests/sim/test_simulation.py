"""Whole nodes keep their promises under random faults.

Each commit has seeds of its own, beside those that once failed; a test for each, so that they
spread over processes. `SEEDS=3000 pytest tests/sim/test_simulation.py` runs a tenth as many whole
clusters, each of them twice; `SEED=17` replays just that one.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

import pytest

from tests.sim.simulation import run_seed
from tests.support.seeds import one_each, replayed, seeds

SEEDS = max(30, int(os.environ.get("SEEDS", "300")) // 10)
# So many of them are not long.
QUICK = 2
# In a run of the usual length only these are run a second time; of those that are not long, the one
# of `test_cold.py` is.
REPEATED = seeds(SEEDS)[QUICK : QUICK + 3] if SEEDS == 30 else seeds(SEEDS)
# How many look for what every schedule may lack.
MOST_SEEDS = 300
# A member that had joined and never voted could not start with a damaged log; a late message let
# a node vote before it had all that it had lost; a new leader refused sessions too early.
ONCE_FAILED = (5035, 5060, 5251, 5264, 240093, 240053, 240905)

EXPECTED = (
    "elections",
    "leaders deposed",
    "log compactions",
    "Raft snapshot installs",
    "installs completed at start",
    "crashes in the midst of an install",
    "members added",
    "members promoted",
    "members removed",
    "leads handed over",
    "crashes",
    "crashes during calls",
    "crashes while starting",
    "crashes before a write",
    "crashes after a write",
    "crashes during a write",
    "crashes between write and answer",
    "power losses",
    "power losses of all",
    "unsynced writes lost",
    "torn tails",
    "bit flips",
    "logs cut short",
    "only copies damaged",
    "starts without all entries",
    "entries regained",
    "entries replayed",
    "EIO",
    "ENOSPC",
    "processes ended by storage errors",
    "orderly restarts",
    "leaderships handed over",
    "pauses",
    "clock skews",
    "slow disks",
    "partitions: isolated",
    "partitions: mute",
    "partitions: deaf",
    "partitions: bridge",
    "partitions: split",
    "slow links",
    "connections broken",
    "messages lost",
    "messages doubled",
    "messages overtaken by others",
    "forwarded packages",
    "packages resent",
    "sessions opened",
    "follower reads",
    "leader reads",
    "retries recognised",
    "refused: STALE_EPOCH",
    "refused: STREAM_CLOSED",
    "streams created again",
    "short-lived streams gone",
    "endings: healed",
    "endings: all but one",
    "endings: power lost",
)


@pytest.mark.parametrize("seed", one_each(SEEDS, QUICK, ONCE_FAILED))
def test_promises_hold_under_random_faults(seed: int) -> None:
    simulation = run_seed(seed)
    if seed in REPEATED or replayed() is not None:
        assert run_seed(seed).digest == simulation.digest, f"seed {seed} does not replay"


@pytest.mark.long
@pytest.mark.skipif(replayed() is not None, reason="not all faults come about with one seed")
def test_every_fault_comes_about(summary: Callable[[str], None]) -> None:
    counted: Counter[str] = Counter()
    slowest_ms = ran = 0

    def missing() -> list[str]:
        return [what for what in EXPECTED if not counted[what]]

    for seed in seeds(SEEDS + MOST_SEEDS)[SEEDS:]:
        simulation = run_seed(seed)
        ran += 1
        slowest_ms = max(slowest_ms, simulation.counted.pop("slowest recovery, ms", 0))
        counted += simulation.counted
        if not missing():
            break
    summary(f"whole nodes, {ran} seeds, slowest recovery {slowest_ms} ms: {dict(counted)}")
    assert not missing(), f"no schedule ever brought this about: {missing()}"
