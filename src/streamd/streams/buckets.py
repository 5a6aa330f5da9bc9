"""Buckets that are made and removed as such, not by the streams in them."""

from __future__ import annotations

from streamd.streams.commands import CreateBucket, DeleteBucket, Outcome, Result
from streamd.streams.model import Bucket
from streamd.streams.state import State


def create(state: State, command: CreateBucket, now_ms: int) -> Outcome:
    """Make a bucket."""
    if state.buckets.get(command.name) is not None:
        return Outcome(Result.BUCKET_EXISTS)
    state.buckets.put(command.name, Bucket(now_ms))
    return Outcome(Result.CREATED)


def delete(state: State, command: DeleteBucket) -> Outcome:
    """Remove a bucket without streams."""
    bucket = state.buckets.get(command.name)
    if bucket is None:
        return Outcome(Result.BUCKET_NOT_FOUND)
    if bucket.streams:
        return Outcome(Result.BUCKET_NOT_EMPTY)
    state.buckets.delete(command.name)
    return Outcome(Result.DELETED)
