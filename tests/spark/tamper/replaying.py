"""The audit's replay without Spark: what `distribute` does with frames, done with lists.

The model, the bundles, sessions and buckets are the audit's own; here are only the joins. A scope
whose rows were seen before is not replayed again.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from streamd_audit.arrow import ArrowMap
from streamd_audit.commands import members_in
from streamd_audit.frames import batches_of
from streamd_audit.replay import batches, heads, quotas, run, scan, sessions, spans, stated
from streamd_audit.replay.components import components
from streamd_audit.replay.distribute import MAX_ROUNDS
from streamd_audit.replay.plan import Plan
from streamd_audit.replay.quotas import History
from tests.spark.tamper.stated import Event

Row = tuple[Any, ...]
Place = tuple[int, int, int]
"""Group, index and position of a command."""
Node = tuple[Any, ...]
"""Group, bucket and name of a stream; an upload's have those of the stream that published it."""


class Scanned(NamedTuple):
    """A row of `scan.SCANNED_DDL`."""

    what: int
    group: int
    index: int  # type: ignore[assignment]  # of NamedTuple
    position: int
    bucket: str | None
    stream: str | None
    other_bucket: str | None
    other_stream: str | None
    one: int | None
    two: int | None
    three: int | None
    object: str | None
    body: bytes | None

    @property
    def place(self) -> Place:
        return self.group, self.index, self.position

    @property
    def node(self) -> Node:
        return self.group, self.bucket, self.stream


class OfState(NamedTuple):
    """A row of `batches.STATE_ROWS`."""

    group: int
    index: int  # type: ignore[assignment]  # of NamedTuple
    position: int
    op: int
    kind: str
    bucket: str | None
    stream: str | None
    other_bucket: str | None
    other_stream: str | None
    number: int
    streams: int | None
    hidden: int | None
    body: bytes

    @property
    def node(self) -> Node:
        return self.group, self.bucket, self.stream


Tables = dict[int, list[Row]]
ScopeRow = tuple[int, int, int, int, bytes, int | None, bool]
"""Group, op, index, position, body, number, and whether there is no bucket."""


@dataclass
class Outcome:
    """The log's result: rows of `run`'s tables; ids by the places of what was made; where states
    differ in buckets (group, index, bucket, expected, found) and sessions (group, index, expected,
    found); the limits; commands that their packages left without effect, those about tokens and
    limits, and whether all ids came out right.
    """

    tables: Tables
    numbers: dict[Place, int]
    buckets: list[Row]
    sessions: list[Row]
    histories: Mapping[int, History]
    refused: Mapping[Place, str]
    next_numbers: Mapping[int, int]
    access: list[Scanned]
    settled: bool


def through(function: ArrowMap, ddl: str, rows: Iterable[Row]) -> list[Row]:
    """Rows with the columns of `ddl`, as a task maps them."""
    made = function(list(batches_of(ddl, rows)))
    return [
        row
        for batch in made
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    ]


@dataclass
class Replayer:
    """Replays logs, and remembers the scopes."""

    scopes: dict[Any, Tables] = field(default_factory=dict)
    maps: dict[Any, list[Row]] = field(default_factory=dict)

    def replay(
        self, rows: Sequence[Scanned], states: Sequence[Event], plans: Mapping[int, Plan]
    ) -> Outcome:
        """Replay the rows of a log, with those of the states that the plans name."""
        return _Replay(self, rows, self._of_states(states), plans).run()

    def _of_states(self, states: Sequence[Event]) -> list[OfState]:
        rows = tuple(states)
        if rows not in self.maps:
            self.maps[rows] = through(batches.of_states, spans.EVENTS_DDL, rows)
        return [OfState(*row) for row in self.maps[rows]]

    def tables_of(self, rows: tuple[ScopeRow, ...], plan: Plan, of: History) -> Tables:
        first = plan.header.next_stream_id
        began = plan.header.pattern_version, plan.header.generation_floor
        key = rows, plan.states, plan.bases, first, told(of), began, plan.versions
        if key not in self.scopes:
            replay = run.Replay(plan.places, plan.bases, first, of, began, plan.versions)
            for row in rows:
                replay.feed((0, *row))
            replay.finish()
            self.scopes[key] = {table: replay.rows(table) for table in range(6)}
        return self.scopes[key]


