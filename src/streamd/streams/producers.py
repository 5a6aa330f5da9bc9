"""Idempotent producers: each request of a producer takes effect once, in order.

A stream remembers its producers, and at most `MAX_PRODUCERS` of those that are counted. When it is
`CROWDED` the leader proposes to end those that have been idle longest (`EndProducers`), but none
before it has been idle for `MIN_IDLE_MS`: until then a request that is sent again must be
recognised. A further producer is refused while no other may be ended.

A producer that has written under a claim stays for as long as its stream (`fencing.write_fences`).

Producers of requests that were not counted, which came before all members understood this, stay
until they send another one.
"""

from __future__ import annotations

from streamd.streams import keys
from streamd.streams.commands import Append, EndProducers, Outcome, Result
from streamd.streams.model import ProducerStamp, ProducerState, Stream
from streamd.streams.offsets import Position
from streamd.streams.state import State

# Applying the log depends on these two, so they must be the same in every release.
MAX_PRODUCERS = 10_000
MIN_IDLE_MS = 3_600_000
CROWDED = MAX_PRODUCERS * 9 // 10
# How many crowded streams are noted.
_MAX_NOTED = 1_000


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
        outcome.closed = stream.closed and stream.closed_by == stamp.uncounted
    return outcome


def is_one_too_many(state: State, stream: Stream, command: Append) -> bool:
    """Whether an append comes from a new producer, and the stream has as many as it may."""
    stamp = command.producer
    if stamp is None or not stamp.counted or stream.producers < MAX_PRODUCERS:
        return False
    _note_crowded(state, command.key)
    return state.producers.get(keys.producer_key(stream.stream_id, stamp.producer_id)) is None


def remember(
    state: State,
    key: bytes,
    stream: Stream,
    stamp: ProducerStamp,
    now_ms: int,
    *,
    is_bound: bool,
) -> None:
    """Remember a request that took effect; from one on that `is_bound` only claims may use the id.
    The caller stores the stream."""
    row = keys.producer_key(stream.stream_id, stamp.producer_id)
    known = state.producers.get(row)
    was_counted = known is not None and known.touched_ms > 0
    touched_ms = max(now_ms, 1) if stamp.counted or was_counted else 0
    if touched_ms and not was_counted:
        stream.producers += 1
        if stream.producers >= CROWDED:
            _note_crowded(state, key)
    is_bound = is_bound or (known is not None and known.is_bound)
    row_now = ProducerState(
        stamp.epoch, stamp.seq, stream.records, stream.size, touched_ms, is_bound
    )
    state.producers.put(row, row_now)


def end_idle(state: State, command: EndProducers, now_ms: int) -> Outcome:
    """End those of a stream's producers that are idle."""
    stream = state.streams.get(command.key)
    if stream is None:
        return Outcome(Result.DONE)
    for producer_id in command.producer_ids:
        row = keys.producer_key(stream.stream_id, producer_id)
        known = state.producers.get(row)
        if known is not None and is_idle(known, now_ms):
            state.producers.delete(row)
            stream.producers -= 1
    state.streams.put(command.key, stream)
    return Outcome(Result.DONE)


def is_idle(known: ProducerState, now_ms: int) -> bool:
    """Whether a producer may be ended. One that is bound may not: it would be forgotten that only
    claims may use its id."""
    return 0 < known.touched_ms <= now_ms - MIN_IDLE_MS and not known.is_bound


def _note_crowded(state: State, key: bytes) -> None:
    if len(state.crowded) < _MAX_NOTED:
        state.crowded.add(key)
