"""What the state and the log hold about subscriptions.

Records, commands and outcomes only gain fields at the end, with a default. None of these values can
be part of a cycle (``gc=False``).
"""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Literal

import msgspec

# Applying the log depends on these, so they must be the same in every release.
MAX_SUBSCRIPTIONS = 100_000
# Streams that one subscription may name, and all of them together: the names are kept in memory.
MAX_NAMED = 1_000
MAX_NAMED_IN_ALL = 250_000
# Subscriptions that may be linked to one stream: an append may wake all of them.
MAX_LINKS = 1_000

MIN_LEASE_MS, DEFAULT_LEASE_MS, MAX_LEASE_MS = 1_000, 30_000, 600_000
MAX_ID_CHARACTERS = 256
MAX_URL_BYTES = 2_048
MAX_DESCRIPTION_CHARACTERS = 1_024
MAX_WORKER_CHARACTERS = 256
MAX_WHY_CHARACTERS = 500
# The name of a certificate may be a URI.
MAX_OWNER_CHARACTERS = 4_096
MAX_ACKS = 1_000

Kind = Literal["webhook", "pull-wake"]

# Fits into a key, and into the integers of any language.
_Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class SubscriptionConfig(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What a client asks for, without the streams that it names (protocol section 6.2).

    `pattern` is a normalised glob (`globs`), empty for none. `webhook_url` is set for a webhook,
    `wake_key`, the key of the wake stream, for pull-wake. The lease is in milliseconds.
    """

    kind: Kind
    pattern: str = ""
    webhook_url: str = ""
    wake_key: bytes = b""
    lease_ttl_ms: _Number = DEFAULT_LEASE_MS
    description: str | None = None


class Wake(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A wake that is outstanding: since log time `since_ms`, because of the stream with `key`.

    One that an operator has forced may be without pending work; its key is then empty.
    """

    wake_id: str
    since_ms: int
    key: bytes = b""
    is_forced: bool = False


class Subscription(msgspec.Struct, array_like=True, gc=False):
    """A subscription. Times are log time, in milliseconds since the epoch.

    `number` is its incarnation: one that is deleted and created again has another. `named_digest`
    is that of the streams that its creation named, for comparison when that is repeated.

    `generation` is that of the latest wake, `wake` the one outstanding. `holder` is the worker that
    has claimed it. The lease ends at `lease_until_ms`; None without a lease. Of a webhook,
    `attempts` counts those of this wake, and `is_received` says that one of them has arrived. Of a
    pull-wake subscription they say the same about the event in the wake stream. `failures` counts
    those in a row, over all wakes; at `next_attempt_ms` there is another attempt; `why` says what
    the latest failure was.

    `pending` counts the linked streams with records that are not acknowledged, `fenced_links` the
    linked streams that take fenced writes. `latest` is the key of a stream that got records: the
    next wake names it, if there is one. `owner` is the identity that made the subscription and
    whose quota it counts for; empty for those of root tokens, which have no limits.
    """

    number: int
    subscription_id: str
    config: SubscriptionConfig
    named_digest: bytes
    created_ms: int
    generation: int = 0
    wake: Wake | None = None
    holder: str = ""
    lease_until_ms: int | None = None
    attempts: int = 0
    is_received: bool = False
    failures: int = 0
    next_attempt_ms: int | None = None
    why: str = ""
    pending: int = 0
    fenced_links: int = 0
    latest: bytes = b""
    owner: str = ""

    @property
    def is_failed(self) -> bool:
        """Whether a retry is scheduled after a failure, or the event of a wake is not written:
        what `status` says (protocol section 6.3)."""
        return self.failures > 0 and self.next_attempt_ms is not None

    def is_leased(self, now_ms: int) -> bool:
        """Whether somebody has the wake, and the lease has not lapsed."""
        return self.lease_until_ms is not None and now_ms < self.lease_until_ms

    @property
    def due_ms(self) -> int | None:
        """When something is to be done about it: its lease ends, or there is another attempt."""
        if self.lease_until_ms is not None:
            return self.lease_until_ms
        return self.next_attempt_ms


class Link(msgspec.Struct, array_like=True, gc=False):
    """A stream's link to the subscription with that number.

    The records before `acked_record` are acknowledged; they end at byte `acked_byte`. It is
    `is_explicit` if the subscription names the stream, and `is_glob` if its pattern matches it.
    `is_pending` says that the stream has further records.
    """

    number: int
    acked_record: int
    acked_byte: int
    is_explicit: bool = False
    is_glob: bool = False
    is_pending: bool = False

    @property
    def link_type(self) -> str:
        """As answers name it (protocol section 6.1)."""
        return "explicit" if self.is_explicit else "glob"


class WakeStamp(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The wake that a command is about: it has no effect on any other."""

    number: _Number
    generation: _Number
    wake_id: str


class Credential(Enum):
    """What a write shows: the write token of a claim; something that no claim has given; or the
    token that acknowledges a wake, which permits no writes."""

    WRITE = 0
    INVALID = 1
    WAKE = 2


class FenceStamp(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The claim that a fenced write was made under: that of the writer's token, which is good until
    `expires_ms` of log time.

    Of another `credential` the claim is empty. With `is_alone` nothing but the token permits the
    write.
    """

    number: _Number = 0
    generation: _Number = 0
    wake_id: str = ""
    holder: str = ""
    expires_ms: _Number = 0
    credential: Credential = Credential.WRITE
    is_alone: bool = False


class Ack(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The records of a stream before `record`, which ends at `byte`, are done."""

    key: bytes
    record: _Number
    byte: _Number


class WakeReport(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What an outcome says about a subscription.

    `wake_id` is empty without a wake. `next_wake` says that another wake has begun. `reason` says
    more about a refusal: ``marker``, ``sealed``, ``epoch``, ``bound`` of a fenced write,
    ``unlinked``, ``regressed``, ``beyond-tail`` of an acknowledgement. `now_ms` is the log time by
    which the lease was judged.
    """

    number: int
    generation: int
    wake_id: str = ""
    holder: str = ""
    lease_until_ms: int | None = None
    next_wake: bool = False
    reason: str = ""
    now_ms: int = 0

    @classmethod
    def of(
        cls, subscription: Subscription, now_ms: int, *, next_wake: bool = False, reason: str = ""
    ) -> WakeReport:
        """The report as of log time `now_ms`."""
        wake = subscription.wake
        return cls(
            subscription.number,
            subscription.generation,
            "" if wake is None else wake.wake_id,
            subscription.holder,
            subscription.lease_until_ms,
            next_wake,
            reason,
            now_ms,
        )
