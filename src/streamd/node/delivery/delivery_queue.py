"""Whose webhook is next, so that receivers that are slow cost the others nothing."""

from __future__ import annotations

from collections import Counter, deque

# One host has at most this part of all places, and deliveries that failed before together have at
# most that one: receivers that answer find room beside those that do not.
_OF_HOST = 8
_OF_RETRIES = 2


class DeliveryQueue:
    """Numbers of subscriptions that wait for one of `places`; each waits once.

    Hosts take turns, and so do first attempts and retries. What has a place keeps it until `leave`.
    """

    def __init__(self, places: int) -> None:
        self._places = places
        self._of_host = max(1, places // _OF_HOST)
        self._of_retries = max(1, places // _OF_RETRIES)
        # By lane (whether they failed before) and host; the host whose turn is next comes first.
        self._waiting: dict[bool, dict[str, deque[int]]] = {False: {}, True: {}}
        self._queued: set[int] = set()
        self._placed: dict[int, tuple[bool, str]] = {}
        self._at_host: Counter[str] = Counter()
        self._retries = 0
        self._is_turn_of_retries = False

    def __len__(self) -> int:
        """How many wait."""
        return len(self._queued)

    @property
    def placed(self) -> int:
        """How many have a place."""
        return len(self._placed)

    def add(self, number: int, host: str, *, has_failed: bool) -> None:
        """Let a subscription wait, unless it does or has a place."""
        if number not in self._queued and number not in self._placed:
            self._queued.add(number)
            self._waiting[has_failed].setdefault(host, deque()).append(number)

    def take(self) -> int | None:
        """Give a place to the next one for which there is one; None if there is none."""
        if len(self._placed) >= self._places:
            return None
        for lane in (self._is_turn_of_retries, not self._is_turn_of_retries):
            if lane and self._retries >= self._of_retries:
                continue
            for host in self._waiting[lane]:
                if self._at_host[host] < self._of_host:
                    self._is_turn_of_retries = not lane
                    return self._take(host, has_failed=lane)
        return None

    def _take(self, host: str, *, has_failed: bool) -> int:
        hosts = self._waiting[has_failed]
        numbers = hosts.pop(host)
        number = numbers.popleft()
        if numbers:
            hosts[host] = numbers  # At the end: the others come first.
        self._queued.discard(number)
        self._placed[number] = has_failed, host
        self._at_host[host] += 1
        self._retries += has_failed
        return number

    def leave(self, number: int) -> None:
        """Give the place of a subscription back."""
        has_failed, host = self._placed.pop(number)
        self._retries -= has_failed
        self._at_host[host] -= 1
        if not self._at_host[host]:
            del self._at_host[host]

    def clear(self) -> None:
        """Forget all that wait."""
        self._waiting = {False: {}, True: {}}
        self._queued.clear()
