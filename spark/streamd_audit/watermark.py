"""How far an audit has judged, so that the next one need not start at the beginning.

An audit that found nothing saves a watermark: what it judged is known to be good, as long as the
log still has the same chain there. An incremental audit begins with the newest state that is not
after the watermark, takes its rows as they are, and judges the log after it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from streamd_audit.options import LAST, NotRun, Options

_NAME = "watermark.json"


@dataclass(frozen=True)
class Watermark:
    """The last entry of group 0's log that was judged: its index, term and chain."""

    cluster: str
    index: int
    term: int
    chain: int


def read_watermark(directory: Path) -> Watermark | None:
    """None if there is none. Raises `NotRun` for a file that is something else."""
    path = directory / _NAME
    try:
        return Watermark(**json.loads(path.read_text()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise NotRun(f"{path} is not a watermark: {error}") from error


def write_watermark(directory: Path, mark: Watermark) -> None:
    """Replace the existing one; a reader finds the old or the new one whole."""
    path = directory / _NAME
    new = path.with_suffix(".new")
    new.write_text(json.dumps(asdict(mark), indent=2) + "\n")
    new.replace(path)


def begins_after(options: Options, cluster: str) -> tuple[int | None, Watermark | None]:
    """The index after which to judge the log, and the watermark that says so.

    Raises `NotRun` when ``--since last`` has no earlier audit to continue.
    """
    if options.since != LAST:
        return (None if options.since is None else int(options.since)), None
    if options.out is None:
        raise NotRun("--since last needs the --out of the audit before")
    mark = read_watermark(options.out)
    if mark is None:
        raise NotRun(f"--since last: {options.out} has no watermark of an audit that found nothing")
    if mark.cluster != cluster:
        raise NotRun(f"--since last: {options.out} is of cluster {mark.cluster}, not {cluster}")
    return mark.index, mark


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
