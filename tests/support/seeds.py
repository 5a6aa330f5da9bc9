"""The seeds of random tests: new ones with each commit, the same wherever that commit is tested.

`SEED=17 pytest …` replays one seed.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).parents[2]


def replayed() -> int | None:
    """The only seed to run, if one was named."""
    return int(os.environ["SEED"]) if os.environ.get("SEED") else None


@cache
def first_seed() -> int:
    """The one that was named, or else the beginning of the commit's hash; 0 without git."""
    if (named := replayed()) is not None:
        return named
    command = ["git", "-C", str(_ROOT), "rev-parse", "--verify", "--quiet", "HEAD"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return 0
    return int(found[:8], 16)


def seeds(count: int, once_failed: Sequence[int] = ()) -> Sequence[int]:
    """Those that once failed, then `count` that begin with the commit's; or the one named."""
    if (named := replayed()) is not None:
        return [named]
    return [*once_failed, *range(first_seed(), first_seed() + count)]


def one_each(count: int, quick: int, once_failed: Sequence[int] = ()) -> list[Any]:
    """The same seeds, for a test of each: all but the first `quick` of the commit's are long."""
    first: list[Any] = list(seeds(quick))
    if replayed() is not None:
        return first
    later = (*once_failed, *seeds(count)[quick:])
    return [*first, *(pytest.param(seed, marks=pytest.mark.long) for seed in later)]


def seeds_until(is_enough: Callable[[], bool], count: int, most: int) -> Iterator[int]:
    """`count` seeds, and up to `most` more, as long as these were not enough.

    A test can so demand of any seeds what only some of them bring about.
    """
    yield from seeds(count)
    more = range(first_seed() + count, first_seed() + count + most)
    if replayed() is None:
        yield from (seed for seed in more if not is_enough())
