"""The quotas of buckets and of identities, and what they count (docs/limits.md).

The streams of a bucket that ever has a quota are one scope, so that it can be judged what they keep
together.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, MutableMapping
from typing import NamedTuple

from streamd_audit.commands import Limits, SetLimits
from streamd_audit.replay.ids import Place
from streamd_audit.replay.model import Stream
from streamd_audit.replay.results import (
    BUCKET_FULL,
    DELETED,
    DONE,
    LIMITS_NOT_FOUND,
    STREAM_FULL,
    TOO_MANY_LIMITS,
    TOO_MANY_STREAMS,
)

# For all buckets, or identities, without limits of their own.
ALL_OTHERS = "*"
_MAX_ROWS = 10_000


# A kind, `bucket` or `identity`, and a name.
Owner = tuple[str, str]


def owner_of(rest: bytes) -> Owner:
    """Whose limits a row is, by its key without the row's letter."""
    return "bucket" if rest[:1] == b"b" else "identity", rest[1:].decode(errors="replace")


def set_limits(held: MutableMapping[Owner, Limits], command: SetLimits) -> str:
    """Apply a command to the limits of a group. Returns its outcome."""
    owner = command.kind, command.name
    if command.limits is None:
        return LIMITS_NOT_FOUND if held.pop(owner, None) is None else DELETED
    if owner not in held and len(held) >= _MAX_ROWS:
        return TOO_MANY_LIMITS
    held[owner] = command.limits
    return DONE


class Version(NamedTuple):
    """The limits of buckets from a command on; none if none of them is a quota. `counts` says
    whether new streams are counted. `subscriptions` says how many each identity may make."""

    quotas: Mapping[bytes, Limits]
    counts: bool
    subscriptions: Mapping[str, int | None]


class History:
    """The limits of a group as of each of its commands, from those in a state and the commands
    (`SetLimits` by places, in order) that changed them."""

    def __init__(
        self,
        counts: bool = False,
        rows: Mapping[Owner, Limits] | None = None,
        changes: Iterable[tuple[Place, SetLimits]] = (),
    ) -> None:
        held = dict(rows or {})
        self._versions = [_version(held, counts)]
        self._places: list[Place] = []
        for place, command in changes:
            set_limits(held, command)
            self._places.append(place)
            self._versions.append(_version(held, self._versions[-1].counts))
        quotas = [version.quotas for version in self._versions]
        self.limited = {name for some in quotas for name in some if _is_quota(some[name])}

    def at(self, place: Place) -> Version:
        """As a command at that place finds them."""
        return self._versions[bisect_right(self._places, place)]


def _version(held: Mapping[Owner, Limits], counted: bool) -> Version:
    of_buckets = {name.encode(): row for (kind, name), row in held.items() if kind == "bucket"}
    if not any(map(_is_quota, of_buckets.values())):
        of_buckets = {}
    of_identities = {
        name: row.max_subscriptions for (kind, name), row in held.items() if kind == "identity"
    }
    return Version(of_buckets, counted or bool(of_buckets), of_identities)


def _is_quota(row: Limits) -> bool:
    return (row.max_bytes, row.max_streams, row.max_stream_bytes) != (None, None, None)


class Quotas:
    """What the streams of one scope keep, by bucket, and what may be added."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._streams: Counter[bytes] = Counter()
        self._sizes: Counter[bytes] = Counter()
        self.version = history.at((0, 0))

    def move_to(self, place: Place) -> None:
        """Judge by the limits that a command at that place finds."""
        self.version = self._history.at(place)

    # -- what is kept ----------------------------------------------------------------------------

    def take(self, stream: Stream) -> None:
        """Take a stream that was made, or that a state has."""
        bucket = _bucket_of(stream.key)
        self._streams[bucket] += 1
        self._sizes[bucket] += stream.kept
        self.count(stream)

    def count(self, stream: Stream) -> None:
        if stream.kept_from is None and self.version.counts:
            stream.kept_from = stream.first_own_byte
            self._sizes[_bucket_of(stream.key)] += stream.kept

    def grow(self, stream: Stream, size: int) -> None:
        """Note that records were added."""
        if stream.kept_from is not None:
            self._sizes[_bucket_of(stream.key)] += size

    def settle(self, stream: Stream, before: int) -> None:
        """Note what a stream keeps that kept so much `before`."""
        if stream.kept_from is None:
            return
        if not stream.forks:
            stream.kept_from = stream.first_own_byte
        self._sizes[_bucket_of(stream.key)] += stream.kept - before

    def remove(self, stream: Stream, kept: int) -> None:
        bucket = _bucket_of(stream.key)
        self._streams[bucket] -= 1
        self._sizes[bucket] -= kept

    # -- what may be added -----------------------------------------------------------------------

    def _quota(self, bucket: bytes) -> Limits | None:
        quotas = self.version.quotas
        return quotas.get(bucket) or quotas.get(ALL_OTHERS.encode())

    def refusal(self, stream: Stream, more: int) -> str | None:
        """Why a stream may not keep so many more bytes; None if it may."""
        if more <= 0 or not self.version.quotas:
            return None
        quota = self._quota(_bucket_of(stream.key))
        if quota is None:
            return None
        self.count(stream)
        return self._too_much(quota, stream.key, stream.kept, more)

    def refusal_to_create(self, key: bytes, size: int) -> str | None:
        """Why a stream that keeps `size` bytes may not be made; None if it may."""
        quota = self._quota(_bucket_of(key))
        if quota is None:
            return None
        if quota.max_streams is not None and self._streams[_bucket_of(key)] >= quota.max_streams:
            return TOO_MANY_STREAMS
        return self._too_much(quota, key, 0, size) if size else None

    def may_subscribe(self, owner: str, owned: int) -> bool:
        """Whether an identity with so many subscriptions may make another."""
        quotas = self.version.subscriptions
        most = quotas.get(owner, quotas.get(ALL_OTHERS)) if owner else None
        return most is None or owned < most

    def _too_much(self, quota: Limits, key: bytes, in_stream: int, more: int) -> str | None:
        rooms = []
        if quota.max_bytes is not None:
            rooms.append((quota.max_bytes - self._sizes[_bucket_of(key)], 0, BUCKET_FULL))
        if quota.max_stream_bytes is not None:
            rooms.append((quota.max_stream_bytes - in_stream, 1, STREAM_FULL))
        if not rooms:
            return None
        least, _, result = min(rooms)
        return result if more > least else None


def _bucket_of(key: bytes) -> bytes:
    return key.partition(b"\0")[0]
