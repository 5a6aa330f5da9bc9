"""The checks themselves are checked: each deliberate mistake is found.

The end of the run shows which check found each, and how many scripts also differ.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from streamd.raft.core import RaftViolation
from tests.raft.invariants import InvariantBroken
from tests.raft.planted_bugs import FOR_RANDOM, FOR_SCRIPTS, Plant
from tests.raft.simulation import run_seed
from tests.raft.test_scripts import SCRIPTS, played
from tests.support.seeds import replayed, seeds

# How many seeds come first, from the likely one on, and how many of the commit's there are for all
# that these do not find, once a change of the core made the likely ones stale: about a minute's.
LIKELY, NEW_SEEDS = 20, 2400
STEPS = 6000
# The first seed that met those that the first of all does not.
LIKELY_SEEDS = {
    "heartbeat_commits_beyond_the_match": 27,
    "joint_configuration_is_left_at_once": 332,
    "late_completion_vouches_for_replaced_entries": 442,
    "learners_count": 47,
    "new_voters_decide_without_a_joint_configuration": 332,
    "node_without_its_entries_votes": 22,
    "one_half_of_a_joint_configuration_commits": 49,
    "one_half_of_a_joint_configuration_elects": 154,
    "read_rounds_are_not_distinguished": 467,
    "reads_do_not_ask_anyone": 138,
    "removed_leader_stays": 49,
}


@pytest.mark.parametrize("plant", FOR_RANDOM, ids=lambda plant: plant.__name__)
def test_random_schedules_find_the_mistake(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, summary: Callable[[str], None]
) -> None:
    plant(monkeypatch)
    with pytest.raises(InvariantBroken) as found:
        run_seeds(LIKELY_SEEDS.get(plant.__name__, 0))
    summary(row(plant, len(differing_scripts()), str(found.value)))


@pytest.mark.parametrize("plant", FOR_SCRIPTS, ids=lambda plant: plant.__name__)
def test_scripts_find_the_mistake(
    plant: Plant, monkeypatch: pytest.MonkeyPatch, summary: Callable[[str], None]
) -> None:
    plant(monkeypatch)
    differing = differing_scripts()
    assert differing
    summary(row(plant, len(differing), f"{differing[0]}.txt"))


_new_seeds_used = count()


def run_seeds(first: int) -> None:
    for seed in range(first, first + LIKELY) if replayed() is None else ():
        run_seed(seed, STEPS)
    for seed in seeds(NEW_SEEDS):
        if next(_new_seeds_used) >= NEW_SEEDS:
            break
        run_seed(seed, STEPS)


def differing_scripts() -> list[str]:
    return [path.stem for path in SCRIPTS if differs(path.read_text())]


def differs(text: str) -> bool:
    try:
        return played(text) != text
    except (AssertionError, LookupError, RaftViolation, ValueError):
        return True


def row(plant: Plant, scripts: int, found: str) -> str:
    by = " ".join(found.split())
    return f"{plant.__name__:52} scripts {scripts:>2}  {by[:110]}"
