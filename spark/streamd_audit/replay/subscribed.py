"""What the replay knows of a subscription, and what happens to one (docs/subscriptions.md).

Times are log time, in milliseconds since the epoch. What depends on a subscription's number, such
as the ids of its wakes, is worked out when something asks for it: the number may be unknown until
then.
"""

from __future__ import annotations

from hashlib import sha256
from struct import Struct
from typing import NamedTuple

from streamd_audit.replay.ids import Numbered, Place
from streamd_audit.subscriptions import Config

_LAST_MS = 2**63 - 1
_FIRST_RETRY_MS, _LAST_RETRY_MS = 1_000, 60_000
_JITTER = 200
_MAX_WHY_CHARACTERS = 500
_OF_WAKE = Struct(">QQQQ")
_UNANSWERED = "there was no answer before the lease ended"


class Begun(NamedTuple):
    """A wake that is outstanding: begun by entry `index` of a history with that `base`, or with the
    id that a state says; of which generation, when, and because of the stream with `key`."""

    generation: int
    index: int  # type: ignore[assignment]  # of NamedTuple
    base: int
    wake_id: str
    since_ms: int
    key: bytes
    is_forced: bool

    def id_of(self, number: int) -> str:
        """The id of a wake of the subscription with a number."""
        if self.wake_id:
            return self.wake_id
        told = _OF_WAKE.pack(number, self.generation, self.index, self.base)
        return "w_" + sha256(told).hexdigest()[:32]


class Subscribed(Numbered):
    """A subscription as the log leads to it; `order` is that of the numbers.

    `named` are the keys of the streams that it names, `pending` and `fenced` how many of the
    streams that are linked to it have work for it, and take fenced writes; `latest` is the key of
    one that got records.
    """

    __slots__ = (
        "attempts", "config", "created_ms", "failures", "fenced", "generation",
        "holder", "is_received", "latest", "lease_until_ms", "named", "named_digest",
        "next_attempt_ms", "order", "owner", "pending", "subscription_id", "wake", "why",
    )  # fmt: skip

    def __init__(
        self,
        born: Place | None,
        number: int | None,
        subscription_id: str,
        config: Config,
        named_digest: bytes,
        created_ms: int,
        generation: int,
        owner: str,
    ) -> None:
        super().__init__(born, number)
        self.order = (number or 0, 0) if born is None else born
        self.subscription_id = subscription_id
        self.config = config
        self.named_digest = named_digest
        self.created_ms = created_ms
        self.generation = generation
        self.owner = owner
        self.wake: Begun | None = None
        self.holder = ""
        self.lease_until_ms: int | None = None
        self.attempts = 0
        self.is_received = False
        self.failures = 0
        self.next_attempt_ms: int | None = None
        self.why = ""
        self.pending = self.fenced = 0
        self.latest = b""
        self.named: set[bytes] = set()

    @property
    def is_pull(self) -> bool:
        return self.config.kind == "pull-wake"

    @property
    def ended_generation(self) -> int:
        """The last generation that has ended."""
        return self.generation - (self.wake is not None)

    def is_leased(self, now_ms: int) -> bool:
        """Whether a lease is held and has not lapsed."""
        return self.lease_until_ms is not None and now_ms < self.lease_until_ms

    def begin(self, wake: Begun, retry_ms: int) -> None:
        """Begin a wake; if the attempts before it failed its own first one is `retry_ms` later."""
        self.end()
        self.generation = wake.generation
        self.wake = wake
        self.next_attempt_ms = min(wake.since_ms + retry_ms, _LAST_MS)

    def end(self) -> None:
        """Leave nothing outstanding."""
        self.wake = self.lease_until_ms = self.next_attempt_ms = None
        self.holder = ""
        self.attempts = 0
        self.is_received = False

    def lease(self, now_ms: int) -> None:
        self.lease_until_ms = min(now_ms + self.config.lease_ttl_ms, _LAST_MS)

    def thrive(self) -> None:
        """Note that a worker has the wake, or its event is written."""
        self.failures, self.why = 0, ""
        self.next_attempt_ms = None

    def fail(self, why: str = _UNANSWERED) -> None:
        self.failures += 1
        self.why = why[:_MAX_WHY_CHARACTERS]

    def fail_attempt(self, why: str, now_ms: int, number: int) -> None:
        """The latest attempt failed, unless a worker has called back."""
        if self.is_received:
            return
        assert self.wake is not None
        self.fail(why)
        self.lease_until_ms = None
        delay_ms = retry_ms(self.wake.id_of(number), self.failures)
        self.next_attempt_ms = min(now_ms + delay_ms, _LAST_MS)


def retry_ms(wake_id: str, failures: int) -> int:
    """How long after so many failures in a row the next attempt is made."""
    delay_ms = min(_FIRST_RETRY_MS << min(failures - 1, 16), _LAST_RETRY_MS)
    spread = int.from_bytes(sha256(f"{wake_id}.{failures}".encode()).digest()[:8])
    return delay_ms + delay_ms * (spread % (2 * _JITTER + 1) - _JITTER) // 1_000
