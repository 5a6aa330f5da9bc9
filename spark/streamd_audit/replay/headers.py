"""The header of a state, field by field, as the log leads to it (docs/formats.md).

Its counts of streams and bytes are compared with the state's other rows instead (`balance`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from streamd_audit.commands import (
    AddLogKey,
    Archived,
    LogKey,
    LogTree,
    Place,
    RaiseLevel,
    RenewIncarnations,
    Scrub,
    Scrubbed,
)
from streamd_audit.replay.ids import Place as LogPlace
from streamd_audit.rows import Header
from streamd_audit.tree import placed

# What no rule here or in `balance` covers.
NOT_COMPARED = ("flushed_bytes",)
_MAX_KEYS = 256

OfHeader = Archived | Scrubbed | RenewIncarnations | AddLogKey | RaiseLevel


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
    tree: LogTree | None = None
    log_keys: list[LogKey] | None = None
    features: int | None = None


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


class Seen(msgspec.Struct, array_like=True, frozen=True):
    """What only commands about the cluster itself change: how far the log is archived, the tree
    over it, the keys that sign its heads, what was last seen of the objects, and the feature
    level."""

    archived: Place
    scrub: Scrub
    tree: LogTree
    log_keys: list[LogKey]
    features: int = 0


def seen_by(header: Header) -> Seen:
    """What a state has seen."""
    return Seen(header.archived, header.scrub, header.tree, header.log_keys, header.features)


def follow(
    commands: Iterable[tuple[int, int, OfHeader]], states: Sequence[LogPlace], header: Header
) -> Iterator[Seen]:
    """What was seen as of each of the states.

    `commands`, each with its place, have the terms of their entries; `header` is that of the state
    before them.
    """
    seen = seen_by(header)
    left = iter(states)
    state = next(left, None)
    for index, position, command in commands:
        while state is not None and state < (index, position):
            yield seen
            state = next(left, None)
        seen = _after(seen, command, index)
    while state is not None:
        yield seen
        state = next(left, None)


def _after(seen: Seen, command: OfHeader, index: int) -> Seen:
    match command:
        case Scrubbed():
            return replace(seen, scrub=command.scrub)
        case RenewIncarnations():
            return replace(seen, tree=LogTree(), log_keys=[])
        case AddLogKey():
            return replace(seen, log_keys=[*seen.log_keys, *_added(seen.log_keys, command)])
        case RaiseLevel(level=level):
            return replace(seen, features=max(level, seen.features))
    before, place, tree = seen.archived, command.place, command.tree
    if command.previous != before or not before.index < place.index < index:
        return seen
    if tree is not None and not _fits(tree, place.index):
        return seen
    return replace(seen, archived=place, tree=tree or LogTree())


def _fits(tree: LogTree, index: int) -> bool:
    """Whether there is such a tree whose last leaf is entry `index`."""
    return (
        0 < tree.first_index <= index
        and placed(index + 1 - tree.first_index, tree.nodes) is not None
    )


def _added(known: Sequence[LogKey], command: AddLogKey) -> Iterator[LogKey]:
    """The key, if the command takes effect."""
    key = command.key
    others = {one.public_key for one in known}
    has_sizes = (len(key.public_key), len(key.signature)) == (32, 64) and key.node_id >= 0
    is_known = key.signed_by in others or not key.signed_by
    is_next = command.number == len(known) < _MAX_KEYS
    if has_sizes and is_known and is_next and key.public_key not in others:
        yield key
