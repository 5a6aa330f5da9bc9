"""Pins: streams and blobs whose rows a response is still sending, so that reclaim keeps them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


class Pin:
    """Keeps the rows of some ids until it is released."""

    def __init__(self, pins: Pins, ids: frozenset[int]) -> None:
        self._pins = pins
        self._ids = ids

    def release(self) -> None:
        """Release the rows; a second call does nothing."""
        ids, self._ids = self._ids, frozenset()
        self._pins._release(ids)


class Pins:
    """All ids of a group that are pinned on this node, with counts.

    Rows become garbage only when a command is applied, which notes their id; reclaim reads these
    notes. So a reader that finds an id, and pins it without awaiting in between, may read all rows
    under it until the release.
    """

    def __init__(self) -> None:
        self._held: Counter[int] = Counter()

    def hold(self, ids: Iterable[int]) -> Pin:
        """Pin ids of streams and blobs; the caller must release the pin whatever happens."""
        wanted = frozenset(ids)
        self._held.update(wanted)
        return Pin(self, wanted)

    def held(self) -> frozenset[int]:
        """The ids that are pinned now."""
        return frozenset(self._held)

    def _release(self, ids: Iterable[int]) -> None:
        for each in ids:
            self._held[each] -= 1
            if not self._held[each]:
                del self._held[each]
