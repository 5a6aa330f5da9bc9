"""The simulation of whole nodes is checked itself: each deliberate mistake is found.

Each is found by a handful of schedules with a focus on it, so that none depends on a lucky seed.
Each commit has seeds of its own; `SEED=100 pytest tests/sim/test_planted_bugs.py` runs that one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.sim.focus import Focus
from tests.sim.planted_bugs import PLANTED, Planted
from tests.sim.simulation import innermost, run_seed
from tests.sim.watch import InvariantBroken
from tests.support.seeds import replayed, seeds

# How many seeds come first, from the likely one on, and how many of the commit's then, for what a
# change of the code has removed from there.
LIKELY, NEW_SEEDS = 8, 46
# The first seed that met those that the first of all does not.
LIKELY_SEEDS = {
    "damage_is_mistaken_for_a_torn_write": 2,
    "forwarded_write_is_answered_before_it_is_committed": 1,
    "node_that_lost_entries_votes_at_once": 2,
    "outcomes_are_forgotten_while_their_package_may_come_again": 5,
    "torn_write_is_mistaken_for_damage": 8,
    "truncated_log_is_not_compared_with_its_floor": 4,
}
# So much time do these take that their tests are long.
SLOW = (
    "followers_read_without_a_read_index",
    "leaders_read_without_asking_anyone",
    "node_that_lost_entries_votes_at_once",
    "outcomes_are_forgotten_while_their_package_may_come_again",
    "package_of_another_node_is_mistaken_for_the_own",
    "package_takes_effect_each_time_it_arrives",
    "packages_of_the_leader_itself_have_no_number_in_the_log",
    "sessions_are_forgotten_at_an_install",
    "state_is_not_synced_before_the_log_is_compacted",
    "write_of_a_deposed_leader_is_called_refused",
    "write_of_a_deposed_leader_is_called_unknown",
)
# Errors of the test's own code, such as a removed setting. They do not count as findings.
MISTAKES = (ImportError, NameError, AttributeError, TypeError)


def parameter(planted: Planted) -> Any:
    name = planted.plant.__name__
    return pytest.param(planted, id=name, marks=[pytest.mark.long] if name in SLOW else [])


@pytest.mark.parametrize("planted", [parameter(planted) for planted in PLANTED])
def test_focused_schedules_find_the_mistake(
    planted: Planted, monkeypatch: pytest.MonkeyPatch, summary: Callable[[str], None]
) -> None:
    planted.plant(monkeypatch)
    with pytest.raises(InvariantBroken) as found:
        run_seeds(planted.focus, LIKELY_SEEDS.get(planted.plant.__name__, 0))
    assert found.value.__cause__ is not None
    assert not isinstance(innermost(found.value.__cause__), MISTAKES)
    text = re.sub(r"\s+", " ", str(found.value))
    summary(f"{planted.plant.__name__:52} {text[:110]}")


def run_seeds(focus: Focus, likely: int) -> None:
    known = range(likely, likely + LIKELY) if replayed() is None else ()
    for seed in (*known, *seeds(NEW_SEEDS)):
        run_seed(seed, focus.seconds, focus)
