"""Idempotent producers: each request of a producer takes effect once, in order."""

from __future__ import annotations

from streamd.streams import keys
from streamd.streams.commands import Outcome, Result
from streamd.streams.model import ProducerStamp, Stream
from streamd.streams.offsets import Position
from streamd.streams.state import State


def refusal(state: State, stream: Stream, stamp: ProducerStamp) -> Outcome | None:
    """Protocol section 5.2.1. None when the request is new and next in order."""
    known = state.producers.get(keys.producer_key(stream.stream_id, stamp.producer_id))
    if known is None or stamp.epoch > known.epoch:
        if stamp.seq == 0:
            return None
        if known is None:
            return Outcome.of(Result.SEQ_GAP, stream, stamp.epoch, 0)
        return Outcome.of(Result.EPOCH_WITHOUT_RESTART, stream, known.epoch, 0)
    if stamp.epoch < known.epoch:
        return Outcome.of(Result.EPOCH_STALE, stream, known.epoch, known.seq)
    if stamp.seq == known.seq + 1:
        return None
    if stamp.seq > known.seq:
        return Outcome.of(Result.SEQ_GAP, stream, known.epoch, known.seq + 1)
    outcome = Outcome.of(Result.DUPLICATE, stream, known.epoch, known.seq)
    if stamp.seq == known.seq:
        outcome.tail = Position(known.record, known.byte)
        outcome.closed = stream.closed and stream.closed_by == stamp
    return outcome