def told(history: History) -> Any:
    return repr(history.__dict__)


class _Replay:
    def __init__(
        self,
        replayer: Replayer,
        rows: Sequence[Scanned],
        states: list[OfState],
        plans: Mapping[int, Plan],
    ) -> None:
        self._replayer = replayer
        self._rows = rows
        self._states = states
        self._plans = plans
        judged = self._judged_packages()
        self._refused = {row[:3]: row[3] for row in judged if row[2] is not None}
        self._sessions = [(row[0], row[1], *row[4:]) for row in judged if row[2] is None]
        self._histories = self._find_histories()

    def _said(self, *what: int) -> list[Scanned]:
        return [row for row in self._rows if row.what in what and row.place not in self._refused]

    def run(self) -> Outcome:
        scopes = self._scopes()
        numbers: dict[Place, int] = {}
        absent: set[Place] = set()
        wrong = dict.fromkeys(scopes, False)
        tables: dict[int, Tables] = {}
        for _ in range(MAX_ROUNDS):
            for scope, is_again in wrong.items():
                rows = self._known(scopes[scope], numbers, absent) if is_again else scopes[scope]
                group = rows[0][0]
                plan, history = self._plans[group], self._histories[group]
                tables[scope] = self._replayer.tables_of(tuple(rows), plan, history)
            numbers, guessed = self._numbers(tables)
            buckets = self._buckets(tables)
            absent = {row[:1] + row[2:4] for row in buckets if row[4] == "absent"}
            again = guessed | _with_wrong_buckets(tables, absent)
            wrong = dict.fromkeys(sorted(again), True)
            if not wrong:
                break
        every = {
            table: [row for scope in sorted(tables) for row in tables[scope][table]]
            for table in range(6)
        }
        odd = [(row[0], row[2], _text_of(row[1]), *row[5:]) for row in buckets if row[3] is None]
        access = self._said(scan.LIMITS, scan.TOKEN)
        held = self._sessions, self._histories, self._refused
        following = {group: plan.header.next_stream_id for group, plan in self._plans.items()}
        for group, *_ in numbers:
            following[group] += 1
        return Outcome(every, numbers, odd, *held, following, access, not wrong)

    # -- packages and limits -------------------------------------------------------------------

    def _judged_packages(self) -> list[Row]:
        """Rows of `batches.JUDGED`."""
        packages = [row for row in self._rows if row.what == scan.PACKAGE]
        opened = [row for row in self._rows if row.what == scan.OPENED_SESSION]
        known = [state for state in self._states if state.kind == "session"]
        ddl = "`group` int, index long, position int, body binary"
        events = through(batches.of_packages, ddl, [(*row.place, row.body) for row in packages])
        for row in opened:
            rest = row.two, row.three, None, None, None
            events.append((row.group, row.one, row.index, row.position, sessions.OPENED, *rest))
        for state in known:
            place = state.group, state.number, state.index, state.position
            event = state.op + sessions.STATE
            events.append((*place, event, None, None, None, None, state.body))
        if not events:
            return []
        events.sort(key=lambda row: row[:5])
        members = {
            group: tuple((index, members_in(payload)) for index, payload in plan.configurations)
            for group, plan in self._plans.items()
        }
        places = {group: plan.places for group, plan in self._plans.items()}
        judge = batches.judge_packages(members, places)
        return through(judge, batches.SESSION_EVENTS, events)

    def _find_histories(self) -> dict[int, History]:
        changes = defaultdict(list)
        for row in sorted(self._said(scan.LIMITS), key=lambda row: row.place):
            assert row.body is not None
            changes[row.group].append((row.place[1:], scan.decode_limits(row.body)))
        return {
            group: History(
                plan.header.counts,
                {(kind, name): row for kind, name, row in plan.limits},
                changes[group],
            )
            for group, plan in self._plans.items()
        }

    # -- rows of scopes ------------------------------------------------------------------------

    def _scopes(self) -> dict[int, list[ScopeRow]]:
        placed: list[tuple[Node, ScopeRow]] = []
        for row in self._rows:
            if row.what == scan.BUNDLE:
                placed += ((row.node, one) for one in self._commands(row))
        edges = [(row.node, _other(row)) for row in self._said(scan.FORK)]
        owners: dict[Any, Node] = {}
        for row in sorted(self._said(scan.PUBLISHED), key=lambda row: _text(row.node)):
            owner = owners.setdefault((row.group, row.one), row.node)
            edges.append((row.node, owner))
        for row in self._rows:
            if row.what == scan.BUNDLE_OF_UPLOAD and (row.group, row.one) in owners:
                node = owners[row.group, row.one]
                placed += ((node, one) for one in self._commands(row))
        placed += self._of_states(owners)
        if edges or any(plan.before is not None for plan in self._plans.values()):
            forks = [state for state in self._states if state.other_bucket is not None]
            edges += ((state.node, _other(state)) for state in forks)
        edges += self._of_limited_buckets()
        edges += self._of_patterns()
        roots = _components(edges)
        found: dict[Node, list[ScopeRow]] = defaultdict(list)
        for node, scope_row in placed:
            found[roots.get(node, node)].append(scope_row)
        scopes = {}
        for number, root in enumerate(sorted(found, key=_text)):
            scopes[number] = sorted(found[root], key=lambda row: (row[0], *row[2:4]))
        return scopes

    def _commands(self, row: Scanned) -> list[ScopeRow]:
        assert row.body is not None
        if not self._refused:
            return [(row.group, run.COMMAND, row.index, row.position, row.body, None, False)]
        return [one for one in _singles(row.group, row.body) if _place(one) not in self._refused]

    def _of_states(self, owners: Mapping[Any, Node]) -> list[tuple[Node, ScopeRow]]:
        found: list[tuple[Node, ScopeRow]] = []
        streams: dict[Any, set[Node]] = defaultdict(set)
        for state in self._states:
            if state.kind == "stream":
                streams[state.group, state.number].add(state.node)
        for state in self._states:
            nodes: Iterable[Node] = ()
            if state.kind == "stream":
                nodes = [state.node]
            elif state.kind == "producer":
                nodes = sorted(streams[state.group, state.number], key=_text)
            elif state.kind == "upload" and state.op == run.BEFORE:
                nodes = [owners[key] for key in [(state.group, state.number)] if key in owners]
            elif state.kind in stated.KINDS:
                nodes = [(state.group, *scan.OF_SUBSCRIPTIONS)]
            is_first = state.op == run.BEFORE
            at = run.STATE_POSITIONS[state.kind] if nodes and is_first else state.position
            row = state.group, state.op, state.index, at, state.body, None, False
            found += ((node, row) for node in nodes)
        return found

    def _of_limited_buckets(self) -> list[tuple[Node, Node]]:
        every: list[Scanned | OfState] = [row for row in self._rows if row.what == scan.BUNDLE]
        every += (state for state in self._states if state.kind == "stream")
        found: list[tuple[Node, Node]] = []
        for row in every:
            history = self._histories.get(row.group)
            limited = set() if history is None else {name.decode() for name in history.limited}
            if quotas.ALL_OTHERS in limited or row.bucket in limited:
                found.append((row.node, (row.group, row.bucket, "")))
        return found

    def _of_patterns(self) -> list[tuple[Node, Node]]:
        patterns: dict[int, set[str]] = defaultdict(set)
        for row in self._said(scan.PATTERN):
            assert row.body is not None
            patterns[row.group].add(row.body.decode())
        known = [(one.group, one.body) for one in self._states if one.kind == "subscription"]
        for group, pattern in through(batches.patterns_of, "`group` int, body binary", known):
            patterns[group].add(pattern)
        every: list[Scanned | OfState] = [row for row in self._rows if row.what == scan.BUNDLE]
        every += (state for state in self._states if state.kind == "stream")
        ddl = "`group` int, bucket string, stream string"
        nodes = sorted({row.node for row in every}, key=_text)
        matched = through(batches.matching(patterns), ddl, nodes) if patterns else []
        return [(node, (node[0], *scan.OF_SUBSCRIPTIONS)) for node in matched]

    def _known(
        self, rows: list[ScopeRow], numbers: Mapping[Place, int], absent: set[Place]
    ) -> list[ScopeRow]:
        """The rows of a scope with the ids and buckets that were found."""
        made = sorted(numbers)
        found: list[ScopeRow] = []
        for row in rows:
            if row[1] != run.COMMAND:
                found.append(row)
                continue
            first = self._plans[row[0]].header.next_stream_id
            start = bisect_left(made, (row[0], -1, -1))
            for one in _singles(row[0], row[4]):
                place = _place(one)
                number = first + bisect_left(made, place) - start
                found.append((*one[:5], number, place in absent))
        return sorted(found, key=lambda row: (row[0], *row[2:4]))

    # -- ids and buckets -----------------------------------------------------------------------

    def _numbers(self, tables: Mapping[int, Tables]) -> tuple[dict[Place, int], set[int]]:
        """Ids by places, and the scopes that guessed others."""
        made = sorted(
            ((row[1], *row[4:6]), scope, row[3])
            for scope, of in tables.items()
            for row in of[run.MADE]
        )
        following = {group: plan.header.next_stream_id for group, plan in self._plans.items()}
        numbers: dict[Place, int] = {}
        wrong = set()
        for place, scope, guess in made:
            numbers[place] = following[place[0]]
            following[place[0]] += 1
            if guess is not None and guess != numbers[place]:
                wrong.add(scope)
        return numbers, wrong

    def _buckets(self, tables: Mapping[int, Tables]) -> list[Row]:
        """Rows of `batches.BUCKETS`."""
        events: list[Row] = []
        for of in tables.values():
            for _, group, bucket, index, position, event, log_ms in of[run.EVENTS]:
                events.append((group, bucket, index, position, event, log_ms, None, None))
        for row in self._said(scan.OF_BUCKET):
            at = row.group, row.body, row.index, row.position
            events.append((*at, row.one, row.two, None, None))
        for state in self._states:
            if state.kind == "bucket":
                at = state.group, state.body, state.index, state.position
                events.append((*at, state.op, state.number, state.streams, state.hidden))
        events.sort(key=lambda row: row[:5])
        places = {group: plan.places for group, plan in self._plans.items()}
        key = tuple(events), tuple(places.items())
        if key not in self._replayer.maps:
            ddl = (
                "`group` int, bucket binary, index long, position int, event long, log_ms long, "
                "streams long, hidden long"
            )
            self._replayer.maps[key] = through(batches.judge_buckets(places), ddl, events)
        return self._replayer.maps[key]


