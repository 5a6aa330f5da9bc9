"""Patterns of subscriptions, and the streams that they match (docs/subscriptions.md).

A pattern is a path in which a segment ``*`` stands for one segment and ``**`` for any number of
them, also none; ``%2A`` in any other segment is a star.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, TypeVar

T = TypeVar("T")

_DEFAULT = "_default"


def path_of(key: bytes | str) -> str:
    """The path by which subscriptions name a stream."""
    text = key if isinstance(key, str) else key.decode("utf-8", "replace")
    bucket, _, name = text.partition("\0")
    return name if bucket == _DEFAULT and "/" not in name else f"{bucket}/{name}"


class _Place:
    """What patterns go on with after segments that they have in common; the things there match
    if nothing follows."""

    __slots__ = ("after", "things")

    def __init__(self) -> None:
        self.after: dict[str, _Place] = {}
        self.things: list[object] = []


class Patterns(Generic[T]):
    """Things by their patterns."""

    def __init__(self, of: Iterable[tuple[str, T]] = ()) -> None:
        self._root = _Place()
        self._count = 0
        for pattern, thing in of:
            self.add(pattern, thing)

    def __len__(self) -> int:
        return self._count

    def add(self, pattern: str, thing: T) -> None:
        self._place(pattern).things.append(thing)
        self._count += 1

    def remove(self, pattern: str, thing: T) -> None:
        """Remove what was added."""
        self._place(pattern).things.remove(thing)
        self._count -= 1

    def _place(self, pattern: str) -> _Place:
        place = self._root
        for segment in pattern.split("/"):
            if segment not in ("*", "**"):
                # No segment of a pattern is a wildcard by these: a star would be one by itself.
                segment = "=" + segment.replace("%2A", "*").replace("%2a", "*")
            place = place.after.setdefault(segment, _Place())
        return place

    def matching(self, path: str) -> list[T]:
        """All things whose pattern matches a path."""
        # A place, and whether it was reached by `**`, which may take more.
        here = {(self._root, False)}
        for segment in path.split("/"):
            reached = set()
            for place, takes_more in _with_any(here):
                if takes_more:
                    reached.add((place, True))
                for wanted in ("*", "=" + segment):
                    if wanted in place.after:
                        reached.add((place.after[wanted], False))
            here = reached
        found: list[T] = []
        for place in {place for place, _ in _with_any(here)}:
            found += place.things  # type: ignore[arg-type]
        return found


def _with_any(here: set[tuple[_Place, bool]]) -> set[tuple[_Place, bool]]:
    """The places, and those that a `**` leads to which takes nothing."""
    found, left = set(here), list(here)
    while left:
        place, _ = left.pop()
        one = place.after.get("**")
        if one is not None and (one, True) not in found:
            found.add((one, True))
            left.append((one, True))
    return found
