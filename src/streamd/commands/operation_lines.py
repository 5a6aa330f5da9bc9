"""An operation in words: lines for people, from the report that a node gives of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

Report = Mapping[str, Any]

_MARKS = {"done": "done", "begun": "begun", "waiting": ""}
ENDED = ("done", "failed", "cancelled")


def time_of(at_ms: int | None) -> str:
    """A time in UTC, to the second; empty for none."""
    if at_ms is None:
        return ""
    return f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S}Z"


def plan_lines(steps: Sequence[Report]) -> Iterator[str]:
    """Steps that are yet to be done, each with what it waits for."""
    yield f"{len(steps)} step{'' if len(steps) == 1 else 's'}:"
    for number, step in enumerate(steps, 1):
        yield f"{number:3}. {step['text']}"
        yield f"     until {step['waits_for']}"


def headline(operation: Report) -> str:
    """What an operation is, and how far."""
    state = operation["state"].replace("_", " ")
    done = f"{operation['current']} of {len(operation['steps'])} steps done"
    by = f", by {operation['requested_by']}" if operation["requested_by"] else ""
    return f"operation {operation['id']}: {operation['kind']}, {state}, {done}{by}"


def reason(operation: Report) -> str:
    """What it waits for, or why it ended, and what an operator can do about it; may be empty."""
    why = str(operation["why"])
    number = operation["id"]
    match operation["state"]:
        case "waiting_for_operator":
            return f"do this: {why}; then: streamd operations done {number}"
        case "paused":
            return f"{why}; streamd operations resume {number} carries on"
        case "running" if operation["cancel_asked"]:
            return f"{why}; it ends with the step in progress"
        case "running" if why in [one["waits_for"] for one in operation["steps"]]:
            return f"waits until {why}"
    return why


def lines(operation: Report) -> Iterator[str]:
    """All of an operation."""
    yield headline(operation)
    ended = operation["ended_at_ms"]
    yield f"begun {time_of(operation['begun_at_ms'])}" + (
        f", ended {time_of(ended)}" if ended else ""
    )
    if why := reason(operation):
        yield why
    for number, step in enumerate(operation["steps"], 1):
        yield f"{number:3}. {_MARKS[step['state']]:6}{step['text']}{_details(step)}"
    if operation["state"] in ENDED:
        yield f"afterwards: voters {_ids(operation['voters'])}, learners " + _ids(
            operation["learners"]
        )


def _details(step: Report) -> str:
    facts = []
    if step["begun_at_ms"] and step["ended_at_ms"]:
        facts.append(f"{(step['ended_at_ms'] - step['begun_at_ms']) / 1000:.1f} s")
    if step["attempts"] > 1:
        facts.append(f"{step['attempts']} attempts")
    if step["note"]:
        facts.append(step["note"])
    return f" ({', '.join(facts)})" if facts else ""


def _ids(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids)) or "none"


def news(before: Report | None, now: Report) -> Iterator[str]:
    """What changed between two reports of an operation, or all that is known, a line each."""
    if before is None:
        yield headline(now)
    states = [None] * len(now["steps"]) if before is None else _states(before, now)
    for number, (step, was) in enumerate(zip(now["steps"], states, strict=True), 1):
        if step["state"] != was and step["state"] != "waiting":
            what = "done" if step["state"] == "done" else "begun"
            yield f"{number} of {len(now['steps'])}: {step['text']}: {what}{_details(step)}"
    is_new = before is None or (before["state"], before["why"]) != (now["state"], now["why"])
    if now["state"] in ENDED:
        yield f"{headline(now)}{': ' if now['why'] else ''}{now['why']}"
    elif is_new and (why := reason(now)):
        yield why


def _states(before: Report, now: Report) -> list[str | None]:
    """The states of the steps as they were, as far as they were planned."""
    known = [step["state"] for step in before["steps"]]
    return (known + [None] * len(now["steps"]))[: len(now["steps"])]
