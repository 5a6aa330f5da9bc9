"""What a stream holds: collections, each with a type and a schema (section 7).

    class Chat(StreamDB):
        users = collection(User, type="user", key="id")
        messages = collection(Message, type="message", key="id", indexes=["user_id"])

The class has the definitions, which make the events that a producer appends:
`Chat.users.insert(User("1", "Ann"))`. An object of it has the rows: `chat.users["1"]`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar, overload

from msgspec import UNSET, UnsetType

from streamd.state.events import ChangeEvent, ChangeHeaders, InvalidEvent, Operation
from streamd.state.schemas import InvalidValue, MsgspecSchema, checked, plain_json, schema_of
from streamd.streams.content import UNDECODABLE

T = TypeVar("T")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class _Holder(Protocol[T, R_co]):
    """What has rows. Each kind has its own sort of rows, which type checkers learn from this."""

    def _rows_of(self, definition: CollectionDefinition[T], /) -> R_co: ...


class CollectionDefinition(Generic[T]):
    """The entities of one type: what their values are, and where their key is.

    `key` is the field of the value that repeats the key of the entity. When values are read, the
    key of the event wins, as it does in `@durable-streams/state`; so producers may leave the field
    out. Without `key`, values are kept unchanged, and events are made with an explicit key.
    `indexes` are fields by which rows are found quickly.

    As an attribute of a class it is itself, of an object the rows that this holds.
    """

    def __init__(self, schema: Any, type_: str, key: str | None, indexes: Sequence[str]) -> None:
        if not type_:
            raise ValueError("a type is not empty")
        self.type = type_
        self.key = key
        self.indexes = tuple(indexes)
        self._schema = schema_of(schema)
        self._decode = getattr(self._schema, "decode", None)
        self._key_attribute: str | None = None
        if key is not None and isinstance(self._schema, MsgspecSchema):
            self._key_attribute = self._schema.attribute(key)

    @overload
    def __get__(self, instance: None, owner: type[StateSchema]) -> Self: ...
    @overload
    def __get__(self, instance: _Holder[T, R], owner: type[StateSchema]) -> R: ...
    def __get__(self, instance: Any, owner: type[StateSchema]) -> Any:
        return self if instance is None else instance._rows_of(self)

    def insert(
        self,
        value: T,
        *,
        key: str | None = None,
        txid: str | None = None,
        timestamp: str | None = None,
    ) -> ChangeEvent:
        """An entity begins to exist. Raises `InvalidValue`, `InvalidEvent`."""
        return self._event("insert", value, key, txid, timestamp)

    def update(
        self,
        value: T,
        *,
        key: str | None = None,
        old_value: T | UnsetType = UNSET,
        txid: str | None = None,
        timestamp: str | None = None,
    ) -> ChangeEvent:
        """An entity gets another value, `old_value` being advisory.

        Raises `InvalidValue`, `InvalidEvent`.
        """
        event = self._event("update", value, key, txid, timestamp)
        if old_value is not UNSET:
            event.old_value = self._plain(old_value)
        return event

    def upsert(
        self,
        value: T,
        *,
        key: str | None = None,
        txid: str | None = None,
        timestamp: str | None = None,
    ) -> ChangeEvent:
        """An entity has this value from now on. Raises `InvalidValue`, `InvalidEvent`.

        The operation is an extension of `@durable-streams/state`: consumers that follow the
        specification to the letter do not know it, and `insert` or `update` serve as well.
        """
        return self._event("upsert", value, key, txid, timestamp)

    def delete(
        self,
        key: str | None = None,
        *,
        old_value: T | UnsetType = UNSET,
        txid: str | None = None,
        timestamp: str | None = None,
    ) -> ChangeEvent:
        """An entity ceases to exist; the key may come from its `old_value`.

        Raises `InvalidValue`, `InvalidEvent`.
        """
        old = UNSET if old_value is UNSET else self._plain(old_value)
        found = self._key(key, None if old is UNSET else old)
        headers = _headers("delete", txid, timestamp)
        return ChangeEvent(self.type, found, headers, old_value=old)

    def decode(self, key: str, text: bytes) -> T:
        """The value of an entity from its JSON text. Raises `InvalidValue`."""
        decode, attribute = self._decode, self._key_attribute
        if decode is not None and (self.key is None or attribute is not None):
            try:
                value = decode(text)
                if attribute is None or str(getattr(value, attribute)) == key:
                    return value  # type: ignore[no-any-return]
            except UNDECODABLE:
                pass  # The key may be missing in it, or a surrogate be alone.
        return self.convert(key, checked(plain_json, text))

    def convert(self, key: str, plain: Any) -> T:
        """The value of an entity from plain JSON, which is not changed. Raises `InvalidValue`."""
        if self.key is not None:
            if not isinstance(plain, dict):
                raise InvalidValue(f"a value of {self.type!r} is an object, not {plain!r}")
            if str(plain.get(self.key)) != key:
                plain = {**plain, self.key: key}
        return checked(self._schema.validate, plain)  # type: ignore[no-any-return]

    def _event(
        self,
        operation: Operation,
        value: Any,
        key: str | None,
        txid: str | None,
        timestamp: str | None,
    ) -> ChangeEvent:
        plain = self._plain(value)
        found = self._key(key, plain)
        return ChangeEvent(self.type, found, _headers(operation, txid, timestamp), plain)

    def _plain(self, value: Any) -> Any:
        return checked(self._schema.to_json, value)

    def _key(self, key: str | None, plain: Any) -> str:
        """The key that is given, or else the one in the value."""
        held = plain.get(self.key) if isinstance(plain, dict) and self.key is not None else None
        if key is None and isinstance(held, str | int) and not isinstance(held, bool):
            key = str(held)
        if not key:
            where = "" if self.key is None else f", nor has the value a {self.key!r}"
            raise InvalidEvent(f"no key of {self.type!r} is given{where}")
        if held is not None and str(held) != key:
            raise InvalidEvent(f"the key is {key!r}, but the value's {self.key!r} is {held!r}")
        return key


@overload
def collection(
    schema: type[T],
    *,
    type: str,
    key: str | None = None,
    indexes: Sequence[str] = (),
) -> CollectionDefinition[T]:
    """Values of this type."""


@overload
def collection(
    schema: Any = ...,
    *,
    type: str,
    key: str | None = None,
    indexes: Sequence[str] = (),
) -> CollectionDefinition[Any]:
    """Values of any other schema, or any JSON."""


def collection(
    schema: Any = Any,
    *,
    type: str,  # noqa: A002  (the protocol's word)
    key: str | None = None,
    indexes: Sequence[str] = (),
) -> CollectionDefinition[Any]:
    """A collection of a `StateSchema`; see `CollectionDefinition` and `schema_of`.

    Without a schema, values are any JSON.

    Raises `ImportError`, `TypeError`, `ValueError`.
    """
    return CollectionDefinition(schema, type, key, indexes)


class StateSchema:
    """The collections of a stream, as attributes of a subclass.

    What follows a stream or takes in its events is a subclass as well, and an object of it has the
    rows: see `StreamDB` and `MaterializedState`. A class of this base has definitions only. It is
    for programs that append and do not read, and for collections that several classes have:
    `class Live(Chat, StreamDB)`.

    Raise `version` when a schema changes so that stored values no longer fit: local copies are
    then rebuilt from the stream (section 7, *Schema evolution*).

    >>> class Settings(StateSchema):
    ...     flags = collection(dict[str, bool], type="flag")
    >>> Settings.flags.insert({"on": True}, key="new-editor", txid="t1").headers
    ChangeHeaders(operation='insert', txid='t1', timestamp=None)
    """

    version: ClassVar[int] = 1
    collections: ClassVar[dict[str, CollectionDefinition[Any]]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        found: dict[str, CollectionDefinition[Any]] = {}
        reserved: set[str] = set()
        for base in reversed(cls.__mro__):
            for name, each in vars(base).items():
                if isinstance(each, CollectionDefinition):
                    found[name] = each
                else:
                    reserved.add(name)
        names: dict[str, str] = {}
        for name, definition in found.items():
            if name.startswith("_") or name in reserved:
                raise ValueError(f"a collection cannot have the reserved name {name!r}")
            if definition.type in names:
                other = names[definition.type]
                raise ValueError(f"{other!r} and {name!r} both have the type {definition.type!r}")
            names[definition.type] = name
        cls.collections = found


def _headers(operation: Operation, txid: str | None, timestamp: str | None) -> ChangeHeaders:
    if txid == "":
        raise InvalidEvent("a txid is not empty")
    return ChangeHeaders(operation, txid, timestamp)
