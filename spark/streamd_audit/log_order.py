"""Whether entries follow one another: indexes, terms, log time, one leader to a term.

Tasks check the entries that they read, and pass on one row for each run of entries without a gap;
one place checks whether the runs join.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

# The kind of a row about the log: an entry `first` that is wrong, with the name of its fault; a run
# of entries from `first` to `last`; a leader's first entry, which is `first`.
WRONG, RUN, NOOP = range(3)
# Before any entry.
_NEVER = -(2**62)

Numbers = np.ndarray[Any, np.dtype[Any]]


class Told(msgspec.Struct, array_like=True):
    """Terms, times and the chain are those of the first and the last entry of a run; `last_ms` is
    the latest stamp in it, None if no entry has one. `object` has the first entry."""

    what: int
    group: int
    first: int
    object: str
    last: int = 0
    first_term: int = 0
    last_term: int = 0
    first_ms: int | None = None
    last_ms: int | None = None
    last_chain: int = 0
    kind: str = ""
    expected: str = ""
    found: str = ""


class Entries(msgspec.Struct):
    """Some entries of one segment as columns; a stamp is None where an entry has no batch."""

    group: int
    object: str
    index: list[int]
    term: list[int]
    stamps: list[int | None]
    chain: list[int]
    noops: list[int]
    """Places in these lists of leaders' first entries."""


class Runs:
    """Entries as a task reads them."""

    def __init__(self) -> None:
        self._run: Told | None = None

    def take(self, some: Entries) -> Iterator[Told]:
        if not some.index:
            return
        index, term = np.array(some.index, np.int64), np.array(some.term, np.uint64)
        stamps = np.array([_NEVER if stamp is None else stamp for stamp in some.stamps], np.int64)
        starts = [0, *(np.flatnonzero(np.diff(index) != 1) + 1).tolist(), len(index)]
        for start, stop in pairwise(starts):
            span = slice(start, stop)
            yield from self._span(some, start, index[span], term[span], stamps[span])
        for at in some.noops:
            yield Told(NOOP, some.group, some.index[at], some.object, first_term=some.term[at])

    def _span(
        self, some: Entries, start: int, index: Numbers, term: Numbers, stamps: Numbers
    ) -> Iterator[Told]:
        """Entries that follow one another."""
        run, first = self._run, int(index[0])
        if run is None or (run.group, run.last) != (some.group, first - 1):
            yield from self.finish()
            before = int(term[0])
            run = self._run = Told(
                RUN, some.group, first, some.object, first_term=before, last_term=before
            )
        terms = np.concatenate((np.array([run.last_term], np.uint64), term))
        latest = _NEVER if run.last_ms is None else run.last_ms
        highest = np.maximum.accumulate(np.concatenate(([latest], stamps)))
        for at in np.flatnonzero(terms[1:] < terms[:-1]).tolist():
            yield wrong(
                some.group, int(index[at]), some.object, "term_wrong",
                f"term {terms[at]} or later", f"term {terms[at + 1]}",
            )  # fmt: skip
        is_back = (stamps != _NEVER) & (stamps < highest[:-1])
        for at in np.flatnonzero(is_back).tolist():
            yield wrong(
                some.group, int(index[at]), some.object, "stamp_back",
                f"{highest[at]} ms or later", f"{stamps[at]} ms",
            )  # fmt: skip
        stamped = stamps[stamps != _NEVER]
        if run.first_ms is None and len(stamped):
            run.first_ms = int(stamped[0])
        if highest[-1] != _NEVER:
            run.last_ms = int(highest[-1])
        at = start + len(index) - 1
        run.last, run.last_term, run.last_chain = some.index[at], some.term[at], some.chain[at]

    def finish(self) -> Iterator[Told]:
        run, self._run = self._run, None
        if run is not None:
            yield run


def wrong(group: int, index: int, name: str, kind: str, expected: str, found: str) -> Told:
    return Told(WRONG, group, index, name, kind=kind, expected=expected, found=found)


def joined(told: Iterable[Told]) -> Iterator[Told]:
    """What is wrong with the whole log, and its runs, each as long as possible.

    The rows come sorted by `what` and group; leaders' first entries by term; then by `first`.
    """
    run: Told | None = None
    leader: Told | None = None
    for one in told:
        if one.what == WRONG:
            yield one
        elif one.what == NOOP:
            if leader is None or (leader.group, leader.first_term) != (one.group, one.first_term):
                leader = one
            else:
                yield _second_leader(one, leader.first)
        elif run is None or run.group != one.group or one.first > run.last + 1:
            if run is not None:
                yield run
            run = one
        else:
            yield from _join(run, one)
    if run is not None:
        yield run


def _second_leader(told: Told, first: int) -> Told:
    return wrong(
        told.group, told.first, told.object, "leaders_disagree",
        f"one leader in term {told.first_term}, which began with entry {first}",
        "another leader's first entry",
    )  # fmt: skip


def _join(run: Told, more: Told) -> Iterator[Told]:
    """Extend a run by one that begins in it or just after it."""
    if more.last <= run.last:
        return
    if more.first == run.last + 1:
        at = more.group, more.first, more.object
        if more.first_term < run.last_term:
            expected = f"term {run.last_term} or later"
            yield wrong(*at, "term_wrong", expected, f"term {more.first_term}")
        if run.last_ms is not None and more.first_ms is not None and more.first_ms < run.last_ms:
            yield wrong(*at, "stamp_back", f"{run.last_ms} ms or later", f"{more.first_ms} ms")
    run.last, run.last_term, run.last_chain = more.last, more.last_term, more.last_chain
    if more.last_ms is not None:
        run.last_ms = max(more.last_ms, run.last_ms or more.last_ms)
