"""Limits in the machine: rows set and cleared, and quotas of what buckets keep."""

from __future__ import annotations

from streamd.streams.commands import Outcome, Result, SetLimits
from streamd.streams.limits import MAX_ROWS
from streamd.streams.state import State


def set_limits(state: State, command: SetLimits) -> Outcome:
    """Set the limits of a bucket or an identity, or clear them."""
    known = state.limits.get(command.kind, command.name)
    if command.limits is None:
        if known is None:
            return Outcome(Result.LIMITS_NOT_FOUND)
        state.limits.put(command.kind, command.name, None)
        return Outcome(Result.DELETED)
    if known is None and len(state.limits) >= MAX_ROWS:
        return Outcome(Result.TOO_MANY_LIMITS)
    state.limits.put(command.kind, command.name, command.limits)
    return Outcome(Result.DONE)
