"""Outcomes of commands that change nothing, known before such a command is in the log.

A command that is refused, or repeats what was done, would otherwise be replicated with its whole
body, and stay in every log until that is compacted.
"""

from __future__ import annotations

from streamd.streams.commands import Append, Command, Create, Outcome, PublishSnapshot, Result
from streamd.streams.machine import Machine
from streamd.streams.offsets import Position
from streamd.streams.snapshots import judge, refusal_by_quota
from streamd.streams.state import State


def foresee(machine: Machine, command: Command, now_ms: int) -> Outcome | None:
    """What the machine would answer now to a command that changes nothing.

    None if the command may change something, or only the log can decide: after a stream has
    expired the next command ends it, and the first one since there was a quota counts its bytes.
    """
    state = machine.state
    if not isinstance(command, Append | Create | PublishSnapshot):
        return None
    if _is_changed_by_judging(state, command.key, now_ms):
        return None
    judged: object = None
    if isinstance(command, Append):
        judged = machine.judge_append(command, now_ms)
    elif isinstance(command, Create):
        judged = machine.judge_create(command, now_ms)
    elif not command.upload_id:
        stream = state.streams.get(command.key)
        if stream is not None and not stream.deleted:
            judged = judge(state, stream, command)
    if not isinstance(judged, Outcome) or judged.result is Result.STALE:
        return None
    return machine.placed(judged)


def foresee_snapshot(
    machine: Machine, key: bytes, at: Position, size: int, now_ms: int
) -> Outcome | None:
    """The refusal by a quota of a snapshot of at least `size` bytes; None if it may be accepted.

    One at the offset of the present snapshot may be its repetition, which changes nothing.
    """
    state = machine.state
    stream = state.streams.get(key) if key in state.streams else None
    if stream is None or stream.deleted or not state.limits.quotas:
        return None
    if _is_changed_by_judging(state, key, now_ms):
        return None
    refusal = refusal_by_quota(state, key, stream, at, size)
    return None if refusal is None else machine.placed(Outcome.of(refusal, stream))


def _is_changed_by_judging(state: State, key: bytes, now_ms: int) -> bool:
    stream = state.streams.get(key)
    if stream is None or stream.deleted:
        return False
    return stream.expired(now_ms) or (stream.kept_from is None and state.header.counts)
