"""What is watched while a simulation runs, and what must hold at each moment of it."""

from __future__ import annotations

import math
from collections import Counter
from functools import partial
from typing import NamedTuple

from streamd.node import Node
from streamd.raft.core import Core, Role


class InvariantBroken(AssertionError):
    """A schedule was found in which the cluster breaks a promise."""


class Watch:
    """Follows every node; one leader for each term, and no commit is taken back."""

    def __init__(self, counted: Counter[str]) -> None:
        self._counted = counted
        self._leaders: dict[int, int] = {}

    async def follow(self, node: Node) -> None:
        """Look at a node after each of its turns in which something changed."""
        before = _Place.of(node.group.core)
        while True:
            now = _Place.of(node.group.core)
            self._check(node.group.core.node_id, before, now)
            before = now
            await node.group.wait_for(partial(_has_changed, node.group.core, now), math.inf)

    def _check(self, node_id: int, before: _Place, now: _Place) -> None:
        if now.term < before.term or now.commit_index < before.commit_index:
            raise InvariantBroken(f"node {node_id} went back from {before} to {now}")
        if now.leads and self._leaders.setdefault(now.term, node_id) != node_id:
            other = self._leaders[now.term]
            raise InvariantBroken(f"{other} and {node_id} both lead term {now.term}")
        self._counted["elections"] = len(self._leaders)
        self._counted["log compactions"] += now.first_index > before.first_index
        self._counted["leaders deposed"] += before.leads and not now.leads


class _Place(NamedTuple):
    term: int
    leads: bool
    commit_index: int
    first_index: int

    @classmethod
    def of(cls, core: Core) -> _Place:
        return cls(core.term, core.role == Role.LEADER, core.commit_index, core.first_index)


def _has_changed(core: Core, place: _Place) -> bool:
    return _Place.of(core) != place
