"""The states in the store, read and decoded once for all jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from streamd_audit.checkpoints import Manifest, check_manifest_known
from streamd_audit.commands import Limits
from streamd_audit.context import Context
from streamd_audit.errors import Damaged
from streamd_audit.framing import Buffer
from streamd_audit.replay import spans
from streamd_audit.replay.plan import Plan
from streamd_audit.replay.quotas import owner_of
from streamd_audit.rows import Header, read_row
from streamd_audit.sources.state import StateReader, StateSource
from streamd_audit.states import State, states_of

_STATES_DDL = (
    "`group` int, index bigint, object string, key binary, value binary, kind string, "
    "problem string"
)


class _StrictReader(StateReader):
    def check(self, content: Buffer, manifest: Manifest) -> None:
        check_manifest_known(content, manifest)


class StrictStates(StateSource):
    """The rows of states that say nothing that the audit does not know."""

    READER = _StrictReader


def state_rows(context: Context) -> DataFrame:
    """The raw rows of all states, and what is wrong with their objects."""
    return context.shared(
        "state_rows",
        lambda: context.keep(context.source(StrictStates, _STATES_DDL, every="true")),
    )


class Looked(NamedTuple):
    """States whose pieces are all there and whole, the newest last: no others are compared. `stale`
    are whole ones with the rows of another entry, and that entry."""

    readable: Sequence[State]
    stale: Sequence[tuple[State, int]]


def looked_through(context: Context) -> Looked:
    """The states, by a first look at them."""

    def look() -> Looked:
        rows = state_rows(context).where("problem is not null or kind in ('header', 'session')")
        found = rows.select("kind", "object", "key", "value", "problem").collect()
        context.notes["state_sessions"] = any(row["kind"] == "session" for row in found)
        told = (row for row in found if row["kind"] != "session" or row["problem"] is not None)
        return looked_at(context, (row[1:] for row in told))

    return context.shared("looked through", look)


def looked_at(context: Context, rows: Iterable[tuple[Any, ...]]) -> Looked:
    """The states, by their headers and by what is wrong with them: object, key, value, problem."""
    found = list(rows)
    damaged = [name for name, _, _, problem in found if problem is not None]
    headers = [row for row in found if row[1]]
    readable, stale = [], []
    for state in states_of(context):
        pieces = state.pieces(context.cluster)
        if state.object in damaged or any(name.startswith(pieces) for name in damaged):
            continue
        of_rows = next((row[1:3] for row in headers if row[0].startswith(pieces)), None)
        header = None if of_rows is None else header_in(*of_rows)
        if header is not None and header.applied_index != state.index:
            stale.append((state, header.applied_index))
        else:
            readable.append(state)
    return Looked(readable, stale)


def readable_states(context: Context) -> Sequence[State]:
    """The states that are compared, the newest last."""
    return looked_through(context).readable


def header_in(key: bytes, value: bytes) -> Header | None:
    """The header that a row holds; None if it cannot be read."""
    try:
        found = read_row(key, value).value
    except Damaged:
        return None
    return found if isinstance(found, Header) else None


def state_indexes(context: Context) -> dict[int, list[int]]:
    """The entries of the readable states of each group, by their numbers in it."""
    found: dict[int, list[int]] = {}
    for state in readable_states(context):
        found.setdefault(state.group, []).append(state.index)
    return found


def state_spans(context: Context) -> DataFrame:
    """The rows of the readable states, as `spans.SPANS_DDL`."""

    def make() -> DataFrame:
        rows = state_rows(context).where("problem is null")
        return context.keep(spans.spans_of_rows(rows, readable_states(context)))

    return context.shared("state_spans", make)


def events(context: Context, plans: Mapping[int, Plan]) -> DataFrame | None:
    """The rows of the states that plans name (`spans.EVENTS_DDL`); None if they name none."""
    return spans.events_of(state_spans(context), readable_states(context), plans)


def headers_of(context: Context) -> dict[State, Header]:
    """The headers of the readable states; a state without one is not in it."""

    def look() -> dict[State, Header]:
        found = {}
        placed = spans.numbered(readable_states(context))
        for row in state_spans(context).where("kind = 'header'").collect():
            header = header_in(row["key"], row["value"])
            for one in placed:
                is_there = row["since"] <= one.number <= row["until"]
                if header is not None and one.state.group == row["group"] and is_there:
                    found[one.state] = header
        return found

    return context.shared("headers", look)


def limits_of(context: Context, state: State) -> Iterator[tuple[str, str, Limits]]:
    """The limits that a state has, by kind and name."""
    number = next(
        one.number for one in spans.numbered(readable_states(context)) if one.state == state
    )
    is_there = (f.col("since") <= number) & (f.col("until") >= number)
    of_state = (f.col("group") == state.group) & is_there & (f.col("kind") == "limits")
    for row in state_spans(context).where(of_state).collect():
        try:
            found = read_row(row["key"], row["value"])
        except Damaged:
            continue
        if isinstance(found.value, Limits):
            yield *owner_of(found.rest), found.value
