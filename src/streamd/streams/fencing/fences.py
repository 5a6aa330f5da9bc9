"""What a fenced stream remembers of the claims under which it was written: marks and the seal.

A claim's generation is *sealed* on a stream once the claim has ended: nothing of that generation,
or of an earlier one of the same subscription, is ever appended after that. A claim may cover any
number of streams, so nobody visits them all when it ends. The subscription says which generation
has ended; each of its streams notes that before its tail next moves (`settled`), and a HEAD before
that gets what the note will say. Until the tail moves, both the end of what was written
under the claim and the tail itself are what they were when the claim ended, so the note says the
same as one made at once.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from msgspec.structs import replace

from streamd.streams.subscriptions.model import Subscription

# A number of records, and the bytes that they have: a position in a stream.
Place = tuple[int, int]


class FenceMark(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a stream remembers of one subscription, the one with that number.

    Generations up to `sealed` are sealed, or are from before the stream was linked. `generation` is
    the last one that has written, up to `record` and `byte`; 0 if none has. Without `is_linked` the
    subscription no longer covers the stream.
    """

    number: int
    sealed: int
    is_linked: bool = True
    generation: int = 0
    record: int = 0
    byte: int = 0


class Seal(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A sealed generation, and the end of what was written under claims of its subscription; the
    stream's tail at the time if that is nothing."""

    number: int
    generation: int
    record: int
    byte: int


class StreamFence(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The marks of a stream, in the order in which they were made, and the latest seal."""

    marks: tuple[FenceMark, ...] = ()
    seal: Seal | None = None

    def mark_of(self, number: int) -> FenceMark | None:
        """The mark of a subscription."""
        return next((mark for mark in self.marks if mark.number == number), None)

    def _with(self, changed: FenceMark) -> StreamFence:
        others = tuple(mark for mark in self.marks if mark.number != changed.number)
        return replace(self, marks=(*others, changed))


class EndedClaims(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a deleted subscription leaves: its last generation, and how many of its streams have not
    noted that yet."""

    generation: int
    streams: int


Find = Callable[[int], Subscription | None]
# The last generation of the subscription that was deleted and had this number.
LastOf = Callable[[int], int]


def ended_generation(subscription: Subscription) -> int:
    """The last generation that has ended: the present one only if no wake is outstanding."""
    return subscription.generation - (subscription.wake is not None)


def settled(fence: StreamFence, tail: Place, find: Find, last_of: LastOf) -> StreamFence:
    """The marks and the seal with all that has ended, of a stream with that tail.

    `find` has the subscription of a number; it has none that was deleted. The mark of such a one
    goes: no other will ever have its number. Of several subscriptions of which a claim has ended
    since the tail last moved, the seal is that of the one whose writes reached furthest.
    """
    kept, news = [], []
    for mark in fence.marks:
        subscription = find(mark.number)
        ended = mark.sealed
        if mark.is_linked:
            ended = max(
                ended,
                last_of(mark.number) if subscription is None else ended_generation(subscription),
            )
        if ended > mark.sealed:
            news.append(_seal(mark, ended, tail))
        if subscription is not None:
            kept.append(mark if ended == mark.sealed else replace(mark, sealed=ended))
    seal = max(news, key=lambda one: (one.record, one.number)) if news else fence.seal
    return StreamFence(tuple(kept), seal)


def linked(fence: StreamFence, number: int, ended: int) -> StreamFence:
    """A stream is linked to a subscription of which the generations up to `ended` do not concern
    it: they ended before."""
    mark = fence.mark_of(number) or FenceMark(number, ended)
    return fence._with(replace(mark, sealed=max(mark.sealed, ended), is_linked=True))


def unlinked(fence: StreamFence, tail: Place, subscription: Subscription) -> StreamFence:
    """A stream is no longer linked to a subscription: the present claim of it is sealed here, also
    if it goes on elsewhere. The fence must be settled."""
    mark = fence.mark_of(subscription.number)
    if mark is None:
        return fence
    ended = ended_generation(subscription)
    if subscription.lease_until_ms is not None:
        ended = subscription.generation
    seal = fence.seal if ended <= mark.sealed else _seal(mark, ended, tail)
    mark = replace(mark, sealed=max(mark.sealed, ended), is_linked=False)
    return replace(fence._with(mark), seal=seal)


def written(fence: StreamFence, number: int, generation: int, tail: Place) -> StreamFence:
    """A write under a claim has moved a stream's tail there."""
    mark = fence.mark_of(number) or FenceMark(number, 0)
    record, byte = tail
    return fence._with(replace(mark, generation=generation, record=record, byte=byte))


def _seal(mark: FenceMark, generation: int, tail: Place) -> Seal:
    record, byte = (mark.record, mark.byte) if mark.generation else tail
    return Seal(mark.number, generation, record, byte)
