"""The states in a store, for the audit's twin: each row once, with the states that have it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from streamd_audit.commands import Limits
from streamd_audit.context import Context
from streamd_audit.errors import Damaged
from streamd_audit.replay import run, spans, stored
from streamd_audit.replay.plan import Plan, state_position
from streamd_audit.replay.quotas import owner_of
from streamd_audit.rows import Header, read_row
from streamd_audit.states import State
from tests.spark.tamper.reading import Row, Said


class Span(NamedTuple):
    """A row of `spans.SPANS_DDL`."""

    group: int
    kind: str
    key: bytes
    value: bytes
    object: str
    since: int
    until: int


class Event(NamedTuple):
    """A row of `spans.EVENTS_DDL`."""

    group: int
    index: int  # type: ignore[assignment]  # of NamedTuple
    position: int
    op: int
    kind: str
    key: bytes
    value: bytes


def looked_through(context: Context, rows: Sequence[Said]) -> stored.Looked:
    """The states, by a first look at their rows."""
    names = "object", "key", "value", "problem"
    chosen = (row for row in rows if row["problem"] is not None or row["kind"] == "header")
    return stored.looked_at(context, (tuple(row[name] for name in names) for row in chosen))


def spans_of(context: Context, rows: Sequence[Said]) -> list[Span]:
    """The rows of the readable states."""
    numbers = {
        (one.state.group, one.state.pieces(context.cluster)): one.number
        for one in spans.numbered(stored.readable_states(context))
    }
    versions: dict[Row, list[tuple[int, Said]]] = defaultdict(list)
    for row in rows:
        at = row["group"], f"{row['object'].rsplit('-', 2)[0]}-"
        if row["problem"] is None and at in numbers:
            versions[row["group"], row["key"]].append((numbers[at], row))
    found: list[Span] = []
    for (group, key), some in versions.items():
        begin = len(found)
        for number, row in sorted(some, key=itemgetter(0)):
            last = found[-1] if len(found) > begin else None
            if last is not None and (last.until, last.value) == (number - 1, row["value"]):
                found[-1] = last._replace(until=number, object=min(last.object, row["object"]))
            else:
                place = row["object"], number, number
                found.append(Span(group, row["kind"], key, row["value"], *place))
    return found


def headers_in(context: Context, found: Sequence[Span]) -> dict[State, Header]:
    """The headers of the readable states."""
    headers = {}
    for span in found:
        header = stored.header_in(span.key, span.value) if span.kind == "header" else None
        for one in spans.numbered(stored.readable_states(context)):
            is_there = one.state.group == span.group and span.since <= one.number <= span.until
            if header is not None and is_there:
                headers[one.state] = header
    return headers


def limits_of(
    context: Context, found: Sequence[Span], state: State
) -> Iterator[tuple[str, str, Limits]]:
    """The limits that a state has, by kind and name."""
    placed = spans.numbered(stored.readable_states(context))
    number = next(one.number for one in placed if one.state == state)
    for span in found:
        is_there = span.since <= number <= span.until
        if span.group == state.group and is_there and span.kind == "limits":
            try:
                row = read_row(span.key, span.value)
            except Damaged:
                continue
            assert isinstance(row.value, Limits)
            yield *owner_of(row.rest), row.value


def events_of(
    context: Context, found: Sequence[Span], plans: Mapping[int, Plan]
) -> Iterator[Event]:
    """The rows of the states that plans name, as a replay meets them."""
    placed = spans.numbered(stored.readable_states(context))
    for group, plan in plans.items():
        begin = spans._begin([one for one in placed if one.state.group == group], plan)
        end = begin + len(plan.states)
        for span in found:
            if span.group != group:
                continue
            row = Event(group, 0, -1, run.BEFORE, span.kind, span.key, span.value)
            if plan.before is not None and span.since <= begin <= span.until:
                yield row._replace(index=plan.before)
            if begin < span.since <= end:
                index, at = _met(plan, span.since - begin - 1, is_there=True)
                yield row._replace(index=index, position=at, op=run.AFTER)
            if begin <= span.until < end:
                index, at = _met(plan, span.until - begin, is_there=False)
                yield row._replace(index=index, position=at, op=run.GONE)


def _met(plan: Plan, number: int, *, is_there: bool) -> tuple[int, int]:
    """Where the `number`-th state that is compared with the log stands."""
    return plan.states[number], state_position(number, is_there=is_there)
