"""Type checkers know the collections of a user's program, without a plugin."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.type_checking import type_errors

PROGRAM = """
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, assert_type

from msgspec import Struct
from streamd.client import AsyncClient
from streamd.state import (
    ChangeEvent, CollectionDefinition, MaterializedState, StateSchema, collection,
)
from streamd.state.db import Collection, Feed, SQLite, StreamDB


class User(Struct):
    id: str
    team: str


@dataclass
class Message:
    text: str


class Chat(StreamDB):
    users = collection(User, type="user", key="id", indexes=["team"])
    messages = collection(Message, type="message")
    counts = collection(dict[str, int], type="count")
    flags = collection(type="flag")


    def reds(self) -> list[User]:
        return self.users.where(team="red")


class More(Chat):
    version = 2
    notes = collection(str, type="note")


class Shared(StateSchema):
    users = collection(User, type="user", key="id")


class SharedDB(Shared, StreamDB):
    pass


class SharedState(Shared, MaterializedState):
    pass


assert_type(Chat.users, CollectionDefinition[User])
assert_type(Chat.users.insert(User("1", "red")), ChangeEvent)
assert_type(Shared.users, CollectionDefinition[User])


async def follow(client: AsyncClient) -> None:
    async with Chat(client.stream("chats/1"), store=SQLite("state.db")) as db:
        assert_type(db, Chat)
        assert_type(db.users, Collection[User])
        assert_type(db.users["1"], User)
        assert_type(db.users.get("1"), User | None)
        assert_type(db.users.where(lambda user: user.team < "b", team="red"), list[User])
        assert_type(db.users.changes(), Feed[User])
        async for change in db.users.changes():
            assert_type(change.value, User | None)
        assert_type(await db.users.insert(User("1", "red")), str)
        assert_type(await db.write(Chat.users.delete("1")), str)
        assert_type(db.messages["1"].text, str)
        assert_type(db.counts["1"], dict[str, int])
        assert_type(db.flags, Collection[Any])
        rows: Mapping[str, User] = db.users
        objects: Mapping[str, object] = db.users
    more = More(client.stream("chats/1"))
    await more.preload()
    assert_type(more.users, Collection[User])
    assert_type(more.notes["1"], str)
    assert_type(SharedDB(client.stream("chats/1")).users, Collection[User])


def materialize() -> None:
    state = SharedState(missing_value="error")
    assert_type(state.users, Mapping[str, User])
    assert_type(state.users.get("1"), User | None)
    assert_type(state.get("user", "1"), Any)
"""
MISTAKES = """
async def mistakes(db: Chat, state: SharedState) -> None:
    db.userz  # type: ignore[attr-defined]
    Chat.userz  # type: ignore[attr-defined]
    state.userz  # type: ignore[attr-defined]
    db.users["1"].names  # type: ignore[attr-defined]
    db.users["1"] = User("1", "red")  # type: ignore[index]
    db.users = 5  # type: ignore[assignment]
    await db.users.insert(Message("hello"))  # type: ignore[arg-type]
    Chat.users.insert(Message("hello"))  # type: ignore[arg-type]
    Shared().users  # type: ignore[call-overload]


class Hidden(StreamDB):
    offset = collection(type="offset")  # type: ignore[assignment]
"""


@pytest.mark.long
def test_the_collections_of_a_users_program_are_typed(tmp_path: Path) -> None:
    assert type_errors(PROGRAM + MISTAKES, tmp_path) == []
