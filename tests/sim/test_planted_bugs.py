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
LIKELY_SEEDS = {
    "applied_index_is_not_in_the_batch": 8,
    "errors_of_the_disk_are_ignored": 7,
    "leaders_read_without_asking_anyone": 7,
    "log_is_cut_behind_what_is_applied_but_not_stored": 22,
    "node_that_lost_entries_votes": 17,
    "snapshot_is_installed_beside_the_state_in_memory": 2,
    "snapshot_is_installed_without_a_marker": 32,
    "snapshot_leaves_the_log_as_it_is": 5,
    "write_of_a_deposed_leader_is_called_refused": 5,
    "write_of_unknown_outcome_is_sent_again": 5,
    "writes_are_acknowledged_before_the_fsync": 3,
}


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
