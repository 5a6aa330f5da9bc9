"""One interface over msgspec, pydantic, JSON Schema and schemas of the application."""

from __future__ import annotations

import dataclasses
import datetime
import subprocess
import sys
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest

from streamd.state import InvalidEvent, InvalidValue, MaterializedState, StateSchema, collection
from streamd.state.definition import CollectionDefinition

PLAIN = {"id": "1", "name": "Ann"}
USER_SCHEMA = {
    "type": "object",
    "properties": {"id": {"type": "string"}, "name": {"type": "string"}},
    "required": ["id", "name"],
}


class UserStruct(msgspec.Struct):
    id: str
    name: str


@dataclasses.dataclass
class UserDataclass:
    id: str
    name: str


class UserDict(TypedDict):
    id: str
    name: str


class UserModel(pydantic.BaseModel):
    id: str
    name: str


class Upper:
    """A schema of an application."""

    def validate(self, value: Any) -> Any:
        if not isinstance(value.get("name"), str):
            raise ValueError("no name")
        return {**value, "name": value["name"].upper()}

    def to_json(self, value: Any) -> Any:
        self.validate(value)
        return value


USERS = {
    "struct": (UserStruct, UserStruct(**PLAIN)),
    "dataclass": (UserDataclass, UserDataclass(**PLAIN)),
    "typed dict": (UserDict, PLAIN),
    "pydantic": (UserModel, UserModel(**PLAIN)),
    "pydantic adapter": (pydantic.TypeAdapter(UserModel), UserModel(**PLAIN)),
    "json schema": (USER_SCHEMA, PLAIN),
    "application": (Upper(), {"id": "1", "name": "ANN"}),
}


@pytest.fixture(name="users", params=USERS)
def _users(request: pytest.FixtureRequest) -> CollectionDefinition[Any]:
    return collection(USERS[request.param][0], type="user", key="id")


@pytest.fixture(name="ann")
def _ann(request: pytest.FixtureRequest, users: Any) -> Any:
    return USERS[request.node.callspec.params["users"]][1]


def test_values_are_of_the_schemas_type(users: CollectionDefinition[Any], ann: Any) -> None:
    assert users.decode("1", b'{"id":"1","name":"Ann"}') == ann


def test_events_are_made_from_objects_of_the_type(
    users: CollectionDefinition[Any], ann: Any
) -> None:
    event = users.insert(ann)
    assert (event.type, event.key, event.value["name"].title()) == ("user", "1", "Ann")
    assert users.decode(event.key, msgspec.json.encode(event.value)) == ann


def test_events_are_made_from_plain_json(users: CollectionDefinition[Any]) -> None:
    assert users.insert(PLAIN).value == PLAIN


@pytest.mark.parametrize("value", [{"id": "1"}, {"id": "1", "name": 5}])
def test_what_the_schema_refuses_is_neither_made_nor_read(
    users: CollectionDefinition[Any], value: Any
) -> None:
    with pytest.raises(InvalidValue):
        users.insert(value)
    with pytest.raises(InvalidValue):
        users.decode("1", msgspec.json.encode(value))


def test_a_value_gets_its_key_from_the_event(users: CollectionDefinition[Any], ann: Any) -> None:
    """As in `@durable-streams/state`, which lets producers leave the key out of the value."""
    assert users.decode("1", b'{"name":"Ann"}') == ann
    assert users.decode("1", b'{"id":"other","name":"Ann"}') == ann


def test_a_value_with_a_lone_surrogate_is_decoded(users: CollectionDefinition[Any]) -> None:
    try:
        value = users.decode("1", b'{"id":"1","name":"a\\ud83d"}')
    except InvalidValue:  # pydantic's texts are UTF-8
        assert "pydantic" in type(users._schema).__name__.lower()
    else:
        name = value["name"] if isinstance(value, dict) else value.name
        assert name.lower() == "a\ud83d"


def test_a_model_that_was_changed_since_it_was_checked_is_checked_again() -> None:
    users = collection(UserModel, type="user", key="id")
    ann = UserModel(id="1", name="Ann")
    ann.name = 5  # type: ignore[assignment]
    with pytest.raises(InvalidValue), pytest.warns(UserWarning, match="serialized"):
        users.insert(ann)


def test_fields_go_by_their_names_in_json() -> None:
    class Renamed(msgspec.Struct, rename="camel"):
        user_id: str
        born: datetime.date

    people = collection(Renamed, type="person", key="userId")
    ann = Renamed("1", datetime.date(1990, 1, 2))
    event = people.insert(ann)
    assert (event.key, event.value) == ("1", {"userId": "1", "born": "1990-01-02"})
    assert people.decode("1", b'{"userId":"1","born":"1990-01-02"}') == ann
    assert people.decode("1", b'{"born":"1990-01-02"}') == ann


