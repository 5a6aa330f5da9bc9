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
            self.restart()

    @property
    def next_ms(self) -> int | None:
        """The earliest time; None if nothing has one."""
        self._drop_replaced()
        return self._heap[0][0] if self._heap else None

    def take(self, until_ms: int, limit: int) -> list[int]:
        """Up to `limit` of the numbers whose time has come by `until_ms`, the earliest first. They
        are not due again until their time changes, or `put_back` is called."""
        found: list[int] = []
        while len(found) < limit:
            self._drop_replaced()
            if not self._heap or self._heap[0][0] > until_ms:
                break
            earliest = heappop(self._heap)
            # A time that was set again after another is there twice.
            while self._heap and self._heap[0] == earliest:
                heappop(self._heap)
            found.append(earliest[1])
        return found

    def put_back(self, number: int) -> None:
        """Let a number that was taken be due at its time, if it has one."""
        at_ms = self._times.get(number)
        if at_ms is not None:
            heappush(self._heap, (at_ms, number))

    def restart(self) -> None:
        """Let all numbers be due at their times, whichever were taken."""
        self._heap = [(at_ms, number) for number, at_ms in self._times.items()]
        heapify(self._heap)

    def _drop_replaced(self) -> None:
        while self._heap and self._times.get(self._heap[0][1]) != self._heap[0][0]:
            heappop(self._heap)
