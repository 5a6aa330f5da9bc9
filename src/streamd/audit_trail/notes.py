"""What a handler adds to the entry of its act, such as the name of the token that it made."""

from __future__ import annotations

from contextvars import ContextVar

_NOTES: ContextVar[dict[str, object] | None] = ContextVar("notes", default=None)


def collect() -> dict[str, object]:
    """What handlers note from now on, in this task and those that it starts."""
    notes: dict[str, object] = {}
    _NOTES.set(notes)
    return notes


def note(**values: object) -> None:
    """Add to the entry of the present act, if acts are recorded. Values are JSON, and no secrets:
    never a token or a request's body."""
    notes = _NOTES.get()
    if notes is not None:
        notes.update(values)
