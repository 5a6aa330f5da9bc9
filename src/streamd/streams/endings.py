"""The end of streams: they are hidden while forks read their bytes, and removed after that."""

from __future__ import annotations

from streamd.streams import keys, quotas, snapshots
from streamd.streams.model import Stream
from streamd.streams.state import State


def end(state: State, key: bytes, stream: Stream) -> None:
    """Hide a stream from its clients; its bytes stay while forks read them."""
    state.cancel_sweep(key, stream)
    kept = quotas.kept(stream)
    snapshots.release(state, stream)
    if stream.forks:
        quotas.settle(state, key, stream, kept)
        stream.deleted = True
        state.streams.put(key, stream)
        state.change_bucket(keys.bucket_of(key), hidden=1)
        return
    _remove(state, key, stream, kept)


def _remove(state: State, key: bytes, stream: Stream, kept: int) -> None:
    """Remove a stream that stores `kept` bytes, and every ancestor that only it kept alive.

    A chain of forks is followed in a loop: clients choose its length.
    """
    while True:
        state.cool(key, stream, stream.tail)
        state.streams.delete(key)
        state.discard(stream.stream_id)
        state.header.streams -= 1
        state.change_bucket(
            keys.bucket_of(key),
            streams=-1,
            hidden=-1 if stream.deleted else 0,
            size=-kept,
            counted=0 if stream.kept_from is None else -1,
        )
        if stream.settings.fork is None:
            return
        key = stream.settings.fork.source
        parent = state.streams.get(key)
        assert parent is not None, "a fork keeps its source"
        parent.forks -= 1
        state.streams.put(key, parent)
        if parent.forks:
            return
        kept = quotas.kept(parent)
        if not parent.deleted:
            state.trim(key, parent)
            quotas.settle(state, key, parent, kept)
            return
        stream = parent
