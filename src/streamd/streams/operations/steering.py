"""What to do next about an operation, from its record and a view of the cluster alone.

Each leader asks this again and again, so it takes nothing from what an earlier leader knew
besides the record. A step is begun only if the cluster would still have a quorum after it and has
been well for the operation's window. A step that was begun is looked for in the cluster first: it
may have taken effect although the leader that began it is gone.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from streamd.streams.operations.model import (
    CHANGES_MEMBERS,
    MAX_STEPS,
    Deed,
    Operation,
    Step,
    StepRecord,
    in_words,
    waits_for,
)
from streamd.streams.operations.planning import View, quorum_lost

MAX_ATTEMPTS = 5
# How long an attempt may take to show its effect before another one is made. A host may boot, and
# an installation may download; a change of the members is settled or lost with its leader.
_QUICK_MS, _HOST_MS = 15_000, 120_000
_PATIENCE_MS: dict[Deed, int] = {"restart": _HOST_MS, "stop": _HOST_MS, "install": 5 * _HOST_MS}


class Attempt(msgspec.Struct, frozen=True):
    """Record an attempt at the current step, and only then make it. `incarnation` is the number
    of the node's process before it."""

    incarnation: int = 0


class Complete(msgspec.Struct, frozen=True):
    """Record that the current step is done; `note` says how, if it needed nothing."""

    note: str = ""


class Revise(msgspec.Struct, frozen=True):
    """Record other steps in the place of those from the current one on: the leader has changed."""

    steps: tuple[Step, ...]


class Wait(msgspec.Struct, frozen=True):
    """Nothing can be done yet."""

    reason: str


class Conclude(msgspec.Struct, frozen=True):
    """Record the end of the operation."""

    state: Literal["done", "failed", "cancelled"]
    why: str = ""


Action = Attempt | Complete | Revise | Wait | Conclude


def next_action(operation: Operation, view: View) -> Action:
    """What the leader has to do about an operation that has not ended."""
    record = operation.step
    if record is not None and record.is_begun and took_effect(record, view):
        return Complete()
    if operation.cancel_asked:
        return _cancel(operation, record, view)
    if operation.state == "paused":
        return Wait(operation.why)
    if record is None:
        return Conclude("done")
    if record.is_begun:
        return _await_effect(operation, record, view)
    if needless := _needless(record.step, view):
        return Complete(needless)
    if end := _impossible(record.step, view):
        return end
    if record.step.deed == "catch-up":
        return Wait(waits_for(record.step))
    return _revision(operation, view) or _begin(operation, record.step, view)


def _cancel(operation: Operation, record: StepRecord | None, view: View) -> Action:
    """End it once the attempt in progress, if any, cannot take effect unseen any more."""
    if record is None or not record.is_begun:
        before = "after the last step" if record is None else f"before: {in_words(record.step)}"
        return Conclude("cancelled", f"cancelled {before}")
    if record.step.deed in CHANGES_MEMBERS and not view.is_settled:
        return Wait("a change of the members is not settled")
    if not record.asks and _has_time(record, view):
        return Wait(f"to cancel, the step in progress must end: {waits_for(record.step)}")
    return Conclude("cancelled", f"cancelled during: {in_words(record.step)}")


def _await_effect(operation: Operation, record: StepRecord, view: View) -> Action:
    if record.asks:
        return Wait(record.note)
    if _has_time(record, view):
        return Wait(waits_for(record.step))
    if record.attempts >= MAX_ATTEMPTS:
        what = f"{in_words(record.step)}: {record.attempts} attempts had no effect"
        return Conclude("failed", f"{what}: {record.note}" if record.note else what)
    if change := _impossible(record.step, view) or _revision(operation, view):
        return change
    if obstacle := find_obstacle(record.step, view):
        return Wait(obstacle)
    # A number that is unknown now would make any process seem new.
    return Attempt(_incarnation(record.step, view) or record.incarnation)


def patience_ms(deed: Deed) -> int:
    """For how long an attempt may take effect, in milliseconds."""
    return _PATIENCE_MS.get(deed, _QUICK_MS)


def _has_time(record: StepRecord, view: View) -> bool:
    return view.now_ms - record.attempted_at_ms < patience_ms(record.step.deed)


def _begin(operation: Operation, step: Step, view: View) -> Action:
    if obstacle := find_obstacle(step, view):
        return Wait(obstacle)
    window_ms = operation.arguments.window_ms
    if operation.current and window_ms:
        calm = Wait(f"the cluster must be well for {window_ms / 1000:g} s before: {in_words(step)}")
        # The record changed when this became the reason: whatever came between began it again.
        since_ms = operation.changed_at_ms
        if operation.why != calm.reason or view.now_ms - since_ms < window_ms:
            return calm
    return Attempt(_incarnation(step, view))


