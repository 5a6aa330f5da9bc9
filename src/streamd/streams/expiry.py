"""Expiry: reads renew a stream's window, and a sweep ends the streams whose time has come."""

from __future__ import annotations

from collections.abc import Callable

from streamd.streams import quotas
from streamd.streams.commands import Outcome, Result, Sweep, Touch
from streamd.streams.model import Stream
from streamd.streams.state import State


def touch(state: State, command: Touch) -> Outcome:
    """Renew the windows of streams that were read."""
    for key, stream_id, at_ms in command.reads:
        stream = state.streams.get(key)
        if stream is None or stream.stream_id != stream_id or stream.deleted:
            continue
        if stream.expired(at_ms) or at_ms <= stream.touched_ms:
            continue
        stream.touched_ms = at_ms
        state.streams.put(key, stream)
    return Outcome(Result.DONE)


def sweep(
    state: State, command: Sweep, now_ms: int, end: Callable[[bytes, Stream], None]
) -> Outcome:
    """End streams that have expired, and count those that their buckets do not count yet."""
    for key in command.keys:
        stream = state.streams.get(key)
        if stream is None:
            continue
        quotas.count(state, key, stream)
        if stream.sweep_at_ms is None:
            continue
        if stream.expired(now_ms):
            end(key, stream)
        elif stream.sweep_at_ms <= now_ms:
            state.schedule_sweep(key, stream)
            state.streams.put(key, stream)
    return Outcome(Result.DONE)
