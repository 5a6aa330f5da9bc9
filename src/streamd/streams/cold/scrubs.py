"""How far the reading of all objects in the cold store has come, as the state has it."""

from __future__ import annotations

from typing import Annotated

import msgspec

# How many bad objects are named; further ones are only counted.
MAX_NAMED = 16
_Names = Annotated[
    tuple[Annotated[str, msgspec.Meta(max_length=1024)], ...], msgspec.Meta(max_length=MAX_NAMED)
]
_Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]


class Scrub(msgspec.Struct, frozen=True, array_like=True):
    """How far the slow reading of all objects in the cold store has come, and what it has found.

    `passes` are done, the last one at log time `done_ms`. A pass that is `under_way` continues with
    the pack at `pack` or later, or, if there is a `name`, with the objects of the archive after it;
    it has read `objects` of together `size` bytes and `found` damaged ones.
    What can be restored begins at entry `restorable_from`, as last seen; None before that. `lost`
    holds two entries between which no state can be restored any more, though it should be, and the
    log time when that was found.
    `missing` and `damaged` name some of the `missing_count` and `damaged_count` objects that are
    known to be missing, or to hold other bytes than were put.
    """

    passes: _Count = 0
    done_ms: _Count = 0
    under_way: bool = False
    pack: tuple[_Count, _Count] = (0, 0)
    name: Annotated[str, msgspec.Meta(max_length=1024)] = ""
    objects: _Count = 0
    size: _Count = 0
    found: _Count = 0
    missing: _Names = ()
    missing_count: _Count = 0
    damaged: _Names = ()
    damaged_count: _Count = 0
    restorable_from: _Count | None = None
    lost: tuple[_Count, _Count, _Count] | None = None
