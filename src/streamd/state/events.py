"""State Events: what a stream of the State Protocol holds (section 4).

An event on the wire is a JSON object. What it is depends on its headers: `operation` makes it a
Change Event, `control` a Control Event. JSON that is neither decodes to `MalformedEvent`, so that
one bad message does not hide the good ones next to it.
"""

from __future__ import annotations

import json
from typing import Any, Literal, TypeGuard

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from streamd.streams.content import UNDECODABLE, json_elements

Operation = Literal["insert", "update", "upsert", "delete"]
Control = Literal["up-to-date", "snapshot-start", "snapshot-end", "reset"]


class StateError(Exception):
    """Any refusal of `streamd.state`."""


class InvalidEvent(StateError):
    """A message is not a State Event."""


class ChangeHeaders(Struct, frozen=True, omit_defaults=True, gc=False):
    """What happened. `txid` and `timestamp` are advisory (section 4.1, rule 6)."""

    operation: Operation
    txid: str | None = None
    timestamp: str | None = None


class ChangeEvent(Struct, gc=False):
    """The entity `key` of a type got a value, or lost it (section 4.1).

    `value` and `old_value` are `msgspec.UNSET` if the event has none: JSON null is a value.
    """

    type: str
    key: str
    headers: ChangeHeaders
    value: Any = UNSET
    old_value: Any = UNSET


class RawChangeEvent(ChangeEvent, gc=False):
    """A Change Event whose value is still JSON text, for consumers that decode it by its type."""

    value: Raw | UnsetType = UNSET
    old_value: Raw | UnsetType = UNSET


class ControlHeaders(Struct, frozen=True, omit_defaults=True, gc=False):
    """What the stream says about itself; `offset` is informative."""

    control: Control
    offset: str | None = None


class ControlEvent(Struct, frozen=True, gc=False):
    """A statement about the stream, which changes no entity (section 4.2)."""

    headers: ControlHeaders


class MalformedEvent(Struct, frozen=True, gc=False):
    """A message that is not a State Event: its JSON text, and what is wrong with it."""

    text: bytes
    reason: str


StateEvent = ChangeEvent | ControlEvent


def is_change_event(event: object) -> TypeGuard[ChangeEvent]:
    """Whether it is a Change Event (section 4.2, *Discriminant*)."""
    return isinstance(event, ChangeEvent)


def is_control_event(event: object) -> TypeGuard[ControlEvent]:
    """Whether it is a Control Event (section 4.2, *Discriminant*)."""
    return isinstance(event, ControlEvent)


def control(kind: Control, *, offset: str | None = None) -> ControlEvent:
    """Make a Control Event.

    >>> encode_event(control("reset"))
    b'{"headers":{"control":"reset"}}'
    """
    return ControlEvent(ControlHeaders(kind, offset))


class _Kind(Struct):
    """The fields that show which kind of event an object is."""

    operation: Any = UNSET
    control: Any = UNSET


class _Envelope(Struct):
    headers: _Kind


class _RawValue(Struct):
    value: Raw | UnsetType = UNSET


_RAW_VALUE = msgspec.json.Decoder(_RawValue)
_ENCODER = msgspec.json.Encoder()
_CHANGES = msgspec.json.Decoder(list[ChangeEvent])
_RAW_CHANGES = msgspec.json.Decoder(list[RawChangeEvent])
_CHANGE = msgspec.json.Decoder(ChangeEvent)
_RAW_CHANGE = msgspec.json.Decoder(RawChangeEvent)
_MAX_SHOWN_BYTES = 200


def encode_event(event: StateEvent) -> bytes:
    """The event as JSON."""
    return json_text(event)


def json_text(value: Any) -> bytes:
    """The JSON text of a value, with lone surrogates as JavaScript writes them."""
    try:
        return _ENCODER.encode(value)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(value)).encode()


def decode_event(text: bytes | str) -> StateEvent:
    """The event that a JSON text is. Raises `InvalidEvent`.

    >>> decode_event('{"type":"user","key":"1","value":"Ann","headers":{"operation":"insert"}}').key
    '1'
    """
    event: ChangeEvent | ControlEvent | MalformedEvent
    event = _decode(text.encode() if isinstance(text, str) else text, _CHANGE)
    if isinstance(event, MalformedEvent):
        raise InvalidEvent(event.reason)
    return event


def decode_batch(array: bytes) -> list[ChangeEvent | ControlEvent | MalformedEvent]:
    """The events of a JSON array, such as the body of a read, in their order.

    Raises `ValueError` if it is not a JSON array.
    """
    return _decode_batch(array, _CHANGES, _CHANGE)


def decode_raw_batch(array: bytes) -> list[RawChangeEvent | ControlEvent | MalformedEvent]:
    """Decode like `decode_batch`, but leave the values as JSON text."""
    return _decode_batch(array, _RAW_CHANGES, _RAW_CHANGE)


def _decode_batch(array: bytes, changes: Any, change: Any) -> list[Any]:
    # Most batches hold Change Events only, and decode in one call. An event that has both headers
    # is a Change Event, as it is to `@durable-streams/state`.
    try:
        return changes.decode(array)  # type: ignore[no-any-return]
    except UNDECODABLE:
        return [_decode(text, change) for text in json_elements(array)]


def _decode(text: bytes, change: Any) -> Any:
    try:
        return change.decode(text)
    except UNDECODABLE:
        return _decode_slowly(text, raw=change is _RAW_CHANGE)


def _decode_slowly(text: bytes, *, raw: bool) -> Any:
    """Decode what is rare: control events, odd advisory fields, lone surrogates in values."""
    try:
        found = json.loads(text)
        headers = msgspec.convert(found, _Envelope).headers
        if headers.operation is not UNSET:
            return _change(found, text if raw else None)
        if headers.control is not UNSET:
            return msgspec.convert(found, ControlEvent)
    except (ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
        return _malformed(text, str(error))
    return _malformed(text, "the headers have neither operation nor control")


def _change(found: dict[str, Any], raw: bytes | None) -> ChangeEvent:
    # Advisory fields decide nothing (section 4.1, rule 6): those of another type are dropped.
    headers = {
        name: value
        for name, value in found["headers"].items()
        if name == "operation" or isinstance(value, str)
    }
    event = msgspec.convert({**found, "headers": headers}, ChangeEvent)
    event.type.encode()  # Raises for a lone surrogate, which no index or database could hold.
    event.key.encode()
    if raw is None:
        return event
    return RawChangeEvent(event.type, event.key, event.headers, _raw_value(raw, event.value))


def _raw_value(text: bytes, value: Any) -> Raw | UnsetType:
    """The value's bytes from the message, or encoded as JSON: `1e999` is JSON, and `Infinity` is
    not.

    Raises `ValueError`.
    """
    try:
        return _RAW_VALUE.decode(text).value
    except UNDECODABLE:
        return UNSET if value is UNSET else Raw(json.dumps(value, allow_nan=False).encode())


def _malformed(text: bytes, reason: str) -> MalformedEvent:
    return MalformedEvent(text[:_MAX_SHOWN_BYTES], reason)
