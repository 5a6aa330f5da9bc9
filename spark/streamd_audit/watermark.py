"""How far an audit has judged, so that the next one need not start at the beginning, and so that
the store cannot be set back unnoticed.

An audit that found nothing saves a watermark: what it judged is known to be good, as long as the
log still has the same chain there. An incremental audit begins with the newest state that is not
after the watermark, takes its rows as they are, and judges the log after it. Every audit with the
same ``--out`` compares the log with the watermark, whose entries are never moved back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from streamd_audit.options import LAST, NotRun, Options

_NAME = "watermark.json"


class Mark(NamedTuple):
    """An entry of a group's log: its index, term and chain."""

    group: int
    index: int  # type: ignore[assignment]  # of NamedTuple
    term: int
    chain: int


@dataclass(frozen=True)
class Watermark:
    """The last entry of group 0's log that was judged: its index, term and chain; and those of
    `others`, if there are more groups."""

    cluster: str
    index: int
    term: int
    chain: int
    others: tuple[Mark, ...] = ()

    @property
    def marks(self) -> tuple[Mark, ...]:
        """The last entries judged, of all groups that had some."""
        own = Mark(0, self.index, self.term, self.chain)
        return (own, *self.others) if self.index else self.others

    @classmethod
    def of(cls, cluster: str, marks: Mapping[int, Mark]) -> Watermark:
        """The watermark of a cluster with the marks of its groups."""
        _, index, term, chain = marks.get(0, Mark(0, 0, 0, 0))
        others = tuple(marks[group] for group in sorted(marks) if group)
        return cls(cluster, index, term, chain, others)


@dataclass(frozen=True)
class Since:
    """After which entries of groups an audit judges the log: the last ones that an earlier audit
    judged, or entry `index` of all of them. A group that no earlier audit judged is judged
    whole."""

    index: int = 0
    marks: tuple[Mark, ...] | None = None

    def of(self, group: int) -> int:
        """The index of a group's entry; 0 before the first one."""
        if self.marks is None:
            return self.index
        return next((mark.index for mark in self.marks if mark.group == group), 0)


class Setback(NamedTuple):
    """A fault by its name in `findings`."""

    kind: str
    mark: Mark
    expected: str
    found: str


def setbacks(
    marks: Iterable[Mark],
    last: Mapping[int, int],
    places: Mapping[tuple[int, int], tuple[int, int]],
) -> Iterator[Setback]:
    """Where a log is not a continuation of what was judged before.

    `last` are the last entries of groups, `places` the term and chain at entries (group, index).
    """
    for mark in marks:
        end = last.get(mark.group, 0)
        if end < mark.index:
            expected = f"entries up to {mark.index}, as an earlier audit judged"
            found = f"the last one is {end}" if end else "no log"
            yield Setback("history_rolled_back", mark, expected, found)
            continue
        known = places.get((mark.group, mark.index))
        if known is not None and known != (mark.term, mark.chain):
            yield Setback(
                "history_changed",
                mark,
                f"term {mark.term}, chain {mark.chain:08x}, as an earlier audit judged",
                f"term {known[0]}, chain {known[1]:08x}",
            )


def read_watermark(directory: Path) -> Watermark | None:
    """None if there is none. Raises `NotRun` for a file that is something else."""
    path = directory / _NAME
    try:
        said = json.loads(path.read_text())
        others = tuple(Mark(*map(int, one)) for one in said.pop("others", ()))
        return Watermark(**said, others=others)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise NotRun(f"{path} is not a watermark: {error}") from error


def write_watermark(directory: Path, mark: Watermark) -> None:
    """Replace the existing one; a reader finds the old or the new one whole."""
    path = directory / _NAME
    new = path.with_suffix(".new")
    new.write_text(json.dumps(asdict(mark), indent=2) + "\n")
    new.replace(path)


def begins_after(options: Options, cluster: str) -> tuple[Since | None, Watermark | None]:
    """The entries after which to judge the log, and the watermark of an earlier audit.

    Raises `NotRun` when ``--since last`` has no earlier audit to continue.
    """
    mark = None if options.out is None else read_watermark(options.out)
    if options.since != LAST:
        known = mark if mark is not None and mark.cluster == cluster else None
        return (None if options.since is None else Since(int(options.since))), known
    if options.out is None:
        raise NotRun("--since last needs the --out of the audit before")
    if mark is None:
        raise NotRun(f"--since last: {options.out} has no watermark of an audit that found nothing")
    if mark.cluster != cluster:
        raise NotRun(f"--since last: {options.out} is of cluster {mark.cluster}, not {cluster}")
    return Since(mark.index, mark.marks), mark


def base_index(states: Iterable[int], first: int, since: int | None) -> int | None:
    """The entry as of which the replay begins, of those that have `states`.

    None is the empty state before entry 1. `first` is the archive's first entry. Raises `NotRun`
    when no state joins the log.
    """
    if since is None and first <= 1:
        return None
    joining = sorted(index for index in states if index >= first - 1)
    if since is not None:
        before = [index for index in joining if index <= since]
        if before:
            return before[-1]
        if first <= 1:
            return None
    if not joining:
        raise NotRun(f"the log begins with entry {first}, and no readable state reaches it")
    return joining[0]
