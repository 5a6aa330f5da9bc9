"""Whole nodes keep their promises under random faults.

Each commit has seeds of its own, beside those that once failed.
`SEEDS=3000 pytest tests/sim/test_simulation.py` runs a tenth as many whole clusters, each of
them twice; `SEED=17` replays just that one.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable

from tests.sim.simulation import run_seed
from tests.support.seeds import replayed, seeds_until

SEEDS = max(30, int(os.environ.get("SEEDS", "300")) // 10)
# In a run of the usual length only so many are run a second time.
REPEATED = 3 if SEEDS == 30 else SEEDS
# How many more look for what is rare.
MORE_SEEDS = 300
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


def test_promises_hold_under_random_faults(summary: Callable[[str], None]) -> None:
    counted: Counter[str] = Counter()
    slowest_ms = ran = 0

    def missing() -> list[str]:
        return [what for what in EXPECTED if not counted[what]]

    for seed in seeds_until(lambda: not missing(), SEEDS, MORE_SEEDS, ONCE_FAILED):
        simulation = run_seed(seed)
        ran += 1
        if ran <= REPEATED:
            assert run_seed(seed).digest == simulation.digest, f"seed {seed} does not replay"
        slowest_ms = max(slowest_ms, simulation.counted.pop("slowest recovery, ms", 0))
        counted += simulation.counted
    summary(f"whole nodes, {ran} seeds, slowest recovery {slowest_ms} ms: {dict(counted)}")
    if replayed() is None:
        assert not missing(), f"no schedule ever brought this about: {missing()}"
