"""What is watched while a simulation runs, and what must hold at each moment of it."""

from __future__ import annotations

import math
from collections import Counter

from streamd.node import Node
from streamd.raft.core import Role


class InvariantBroken(AssertionError):
    """A schedule was found in which the cluster breaks a promise."""


class Watch:
    """Follows every node; one leader for each term, and terms and commits never go back."""

    def __init__(self, counted: Counter[str]) -> None:
        self._counted = counted
        self._leaders: dict[int, int] = {}
        self._terms: dict[int, int] = {}
        self._entries: dict[int, tuple[int, int]] = {}

    async def follow(self, node: Node) -> None:
        """Look at a node after each of its turns in which something changed."""
        core = node.group.core
        commit_index, first_index = core.commit_index, core.first_index
        role = core.role
        while True:
            self._check(node)
            if core.commit_index < commit_index:
                raise InvariantBroken(f"node {core.node_id} took back what was committed")
            if core.first_index > first_index:
                self._counted["log compactions"] += 1
            if role == Role.LEADER != core.role:
                self._counted["leaders deposed"] += 1
            role = core.role
            commit_index, first_index = core.commit_index, core.first_index
            seen = (role, core.term, commit_index, first_index, core.applied_index)
            await node.group.wait_for(
                lambda: (
                    seen
                    != (
                        core.role,
                        core.term,
                        core.commit_index,
                        core.first_index,
                        core.applied_index,
                    )
                ),
                math.inf,
            )

    def _check(self, node: Node) -> None:
        core = node.group.core
        node_id, term = core.node_id, core.term
        if term < self._terms.get(node_id, 0):
            raise InvariantBroken(f"node {node_id} went back to term {term}")
        self._terms[node_id] = term
        if core.role == Role.LEADER and self._leaders.setdefault(term, node_id) != node_id:
            raise InvariantBroken(f"{self._leaders[term]} and {node_id} both lead term {term}")
        self._counted["elections"] = len(self._leaders)
