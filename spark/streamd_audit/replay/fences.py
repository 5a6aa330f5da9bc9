"""Write fencing as the log leads to it (docs/write-fencing.md): what fenced streams remember of the
claims under which they were written, and which writes a fence refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from streamd_audit.commands import Append
from streamd_audit.replay.links import Links
from streamd_audit.replay.model import Fence, Mark, Seal, Stream
from streamd_audit.replay.results import DONE, WRITE_FENCED, WRITE_OUT_OF_SCOPE
from streamd_audit.replay.subscribed import Subscribed
from streamd_audit.subscriptions import INVALID, WAKE, FenceStamp


class Ended(NamedTuple):
    """What a deleted subscription leaves: its last generation, and how many of its streams have not
    noted that yet."""

    generation: int
    streams: int


class Fences:
    """The fences of a scope's streams. `find` has the subscription of a number; `ended` is by those
    that were deleted, or by their numbers if that was before the log."""

    def __init__(
        self,
        links: Links,
        find: Callable[[int], Subscribed | None],
        number_of: Callable[[Subscribed], int],
    ) -> None:
        self._links = links
        self._find = find
        self._number_of = number_of
        self.ended: dict[Subscribed | int, Ended] = {}

    # -- what streams remember -------------------------------------------------------------------

    def settle(self, stream: Stream) -> None:
        """Note what has ended, before a stream's tail moves."""
        before, stream.fence = stream.fence, self._view(stream)
        self._forget(stream, before)

    def _view(self, stream: Stream) -> Fence:
        kept, news = [], []
        for mark in stream.fence.marks:
            sealed = mark.sealed
            one = mark.of if isinstance(mark.of, Subscribed) else None
            if one is not None and one not in self._links.living:
                one = None
            if mark.is_linked:
                last = self._last(mark.of) if one is None else one.ended_generation
                sealed = max(sealed, last)
            if sealed > mark.sealed:
                news.append(_seal(mark, sealed, stream))
            if one is not None:
                kept.append(mark._replace(sealed=sealed))
        if not news:
            return Fence(tuple(kept), stream.fence.seal)
        latest = max(news, key=lambda one: (one.record, self.told(one.of)))
        return Fence(tuple(kept), latest)

    def told(self, of: Subscribed | int) -> int:
        """The number by which a state names a subscription."""
        return of if isinstance(of, int) else self._number_of(of)

    def _last(self, of: Subscribed | int) -> int:
        """The last generation of a subscription that was deleted."""
        return self.ended[of].generation if of in self.ended else 0

    def unlink(self, stream: Stream, one: Subscribed) -> None:
        """A fenced stream is no longer linked: the present claim is sealed here."""
        self.settle(stream)
        mark = stream.fence.mark_of(one)
        if mark is None:
            return
        is_held = one.lease_until_ms is not None
        ended = one.generation if is_held else one.ended_generation
        stream.put_mark(mark._replace(sealed=max(mark.sealed, ended), is_linked=False))
        if ended > mark.sealed:
            stream.fence = stream.fence._replace(seal=_seal(mark, ended, stream))

    def write(self, stream: Stream, stamp: FenceStamp) -> None:
        """A write under a claim took effect."""
        one = self._find(stamp.number)
        assert one is not None
        mark = stream.fence.mark_of(one) or Mark(one, 0)
        tail = stream.records, stream.size
        stream.put_mark(Mark(one, mark.sealed, mark.is_linked, stamp.generation, *tail))

    def delete(self, one: Subscribed) -> None:
        """A subscription is deleted."""
        if one.fenced:
            self.ended[one] = Ended(one.generation, one.fenced)

    def drop(self, stream: Stream) -> None:
        """A stream ends."""
        before, stream.fence = stream.fence, Fence()
        self._forget(stream, before)

    def _forget(self, stream: Stream, before: Fence) -> None:
        for mark in before.marks:
            if not mark.is_linked or mark.of not in self.ended:
                continue
            if stream.fence.mark_of(mark.of) is None:
                generation, streams = self.ended[mark.of]
                self.ended[mark.of] = Ended(generation, streams - 1)
                if streams <= 1:
                    del self.ended[mark.of]

    # -- judging ---------------------------------------------------------------------------------

    def refusal(self, stream: Stream, command: Append, now_ms: int) -> str | None:
        """The result that refuses an append because of a fence; None leaves it to other rules."""
        stamp, producer = command.fence, command.producer
        if not stream.settings.write_fence:
            return WRITE_OUT_OF_SCOPE if stamp is not None and stamp.is_alone else None
        if stamp is None:
            known = None if producer is None else stream.producers.get(producer.producer_id)
            return WRITE_FENCED if known is not None and known[5] else None
        if stamp.credential == WAKE:
            return WRITE_OUT_OF_SCOPE
        if stamp.credential == INVALID or now_ms > stamp.expires_ms or producer is None:
            return WRITE_FENCED
        one = self._find(stamp.number)
        if one is None:
            return WRITE_FENCED
        mark = self._view(stream).mark_of(one)
        if mark is not None and stamp.generation <= mark.sealed:
            return WRITE_FENCED
        is_linked = mark is not None and mark.is_linked
        if not is_linked and not self._links.will_link(stream, one):
            return WRITE_OUT_OF_SCOPE
        is_fine = self._holds(one, stamp, now_ms) and producer.epoch == stamp.generation
        return None if is_fine else WRITE_FENCED

    def verify(self, stamp: FenceStamp, now_ms: int) -> str:
        """The outcome of asking whether a claim is the present one."""
        one = self._find(stamp.number)
        is_fine = one is not None and now_ms <= stamp.expires_ms
        return DONE if is_fine and one and self._holds(one, stamp, now_ms) else WRITE_FENCED

    def _holds(self, one: Subscribed, stamp: FenceStamp, now_ms: int) -> bool:
        wake = one.wake
        if wake is None or not one.is_leased(now_ms):
            return False
        wake_id = wake.id_of(self._number_of(one))
        told = stamp.generation, stamp.wake_id, stamp.holder
        return told == (one.generation, wake_id, one.holder)


def _seal(mark: Mark, generation: int, stream: Stream) -> Seal:
    end = (mark.record, mark.byte) if mark.generation else (stream.records, stream.size)
    return Seal(mark.of, generation, *end)
