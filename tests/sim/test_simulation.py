"""Whole nodes keep their promises under random faults.

`SEEDS=500 pytest tests/sim` runs more of them, `SEED=17` just that one.
"""

from __future__ import annotations

import os

from tests.sim.simulation import run_seed


def test_one() -> None:
    s = run_seed(int(os.environ.get("SEED", "1")))
    print(dict(s.counted), s.digest)
