"""Random steps of a log, what it has after them, and looks at it between a module's lines."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import copy
from pathlib import Path
from random import Random
from types import FrameType
from typing import Any

from streamd.raft.chain import ChainPosition
from streamd.raft.messages import Entry, HardState
from streamd.storage.leveldb_log import LevelDBLog
from streamd.storage.log_store import LogStore
from tests.storage import images
from tests.storage.images import entry, open_log, read_all

SMALL_BYTES = 64 * 1024
# The last is too large for a record.
SIZES = (10, 200, 200, 1_000, 1_900, 5_000)


class Contents:
    """What a log has."""

    def __init__(self, log: LogStore) -> None:
        self.base = log.position(log.first_index - 1)
        self.entries = list(read_all(log))
        self.hard_state = log.hard_state

    def with_vote_of(self, other: Contents) -> Contents:
        """The vote is in a file of its own first."""
        found = copy(self)
        found.hard_state = other.hard_state
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Contents) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]


def contents_of(image: Path) -> Contents:
    log = open_log(image)
    found = Contents(log)
    log.close()
    return found


class Steps:
    """Changes to a log at random, of all kinds."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._term = 1

    def any_step(self, log: LogStore, *, resets: bool) -> Callable[[], None]:
        """`resets`: one may empty the log, which is whole again only once all of it is done."""
        kinds = [self._append, self._settle, self._replace, self._vote, self._cut, self._reset]
        (kind,) = self._random.choices(kinds, [30, 5, 3, 3, 2, int(resets)])
        return kind(log)

    def _entries(self, first: int) -> list[Entry]:
        random = self._random
        return [
            entry(first + place, self._term, random.randbytes(random.choice(SIZES)))
            for place in range(random.choice((1, 1, 1, 2, 4)))
        ]

    def _append(self, log: LogStore) -> Callable[[], None]:
        entries = self._entries(log.last_index + 1)
        return lambda: log.append(entries, None)

    def _settle(self, log: LogStore) -> Callable[[], None]:
        return log.settle

    def _replace(self, log: LogStore) -> Callable[[], None]:
        """Of the last entries, or of all: some of them LevelDB has."""
        self._term += 1
        reach = self._random.choice((3, 30, 300))
        first = self._random.randint(
            max(log.first_index, log.last_index - reach), log.last_index + 1
        )
        entries = self._entries(first)
        return lambda: log.append(entries, HardState(self._term, 1))

    def _vote(self, log: LogStore) -> Callable[[], None]:
        self._term += 1
        return lambda: log.append([], HardState(self._term, 2))

    def _cut(self, log: LogStore) -> Callable[[], None]:
        through = self._random.randint(log.first_index - 1, log.last_index)
        return lambda: images.compact(log, through)

    def _reset(self, log: LogStore) -> Callable[[], None]:
        position = ChainPosition(log.last_index + 5, self._term, self._random.getrandbits(32))
        return lambda: log.reset(position)


def stored(directory: Path) -> list[Entry]:
    """What LevelDB has of a closed log."""
    db = LevelDBLog(directory / "log", 0)
    rows = [each for each, _ in db.rows(1, 10_000)]
    db.close()
    return rows


@contextmanager
def between_lines_of(module: Any, look: Callable[[], None]) -> Iterator[None]:
    """Call `look` before each line of a module that runs, as if another thread got its turn."""
    before = sys.gettrace()
    is_looking = False

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal is_looking
        if frame.f_code.co_filename != module.__file__ or is_looking:
            return None
        is_looking = True
        try:
            look()
        finally:
            is_looking = False
        return trace

    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)
