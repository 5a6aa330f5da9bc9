"""What an audit has compared with what, and by name what it has not: the verdict's first lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from streamd_audit.context import Context
from streamd_audit.log_ends import last_entries
from streamd_audit.replay.distribute import Replayed
from streamd_audit.replay.headers import NOT_COMPARED
from streamd_audit.replay.stored import looked_through, readable_states
from streamd_audit.replay.whole import compared_states, plans_of
from streamd_audit.states import State
from streamd_audit.watermark import Watermark

# What is in states, and no rule is about.
OF_STATES = (
    "of states: uploads under way (u), remembered outcomes (n)",
    "of states: since when packs are dead (k)",
    f"of their headers: {', '.join(NOT_COMPARED)}",
)
_MOST_NAMED = 5


def facts_of_comparing(context: Context, found: Replayed | None) -> Mapping[str, list[str]]:
    """Lines of the summary, by their names."""
    mark = context.notes.get("watermark")
    return {
        "compared": told_compared(compared_states(context), mark),
        "not compared": [
            *_not_compared(context, found),
            *told_unknown(last_entries(context), _known_before(context, mark)),
        ],
    }


def told_compared(states: Sequence[State], mark: object) -> list[str]:
    """What was compared with the log."""
    told = [f"with the log: {_named(states)}, every row"] if states else []
    if isinstance(mark, Watermark):
        places = ", ".join(f"entry {one.index:,}" for one in mark.marks)
        told.append(f"with an earlier audit's watermark: the log at {places}")
    return told or ["nothing with the log"]


def _not_compared(context: Context, found: Replayed | None) -> list[str]:
    told = []
    compared = {*compared_states(context)}
    plans = plans_of(context)
    others: dict[str, list[State]] = {}
    for state in readable_states(context):
        plan = plans.get(state.group)
        if state in compared:
            continue
        if plan is None or found is None:
            why = "no log leads to them"
        elif plan.before is not None and state.index <= plan.before:
            why = "the log is replayed from the last of them on"
        else:
            why = "the log ends before them"
        others.setdefault(why, []).append(state)
    told += [f"{_named(states)}: {why}" for why, states in others.items()]
    skipped = len(looked_through(context).stale)
    if skipped:
        told.append(f"{skipped} states with the rows of other entries")
    return [*told, *OF_STATES] if compared else told


def _known_before(context: Context, mark: object) -> Sequence[int]:
    """The last entries of logs that an earlier audit judged, or that kept heads are of."""
    marks = [one.index for one in mark.marks] if isinstance(mark, Watermark) else []
    heads = [head.first_index + head.size - 1 for head in context.notes.get("proved_heads", ())]
    return [*marks, *([max(heads)] if heads else [])]


def told_unknown(last: Mapping[int, int], known: Sequence[int]) -> list[str]:
    """What no comparison inside a store can show; entries up to those `known` were seen before."""
    ends = ", ".join(f"{index:,}" for index in [*last.values()][:_MOST_NAMED]) or "0"
    told = f"whether the log went on after entry {ends}"
    if not known:
        why = "--out has no earlier audit's watermark, and --expect no head"
        return [f"{told}, or all of it was written again: {why}"]
    after = ", ".join(f"{index:,}" for index in known[:_MOST_NAMED])
    why = "no earlier audit and no kept head is of that"
    return [f"{told}, or what follows entry {after} was written again: {why}"]


def _named(states: Sequence[State]) -> str:
    indexes = [f"{state.index:,}" for state in states]
    if len(indexes) > _MOST_NAMED:
        indexes = [*indexes[: _MOST_NAMED - 1], "…", indexes[-1]]
    kind = "the state as of entry" if len(states) == 1 else f"{len(states)} states, as of entries"
    return f"{kind} {', '.join(indexes)}"
