"""The header of a state, field by field, as the log leads to it (docs/formats.md).

Its counts of streams and bytes are compared with the state's other rows instead (`balance`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from streamd_audit.commands import Archived, Place, Scrub, Scrubbed
from streamd_audit.replay.model import Place as LogPlace
from streamd_audit.rows import Header

# What no rule here or in `balance` covers.
NOT_COMPARED = ("flushed_bytes",)


class Difference(NamedTuple):
    """A fault by its name in `findings`."""

    kind: str
    expected: str
    found: str


class Expected(NamedTuple):
    """What a header has to say as of an entry; None where the log does not tell."""

    applied_index: int
    applied_term: int
    log_ms: int | None
    next_stream_id: int | None = None
    configuration: bytes | None = None
    archived: Place | None = None
    incarnation_base: int | None = None
    scrub: Scrub | None = None
    counts: bool | None = None


def difference(header: Header | None, expected: Expected) -> Difference | None:
    """Where a state's header differs from what it has to be."""
    if header is None:
        return Difference("header_differs", "a header", "none")
    if header.applied_index != expected.applied_index:
        return Difference(
            "state_stale",
            f"the rows of entry {expected.applied_index}",
            f"those of entry {header.applied_index}",
        )
    names = [
        name
        for name, value in expected._asdict().items()
        if value is not None and value != getattr(header, name)
    ]
    if not names:
        return None
    return Difference("header_differs", _told(expected, names), _told(header, names))


def _told(what: Header | Expected, names: Iterable[str]) -> str:
    return ", ".join(f"{name} {_shown(getattr(what, name))}" for name in names)


def _shown(value: object) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)


def follow(
    commands: Iterable[tuple[int, int, Archived | Scrubbed]],
    states: Sequence[LogPlace],
    header: Header,
) -> Iterator[tuple[Place, Scrub]]:
    """How far the log is archived and what was last seen of the objects, as of each of the states.

    `commands`, each with its place, have the terms of their entries; `header` is that of the state
    before them.
    """
    archived, scrub = header.archived, header.scrub
    left = iter(states)
    state = next(left, None)
    for index, position, command in commands:
        while state is not None and state < (index, position):
            yield archived, scrub
            state = next(left, None)
        if isinstance(command, Scrubbed):
            scrub = command.scrub
        elif command.previous == archived and archived.index < command.place.index < index:
            archived = command.place
    while state is not None:
        yield archived, scrub
        state = next(left, None)
