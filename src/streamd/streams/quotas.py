"""Quotas: how many streams a bucket may have, how many bytes they may keep; and how many
subscriptions an identity may have made.

A bucket counts what its streams own: the bytes of their records from the first one that is kept,
and of their snapshots. A fork's inherited records count where they are stored, an inherited
snapshot in each stream that has it. Whether bytes are in the cold store makes no difference.

Counting begins with the first quota that is set, when all members of the cluster run a release that
counts. Streams from before are counted when `Sweep` names them, or when they change; until then
they are as if they kept nothing.
"""

from __future__ import annotations

from streamd.streams import keys
from streamd.streams.commands import Outcome, Result, SetLimits
from streamd.streams.limits import DEFAULT, MAX_ROWS, Limits
from streamd.streams.model import Bucket, Stream
from streamd.streams.state import State, storable

_ALL_OTHERS = DEFAULT.encode()
# The results of commands that a quota refuses.
REFUSALS = frozenset(
    (Result.BUCKET_FULL, Result.STREAM_FULL, Result.TOO_MANY_STREAMS, Result.OWNS_TOO_MANY)
)


def set_limits(state: State, command: SetLimits) -> Outcome:
    """Set the limits of a bucket or an identity, or clear them."""
    known = state.limits.get(command.kind, command.name)
    if command.limits is None:
        if known is None:
            return Outcome(Result.LIMITS_NOT_FOUND)
        state.limits.put(command.kind, command.name, None)
        return Outcome(Result.DELETED)
    if known is None and len(state.limits) >= MAX_ROWS:
        return Outcome(Result.TOO_MANY_LIMITS)
    state.limits.put(command.kind, command.name, command.limits)
    if state.limits.quotas:
        state.header.counts = True
    return Outcome(Result.DONE)


# -- what is kept ----------------------------------------------------------------------------------


def kept(stream: Stream) -> int:
    """How many bytes of a stream its bucket counts."""
    if stream.kept_from is None:
        return 0
    snapshot = 0 if stream.snapshot is None else stream.snapshot.size
    return stream.size - stream.kept_from + snapshot


def count(state: State, key: bytes, stream: Stream) -> None:
    """Start counting the stream's bytes, if quotas are in force and they are not counted yet."""
    if stream.kept_from is None and state.header.counts:
        # If it has forks, they may keep records from before its snapshot, or its snapshots may have
        # removed some before there were forks. Nothing tells that any more: what the stream's own
        # readers get is counted.
        stream.kept_from = stream.kept_start.byte
        state.streams.put(key, stream)
        state.change_bucket(keys.bucket_of(key), size=kept(stream), counted=1)


def grow(state: State, key: bytes, stream: Stream, size: int) -> None:
    """Count records of together `size` bytes that were appended to a stream."""
    if stream.kept_from is not None:
        name = keys.bucket_of(key)
        bucket = state.buckets.get(name)
        assert bucket is not None, "a bucket stays while it has streams"
        bucket.size = storable(bucket.size + size)
        state.buckets.put(name, bucket)


def settle(state: State, key: bytes, stream: Stream, before: int) -> None:
    """Count what a stream keeps now; `before` was `kept` before it changed."""
    if stream.kept_from is None:
        return
    if not stream.forks:
        stream.kept_from = stream.kept_start.byte
    more = kept(stream) - before
    if more:
        state.change_bucket(keys.bucket_of(key), size=more)


# -- what may be added -----------------------------------------------------------------------------


def _quota(state: State, bucket: bytes) -> Limits | None:
    quotas = state.limits.quotas
    return quotas.get(bucket) or quotas.get(_ALL_OTHERS)


def room(state: State, key: bytes, stream: Stream) -> tuple[int, Result] | None:
    """How many bytes may be added to a stream, and what to answer to more; None for any number.

    If it has less room than nothing, because a quota was lowered, that is a negative number.
    """
    bucket_name = keys.bucket_of(key)
    quota = _quota(state, bucket_name)
    if quota is None:
        return None
    if stream.kept_from is None:
        count(state, key, stream)
    bucket = state.buckets.get(bucket_name)
    assert bucket is not None, "a bucket stays while it has streams"
    return _room(quota, bucket.size, kept(stream))


def _room(quota: Limits, in_bucket: int, in_stream: int) -> tuple[int, Result] | None:
    of_bucket, of_stream = quota.max_bytes, quota.max_stream_bytes
    if of_stream is not None:
        of_stream -= in_stream
        if of_bucket is None or of_stream < of_bucket - in_bucket:
            return of_stream, Result.STREAM_FULL
    return None if of_bucket is None else (of_bucket - in_bucket, Result.BUCKET_FULL)


def refusal(state: State, key: bytes, stream: Stream, more: int) -> Result | None:
    """Why a stream may not keep so many more bytes; None if it may. Fewer are always allowed."""
    if more <= 0 or not state.limits.quotas:
        return None
    found = room(state, key, stream)
    return None if found is None or more <= found[0] else found[1]


def note_refusal(state: State, why: Result) -> None:
    """Count a refusal that a client is answered."""
    state.limits.refusals[why.value] = state.limits.refusals.get(why.value, 0) + 1


def refusal_to_create(state: State, key: bytes, bucket: Bucket | None, size: int) -> Result | None:
    """Why a stream that keeps `size` bytes may not be made in a bucket; None if it may."""
    quota = _quota(state, keys.bucket_of(key))
    if quota is None:
        return None
    bucket = bucket or Bucket(0)
    if quota.max_streams is not None and bucket.streams >= quota.max_streams:
        return Result.TOO_MANY_STREAMS
    found = _room(quota, bucket.size, 0)
    return None if found is None or size <= max(0, found[0]) else found[1]


def may_subscribe(state: State, owner: str) -> bool:
    """Whether an identity may make another subscription; one without a name always may.

    A subscription counts for the identity that made it, and for no bucket: a pattern may match
    streams of many.
    """
    quota = state.limits.of_identity(owner) if owner else None
    if quota is None or quota.max_subscriptions is None:
        return True
    return state.subscriptions.owned_by(owner) < quota.max_subscriptions
