"""When something is due about each of many things: the earliest first."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

# Times that were replaced stay in the heap until there are more of them than of the others.
_MOST_REPLACED = 1_000


class DueTimes:
    """Times in milliseconds by number, in memory."""

    def __init__(self) -> None:
        self._times: dict[int, int] = {}
        self._heap: list[tuple[int, int]] = []

    def set(self, number: int, at_ms: int | None) -> None:
        """Set the time of a number, in the place of the one before; None removes it."""
        if self._times.get(number) == at_ms:
            return
        if at_ms is None:
            del self._times[number]
            return
        self._times[number] = at_ms
        heappush(self._heap, (at_ms, number))
        if len(self._heap) > 2 * len(self._times) + _MOST_REPLACED:
            self._heap = [(at_ms, number) for number, at_ms in self._times.items()]
            heapify(self._heap)

    @property
    def next_ms(self) -> int | None:
        """The earliest time; None if nothing has one."""
        self._drop_replaced()
        return self._heap[0][0] if self._heap else None

    def due(self, until_ms: int, limit: int) -> list[int]:
        """Up to `limit` of the numbers whose time has come by `until_ms`, the earliest first. They
        stay due until their time is set again."""
        found: list[tuple[int, int]] = []
        while len(found) < limit:
            self._drop_replaced()
            if not self._heap or self._heap[0][0] > until_ms:
                break
            one = heappop(self._heap)
            if one not in found[-1:]:
                found.append(one)
        for one in found:
            heappush(self._heap, one)
        return [number for _, number in found]

    def _drop_replaced(self) -> None:
        while self._heap and self._times.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