def test_a_number_can_be_the_key() -> None:
    class Row(msgspec.Struct):
        number: int

    rows = collection(Row, type="row", key="number")
    assert rows.insert(Row(5)).key == "5"
    assert rows.decode("5", b'{"number":5}') == Row(5)


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ({"id": "", "name": ""}, None),
        ({"name": "Ann"}, None),
        ({"id": True, "name": "Ann"}, None),
        ({"id": None, "name": "Ann"}, None),
        ({"id": "1", "name": "Ann"}, ""),
        ({"id": "1", "name": "Ann"}, "2"),
    ],
)
def test_an_event_needs_a_key_that_agrees_with_the_value(value: Any, key: str | None) -> None:
    users = collection(dict[str, Any], type="user", key="id")
    with pytest.raises(InvalidEvent):
        users.insert(value, key=key)


def test_a_collection_without_a_key_field_takes_any_value() -> None:
    flags = collection(type="flag")
    assert flags.insert(True, key="new").value is True
    assert flags.decode("new", b'{"id":"other"}') == {"id": "other"}
    assert flags.decode("new", b'"a\\ud83d"') == "a\ud83d"
    with pytest.raises(InvalidEvent, match="no key of 'flag' is given"):
        flags.insert(True)
    with pytest.raises(InvalidEvent, match="no key of 'flag' is given"):
        flags.delete()
    with pytest.raises(InvalidEvent, match="a txid is not empty"):
        flags.delete("new", txid="")


def test_a_collection_needs_a_type() -> None:
    with pytest.raises(ValueError, match="a type is not empty"):
        collection(type="")


@pytest.mark.parametrize("base", [StateSchema, MaterializedState])
@pytest.mark.parametrize("name", ["version", "collections", "_users"])
def test_a_collection_cannot_hide_what_its_base_has(base: type[StateSchema], name: str) -> None:
    with pytest.raises(ValueError, match="reserved"):
        type("Hidden", (base,), {name: collection(type="user")})


def test_a_schema_extends_others() -> None:
    class Base(StateSchema):
        users = collection(type="user")

    class More(Base):
        flags = collection(type="flag")

    class Other(StateSchema):
        notes = collection(type="note")

    class All(MaterializedState, Other, More):
        users = collection(type="person")

    assert list(Base.collections) == ["users"]
    assert list(More.collections) == ["users", "flags"]
    assert set(All.collections) == {"users", "flags", "notes"}
    assert All.collections["users"] is All.users
    with pytest.raises(ValueError, match="reserved name 'users'"):
        type("Without", (Base,), {"users": None})


def test_json_schema_needs_its_extra_and_nothing_else_does(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
    with pytest.raises(ImportError, match="pip install jsonschema-rs"):
        collection(USER_SCHEMA, type="user")


def test_the_library_loads_no_part_of_the_server() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", "import sys, streamd.state; print(*sorted(sys.modules))"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    parts = {name.split(".")[1] for name in loaded if name.startswith("streamd.")}
    assert parts <= {"state", "streams"}
    assert not {"trio", "anyio", "httpx", "pydantic", "jsonschema_rs"} & set(loaded)


def test_an_own_event_can_be_applied_at_once() -> None:
    state = MaterializedState()
    state.apply(collection(UserStruct, type="user", key="id").insert(UserStruct("1", "Ann")))
    assert state.get("user", "1") == PLAIN


class Chat(MaterializedState):
    users = collection(UserStruct, type="user", key="id")
    flags = collection(type="flag")


def test_a_materialized_state_has_the_rows_of_its_collections() -> None:
    chat = Chat()
    users = chat.users
    chat.apply_batch([Chat.users.insert(UserStruct("1", "Ann")), Chat.flags.insert(1, key="new")])
    assert (dict(users), dict(chat.flags)) == ({"1": UserStruct("1", "Ann")}, {"new": 1})
    assert (users.get("2"), "1" in users, "2" in users) == (None, True, False)
    assert (len(users), repr(users)) == (1, "<1 rows of 'user'>")
    chat.apply(Chat.users.delete("1"))
    assert (dict(users), dict(chat.flags)) == ({}, {"new": 1})
    with pytest.raises(AttributeError, match="no attribute 'userz'"):
        _ = chat.userz  # type: ignore[attr-defined]


def test_a_row_of_a_materialized_state_is_checked_when_it_is_read() -> None:
    chat = Chat()
    chat.apply(collection(type="user").insert({"name": "Ann"}, key="1"))
    chat.apply(collection(type="user").insert({"name": 5}, key="2"))
    assert chat.users["1"] == UserStruct("1", "Ann")
    assert chat.get("user", "1") == {"name": "Ann"}
    assert "2" in chat.users
    with pytest.raises(InvalidValue):
        chat.users["2"]


def test_an_invalid_value_of_a_schema_of_an_application_arrives_as_it_was_raised() -> None:
    """It may be of a subclass that the application knows."""

    class TooYoung(InvalidValue):
        pass

    class Adult(Upper):
        def validate(self, value: Any) -> Any:
            raise TooYoung("a child")

    with pytest.raises(TooYoung, match="a child"):
        collection(Adult(), type="user", key="id").decode("1", b'{"id":"1","name":"Ann"}')
