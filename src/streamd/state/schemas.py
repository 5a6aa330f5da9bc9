"""Schemas of values: one interface over msgspec, pydantic and JSON Schema (section 7).

It is what Standard Schema is in TypeScript: the State Protocol needs to know whether a value is
valid and what it becomes, not which library says so. `schema_of` picks by what it is given:

- a JSON Schema as a dict, with values as plain JSON (needs the package `jsonschema-rs`);
- a pydantic model or `TypeAdapter`, by its methods: pydantic is not imported here;
- an object with the methods of `Schema`, such as one of the application;
- any type that msgspec knows: Struct, dataclass, TypedDict, `dict[str, int]`, `Any`, …
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

import msgspec

from streamd.state.events import StateError
from streamd.streams.content import UNDECODABLE

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class InvalidValue(StateError):
    """A value does not conform to the schema of its type."""


@runtime_checkable
class Schema(Protocol[T_co]):
    """How values of a type are checked. Both methods raise `InvalidValue` or `ValueError`."""

    def validate(self, value: Any) -> T_co:
        """What a value of plain JSON becomes."""
        ...

    def to_json(self, value: Any) -> Any:
        """The valid value as plain JSON: from an object of the type, or from plain JSON."""
        ...


class MsgspecSchema:
    """Values of a type that msgspec knows. `decode` is a short way from text to value."""

    def __init__(self, type_: Any) -> None:
        self._type = type_
        self._decoder = msgspec.json.Decoder(type_)

    def validate(self, value: Any) -> Any:
        return msgspec.convert(value, self._type)

    def to_json(self, value: Any) -> Any:
        plain = msgspec.to_builtins(value, str_keys=True)
        self.validate(plain)  # A Struct does not check what it is made from.
        return plain

    def decode(self, text: bytes) -> Any:
        return self._decoder.decode(text)

    def attribute(self, field: str) -> str | None:
        """The attribute that holds a field of JSON; None if values are not Structs with it."""
        try:
            found = msgspec.structs.fields(self._type)
        except TypeError:
            return None
        return next((each.name for each in found if each.encode_name == field), None)


class _PydanticSchema:
    """Values of a pydantic model, or of a TypeAdapter."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._check = getattr(model, "model_validate", None) or model.validate_python

    def validate(self, value: Any) -> Any:
        return self._check(value)

    def to_json(self, value: Any) -> Any:
        checked = self._check(value)
        if hasattr(self._model, "dump_python"):
            return self._model.dump_python(checked, mode="json", by_alias=True)
        # A model's instance is taken as it is: what was assigned to it since is checked here.
        plain = checked.model_dump(mode="json", by_alias=True)
        self._check(plain)
        return plain


class _JsonSchema:
    """Plain JSON that conforms to a JSON Schema, of the draft that its `$schema` names."""

    def __init__(self, schema: dict[str, Any]) -> None:
        try:
            import jsonschema_rs
        except ImportError as error:
            raise ImportError("JSON Schema needs: pip install jsonschema-rs") from error
        self._validator = jsonschema_rs.validator_for(schema)

    def validate(self, value: Any) -> Any:
        self._validator.validate(value)
        return value

    def to_json(self, value: Any) -> Any:
        return self.validate(msgspec.to_builtins(value, str_keys=True))


def schema_of(given: Any) -> Schema[Any]:
    """The schema that `given` describes. Raises `ImportError`, `TypeError`, `ValueError`.

    >>> schema_of({"type": "integer"}).validate(5)
    5
    >>> schema_of(dict[str, int]).to_json({"a": 1})
    {'a': 1}
    """
    if isinstance(given, dict):
        return _JsonSchema(given)
    if hasattr(given, "model_validate") or hasattr(given, "validate_python"):
        return _PydanticSchema(given)
    if isinstance(given, Schema) and not isinstance(given, type):
        return given
    return MsgspecSchema(given)


def checked(check: Callable[[Any], T], value: Any) -> T:
    """What the check returns, with its errors as `InvalidValue`."""
    try:
        return check(value)
    except InvalidValue:
        raise
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidValue(str(error)) from error


def plain_json(text: bytes) -> Any:
    """A JSON text as plain values, with the lone surrogates that JavaScript writes."""
    try:
        return msgspec.json.decode(text)
    except UNDECODABLE:
        return cast("Any", json.loads(text))
