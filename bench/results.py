"""What was measured, round by round, and the medians over the rounds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median

from bench.figures import Figure

Values = dict[Figure, float]
"""What one run of one measurement on one server found."""


@dataclass
class Results:
    """Samples by figure and server; failures and remarks in the order in which they came."""

    samples: dict[str, dict[str, list[float]]] = field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )
    failed: set[tuple[str, str]] = field(default_factory=set)
    """Figure and server of which at least one run failed."""
    failures: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def add(self, server: str, values: Mapping[Figure, float]) -> None:
        for figure, value in values.items():
            self.samples[figure.key][server].append(value)

    def fail(self, server: str, figures: Iterable[Figure], reason: str) -> None:
        self.failed.update((figure.key, server) for figure in figures)
        self.failures.append(reason)

    def tried(self, figure: Figure) -> bool:
        """Whether any server has a value, or failed to give one."""
        return figure.key in self.samples or any(key == figure.key for key, _ in self.failed)

    def value(self, figure: Figure, server: str) -> float | None:
        """The median over the rounds that gave a value; `None` if none did."""
        values = self.samples.get(figure.key, {}).get(server)
        return median(values) if values else None

    def ratio(self, figure: Figure, server: str, peer: str) -> float | None:
        """`server`'s median by `peer`'s, whichever way is better."""
        ours, theirs = self.value(figure, server), self.value(figure, peer)
        if ours is None or not theirs or not figure.comparable:
            return None
        return ours / theirs

    def remark(self, text: str) -> None:
        """Keep something that a reader of the table must know, once."""
        if text not in self.remarks:
            self.remarks.append(text)
