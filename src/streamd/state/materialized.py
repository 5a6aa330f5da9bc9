"""`MaterializedState`: the state that a sequence of Change Events amounts to (sections 5 and 6)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypeVar

from msgspec import UNSET

from streamd.state.definition import CollectionDefinition, StateSchema
from streamd.state.events import ChangeEvent, StateError

T = TypeVar("T")

MissingValuePolicy = Literal["ignore", "error"]


class MissingValue(StateError):
    """An event of another operation than delete has no value."""

    def __init__(self, event: ChangeEvent) -> None:
        operation = event.headers.operation
        super().__init__(f"the {operation} of {event.type!r} {event.key!r} has no value")


class MaterializedState(StateSchema):
    """The values of all entities, by type and key, of any number of types.

    A subclass may list collections. Their rows are attributes of it, as valid values by key, beside
    what `get` and `get_type` return of all types: the JSON text of the message. A row is checked
    when it is read, which raises `InvalidValue` if it breaks the schema.

    It takes Change Events only: what a Control Event means is the business of the application
    (section 6). With `missing_value="ignore"` an insert or update without a value changes nothing;
    with `"error"` it raises `MissingValue` (section 4.1, rule 2).

    >>> from streamd.state import collection, decode_batch
    >>> state = MaterializedState()
    >>> state.apply_batch(decode_batch(
    ...     b'[{"type":"user","key":"1","value":{"name":"Ann"},"headers":{"operation":"insert"}},'
    ...     b' {"type":"user","key":"1","value":{"name":"Eve"},"headers":{"operation":"update"}}]'
    ... ))
    >>> state.get("user", "1")
    {'name': 'Eve'}
    >>> dict(state.get_type("user"))
    {'1': {'name': 'Eve'}}
    >>> class Chat(MaterializedState):
    ...     users = collection(dict[str, str], type="user", key="id")
    >>> chat = Chat()
    >>> chat.apply(Chat.users.insert({"id": "1", "name": "Ann"}))
    >>> chat.users["1"]
    {'id': '1', 'name': 'Ann'}
    """

    def __init__(self, *, missing_value: MissingValuePolicy = "ignore") -> None:
        self._rows: dict[str, dict[str, Any]] = {}
        self._fails = missing_value == "error"

    def apply(self, event: ChangeEvent) -> None:
        """Apply one event (section 5.2). Raises `MissingValue` if that is the policy."""
        self.apply_batch((event,))

    def apply_batch(self, events: Iterable[ChangeEvent]) -> None:
        """Apply events one after the other (section 6, rule 2).

        Raises `MissingValue` if that is the policy; the events before that one are applied.
        """
        rows = self._rows
        for event in events:
            if event.headers.operation == "delete":
                self._delete(event.type, event.key)
            elif event.value is UNSET:
                if self._fails:
                    raise MissingValue(event)
            else:
                try:
                    rows[event.type][event.key] = event.value
                except KeyError:
                    rows[event.type] = {event.key: event.value}

    def _delete(self, type_: str, key: str) -> None:
        of_type = self._rows.get(type_)
        if of_type is not None:
            of_type.pop(key, None)
            if not of_type:
                del self._rows[type_]

    def get(self, type_: str, key: str, default: Any = None) -> Any:
        """The value of an entity, or `default` if it has none."""
        return self._rows.get(type_, _NONE).get(key, default)

    def get_type(self, type_: str) -> Mapping[str, Any]:
        """The values of all entities of a type, by key: a view that follows later changes."""
        return _TypeView(self._rows, type_)

    def _rows_of(self, definition: CollectionDefinition[T]) -> Mapping[str, T]:
        return _CollectionView(self.get_type(definition.type), definition)

    @property
    def types(self) -> list[str]:
        """The types that have entities."""
        return list(self._rows)

    def clear(self) -> None:
        """Forget all values, as for `reset` (section 4.2, rule 4)."""
        self._rows.clear()


_NONE: dict[str, Any] = {}


class _TypeView(Mapping[str, Any]):
    """What a state holds of one type at any time; the type may come and go."""

    __slots__ = ("_rows", "_type")

    def __init__(self, rows: dict[str, dict[str, Any]], type_: str) -> None:
        self._rows = rows
        self._type = type_

    def __getitem__(self, key: str) -> Any:
        return self._rows.get(self._type, _NONE)[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows.get(self._type, _NONE))

    def __len__(self) -> int:
        return len(self._rows.get(self._type, _NONE))

    def __repr__(self) -> str:
        return repr(self._rows.get(self._type, _NONE))


class _CollectionView(Mapping[str, T]):
    """The rows of a collection: the values of its type, each checked when it is read."""

    __slots__ = ("_definition", "_values")

    def __init__(self, values: Mapping[str, Any], definition: CollectionDefinition[T]) -> None:
        self._values = values
        self._definition = definition

    def __getitem__(self, key: str) -> T:
        return self._definition.convert(key, self._values[key])

    def __contains__(self, key: object) -> bool:
        return key in self._values

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"<{len(self)} rows of {self._definition.type!r}>"