def _incarnation(step: Step, view: View) -> int:
    member = view.member(step.node_id)
    return 0 if member is None else member.incarnation


# -- of a step -----------------------------------------------------------------------------------


def took_effect(record: StepRecord, view: View) -> bool:
    """Whether the cluster shows the effect of a step that was begun."""
    step = record.step
    member = view.member(step.node_id)
    match step.deed:
        case "restart":
            return (
                member is not None
                and member.is_well
                and member.incarnation not in (0, record.incarnation)
                and step.release in ("", member.release)
            )
        case "stop":
            return record.confirmed and step.node_id not in view.connected
        case "install":
            return record.confirmed
    return bool(_needless(step, view))


def _needless(step: Step, view: View) -> str:
    """In words, how the effect of a step is there already; empty if it is not, or if nobody can
    tell without the step."""
    node_id = step.node_id
    member = view.member(node_id)
    match step.deed:
        case "transfer-leadership":
            other = view.leader_id not in (0, node_id)
            return f"node {view.leader_id} leads" if other else ""
        case "catch-up":
            return "" if member is None or not member.is_well else f"node {node_id} has caught up"
        case "raise-features":
            reached = view.level >= view.common_level > 0
            return f"the feature level is {view.level}" if reached else ""
        case "add" if view.is_settled and member is not None:
            return f"node {node_id} is a member"
        case "promote" if view.is_settled and view.member(step.replacing) is None:
            return f"node {node_id} votes" if node_id in view.voters else ""
        case "remove" if view.is_settled and member is None:
            return f"node {node_id} is not a member"
    return ""


def _impossible(step: Step, view: View) -> Conclude | None:
    """The end of an operation whose step can never be done."""
    gone = view.member(step.node_id) is None and view.is_settled
    if gone and step.deed in ("restart", "promote", "catch-up"):
        return Conclude("failed", f"cannot {in_words(step)}: it is no longer a member")
    return None


def find_obstacle(step: Step, view: View) -> str:
    """In words, what must change in the cluster before a step may be begun; empty if nothing."""
    if not view.is_settled:
        return "a change of the members is not settled"
    well = frozenset(one.node_id for one in view.members if one.is_well)
    if lost := quorum_lost(step, view, well):
        return lost
    if step.deed == "transfer-leadership" and not well & view.voters - {step.node_id}:
        return "no other voter is well"
    for member in view.members:
        if member.disk_is_low and member.node_id not in (step.node_id, step.replacing):
            return f"the disk of node {member.node_id} is nearly full"
    if step.deed in ("restart", "stop", "remove", "promote"):
        age_ms = view.archive_age_ms
        if age_ms is not None and age_ms > view.archive_limit_ms:
            return f"the archive lacks the log of the last {age_ms // 1000} s"
    return _unknown(step, view)


def _unknown(step: Step, view: View) -> str:
    member = view.member(step.node_id)
    if step.deed == "restart" and member is not None and member.answers and not member.incarnation:
        return f"node {step.node_id} has not introduced itself to the leader yet"
    if step.deed == "raise-features":
        return _releases_differ(view)
    return ""


def _releases_differ(view: View) -> str:
    releases = sorted({one.release or "unknown" for one in view.members})
    return f"members run different releases: {', '.join(releases)}" if len(releases) > 1 else ""


# -- the leader last -------------------------------------------------------------------------------


def _revision(operation: Operation, view: View) -> Revise | Conclude | None:
    """Other steps from the current one on, if its node leads and may not while it is done.

    Its restart moves after those of the others. It gives up leadership just before.
    """
    steps = tuple(record.step for record in operation.steps[operation.current :])
    first, later = steps[0], steps[1:]
    leader_id = view.leader_id
    ends_leader = first.deed in ("restart", "stop", "remove") and first.node_id == leader_id
    if not ends_leader and not (first.deed == "promote" and first.replacing == leader_id):
        return None
    handover = Step("transfer-leadership", leader_id)
    if first.deed == "restart" and any(one.deed == "restart" for one in later):
        last = max(n for n, one in enumerate(later) if one.deed == "restart") + 1
        revised = (*later[:last], handover, first, *later[last:])
    else:
        revised = (handover, *steps)
    if operation.current + len(revised) > MAX_STEPS:
        return Conclude("failed", "leadership changed too often between the steps")
    return Revise(revised)
