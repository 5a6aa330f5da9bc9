"""A consumer of a whole stream: control events, policies, and that a refused batch changes nothing.

Classes are named after the sections of the State Protocol whose MUST and SHOULD they hold.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.state import (
    InvalidEvent,
    InvalidValue,
    MissingValue,
    Policies,
    StateError,
    StateSchema,
    StreamReset,
    UnknownType,
    collection,
)
from streamd.state.consumer import Consumer, Row
from streamd.state.tables import Change
from tests.state.events import batch, change, control


class User(msgspec.Struct):
    id: str
    name: str = ""


class Chat(StateSchema):
    users = collection(User, type="user", key="id")
    flags = collection(type="flag")


ANN = change("insert", "1", {"name": "Ann"})
BOB = change("insert", "2", {"name": "Bob"})
OTHER = change("insert", "1", {"name": "Ann"}, type_="other")
BROKEN = change("update", "1", {"name": 5})
MISSING = change("update", "1")
NONSENSE = {"type": "user"}


def consumer(**policies: Any) -> Consumer:
    return Consumer(Chat, Policies(**policies))


def applied(to: Consumer, *events: Any) -> list[str]:
    """Apply a batch; returns the warnings."""
    plan = to.plan(batch(*events))
    to.apply(plan)
    return plan.warnings


def names(of: Consumer) -> dict[str, str]:
    return {key: user.name for key, user in of.tables["users"].items()}


class TestSection4_2ControlEvents:
    def test_rule_1_a_snapshot_changes_nothing_by_itself(self) -> None:
        chat = consumer()
        warned = applied(chat, ANN, control("snapshot-start"), BOB, control("snapshot-end"))
        assert (warned, names(chat)) == ([], {"1": "Ann", "2": "Bob"})

    def test_rule_1_there_may_be_several_snapshots_over_several_batches(self) -> None:
        chat = consumer()
        for _ in range(2):
            assert applied(chat, control("snapshot-start"), ANN) == []
            assert chat.in_snapshot
            assert applied(chat, BOB, control("snapshot-end")) == []
            assert not chat.in_snapshot

    def test_rule_2_a_nested_snapshot_start_warns_and_processing_continues(self) -> None:
        chat = consumer()
        assert applied(chat, control("snapshot-start"), control("snapshot-start"), ANN) == [
            "snapshot-start inside a snapshot"
        ]
        assert names(chat) == {"1": "Ann"}

    def test_rule_2_a_snapshot_end_without_start_warns_and_processing_continues(self) -> None:
        chat = consumer()
        assert applied(chat, control("snapshot-end"), ANN) == [
            "snapshot-end without snapshot-start"
        ]
        assert names(chat) == {"1": "Ann"}

    def test_rule_3_up_to_date_changes_nothing(self) -> None:
        chat = consumer()
        assert applied(chat, ANN, control("up-to-date"), BOB) == []
        assert names(chat) == {"1": "Ann", "2": "Bob"}

    def test_rule_4_reset_clears_what_came_before_it_and_keeps_what_comes_after(self) -> None:
        chat = consumer()
        applied(chat, ANN, change("insert", "new", True, type_="flag"))
        applied(chat, change("insert", "3", {}), control("reset"), BOB)
        assert names(chat) == {"2": "Bob"}
        assert dict(chat.tables["flags"]) == {}

    def test_rule_4_reset_is_ignored_by_policy(self) -> None:
        chat = consumer(reset="ignore")
        applied(chat, ANN, control("reset"), BOB)
        assert names(chat) == {"1": "Ann", "2": "Bob"}

    def test_rule_4_reset_is_an_error_by_policy(self) -> None:
        with pytest.raises(StreamReset):
            consumer(reset="error").plan(batch(ANN, control("reset")))

    def test_rule_5_an_offset_decides_nothing(self) -> None:
        chat = consumer()
        applied(chat, ANN, control("up-to-date", offset="0"), BOB)
        assert names(chat) == {"1": "Ann", "2": "Bob"}


class TestSection7Validation:
    def test_rule_3_an_invalid_value_leaves_the_entity_as_it_was(self) -> None:
        chat = consumer()
        (warning,) = applied(chat, ANN, BROKEN, BOB)
        assert "update of 'user' '1' is ignored" in warning
        assert names(chat) == {"1": "Ann", "2": "Bob"}

    def test_rule_3_an_invalid_value_is_an_error_by_policy(self) -> None:
        with pytest.raises(InvalidValue):
            consumer(invalid_value="error").plan(batch(BROKEN))

    def test_rule_3_a_fallback_value_comes_from_the_application(self) -> None:
        def fallback(event: Any, error: InvalidValue) -> User:
            assert "name" in str(error)
            return User(event.key, str(event.value["name"]))

        chat = consumer(invalid_value=fallback)
        assert applied(chat, ANN, BROKEN) == []
        assert names(chat) == {"1": "5"}


@pytest.mark.parametrize(
    ("event", "policy", "error"),
    [
        (OTHER, "unknown_type", UnknownType),
        (MISSING, "missing_value", MissingValue),
        (BROKEN, "invalid_value", InvalidValue),
        (NONSENSE, "malformed", InvalidEvent),
        (control("reset"), "reset", StreamReset),
    ],
)
def test_a_refused_batch_changes_nothing(event: Any, policy: str, error: type[StateError]) -> None:
    chat = consumer(**{policy: "error"})
    applied(chat, ANN, control("snapshot-start"))
    with pytest.raises(error):
        chat.plan(batch(BOB, control("snapshot-end"), event))
    assert (names(chat), chat.in_snapshot) == ({"1": "Ann"}, True)


@pytest.mark.parametrize("event", [OTHER, MISSING, BROKEN, NONSENSE, 5, None, "x"])
def test_what_cannot_be_applied_is_skipped_and_its_neighbours_are_applied(event: Any) -> None:
    chat = consumer()
    warnings = applied(chat, ANN, event, BOB)
    assert names(chat) == {"1": "Ann", "2": "Bob"}
    assert len(warnings) == (0 if event is OTHER else 1)


def test_warnings_are_limited() -> None:
    plan = consumer().plan(batch(*[NONSENSE] * 1000))
    assert len(plan.warnings) == 11
    assert plan.warnings[-1] == "further warnings about this batch are left out"


def test_a_plan_tells_of_all_txids_also_of_unknown_types() -> None:
    events = [
        change("insert", "1", {}, headers={"txid": "a"}),
        change("delete", "1", type_="other", headers={"txid": "b"}),
        change("update", "1", headers={"txid": "c"}),
        change("update", "2", {}, headers={"txid": "a"}),
    ]
    plan = consumer().plan(batch(*events))
    assert (plan.events, plan.txids) == (4, {"a": 2, "b": 1, "c": 1})


def test_observers_hear_what_happened_to_the_rows() -> None:
    chat = consumer()
    heard: list[Change[Any]] = []
    chat.tables["users"].observers.append(heard.append)
    applied(
        chat,
        change("update", "1", {"name": "Ann"}, headers={"txid": "t"}),
        change("insert", "1", {"name": "Eve"}),
        change("delete", "2"),
        change("delete", "1"),
    )
    applied(chat, BOB, control("reset"), ANN)
    ann, eve = User("1", "Ann"), User("1", "Eve")
    assert heard == [
        Change("insert", "1", ann, None, "t"),
        Change("update", "1", eve, ann),
        Change("delete", "1", None, eve),
        Change("reset", ""),
        Change("insert", "1", ann),
    ]


def test_rows_are_loaded_by_the_rules_for_events() -> None:
    chat = consumer()
    rows = [
        Row("user", "1", b'{"name":"Ann"}'),
        Row("user", "2", b'{"name":5}'),
        Row("gone", "1", b"{}"),
    ]
    plan = chat.load(rows)
    assert (names(chat), len(plan.warnings)) == ({"1": "Ann"}, 1)
    with pytest.raises(InvalidValue):
        consumer(invalid_value="error").load(rows)


@given(
    st.lists(
        st.sampled_from(
            [
                ANN, BOB, OTHER, MISSING, NONSENSE, control("reset"), control("up-to-date"),
                change("delete", "1"), change("update", "2", {"name": "Eve"}),
                change("upsert", "x", None, type_="flag"), control("snapshot-end"),
            ]
        )
    ),
    st.data(),
)  # fmt: skip
def test_the_cut_into_batches_decides_nothing(events: list[Any], data: st.DataObject) -> None:
    whole, cut = consumer(), consumer()
    applied(whole, *events)
    at = 0
    while at < len(events):
        size = data.draw(st.integers(1, len(events) - at))
        applied(cut, *events[at : at + size])
        at += size
    assert names(whole) == names(cut)
    assert dict(whole.tables["flags"]) == dict(cut.tables["flags"])
    assert whole.in_snapshot == cut.in_snapshot


def test_text_is_kept_as_it_was_sent() -> None:
    """A store keeps numbers digit for digit."""
    text = b'{"n": 123456789012345678901234567890.10}'
    event = b'{"type":"flag","key":"1","value":%b,"headers":{"operation":"insert"}}' % text
    (step,) = consumer().plan(b"[%b]" % event).steps
    assert step.text == text
    assert json.loads(text)["n"] == step.value["n"]


def test_a_table_is_found_by_the_type_of_its_entities() -> None:
    chat = consumer()
    for table in chat.tables.values():
        assert chat.table_of(table.type) is table
    assert chat.table_of("unheard of") is None
