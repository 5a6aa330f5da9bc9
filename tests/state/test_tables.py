"""Rows of a collection: indexes always agree with a scan, and writes show until they settle."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.state import collection
from streamd.state.tables import ABSENT, Change, Table


class User(msgspec.Struct):
    id: str
    team: Any = None


def table(*rows: User) -> Table[User]:
    users = Table(collection(User, type="user", key="id", indexes=["team"]))
    for row in rows:
        users.put(row.id, row)
    return users


def test_a_table_is_a_mapping() -> None:
    users = table(User("1"), User("2"))
    assert (list(users), len(users), "1" in users) == (["1", "2"], 2, True)
    assert (users["1"], users.get("3")) == (User("1"), None)
    assert repr(users) == "<2 rows of 'user'>"
    with pytest.raises(KeyError):
        users["3"]


def test_rows_are_found_by_fields_and_predicates() -> None:
    users = table(User("1", "red"), User("2", "blue"), User("3", "red"), User("4", ["x"]))
    assert [user.id for user in users.where(team="red")] == ["1", "3"]
    assert [user.id for user in users.where(lambda user: user.id > "1", team="red")] == ["3"]
    assert [user.id for user in users.where(team=["x"])] == ["4"]
    assert [user.id for user in users.where(id="2")] == ["2"]
    assert users.where(team="green") == []
    assert len(users.where()) == 4
    users.put("1", User("1", "blue"))
    users.put("3", ABSENT)
    assert users.where(team="red") == []


def test_rows_of_plain_json_are_found_by_their_fields() -> None:
    flags = Table(collection(type="flag", indexes=["on"]))
    flags.put("a", {"on": True})
    flags.put("b", {"off": True})
    flags.put("c", "neither")
    assert flags.where(on=True) == [{"on": True}]
    assert flags.where(off=True) == [{"off": True}]


def test_an_indexed_query_looks_at_no_other_rows() -> None:
    users = table(*(User(str(number), number % 100) for number in range(1000)))
    seen: list[str] = []

    def look(user: User) -> bool:
        seen.append(user.id)
        return True

    assert len(users.where(look, team=7)) == 10
    assert seen == [str(number) for number in range(7, 1000, 100)]


def test_a_write_shows_until_the_stream_confirms_it() -> None:
    users = table(User("1", "red"))
    users.write("1", User("1", "blue"), "t")
    users.write("2", User("2", "blue"), "t")
    assert [user.id for user in users.where(team="blue")] == ["1", "2"]
    users.put("1", User("1", "blue"), "t")
    users.put("2", User("2", "blue"), "t")
    for key in ("1", "2"):
        users.settle(key, "t")
    assert [user.id for user in users.where(team="blue")] == ["1", "2"]
    users.put("1", ABSENT)
    assert list(users) == ["2"]


def test_a_failed_write_shows_what_the_stream_says_by_then() -> None:
    users = table(User("1", "red"))
    users.write("1", ABSENT, "t")
    assert "1" not in users
    users.put("1", User("1", "green"))
    assert "1" not in users
    users.settle("1", "t")
    assert users["1"].team == "green"


def test_the_last_of_several_writes_shows() -> None:
    users = table(User("1", "red"))
    users.write("1", User("1", "a"), "t1")
    users.write("1", User("1", "b"), "t2")
    users.settle("1", "t1")
    assert users["1"].team == "b"
    users.write("1", User("1", "c"), "t3")
    users.settle("1", "t3")
    assert users["1"].team == "b"
    users.settle("1", "t2")
    assert users["1"].team == "red"
    users.settle("1", "t2")
    assert users["1"].team == "red"


def test_a_reset_leaves_writes_under_way() -> None:
    users = table(User("1", "red"), User("2", "red"))
    users.write("1", User("1", "mine"), "t")
    users.clear()
    assert dict(users) == {"1": User("1", "mine")}
    users.settle("1", "t")
    assert dict(users) == {}


def test_observers_hear_of_the_stream_and_not_of_writes() -> None:
    users = table(User("1", "red"))
    heard: list[Change[User]] = []
    users.observers.append(heard.append)
    users.write("1", User("1", "mine"), "t")
    users.put("1", User("1", "theirs"))
    users.put("1", User("1", "mine"), "t")
    users.settle("1", "t")
    assert heard == [
        Change("update", "1", User("1", "theirs"), User("1", "red")),
        Change("update", "1", User("1", "mine"), User("1", "theirs"), "t"),
    ]


_keys = st.sampled_from("abc")
_teams = st.one_of(st.just(ABSENT), st.sampled_from(["red", "blue", ["x"], None, 1, True]))
_txids = st.sampled_from(["t1", "t2"])
_acts = st.one_of(
    st.tuples(st.just("put"), _keys, _teams),
    st.tuples(st.just("write"), _keys, _teams, _txids),
    st.tuples(st.just("settle"), _keys, _txids),
    st.tuples(st.just("clear")),
)


@given(st.lists(_acts, max_size=30))
def test_rows_are_the_last_write_or_what_the_stream_says(acts: list[Any]) -> None:
    users = table()
    base: dict[str, Any] = {}
    writes: list[tuple[str, str, Any]] = []
    for act, *rest in acts:
        if act == "put":
            key, team = rest
            base[key] = team if team is ABSENT else User(key, team)
            users.put(key, base[key])
        elif act == "write":
            key, team, txid = rest
            value = team if team is ABSENT else User(key, team)
            writes = [each for each in writes if each[:2] != (key, txid)]
            writes.append((key, txid, value))
            users.write(key, value, txid)
        elif act == "settle":
            key, txid = rest
            writes = [each for each in writes if each[:2] != (key, txid)]
            users.settle(key, txid)
        else:
            base.clear()
            users.clear()
        expected = base | {key: value for key, _, value in writes}
        expected = {key: value for key, value in expected.items() if value is not ABSENT}
        assert dict(users) == expected
        for team in ("red", ["x"], None, 1):
            found = sorted(row.id for row in users.where(team=team))
            assert found == sorted(key for key, row in expected.items() if row.team == team)
