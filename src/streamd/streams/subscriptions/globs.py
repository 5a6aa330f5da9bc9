"""Patterns that select streams by their paths, and an index of all patterns.

In a pattern ``*`` stands for one segment of a path and ``**`` for any number of them, also none
(protocol section 6.2); every other segment stands for itself. ``%2A`` in a segment is a star of the
path. A segment with a star among other characters is refused: it would match less than it seems to.

The index is a tree of the patterns' segments, so that a path meets only the patterns that it has a
beginning in common with, however many there are.
"""

from __future__ import annotations

from collections.abc import Iterable

MAX_PATTERN_BYTES = 1_024
_ONE, _ANY = "*", "**"
_ESCAPED = ("%2A", "%2a")


def normalised(pattern: str) -> str:
    """The pattern without slashes at its ends."""
    return pattern.strip("/")


def fault(pattern: str) -> str:
    """What is wrong with a normalised pattern, in words; empty if nothing is."""
    if not pattern:
        return "it is empty"
    if len(pattern.encode(errors="replace")) > MAX_PATTERN_BYTES:
        return f"it is longer than {MAX_PATTERN_BYTES} bytes"
    for segment in pattern.split("/"):
        if not segment:
            return "it has an empty segment"
        if _ONE in segment and segment not in (_ONE, _ANY):
            return (
                f"the segment {segment!r} has a star among other characters: a star stands for a "
                "whole segment; write %2A for a star in a path"
            )
    return ""


def segments_of(pattern: str) -> list[str]:
    """The segments of a pattern, of which the literal ones are as in a path.

    A segment that matches a star by itself is ``%2A``; see `literal`.
    """
    return pattern.split("/")


def literal(segment: str) -> str | None:
    """The segment of a path that a segment of a pattern stands for; None for the two wildcards."""
    if segment in (_ONE, _ANY):
        return None
    for escaped in _ESCAPED:
        segment = segment.replace(escaped, _ONE)
    return segment


def literal_beginning(pattern: str) -> tuple[str, bool]:
    """The path that all matches begin with, whole segments long, and whether it is all of the
    pattern."""
    beginning: list[str] = []
    for segment in pattern.split("/"):
        found = literal(segment)
        if found is None:
            return "/".join(beginning), False
        beginning.append(found)
    return "/".join(beginning), True


def matches(pattern: str, path: str) -> bool:
    """Whether a pattern matches a path."""
    index = PatternIndex()
    index.add(0, pattern)
    return bool(index.matching(path))


class _Node:
    """A place in the tree: what follows a beginning that patterns have in common."""

    __slots__ = ("any", "literals", "numbers", "one")

    def __init__(self) -> None:
        # None where there is nothing: most places are the only one after theirs, and an empty set
        # and an empty dictionary at each would be half of what a pattern takes.
        self.literals: dict[str, _Node] | None = None
        self.one: _Node | None = None
        # Reached by `**`: stays where it is for every further segment.
        self.any: _Node | None = None
        self.numbers: set[int] | None = None

    @property
    def is_empty(self) -> bool:
        return not (self.literals or self.one or self.any or self.numbers)

    def below(self, segment: str) -> _Node:
        """The place after another segment of a pattern; made if it is new."""
        if segment == _ANY:
            self.any = self.any or _Node()
            return self.any
        if segment == _ONE:
            self.one = self.one or _Node()
            return self.one
        found = literal(segment)
        assert found is not None
        if self.literals is None:
            self.literals = {}
        return self.literals.setdefault(found, _Node())

    def forget(self, segment: str) -> None:
        """Remove the place after a segment if nothing is left there."""
        if not self.below(segment).is_empty:
            return
        if segment == _ANY:
            self.any = None
        elif segment == _ONE:
            self.one = None
        elif self.literals is not None:
            del self.literals[literal(segment) or ""]


class PatternIndex:
    """The patterns of subscriptions, by their numbers."""

    def __init__(self) -> None:
        self._root = _Node()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, number: int, pattern: str) -> None:
        """Add the pattern of a subscription that has none yet."""
        node = self._root
        for segment in segments_of(pattern):
            node = node.below(segment)
        if node.numbers is None:
            node.numbers = set()
        node.numbers.add(number)
        self._count += 1

    def remove(self, number: int, pattern: str) -> None:
        """Remove a pattern that was added."""
        way: list[tuple[_Node, str]] = []
        node = self._root
        for segment in segments_of(pattern):
            way.append((node, segment))
            node = node.below(segment)
        assert node.numbers is not None, "it was added"
        node.numbers.remove(number)
        self._count -= 1
        for parent, segment in reversed(way):
            parent.forget(segment)

    def matching(self, path: str) -> list[int]:
        """The numbers whose patterns match a path, in order."""
        places = _with_any([self._root])
        for segment in path.split("/"):
            places = _with_any(_after(places, segment))
        found: set[int] = set()
        for node, _ in places:
            if node.numbers is not None:
                found |= node.numbers
        return sorted(found)


# A place, and whether a `**` leads there, which may take further segments.
_Places = list[tuple[_Node, bool]]


def _with_any(nodes: Iterable[_Node | tuple[_Node, bool]]) -> _Places:
    """The places, and those after a `**` that takes no segment; each once."""
    places: dict[tuple[int, bool], tuple[_Node, bool]] = {}
    rest = [one if isinstance(one, tuple) else (one, False) for one in nodes]
    while rest:
        node, stays = rest.pop()
        if (id(node), stays) in places:
            continue
        places[id(node), stays] = (node, stays)
        if node.any is not None:
            rest.append((node.any, True))
    return list(places.values())


def _after(places: _Places, segment: str) -> _Places:
    """The places after another segment of the path."""
    found: _Places = []
    for node, stays in places:
        if stays:
            found.append((node, True))
        if node.one is not None:
            found.append((node.one, False))
        exact = None if node.literals is None else node.literals.get(segment)
        if exact is not None:
            found.append((exact, False))
    return found
