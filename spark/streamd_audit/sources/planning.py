"""Which tasks read which objects: neighbours of a listing together, large objects in parts.

A plan's size does not grow with the bucket. Names travel with a task while there are few; when
there are more, a task gets the first and the last of its run, and lists the names in between
itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from pyspark.sql.datasource import InputPartition

MAX_TASKS = 4096
MAX_NAMES = 65536


@dataclass(frozen=True)
class Piece:
    """Part number `part` of `parts` equal parts of an object; `size` is the whole object's, in
    bytes.

    For a segment only entries after entry `after` are meant, and up to entry `until`.
    """

    name: str
    size: int
    part: int = 0
    parts: int = 1
    after: int = 0
    until: int | None = None


@dataclass(frozen=True)
class Task(InputPartition):
    """The objects of a cluster from `first` to `last` in the order of their names, or one part of
    an object.

    `pieces` is None if the task has to list them; of the first one only entries after `after` are
    meant. `size` is that of all of them, in bytes.
    """

    cluster: str
    first: str
    last: str
    size: int
    pieces: tuple[Piece, ...] | None
    after: int = 0

    @property
    def is_part(self) -> bool:
        return self.pieces is not None and self.pieces[0].parts > 1

    def followed_by(self, later: Task) -> Task:
        pieces = None
        if self.pieces is not None and later.pieces is not None:
            pieces = self.pieces + later.pieces
        return Task(
            self.cluster, self.first, later.last, self.size + later.size, pieces, self.after
        )


class Planner:
    """Makes tasks of about `task_bytes` each of objects that come in the order of a listing."""

    def __init__(self, cluster: str, task_bytes: int, max_names: int = MAX_NAMES) -> None:
        self._cluster = cluster
        self._task_bytes = task_bytes
        self._max_names = max_names
        self._tasks: list[Task] = []
        self._gathered: list[Piece] = []
        self._first: Piece | None = None
        self._last = ""
        self._size = 0
        self._names = 0

    def add(self, piece: Piece, parts: int = 1) -> None:
        """Add the next object, to be read in this many parts."""
        self._names += 1
        if self._names == self._max_names + 1:
            self._tasks = [
                task if task.is_part else replace(task, pieces=None) for task in self._tasks
            ]
        if parts > 1:
            self._close()
            for part in range(parts):
                one = replace(piece, part=part, parts=parts)
                self._tasks.append(self._task(piece, piece.name, piece.size // parts, (one,)))
            return
        if self._first is None:
            self._first = piece
        self._last = piece.name
        self._size += piece.size
        if self._names <= self._max_names:
            self._gathered.append(piece)
        if self._size >= self._task_bytes:
            self._close()

    def finish(self) -> list[Task]:
        self._close()
        return self._tasks

    def _close(self) -> None:
        if self._first is None:
            return
        pieces = tuple(self._gathered) if self._names <= self._max_names else None
        self._tasks.append(self._task(self._first, self._last, self._size, pieces))
        self._first, self._size, self._gathered = None, 0, []
        if len(self._tasks) > MAX_TASKS:
            self._tasks = list(_in_pairs(self._tasks))
            self._task_bytes *= 2

    def _task(self, first: Piece, last: str, size: int, pieces: tuple[Piece, ...] | None) -> Task:
        return Task(self._cluster, first.name, last, size, pieces, first.after)


def _in_pairs(tasks: Iterable[Task]) -> Iterator[Task]:
    """The same objects in half as many tasks; parts of an object stay by themselves."""
    waiting: Task | None = None
    for task in tasks:
        if waiting is None or task.is_part:
            if waiting is not None:
                yield waiting
            waiting = None
            if task.is_part:
                yield task
            else:
                waiting = task
        else:
            yield waiting.followed_by(task)
            waiting = None
    if waiting is not None:
        yield waiting
