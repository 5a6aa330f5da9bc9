"""Whether entries follow one another: indexes, terms, log time, one leader to a term.

Tasks look at the entries they read, and hand on one row for each run of entries without a gap;
whether the runs join is seen in one place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

COLUMNS = ("group", "index", "term", "stamp_ms", "is_noop", "object")
# What is told of a log: a run of entries from `first` to `last`; a leader's first entry, which is
# `first`; an entry `first` that is wrong, by the name of what is wrong with it.
RUN, NOOP, WRONG = range(3)
TOLD_DDL = (
    "what int, `group` int, first long, last long, first_term long, last_term long, "
    "first_ms long, last_ms long, object string, kind string, expected string, found string"
)
_TOLD = pa.schema(
    [
        ("what", pa.int32()), ("group", pa.int32()), ("first", pa.int64()), ("last", pa.int64()),
        ("first_term", pa.int64()), ("last_term", pa.int64()), ("first_ms", pa.int64()),
        ("last_ms", pa.int64()), ("object", pa.string()), ("kind", pa.string()),
        ("expected", pa.string()), ("found", pa.string()),
    ]
)  # fmt: skip
# Before any entry.
_NEVER = -(2**62)

Told = tuple[Any, ...]
Numbers = np.ndarray[Any, np.dtype[Any]]


def _batch(rows: list[Told]) -> pa.RecordBatch:
    columns = zip(*rows, strict=True)
    arrays = [pa.array(column, field.type) for column, field in zip(columns, _TOLD, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=_TOLD)


@dataclass
class _Run:
    """Entries that follow one another, from `first` on; `highest_ms` is their latest stamp."""

    group: int
    first: int
    last: int
    first_term: int
    last_term: int
    object: str
    first_ms: int | None = None
    highest_ms: int = _NEVER


class _Runs:
    """Entries as a task meets them."""

    def __init__(self) -> None:
        self._run: _Run | None = None

    def take(self, batch: pa.RecordBatch) -> Iterator[Told]:
        columns = {name: batch.column(name) for name in COLUMNS}
        group, index, term = (columns[name].to_numpy() for name in ("group", "index", "term"))
        stamps = columns["stamp_ms"].fill_null(_NEVER).to_numpy()
        follows = (np.diff(index) == 1) & (np.diff(group) == 0)
        starts = [0, *(np.flatnonzero(~follows) + 1).tolist(), len(index)]
        for start, stop in pairwise(starts):
            span = slice(start, stop)
            objects = columns["object"].slice(start, stop - start)
            yield from self._span(int(group[start]), index[span], term[span], stamps[span], objects)
        is_noop = columns["is_noop"].to_numpy(zero_copy_only=False)
        for at in np.flatnonzero(is_noop).tolist():
            name = columns["object"][at].as_py()
            place = int(group[at]), int(index[at]), None, int(term[at])
            yield NOOP, *place, None, None, None, name, None, None, None

    def _span(
        self, group: int, index: Numbers, term: Numbers, stamps: Numbers, objects: pa.Array
    ) -> Iterator[Told]:
        """Entries of a batch that follow one another."""
        run, first = self._run, int(index[0])
        if run is None or (run.group, run.last) != (group, first - 1):
            yield from self.finish()
            before = int(term[0])
            run = self._run = _Run(group, first, first, before, before, objects[0].as_py())
        terms = np.concatenate(([run.last_term], term))
        highest = np.maximum.accumulate(np.concatenate(([run.highest_ms], stamps)))
        for at in np.flatnonzero(np.diff(terms) < 0).tolist():
            yield wrong(
                group, int(index[at]), objects[at].as_py(), "term_wrong",
                f"term {terms[at]} or later", f"term {terms[at + 1]}",
            )  # fmt: skip
        is_back = (stamps != _NEVER) & (stamps < highest[:-1])
        for at in np.flatnonzero(is_back).tolist():
            yield wrong(
                group, int(index[at]), objects[at].as_py(), "stamp_back",
                f"{highest[at]} ms or later", f"{stamps[at]} ms",
            )  # fmt: skip
        stamped = stamps[stamps != _NEVER]
        if run.first_ms is None and len(stamped):
            run.first_ms = int(stamped[0])
        run.last, run.last_term = int(index[-1]), int(term[-1])
        run.highest_ms = int(highest[-1])

    def finish(self) -> Iterator[Told]:
        run, self._run = self._run, None
        if run is not None:
            last_ms = None if run.highest_ms == _NEVER else run.highest_ms
            yield (
                RUN, run.group, run.first, run.last, run.first_term, run.last_term, run.first_ms,
                last_ms, run.object, None, None, None,
            )  # fmt: skip


def wrong(group: int, index: int, name: str, kind: str, expected: str, found: str) -> Told:
    return (
        WRONG, group, index, None, None, None, None, None, name, kind, expected, found
    )  # fmt: skip


def told_of(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What is told of the entries (`COLUMNS`) that a task reads, in its order."""
    runs = _Runs()
    for batch in batches:
        if len(batch):
            rows = list(runs.take(batch))
            if rows:
                yield _batch(rows)
    rows = list(runs.finish())
    if rows:
        yield _batch(rows)


def joined(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What is wrong with the whole log, and its runs, each as long as can be.

    Of what was told (`TOLD_DDL`) come runs and leaders' first entries, in one task, sorted by
    `what` and group; leaders' first entries by term; and all by `first`.
    """
    names = [field.name for field in _TOLD]
    last: tuple[int, int, int] | None = None
    runs: list[Any] = []
    for batch in batches:
        for row in zip(*(batch.column(name).to_pylist() for name in names), strict=True):
            told = dict(zip(names, row, strict=True))
            if told["what"] == NOOP:
                if last is not None and last[:2] == (told["group"], told["first_term"]):
                    yield _batch([_second_leader(told, last[2])])
                else:
                    last = told["group"], told["first_term"], told["first"]
                continue
            yield from map(_one, _join(runs, told))
    for run in runs:
        yield _one(tuple(run[name] for name in names))


def _one(row: Told) -> pa.RecordBatch:
    return _batch([row])


def _second_leader(told: dict[str, Any], first: int) -> Told:
    return wrong(
        told["group"], told["first"], told["object"], "leaders_disagree",
        f"one leader in term {told['first_term']}, which began with entry {first}",
        "another leader's first entry",
    )  # fmt: skip


def _join(runs: list[dict[str, Any]], told: dict[str, Any]) -> Iterator[Told]:
    """Add a run to those that were told of before."""
    run = runs[-1] if runs else None
    if run is None or run["group"] != told["group"] or told["first"] > run["last"] + 1:
        runs.append(told)
        return
    if told["last"] <= run["last"]:
        return
    if told["first"] == run["last"] + 1:
        at = told["group"], told["first"], told["object"]
        if told["first_term"] < run["last_term"]:
            expected = f"term {run['last_term']} or later"
            yield wrong(*at, "term_wrong", expected, f"term {told['first_term']}")
        before_ms, first_ms = run["last_ms"], told["first_ms"]
        if before_ms is not None and first_ms is not None and first_ms < before_ms:
            yield wrong(*at, "stamp_back", f"{before_ms} ms or later", f"{first_ms} ms")
    run["last"], run["last_term"] = told["last"], told["last_term"]
    if told["last_ms"] is not None:
        run["last_ms"] = max(told["last_ms"], run["last_ms"] or told["last_ms"])
