"""How long a node has not heard from a leader, in ticks (thesis 3.4, 9.3)."""

from __future__ import annotations

from random import Random


class ElectionTimer:
    """Runs out between one and two election timeouts, so that candidates rarely collide."""

    def __init__(self, base_ticks: int, random: Random) -> None:
        self._base_ticks = base_ticks
        self._random = random
        self.restart()

    @property
    def has_run_out(self) -> bool:
        return self.elapsed >= self._timeout

    @property
    def is_within_one_timeout(self) -> bool:
        """Whether a leader was heard so recently that no node may presume it gone."""
        return self.elapsed < self._base_ticks

    def tick(self) -> None:
        self.elapsed += 1

    def heard(self) -> None:
        self.elapsed = 0

    def restart(self) -> None:
        self.elapsed = 0
        self._timeout = self._base_ticks + self._random.randrange(self._base_ticks)
