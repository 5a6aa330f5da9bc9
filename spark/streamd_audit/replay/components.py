"""Which streams can influence one another: those joined by forks."""

from __future__ import annotations

from typing import Any

import numpy as np

Numbers = np.ndarray[Any, np.dtype[np.int64]]


def components(left: Numbers, right: Numbers) -> tuple[Numbers, Numbers]:
    """For each number in the pairs, the lowest one that pairs lead to from it, by pointer jumping.

    The numbers are sorted and unique. The rounds are the logarithm of the longest path, so a chain
    of forks costs no more than a crowd.
    """
    nodes, places = np.unique(np.concatenate([left, right]), return_inverse=True)
    one, other = np.split(places.astype(np.int64), 2)
    roots = np.arange(len(nodes), dtype=np.int64)
    while True:
        low = np.minimum(roots[one], roots[other])
        found = roots.copy()
        for ends in (one, other):
            # The root of a tree that touches another one goes below the lower of the two.
            np.minimum.at(found, roots[ends], low)
            np.minimum.at(found, ends, low)
        while True:
            above = found[found]
            if np.array_equal(above, found):
                break
            found = above
        if np.array_equal(found, roots):
            return nodes, nodes[roots]
        roots = found
