"""Which packages of nodes take effect (docs/forwarded-writes.md), and where states remember others.

A node numbers what it sends, and sends it again when it does not know the outcome. The log then has
a package twice. The second copy does nothing, nor does one that its session has forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from streamd_audit.replay.ids import Place

# How many packages of a node may be remembered at once.
MAX_REMEMBERED = 256

# What happens to a node: a session is opened, a package comes; or, from `STATE` on by its `op` in
# `run`, a state has a session.
OPENED, PACKAGE, STATE = range(3)
_BEFORE, _GONE = STATE, STATE + 3

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

    @property
    def told(self) -> Session | None:
        """The session as a state has it; None if there is none."""
        if self._nonce is None:
            return None
        return self._session_id, self._nonce, self._lowest, self._remembered


Session = tuple[int, int, int, dict[int, int]]
"""Its id, nonce and lowest number, and how many commands the remembered packages had."""
Event = tuple[int, int, int, int | None, int | None, int | None, int | None, Session | None]
"""Index, position, what happens, and about it four numbers or a session: of a session that is
opened the nonce and the one that it replaces; of a package its session, number, lowest number and
count of commands."""


class Told(NamedTuple):
    """Why a command at a place has no effect; or, without a position, that the state as of entry
    `index` differs."""

    index: int  # type: ignore[assignment]  # of NamedTuple
    position: int | None
    result: str
    expected: str | None = None
    found: str | None = None


def follow(
    node_id: int,
    events: Iterable[Event],
    members: Sequence[tuple[int, frozenset[int]]],
    states: Sequence[Place],
) -> Iterator[Told]:
    """What becomes of one node's packages, in the order of the log, and where states differ.

    `members` are the nodes of the cluster as of entries.
    """
    node = Node()
    said: Session | None = None
    changes, following = iter(members), 0
    change = next(changes, None)

    def leave_until(index: int) -> None:
        """End the session if the node has left the cluster."""
        nonlocal change
        while change is not None and change[0] <= index:
            if node_id not in change[1]:
                node.remove()
            change = next(changes, None)

    def compared(place: Place) -> Iterator[Told]:
        nonlocal following
        while following < len(states) and states[following] < place:
            index = states[following][0]
            leave_until(index)
            if node.told != said:
                yield Told(index, None, "", _text(node_id, node.told), _text(node_id, said))
            following += 1

    for index, position, event, one, two, three, four, session in events:
        yield from compared((index, position))
        if event >= STATE:
            said = None if event == _GONE else session
            if event == _BEFORE and session is not None:
                leave_until(index)
                node.begin(*session[:3], dict(session[3]))
            continue
        leave_until(index - 1)
        assert one is not None
        assert two is not None
        if event == OPENED:
            yield Told(index, position, "done" if node.open(index, one, two) else "stale")
            continue
        assert three is not None
        assert four is not None
        verdict = node.take(one, two, three, four)
        if verdict != APPLIED:
            for each in range(position, position + four):
                yield Told(index, each, verdict)
    yield from compared((2**63, 0))


def _text(node_id: int, session: Session | None) -> str:
    if session is None:
        return f"no session of node {node_id}"
    session_id, nonce, lowest, remembered = session
    packages = ", ".join(f"{number} ({count})" for number, count in sorted(remembered.items())[-8:])
    told = f"session {session_id} of node {node_id}, nonce {nonce}, from {lowest} on"
    return f"{told}: {len(remembered)} packages, {packages or 'none'}"
