"""Streams and blobs whose rows somebody is sending out, to be left alone by the removal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


class Pin:
    """Keeps the rows below some ids until it is released."""

    def __init__(self, pins: Pins, ids: frozenset[int]) -> None:
        self._pins = pins
        self._ids = ids

    def release(self) -> None:
        """Let the rows go; a repetition does nothing."""
        ids, self._ids = self._ids, frozenset()
        self._pins._let_go(ids)


class Pins:
    """All ids that are pinned on this node, each as often as it is.

    Rows become garbage only by a command, and a note of that is what the removal goes by. So who
    pins an id while it is still referred to, in the same turn of the loop in which they found
    it, may read everything below it until they let go.
    """

    def __init__(self) -> None:
        self._held: Counter[int] = Counter()

    def hold(self, ids: Iterable[int]) -> Pin:
        """Pin ids of streams and blobs; release it whatever happens."""
        wanted = frozenset(ids)
        self._held.update(wanted)
        return Pin(self, wanted)

    def held(self) -> frozenset[int]:
        """The ids pinned at the moment."""
        return frozenset(self._held)

    def _let_go(self, ids: Iterable[int]) -> None:
        for each in ids:
            self._held[each] -= 1
            if not self._held[each]:
                del self._held[each]
