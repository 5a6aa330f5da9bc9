"""The three faces of a group, as its own tasks use them: `Group` joins them."""

from __future__ import annotations

from typing import Protocol

from streamd.group.reads import GroupReads
from streamd.group.view import GroupView
from streamd.group.writes import GroupWrites


class Faces(Protocol):
    """A group, without the rest of `Group`, which could not import what imports it."""

    writes: GroupWrites
    reads: GroupReads
    view: GroupView

    def now_ms(self) -> int:
        """Current log time: the wall clock, but never before an entry already stamped."""
