"""A consumer of a whole stream: tables, and what each batch of the stream does to them.

A batch is first planned, which decodes and checks it and changes nothing, and then applied. So a
batch that a policy refuses leaves no trace, and a durable store can keep the plan before anyone
sees it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import UNSET, Struct

from streamd.state.definition import StateSchema
from streamd.state.events import (
    ChangeEvent,
    ChangeHeaders,
    ControlEvent,
    InvalidEvent,
    MalformedEvent,
    RawChangeEvent,
    StateError,
    decode_raw_batch,
)
from streamd.state.materialized import MissingValue
from streamd.state.schemas import InvalidValue, plain_json
from streamd.state.tables import ABSENT, Table
from streamd.streams.content import json_value

_MAX_WARNINGS = 10
_LOADED = ChangeHeaders("upsert")
Choice = Literal["ignore", "error"]
Fallback = Callable[[ChangeEvent, InvalidValue], Any]


class UnknownType(StateError):
    """An event has a type of no collection, and the policy is to stop."""


class StreamReset(StateError):
    """The stream was reset, and the policy is to stop (section 4.2, rule 4)."""


class Policies(Struct, frozen=True, kw_only=True):
    """How to treat events that cannot be applied.

    `"ignore"` skips the event with a warning, except that unknown types pass in silence: other
    readers of the stream need them. `"error"` stops at the batch that has it, and applies none of
    that batch.

    - `unknown_type`: no collection has the type of the event.
    - `missing_value`: an insert or update has no value (section 4.1, rule 2).
    - `invalid_value`: the value breaks the schema (section 7, rule 3). The entity keeps the value
      that it had. A function `(event, error) -> value` gives another one instead.
    - `malformed`: the message is not a State Event (section 4).
    - `reset`: `"clear"` forgets all entities (section 4.2, rule 4); `"ignore"` goes on with them.
    """

    unknown_type: Choice = "ignore"
    missing_value: Choice = "ignore"
    invalid_value: Choice | Fallback = "ignore"
    malformed: Choice = "ignore"
    reset: Literal["clear", "ignore", "error"] = "clear"


class Row(NamedTuple):
    """A row of a store: an entity and its value as JSON text."""

    type: str
    key: str
    text: bytes


class Step(Struct, gc=False):
    """One change to a table. `text` is the JSON of the value, None for a delete."""

    table: Table[Any]
    key: str
    value: Any
    text: bytes | None
    txid: str | None


class Plan(Struct):
    """What a batch does: first `clears`, then the steps.

    `events` counts its messages, `txids` the messages of each transaction.
    """

    events: int = 0
    clears: bool = False
    restarts: bool = False
    steps: list[Step] = []
    txids: dict[str, int] = {}
    in_snapshot: bool = False
    warnings: list[str] = []

    def warn(self, warning: str) -> None:
        """Note what the application should hear of, up to a limit."""
        if len(self.warnings) < _MAX_WARNINGS:
            self.warnings.append(warning)
        elif len(self.warnings) == _MAX_WARNINGS:
            self.warnings.append("further warnings about this batch are left out")


class Consumer:
    """The tables of a schema, changed batch by batch.

    `in_snapshot` is whether a snapshot has started that has not ended (section 4.2).
    """

    def __init__(self, schema: type[StateSchema], policies: Policies) -> None:
        self.schema = schema
        self.in_snapshot = False
        self.tables: dict[str, Table[Any]] = {
            name: Table(definition) for name, definition in schema.collections.items()
        }
        self._by_type = {table.type: table for table in self.tables.values()}
        self._policies = policies

    def table_of(self, type_: str) -> Table[Any] | None:
        """The table of a type of entities, if a collection has it."""
        return self._by_type.get(type_)

    def plan(self, array: bytes) -> Plan:
        """What the messages of a read do.

        Raises `InvalidEvent`, `InvalidValue`, `MissingValue`, `StreamReset` and `UnknownType` where
        that is the policy, and `ValueError` if it is not a JSON array.
        """
        events = decode_raw_batch(array)
        plan = Plan(len(events), in_snapshot=self.in_snapshot)
        steps, by_type = plan.steps, self._by_type
        for event in events:
            if type(event) is RawChangeEvent:
                txid = event.headers.txid
                if txid is not None:
                    plan.txids[txid] = plan.txids.get(txid, 0) + 1
                table = by_type.get(event.type)
                if table is None:
                    self._on_unknown_type(event)
                elif event.headers.operation == "delete":
                    steps.append(Step(table, event.key, ABSENT, None, txid))
                elif event.value is UNSET:
                    self._on_missing_value(event, plan)
                else:
                    key, text = event.key, bytes(event.value)
                    try:
                        value = table.definition.decode(key, text)
                    except InvalidValue as error:
                        value = self._on_invalid_value(event, text, error, plan)
                        if value is ABSENT:
                            continue
                    steps.append(Step(table, key, value, text, txid))
            elif isinstance(event, ControlEvent):
                self._plan_control(event, plan)
            else:
                assert isinstance(event, MalformedEvent), "there are three kinds"
                self._on_malformed(event, plan)
        return plan

    def _on_invalid_value(
        self, event: RawChangeEvent, text: bytes, error: InvalidValue, plan: Plan
    ) -> Any:
        policy = self._policies.invalid_value
        if policy == "error":
            raise error
        if callable(policy):
            plain = ChangeEvent(event.type, event.key, event.headers, plain_json(text))
            return policy(plain, error)
        plan.warn(f"{_named(event)} is ignored: {error}")
        return ABSENT

    def _on_unknown_type(self, event: ChangeEvent) -> None:
        if self._policies.unknown_type == "error":
            raise UnknownType(f"no collection has the type {event.type!r}")

    def _on_missing_value(self, event: ChangeEvent, plan: Plan) -> None:
        if self._policies.missing_value == "error":
            raise MissingValue(event)
        plan.warn(f"{_named(event)} is ignored: it has no value")

    def _on_malformed(self, event: MalformedEvent, plan: Plan) -> None:
        problem = f"{event.text.decode(errors='replace')}: {event.reason}"
        if self._policies.malformed == "error":
            raise InvalidEvent(problem)
        plan.warn(f"a message is ignored: {problem}")

    def _plan_control(self, event: ControlEvent, plan: Plan) -> None:
        kind = event.headers.control
        if kind == "reset":
            self._plan_reset(plan)
        elif kind == "snapshot-start":
            if plan.in_snapshot:
                plan.warn("snapshot-start inside a snapshot")
            plan.in_snapshot = True
        elif kind == "snapshot-end":
            if not plan.in_snapshot:
                plan.warn("snapshot-end without snapshot-start")
            plan.in_snapshot = False

    def _plan_reset(self, plan: Plan) -> None:
        if self._policies.reset == "error":
            raise StreamReset("the stream was reset")
        if self._policies.reset == "clear":
            plan.clears = True
            plan.steps.clear()

    def apply(self, plan: Plan) -> None:
        """Change the tables, and tell their observers."""
        if plan.clears:
            self.clear()
        for step in plan.steps:
            step.table.put(step.key, step.value, step.txid)
        self.in_snapshot = plan.in_snapshot

    def load(self, rows: Iterable[Row]) -> Plan:
        """Fill the tables with what a store has kept; returns the warnings about it.

        Raises `InvalidValue` where that is the policy, and `InvalidJson` for what no store kept.
        """
        plan = Plan()
        for type_, key, text in rows:
            table = self._by_type.get(type_)
            if table is not None:
                try:
                    value = table.definition.decode(key, text)
                except InvalidValue as error:
                    json_value(text)
                    event = RawChangeEvent(type_, key, _LOADED, msgspec.Raw(text))
                    value = self._on_invalid_value(event, text, error, plan)
                if value is not ABSENT:
                    table.put(key, value)
        return plan

    def clear(self) -> None:
        """Forget all rows."""
        for table in self.tables.values():
            table.clear()


def _named(event: ChangeEvent) -> str:
    return f"{event.headers.operation} of {event.type!r} {event.key!r}"
