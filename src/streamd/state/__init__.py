"""The State Protocol v0.1: state that a stream of changes amounts to.

A stream holds State Events as JSON messages: Change Events give an entity, named by its type and
key, a value or take it away, and Control Events say something about the stream. Applied in the
order of the stream they yield the same state everywhere.

From the wire to values:

- `events`: the two kinds of event, their decoding, and what to do with anything else;
- `materialized`: `MaterializedState`, the reference semantics over plain JSON values;
- `schemas`: one interface over msgspec, pydantic and JSON Schema;
- `definition`: the collections of a stream, which make the events that producers append and are the
  attributes of what has their rows;
- `tables`: the rows of a collection, with indexes and writes that are under way;
- `consumer`: what a batch of the stream does to the tables, by policies;
- `summary`: what a snapshot of a stream holds.

Everything here is pure: functions of their input, without I/O, clocks or waiting. None of it
imports the server; a test holds it to that.

What decides the state is the type, the key, the operation and the value. `old_value`, `txid` and
`timestamp` are advisory, so that an odd one never costs a change. Where the specification leaves a
decision to the implementation it is a policy that the caller sets.

Read on: docs/state.md for the guide, tests/state for each rule of the specification.
"""

from streamd.state.consumer import Policies, StreamReset, UnknownType
from streamd.state.definition import CollectionDefinition, StateSchema, collection
from streamd.state.events import (
    ChangeEvent,
    ChangeHeaders,
    ControlEvent,
    ControlHeaders,
    InvalidEvent,
    MalformedEvent,
    StateError,
    StateEvent,
    control,
    decode_batch,
    decode_event,
    encode_event,
    is_change_event,
    is_control_event,
)
from streamd.state.materialized import MaterializedState, MissingValue
from streamd.state.schemas import InvalidValue, Schema

__all__ = [
    "ChangeEvent",
    "ChangeHeaders",
    "CollectionDefinition",
    "ControlEvent",
    "ControlHeaders",
    "InvalidEvent",
    "InvalidValue",
    "MalformedEvent",
    "MaterializedState",
    "MissingValue",
    "Policies",
    "Schema",
    "StateError",
    "StateEvent",
    "StateSchema",
    "StreamReset",
    "UnknownType",
    "collection",
    "control",
    "decode_batch",
    "decode_event",
    "encode_event",
    "is_change_event",
    "is_control_event",
]
