"""Write fencing: on a fenced stream a worker writes under its present claim, or not at all.

Every write to such a stream is judged in its own log entry, by the state before it and by log time
(docs/write-fencing.md). A write that shows the token of a claim is *fenced*. Any other is *open*,
and is judged as on any stream, but for the producers to which fenced writes have bound their ids.
`fences` says how the end of a claim reaches its streams.
"""

from __future__ import annotations

from typing import Literal

from streamd.streams import keys
from streamd.streams.commands import Append, Outcome, Result
from streamd.streams.fencing import seals
from streamd.streams.model import Stream
from streamd.streams.state import State
from streamd.streams.subscriptions import links
from streamd.streams.subscriptions.model import Credential, FenceStamp, Subscription, WakeReport

# Why a write is refused, as answers say it.
Reason = Literal[
    "credential",
    "wake_token",
    "scope",
    "producer_required",
    "sealed",
    "marker",
    "epoch",
    "bound",
    "precheck",
]


def refusal(state: State, stream: Stream, command: Append, now_ms: int) -> Outcome | None:
    """The outcome of an append that a fence refuses; None leaves it to the other rules."""
    stamp = command.fence
    if not stream.settings.write_fence:
        return None if stamp is None or not stamp.is_alone else out_of_scope()
    if stamp is None:
        return _refusal_of_open(state, stream, command, now_ms)
    if stamp.credential is Credential.WAKE:
        return _refused(Result.WRITE_OUT_OF_SCOPE, "wake_token")
    if stamp.credential is Credential.INVALID or now_ms > stamp.expires_ms:
        return _refused(Result.WRITE_FENCED, "credential")
    if command.producer is None:
        return _refused(Result.WRITE_FENCED, "producer_required")
    subscription = state.subscriptions.get(stamp.number)
    reason = _fenced_by(state, command.key, stream, stamp, now_ms)
    if reason is None and command.producer.epoch != stamp.generation:
        reason = "epoch"
    if reason is None:
        return None
    if reason == "scope":
        return out_of_scope()
    return _fenced(reason, subscription, now_ms)


def out_of_scope() -> Outcome:
    """The outcome of a write whose token is not for the stream, or not for any stream there."""
    return _refused(Result.WRITE_OUT_OF_SCOPE, "scope")


def _fenced_by(
    state: State, key: bytes, stream: Stream, stamp: FenceStamp, now_ms: int
) -> Reason | None:
    """Why a claim may not write to the stream."""
    subscription = state.subscriptions.get(stamp.number)
    if subscription is None:
        return "marker"
    mark = seals.view(state, stream).mark_of(stamp.number)
    if mark is not None and stamp.generation <= mark.sealed:
        return "sealed"
    # A stream that is older than the subscription may not be linked yet.
    is_linked = mark is not None and mark.is_linked
    if not is_linked and not links.will_link(state, key, stream, stamp.number):
        return "scope"
    return None if holds(subscription, stamp, now_ms) else "marker"


def verify(state: State, stamp: FenceStamp, now_ms: int) -> Outcome:
    """Whether a claim is the present one, for which nothing changes."""
    if now_ms > stamp.expires_ms:
        return _refused(Result.WRITE_FENCED, "credential")
    subscription = state.subscriptions.get(stamp.number)
    if subscription is None or not holds(subscription, stamp, now_ms):
        return _refused(Result.WRITE_FENCED, "precheck")
    return Outcome(Result.DONE, wake=WakeReport.of(subscription, now_ms))


def holds(subscription: Subscription, stamp: FenceStamp, now_ms: int) -> bool:
    """Whether a claim is the present one of its subscription, and its lease has not lapsed."""
    wake = subscription.wake
    return (
        wake is not None
        and subscription.is_leased(now_ms)
        and (subscription.generation, wake.wake_id, subscription.holder)
        == (stamp.generation, stamp.wake_id, stamp.holder)
    )


def _refusal_of_open(state: State, stream: Stream, command: Append, now_ms: int) -> Outcome | None:
    """An open write must not go on as a producer that has written under a claim."""
    if command.producer is None:
        return None
    row = keys.producer_key(stream.stream_id, command.producer.producer_id)
    known = state.producers.get(row)
    if known is None or not known.is_bound:
        return None
    found = [state.subscriptions.get(mark.number) for mark in stream.fence.marks]
    known_ones = [one for one in found if one is not None]
    known_ones.sort(key=lambda one: (one.is_leased(now_ms), one.generation))
    return _fenced("bound", known_ones[-1] if known_ones else None, now_ms)


def holder_of(subscription: Subscription) -> str:
    """The worker that holds a claim; the id of the wake if that was sent to a webhook."""
    if subscription.holder or subscription.wake is None:
        return subscription.holder
    return subscription.wake.wake_id


def _fenced(reason: Reason, subscription: Subscription | None, now_ms: int) -> Outcome:
    """A refusal that reports the present claim of a subscription."""
    if subscription is None:
        return _refused(Result.WRITE_FENCED, reason)
    report = WakeReport(
        subscription.number,
        subscription.generation,
        holder=holder_of(subscription) if subscription.is_leased(now_ms) else "",
        reason=reason,
        now_ms=now_ms,
    )
    return Outcome(Result.WRITE_FENCED, wake=report)


def _refused(result: Result, reason: Reason) -> Outcome:
    return Outcome(result, wake=WakeReport(0, 0, reason=reason))
