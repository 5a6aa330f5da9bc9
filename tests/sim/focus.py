"""Schedules with a focus: chosen faults, and the rest drawn at random."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from tests.sim.faults import Faults


@dataclass(frozen=True)
class Focus:
    """What a run is about.

    `faults` are the only ones there are, with their weights; one begins every `mean_pause_s`, and
    meets the leader with a probability of `at_leaders`; what lasts does so for one of `lasting_s`,
    and up to half of it more or less. `limits` are set instead of drawn.
    """

    faults: Mapping[Callable[[Faults], Awaitable[None]], float]
    mean_pause_s: float = 1.0
    at_leaders: float = 0.5
    lasting_s: tuple[float, ...] = (0.3, 1.5, 4.0)
    clients: int = 6
    client_pause_s: float = 0.05
    seconds: float = 15.0
    limits: Mapping[str, float] = field(default_factory=dict)
