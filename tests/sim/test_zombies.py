"""Zombies: workers that fall asleep write nothing once another has taken over, whatever breaks.

Each commit has seeds of its own; `SEED=17 pytest tests/sim/test_zombies.py` replays just that.
"""

# mypy: disable-error-code="method-assign"
from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import replace

from streamd.node.foresight import Foresight
from streamd.streams.commands import Append, Command, Outcome
from streamd.streams.fencing import write_fences
from tests.sim.simulation import run_seed
from tests.sim.watch import InvariantBroken
from tests.support.seeds import one_each, replayed, seeds

QUICK, SEEDS = 1, 24
# So many schedules at most find the planted bug, after those that found it when it was written.
MOST_SEEDS = 40
LIKELY_SEEDS = (0,)
EXPECTED = ("fenced writes", "zombies' writes refused", "seals seen")


@pytest.mark.parametrize("seed", one_each(SEEDS, QUICK))
def test_zombies_write_nothing(seed: int) -> None:
    run_seed(seed, zombies=True)


@pytest.mark.long
def test_the_schedules_have_zombies() -> None:
    counted: Counter[str] = Counter()
    for seed in seeds(MOST_SEEDS):
        counted += run_seed(seed, zombies=True).counted
        if all(counted[what] for what in EXPECTED):
            return
    raise AssertionError({what: counted[what] for what in EXPECTED})


def test_claims_that_are_judged_before_the_log_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The bug: the node that takes a write judges its claim by its own state, and what it proposes
    then takes effect whatever has happened since."""
    real = Foresight.propose

    async def propose(self: Foresight, command: Command, size: int = 0) -> Outcome:
        if isinstance(command, Append) and command.fence is not None:
            stream = await self._reads.stream(command.key)
            if stream is not None:
                state, now_ms = self._group.state, self._group.now_ms()
                refused = write_fences.refusal(state, stream, command, now_ms)
                if refused is not None:
                    return refused
                command = replace(command, fence=None)
        return await real(self, command, size)

    monkeypatch.setattr(Foresight, "propose", propose)
    known = LIKELY_SEEDS if replayed() is None else ()
    with pytest.raises(InvariantBroken, match=r"of generation|was sealed at"):
        _run(*known, *seeds(MOST_SEEDS))


def _run(*these: int) -> None:
    for seed in these:
        run_seed(seed, zombies=True)
