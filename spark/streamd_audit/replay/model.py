"""What the replay knows of one scope: streams that can influence one another.

Times are log time, in milliseconds since the epoch.
"""

from __future__ import annotations

from collections import deque
from hashlib import sha256
from typing import TYPE_CHECKING, NamedTuple

from streamd_audit.commands import Producer, Settings
from streamd_audit.replay.ids import Numbered, Place
from streamd_audit.replay.results import DUPLICATE, EPOCH_STALE, EPOCH_WITHOUT_RESTART, SEQ_GAP

if TYPE_CHECKING:
    from streamd_audit.replay.subscribed import Subscribed

DEFAULT_CONTENT_TYPE = "application/octet-stream"
# How many of a stream's last appends are remembered, to find the one that a state took differently.
_REMEMBERED = 64

# A stream remembers so many of the producers that it counts, and each for so long after its last
# request (docs/streams.md).
_MAX_PRODUCERS = 10_000
_MIN_IDLE_MS = 3_600_000
# The last time that a row's key can name.
_LAST_MS = 2**64 - 1

LastRequest = tuple[int, int, int, int, int, bool]
"""A producer's last accepted request: epoch, seq, the tail after it, its log time or 0; and whether
only claims may use its id."""

Ending = tuple[int, str, int, int]
"""The outcome of an append: index, result, records, bytes."""


class Linked:
    """A stream's link to a subscription; `of` is the number of one that
    was deleted before the log. Records before `record`, which end at `byte`, are acknowledged."""

    __slots__ = ("byte", "is_explicit", "is_glob", "is_pending", "of", "record")

    def __init__(self, of: Subscribed | int, record: int, byte: int) -> None:
        self.of = of
        self.record, self.byte = record, byte
        self.is_explicit = self.is_glob = self.is_pending = False


class Mark(NamedTuple):
    """What a fenced stream remembers of a subscription: generations up to `sealed` are sealed; the
    last one that has written is `generation`, 0 for none, up to `record` and `byte`."""

    of: Subscribed | int
    sealed: int
    is_linked: bool = True
    generation: int = 0
    record: int = 0
    byte: int = 0


class Seal(NamedTuple):
    """A sealed generation, and the end of what was written under claims of its subscription."""

    of: Subscribed | int
    generation: int
    record: int
    byte: int


class Fence(NamedTuple):
    """The marks of a fenced stream, in the order in which they were made, and the latest seal."""

    marks: tuple[Mark, ...] = ()
    seal: Seal | None = None

    def mark_of(self, of: Subscribed | int) -> Mark | None:
        return next((mark for mark in self.marks if mark.of == of), None)


class Upload(Numbered):
    """A snapshot's body that is arriving, for `stream`."""

    __slots__ = ("parts", "size", "stream", "touched_ms")

    def __init__(
        self, born: Place | None, number: int | None, stream: Stream | None, touched_ms: int
    ) -> None:
        super().__init__(born, number)
        self.stream = stream
        self.touched_ms = touched_ms
        self.parts = self.size = 0


class Published(NamedTuple):
    """A snapshot that replaces everything before `record`, `byte`."""

    record: int
    byte: int
    size: int
    content_type: str
    digest: bytes
    blob: Numbered


