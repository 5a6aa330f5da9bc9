"""Which packages of nodes take effect (docs/forwarded-writes.md).

A node numbers what it sends, and sends it again when it does not know the outcome. The log then has
a package twice. The second copy does nothing, nor does one that its session has forgotten.
"""

from __future__ import annotations

# How many packages of a node may be remembered at once.
MAX_REMEMBERED = 256

APPLIED, KNOWN, LOST = "applied", "known", "lost"


class Node:
    """What the log says about one node's packages, in its order."""

    __slots__ = ("_lowest", "_nonce", "_remembered", "_session_id")

    def __init__(self) -> None:
        self.remove()

    def remove(self) -> None:
        """The node is no longer a member."""
        self._session_id = 0
        self._nonce: int | None = None
        self._lowest = 0
        self._remembered: dict[int, int] = {}

    def begin(
        self, session_id: int, nonce: int | None, lowest: int, remembered: dict[int, int]
    ) -> None:
        """Continue from a state: how many commands the remembered packages had."""
        self._session_id, self._nonce = session_id, nonce
        self._lowest, self._remembered = lowest, remembered

    def open(self, index: int, nonce: int, replaces: int) -> bool:
        """Entry `index` opens a session; False if it belongs to a process that has ended."""
        if self._nonce == nonce:
            return True
        if replaces != self._session_id:
            return False
        self.begin(index, nonce, 0, {})
        return True

    def take(self, session_id: int, sequence: int, lowest: int, count: int) -> str:
        """The outcome of a package of `count` commands."""
        if self._nonce is None or session_id != self._session_id:
            return LOST
        if lowest > sequence or sequence < self._lowest:
            return LOST
        remembered = self._remembered
        known = remembered.get(sequence)
        if known is not None and known != count:
            return LOST
        is_full = known is None and len(remembered) >= MAX_REMEMBERED
        if is_full and sum(each >= lowest for each in remembered) >= MAX_REMEMBERED:
            return LOST
        if lowest > self._lowest:
            self._lowest = lowest
            for each in [each for each in remembered if each < lowest]:
                del remembered[each]
        if known is not None:
            return KNOWN
        remembered[sequence] = count
        return APPLIED
