"""What an operation is: its record in the log, its steps, and what these mean in words.

An operation changes a running cluster in steps, one at a time. Its record is part of the
replicated state, so each leader carries it on. Records are in the log and in rows of the state:
fields are only ever added at the end, with a default. Times are in milliseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

import msgspec

Kind = Literal[
    "rolling-restart",
    "replace-node",
    "scale-up",
    "scale-down",
    "upgrade",
    "drain",
    "restart-recovery",
    "bootstrap",
]
State = Literal["running", "paused", "waiting_for_operator", "done", "failed", "cancelled"]
ENDED: frozenset[State] = frozenset(("done", "failed", "cancelled"))

Deed = Literal[
    "transfer-leadership",
    "restart",
    "add",
    "catch-up",
    "promote",
    "remove",
    "stop",
    "install",
    "raise-features",
]
# What needs hands on a node's host (`hosts.HostControl`).
ON_HOST: frozenset[Deed] = frozenset(("restart", "stop", "install"))
CHANGES_MEMBERS: frozenset[Deed] = frozenset(("add", "promote", "remove"))

MAX_STEPS = 64
MAX_ADDRESSES = 16
MAX_TEXT_BYTES = 500
STABILITY_WINDOW_MS = 10_000
# Ten minutes: an operator who wants to wait longer between steps pauses the operation.
MAX_WINDOW_MS = 600_000
MAX_WEIGHT_BYTES = 32 * 1024
# Whatever the encoding, a step weighs as much as its texts and its numbers.
_NUMBERS_BYTES = 64


class Arguments(msgspec.Struct, frozen=True, array_like=True):
    """What the operator asked for; each kind needs some of these and takes no others.

    `node_id` is the node to replace, remove, drain or restart. `addresses` are the peer addresses
    of nodes to add: one, or several to bootstrap. `release` is the one to upgrade to.
    `window_ms` is how long the cluster must be well between two steps.
    """

    node_id: int = 0
    addresses: tuple[str, ...] = ()
    release: str = ""
    window_ms: int = STABILITY_WINDOW_MS


class Step(msgspec.Struct, frozen=True, array_like=True):
    """One thing to do. `node_id` is the node to which it is done; `address` that of the node to
    add, `replacing` the voter that a promoted node replaces (0: none), `release` what to
    install, or what a restarted node must run (empty: any)."""

    deed: Deed
    node_id: int = 0
    address: str = ""
    replacing: int = 0
    release: str = ""


class StepRecord(msgspec.Struct, frozen=True, array_like=True):
    """A step and what became of it.

    An attempt is recorded before it is made, with the node's `incarnation` (the number of its
    process, 0 if unknown) until then: by another one, the leader sees that the node restarted.
    `confirmed` means that it was carried out, by the control of hosts or as the operator says.
    `note` is what the last attempt came to; if `asks` is set, what the operator is asked to do.
    """

    step: Step
    attempts: int = 0
    begun_at_ms: int = 0
    attempted_at_ms: int = 0
    incarnation: int = 0
    confirmed: bool = False
    ended_at_ms: int = 0
    note: str = ""
    asks: bool = False

    @property
    def is_begun(self) -> bool:
        return bool(self.attempts) and not self.ended_at_ms


class Operation(msgspec.Struct, frozen=True, array_like=True):
    """The record of an operation.

    Each change adds one to `version`, and takes effect only on the version it was made from.
    `current` is the number of steps done, so the index of the one to do. `why` says what a
    running operation waits for, or why one ended. `cancel_asked` lets the step in progress come
    to its end before the operation does. `voters` and `learners` are those of the cluster when
    the operation ended.
    """

    operation_id: int
    version: int
    kind: Kind
    arguments: Arguments
    requested_by: str
    begun_at_ms: int
    steps: tuple[StepRecord, ...]
    state: State = "running"
    current: int = 0
    why: str = ""
    changed_at_ms: int = 0
    ended_at_ms: int = 0
    cancel_asked: bool = False
    voters: tuple[int, ...] = ()
    learners: tuple[int, ...] = ()

    @property
    def has_ended(self) -> bool:
        return self.state in ENDED

    @property
    def step(self) -> StepRecord | None:
        """The step to do, or in progress; None after the last one."""
        return self.steps[self.current] if self.current < len(self.steps) else None

    @property
    def fits(self) -> bool:
        """Whether the record is within the limits and consistent in itself. Applying the log
        depends on it: what fits once must fit for ever."""
        return (
            self.operation_id > 0
            and self.version > 0
            and 0 < len(self.steps) <= MAX_STEPS
            and 0 <= self.current <= len(self.steps)
            and self.weight <= MAX_WEIGHT_BYTES
            and len(self.arguments.addresses) <= MAX_ADDRESSES
            and 0 <= self.arguments.window_ms <= MAX_WINDOW_MS
            and all(len(text.encode()) <= MAX_TEXT_BYTES for text in _texts(self))
        )

    @property
    def weight(self) -> int:
        """About its size in bytes, by a rule that no change of the encoding alters."""
        numbers = _NUMBERS_BYTES * (2 + len(self.steps))
        return numbers + sum(len(text.encode()) for text in _texts(self))


def _texts(operation: Operation) -> Iterator[str]:
    arguments = operation.arguments
    yield from (operation.requested_by, operation.why, arguments.release, *arguments.addresses)
    for record in operation.steps:
        yield from (record.note, record.step.address, record.step.release)


def in_words(step: Step) -> str:
    """What a step does, for a list of steps: ``restart node 2``."""
    node = f"node {step.node_id}"
    match step.deed:
        case "transfer-leadership":
            return f"transfer leadership away from {node}"
        case "restart":
            return f"restart {node}"
        case "add":
            return f"add {node} at {step.address} as a learner"
        case "catch-up":
            return f"wait until {node} has caught up"
        case "promote":
            instead = f" replacing node {step.replacing}" if step.replacing else ""
            return f"promote {node}{instead}"
        case "remove":
            return f"remove {node}"
        case "stop":
            return f"stop {node}"
        case "install":
            return f"install {step.release} on {node}"
    return "raise the feature level"


def waits_for(step: Step) -> str:
    """What a step waits for before it is done, in words."""
    node = f"node {step.node_id}"
    match step.deed:
        case "transfer-leadership":
            return f"another node leads, or {node} did not lead"
        case "restart":
            release = f" with {step.release}" if step.release else ""
            return f"a new process of {node} answers{release} and has caught up"
        case "add":
            return f"{node} is a learner, and the change is committed"
        case "catch-up":
            return f"{node} answers and lags by few entries"
        case "promote":
            return f"{node} is a voter, and the change is committed"
        case "remove":
            return f"{node} is not a member, and the change is committed"
        case "stop":
            return f"{node} no longer answers"
        case "install":
            return f"the installation on {node} succeeded"
    return "the highest level that every member understands is committed"


def report(operation: Operation) -> dict[str, Any]:
    """The record as a JSON object, with each step in words."""
    arguments = operation.arguments
    asked = {
        "node_id": arguments.node_id or None,
        "addresses": list(arguments.addresses) or None,
        "release": arguments.release or None,
        "window_ms": arguments.window_ms,
    }
    return {
        "id": operation.operation_id,
        "version": operation.version,
        "kind": operation.kind,
        "arguments": {name: value for name, value in asked.items() if value is not None},
        "requested_by": operation.requested_by,
        "state": operation.state,
        "begun_at_ms": operation.begun_at_ms,
        "changed_at_ms": operation.changed_at_ms or operation.begun_at_ms,
        "ended_at_ms": operation.ended_at_ms or None,
        "cancel_asked": operation.cancel_asked,
        "why": operation.why,
        "current": operation.current,
        "steps": [_step_report(record) for record in operation.steps],
        "voters": list(operation.voters),
        "learners": list(operation.learners),
    }


def _step_report(record: StepRecord) -> dict[str, Any]:
    done = bool(record.ended_at_ms)
    return {
        **planned(record.step),
        "state": "done" if done else "begun" if record.attempts else "waiting",
        "attempts": record.attempts,
        "begun_at_ms": record.begun_at_ms or None,
        "ended_at_ms": record.ended_at_ms or None,
        "note": record.note,
    }


def planned(step: Step) -> dict[str, Any]:
    """A step that is yet to be done as a JSON object, in words."""
    return {
        "deed": step.deed,
        "node_id": step.node_id or None,
        "text": in_words(step),
        "waits_for": waits_for(step),
    }