def _with_wrong_buckets(tables: Mapping[int, Tables], absent: set[Place]) -> set[int]:
    """Scopes in which a command found no bucket that there was, or one that was not there."""
    return {
        scope
        for scope, of in tables.items()
        for row in of[run.OUTCOMES]
        if (row[5] == "bucket-not-found") != ((row[1], *row[3:5]) in absent)
    }


def _singles(group: int, body: bytes) -> list[ScopeRow]:
    return [
        (group, run.COMMAND, *step[:2], heads.pack([step]), None, False)
        for step in heads.unpack(body)
    ]


def _place(row: ScopeRow) -> Place:
    return row[0], row[2], row[3]


def _other(row: Scanned | OfState) -> Node:
    return row.group, row.other_bucket, row.other_stream


def _text(node: Node) -> tuple[str, ...]:
    return tuple(str(part) for part in node)


def _text_of(name: bytes) -> str:
    return name.decode(errors="replace")


def _components(edges: list[tuple[Node, Node]]) -> dict[Node, Node]:
    if not edges:
        return {}
    every = sorted({node for edge in edges for node in edge}, key=_text)
    number_of = {node: number for number, node in enumerate(every)}
    left = np.array([number_of[one] for one, _ in edges], dtype=np.int64)
    right = np.array([number_of[other] for _, other in edges], dtype=np.int64)
    nodes, roots = components(left, right)
    return {
        every[node]: every[root] for node, root in zip(nodes.tolist(), roots.tolist(), strict=True)
    }
