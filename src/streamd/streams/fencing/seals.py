"""The seals of fenced streams (`fences`), kept in the state.

A deleted subscription leaves the last generation that it had, for as long as streams that were
linked to it have not noted it.
"""

from __future__ import annotations

from msgspec.structs import replace

from streamd.streams import keys
from streamd.streams.fencing import fences
from streamd.streams.fencing.fences import EndedClaims, FenceMark, StreamFence
from streamd.streams.model import Stream
from streamd.streams.state import State
from streamd.streams.subscriptions.model import FenceStamp, Subscription


def view(state: State, stream: Stream) -> StreamFence:
    """The fence of a stream with all that has ended."""

    def last_of(number: int) -> int:
        ended = state.ended_claims.get(keys.number(number))
        return 0 if ended is None else ended.generation

    return fences.settled(stream.fence, stream.tail, state.subscriptions.get, last_of)


def settle(state: State, stream: Stream) -> None:
    """Note what has ended, before the stream's tail moves. The caller stores the stream."""
    before = stream.fence.marks
    stream.fence = view(state, stream)
    if len(stream.fence.marks) < len(before):
        _forget(state, stream, before)


def link(stream: Stream, subscription: Subscription) -> None:
    """Mark a fenced stream as linked to a subscription, whose earlier claims do not concern it. The
    caller stores the stream."""
    ended = fences.ended_generation(subscription)
    stream.fence = fences.linked(stream.fence, subscription.number, ended)


def unlink(state: State, stream: Stream, subscription: Subscription) -> None:
    """Mark a fenced stream as no longer linked to a subscription. The caller stores the stream."""
    settle(state, stream)
    stream.fence = fences.unlinked(stream.fence, stream.tail, subscription)


def write(stream: Stream, stamp: FenceStamp) -> None:
    """Note a write that took effect under a claim. The caller stores the stream."""
    stream.fence = fences.written(stream.fence, stamp.number, stamp.generation, stream.tail)


def delete(state: State, subscription: Subscription) -> None:
    """Note the last generation of a deleted subscription, for the streams linked to it."""
    if subscription.fenced_links:
        ended = EndedClaims(subscription.generation, subscription.fenced_links)
        state.ended_claims.put(keys.number(subscription.number), ended)


def drop(state: State, stream: Stream) -> None:
    """Remove the fence of a stream that ends."""
    before, stream.fence = stream.fence.marks, StreamFence()
    _forget(state, stream, before)


def _forget(state: State, stream: Stream, before: tuple[FenceMark, ...]) -> None:
    """Forget deleted subscriptions that none but this stream had not noted."""
    for mark in before:
        row = keys.number(mark.number)
        ended = state.ended_claims.get(row) if mark.is_linked else None
        if ended is None or stream.fence.mark_of(mark.number) is not None:
            continue
        if ended.streams > 1:
            state.ended_claims.put(row, replace(ended, streams=ended.streams - 1))
        else:
            state.ended_claims.delete(row)
