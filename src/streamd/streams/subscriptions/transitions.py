"""What happens to a subscription: it wakes, its wake is delivered, claimed, renewed and ended.

Each function changes a record in place, at a log time in milliseconds, and knows nothing of
streams: the caller keeps `pending`, and wakes the subscription again where work is left.
"""

from __future__ import annotations

from hashlib import sha256
from struct import Struct

from streamd.streams.subscriptions.model import MAX_WHY_CHARACTERS, Subscription, Wake, WakeStamp

FIRST_RETRY_MS, LAST_RETRY_MS = 1_000, 60_000
# How far a retry may be from its time, in per mille, and the steps of that.
_JITTER = 200
_LAST_MS = 2**63 - 1
_NUMBERS = Struct(">QQQQ")
_UNANSWERED = "there was no answer before the lease ended"


def wake_id(number: int, generation: int, index: int, base: int) -> str:
    """The id of the wake that log entry `index` begins; `base` tells histories apart that have the
    same entries up to some index (`Header.incarnation_base`)."""
    return "w_" + sha256(_NUMBERS.pack(number, generation, index, base)).hexdigest()[:32]


def retry_delay_ms(wake: str, failures: int) -> int:
    """How long after the last of some failures in a row the next attempt comes: from 1 s on twice
    as long each time, up to 60 s, and up to 20 % more or less (protocol section 7.1)."""
    delay_ms = min(FIRST_RETRY_MS << min(failures - 1, 16), LAST_RETRY_MS)
    digest = sha256(f"{wake}.{failures}".encode()).digest()
    jitter = int.from_bytes(digest[:8], "big") % (2 * _JITTER + 1) - _JITTER
    return delay_ms + delay_ms * jitter // 1_000


def begin_wake(subscription: Subscription, wake: Wake) -> None:
    """Begin the wake of the next generation. After failures its first attempt waits as a retry
    would."""
    subscription.generation += 1
    subscription.wake = wake
    subscription.holder = ""
    subscription.lease_until_ms = None
    subscription.attempts = 0
    subscription.is_received = False
    subscription.next_attempt_ms = _next_attempt_ms(subscription, wake.since_ms)


def end_wake(subscription: Subscription) -> None:
    """End the outstanding wake, with its lease and its attempts."""
    subscription.wake = None
    subscription.holder = ""
    subscription.lease_until_ms = None
    subscription.attempts = 0
    subscription.is_received = False
    subscription.next_attempt_ms = None


def is_current(subscription: Subscription, stamp: WakeStamp) -> bool:
    """Whether a worker may act on a wake: it is the outstanding one and was handed out to a worker,
    by a claim or by an attempt (protocol section 7.3). A lapsed lease must have been ended."""
    wake = subscription.wake
    if wake is None or (subscription.generation, wake.wake_id) != (stamp.generation, stamp.wake_id):
        return False
    if subscription.config.kind == "webhook":
        return subscription.attempts > 0
    return subscription.lease_until_ms is not None


def claim(subscription: Subscription, worker: str, now_ms: int) -> None:
    """Give the outstanding wake to a worker, with a lease."""
    assert subscription.wake is not None, "only a wake can be claimed"
    subscription.holder = worker
    subscription.failures, subscription.why = 0, ""
    subscription.next_attempt_ms = None
    _lease(subscription, now_ms)


def renew(subscription: Subscription, now_ms: int) -> None:
    """Renew the lease after an acknowledgement or a callback. The worker is alive: retries end."""
    subscription.is_received = True
    subscription.failures, subscription.why = 0, ""
    subscription.next_attempt_ms = None
    _lease(subscription, now_ms)


def lapse(subscription: Subscription, now_ms: int) -> bool:
    """End a wake whose lease has lapsed; returns whether it had."""
    until_ms = subscription.lease_until_ms
    if until_ms is None or now_ms < until_ms:
        return False
    if subscription.config.kind == "webhook" and not subscription.is_received:
        _fail(subscription, _UNANSWERED)
    end_wake(subscription)
    return True


# -- attempts --------------------------------------------------------------------------------------


def may_attempt(subscription: Subscription, wake: str, attempt: int, now_ms: int) -> bool:
    """Whether that attempt to deliver that wake is the next one, and due."""
    outstanding, at_ms = subscription.wake, subscription.next_attempt_ms
    return (
        outstanding is not None
        and outstanding.wake_id == wake
        and attempt == subscription.attempts + 1
        and at_ms is not None
        and at_ms <= now_ms
    )


def begin_attempt(subscription: Subscription, now_ms: int) -> None:
    """Begin an attempt to deliver a webhook's wake, and the lease with it."""
    subscription.attempts += 1
    subscription.next_attempt_ms = None
    _lease(subscription, now_ms)


def is_latest_attempt(subscription: Subscription, wake: str, attempt: int) -> bool:
    """Whether that attempt is the last one made to deliver the outstanding wake."""
    outstanding = subscription.wake
    return (
        outstanding is not None
        and outstanding.wake_id == wake
        and 0 < attempt == subscription.attempts
    )


def attempt_arrived(subscription: Subscription) -> None:
    """Note that the latest attempt succeeded: the receiver answered so, or the wake's event was
    written."""
    subscription.is_received = True
    subscription.failures, subscription.why = 0, ""
    subscription.next_attempt_ms = None


def attempt_failed(subscription: Subscription, why: str, now_ms: int) -> None:
    """Note that the latest attempt failed, and when the next one is due. After a callback none is:
    the worker has the wake, whatever became of its answer."""
    if subscription.is_received:
        return
    _fail(subscription, why)
    subscription.lease_until_ms = None
    subscription.next_attempt_ms = _next_attempt_ms(subscription, now_ms)


def _fail(subscription: Subscription, why: str) -> None:
    subscription.failures += 1
    subscription.why = why[:MAX_WHY_CHARACTERS]


def _next_attempt_ms(subscription: Subscription, now_ms: int) -> int:
    if not subscription.failures:
        return now_ms
    assert subscription.wake is not None, "only a wake has attempts"
    delay_ms = retry_delay_ms(subscription.wake.wake_id, subscription.failures)
    return min(now_ms + delay_ms, _LAST_MS)


def _lease(subscription: Subscription, now_ms: int) -> None:
    subscription.lease_until_ms = min(now_ms + subscription.config.lease_ttl_ms, _LAST_MS)