class Stream(Numbered):
    """A stream as the log leads to it.

    `records` and `size` are the tail, a fork's prefix included; `extents` say which streams'
    records are that prefix. `hasher` takes the digests of the records from `from_place` on. `cold`
    is the place before which records are in packs; while there are others, `hot_at_ms` is a time
    since which there have been some. `sweep_at_ms` is when to check whether the stream is over.
    `counted` of the `producers` are those whose number is limited. `kept_from` is the byte
    from which the stream's own records count in its bucket; None if they do not count yet. `links`
    are those to subscriptions, as of the version `watched` of the patterns (`links.Links`), and
    `fence` is what a fenced stream remembers of claims (`fences.Fences`).
    """

    __slots__ = (
        "closed",
        "closed_by",
        "cold",
        "content_type",
        "counted",
        "created_ms",
        "deleted",
        "expires_at",
        "expires_at_ms",
        "fence",
        "forks",
        "from_place",
        "hasher",
        "hot_at_ms",
        "kept_from",
        "key",
        "last_seq",
        "last_write_ms",
        "links",
        "producers",
        "records",
        "refused",
        "extents",
        "settings",
        "size",
        "snapshot",
        "sweep_at_ms",
        "taken",
        "touched_ms",
        "ttl_ms",
        "watched",
    )

    def __init__(
        self,
        key: bytes,
        settings: Settings,
        now_ms: int,
        born: Place | None,
        number: int | None,
    ) -> None:
        super().__init__(born, number)
        self.key = key
        self.settings = settings
        self.content_type = settings.content_type or DEFAULT_CONTENT_TYPE
        self.created_ms = self.last_write_ms = self.touched_ms = now_ms
        self.ttl_ms = settings.ttl_ms
        self.expires_at = settings.expires_at
        self.expires_at_ms = settings.expires_at_ms
        self.records = self.size = self.forks = 0
        self.from_place = (0, 0)
        self.closed = self.deleted = False
        self.hot_at_ms: int | None = None
        self.sweep_at_ms: int | None = None
        self.closed_by: Producer | None = None
        self.kept_from: int | None = None
        self.last_seq: str | None = None
        self.extents: tuple[tuple[Stream | int, int, int], ...] = ()
        self.snapshot: Published | None = None
        self.cold = (0, 0)
        self.links: list[Linked] = []
        self.watched = 0
        self.fence = Fence()
        self.producers: dict[str, LastRequest] = {}
        self.counted = 0
        self.hasher = sha256()
        self.refused: deque[Ending] = deque(maxlen=_REMEMBERED)
        self.taken: deque[Ending] = deque(maxlen=_REMEMBERED)

    def is_over(self, now_ms: int) -> bool:
        """Whether the stream's window or end has passed."""
        if self.ttl_ms is not None:
            return self.touched_ms + self.ttl_ms <= now_ms
        return self.expires_at_ms is not None and self.expires_at_ms <= now_ms

    @property
    def earliest(self) -> tuple[int, int]:
        return (0, 0) if self.snapshot is None else self.snapshot[:2]

    @property
    def fork_point(self) -> tuple[int, int]:
        return self.extents[-1][1:] if self.extents else (0, 0)

    @property
    def first_own_byte(self) -> int:
        return max(self.fork_point, self.earliest)[1]

    @property
    def kept(self) -> int:
        """How many bytes the bucket counts for the stream."""
        if self.kept_from is None:
            return 0
        snapshot = 0 if self.snapshot is None else self.snapshot.size
        return self.size - self.kept_from + snapshot

    def producer_refusal(self, stamp: Producer) -> str | None:
        """Protocol section 5.2.1; None for a request that is new and next in order."""
        known = self.producers.get(stamp.producer_id)
        if known is None or stamp.epoch > known[0]:
            if stamp.seq == 0:
                return None
            return SEQ_GAP if known is None else EPOCH_WITHOUT_RESTART
        if stamp.epoch < known[0]:
            return EPOCH_STALE
        if stamp.seq == known[1] + 1:
            return None
        return SEQ_GAP if stamp.seq > known[1] else DUPLICATE

    def is_one_too_many(self, stamp: Producer) -> bool:
        """Whether it is a new producer, and the stream has as many as it may."""
        is_new = stamp.producer_id not in self.producers
        return stamp.counted and is_new and self.counted >= _MAX_PRODUCERS

    def remember(self, stamp: Producer, now_ms: int, is_bound: bool = False) -> None:
        """Note a producer's request that was accepted; if it `is_bound` from now on only claims may
        use the id."""
        known = self.producers.get(stamp.producer_id)
        was_counted = known is not None and known[4] > 0
        at_ms = max(now_ms, 1) if stamp.counted or was_counted else 0
        self.counted += at_ms > 0 and not was_counted
        is_bound = is_bound or (known is not None and known[5])
        told = stamp.epoch, stamp.seq, self.records, self.size, at_ms, is_bound
        self.producers[stamp.producer_id] = told

    def end_idle(self, names: list[str], now_ms: int) -> None:
        """Forget those producers that are idle."""
        for name in names:
            known = self.producers.get(name)
            if known is not None and 0 < known[4] <= now_ms - _MIN_IDLE_MS and not known[5]:
                del self.producers[name]
                self.counted -= 1

    def attach(self, source: Stream, at: tuple[int, int]) -> None:
        """Make a new fork begin with the records of its source before `at`."""
        extents = [one for one in source.extents if one[1] < at[0]]
        if at[0]:
            home = next((one[0] for one in source.extents if at[0] <= one[1]), source)
            extents.append((home, *at))
        self.extents = tuple(extents)
        self.records, self.size = at
        self.from_place = at
        settings = self.settings
        if settings.content_type is None:
            self.content_type = source.content_type
        if settings.ttl_ms is None and settings.expires_at_ms is None:
            self.ttl_ms = source.ttl_ms
            self.expires_at, self.expires_at_ms = source.expires_at, source.expires_at_ms
        self.snapshot = source.snapshot
        source.forks += 1

    def append(self, records: int, size: int, digests: bytes, now_ms: int) -> tuple[int, int]:
        """Add records with these digests; returns where they begin."""
        if self.hot_at_ms is None:
            self.heat(now_ms)
        start = self.records, self.size
        self.records += records
        self.size += size
        self.hasher.update(digests)
        return start

    def heat(self, now_ms: int) -> None:
        """Add an append's records, which are not in the cold store."""
        cold = max(self.cold, self.fork_point)
        self.cold = cold if self.forks else max(cold, self.earliest)
        self.hot_at_ms = now_ms

    def put_mark(self, changed: Mark) -> None:
        """Note what the fence remembers of a subscription, in the place of what it did."""
        others = tuple(mark for mark in self.fence.marks if mark.of != changed.of)
        self.fence = self.fence._replace(marks=(*others, changed))

    def may_cool(self, start: tuple[int, int], end: tuple[int, int]) -> bool:
        """Whether a slice from `start` to `end` is the next one of the stream's hot records."""
        is_next = self.hot_at_ms is not None and self.cold == start
        return is_next and start[0] < end[0] <= self.records and end[1] <= self.size

    def cool(self, to: tuple[int, int], now_ms: int) -> None:
        """Note that records before `to` are no longer hot."""
        if self.hot_at_ms is not None:
            self.hot_at_ms = now_ms if to[0] < self.records else None
        self.cold = to

    def trim(self, now_ms: int) -> None:
        """Free everything before the snapshot, unless forks may read it."""
        if self.snapshot is not None and not self.forks and self.earliest > self.cold:
            self.cool(max(self.earliest, self.fork_point), now_ms)

    def schedule_sweep(self) -> None:
        """Set when the stream must be checked, because it may be over then."""
        at_ms = self.expires_at_ms if self.ttl_ms is None else self.touched_ms + self.ttl_ms
        self.sweep_at_ms = None if at_ms is None else min(at_ms, _LAST_MS)


def media_type(content_type: str) -> str:
    return content_type.partition(";")[0].strip().lower()


def is_json(content_type: str) -> bool:
    return media_type(content_type) == "application/json"


def _asked_type(settings: Settings) -> str | None:
    if settings.content_type is not None:
        return media_type(settings.content_type)
    return None if settings.fork is not None else DEFAULT_CONTENT_TYPE


def same_request(one: Settings, other: Settings) -> bool:
    """Whether a repeated PUT asks for the existing stream (protocol section 5.1)."""
    return (
        _asked_type(one) == _asked_type(other)
        and one.ttl_ms == other.ttl_ms
        and one.expires_at_ms == other.expires_at_ms
        and one.fork == other.fork
        and one.write_fence == other.write_fence
    )
