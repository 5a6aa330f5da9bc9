"""Faults around a simulated group, besides crashes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random

Link = tuple[int, int]


class Faults:
    """Directed links that are cut, clocks that are slow, disks that stall, nodes that are paused.

    A paused node does nothing at all, and finds its messages waiting when it goes on.
    """

    def __init__(self, node_ids: Sequence[int], random: Random, counted: Counter[str]) -> None:
        self._node_ids = node_ids
        self._random = random
        self._counted = counted
        self.heal()

    def heal(self) -> None:
        self.cut: set[Link] = set()
        self.clocks = dict.fromkeys(self._node_ids, 1.0)
        self.stalled: set[int] = set()
        self.paused: set[int] = set()

    def change_links(self, leaders: list[int]) -> None:
        """Cut links in one of several patterns, or none; and change whose clock is slow."""
        one = self._random.choice(leaders or self._node_ids)
        pairs = [(a, b) for a in self._node_ids for b in self._node_ids if a != b]
        pattern, cut = self._random.choice(
            [
                ("none", set()),
                ("isolated", {pair for pair in pairs if one in pair}),
                ("mute", {pair for pair in pairs if pair[0] == one}),
                ("deaf", {pair for pair in pairs if pair[1] == one}),
                ("bridge", self._bridge(pairs)),
                ("random", set(self._random.sample(pairs, len(pairs) // 3))),
            ]
        )
        self.cut = cut
        self._counted[f"links: {pattern}"] += 1
        self.clocks = {node: self._random.choice((0.1, 1, 1)) for node in self._node_ids}
        if cut:
            self.clocks[one] = 0.1

    def _bridge(self, pairs: Iterable[Link]) -> set[Link]:
        """Two sides that reach each other only through a node which reaches both."""
        nodes = self._random.sample(self._node_ids, len(self._node_ids))
        bridge, side = nodes[0], {*nodes[1 : (len(nodes) + 1) // 2]}
        return {(a, b) for a, b in pairs if bridge not in (a, b) and (a in side) != (b in side)}

    def change_disks(self, leaders: list[int]) -> None:
        one = self._random.choice(leaders or self._node_ids)
        self.stalled = self._random.choice((set(), {one}))
        self._counted["disks stalled"] += len(self.stalled)

    def change_pauses(self, leaders: list[int]) -> None:
        one = self._random.choice(leaders or self._node_ids)
        self.paused = self._random.choice((set(), {one}))
        self._counted["pauses"] += len(self.paused)
