"""Each MUST and SHOULD of the State Protocol v0.1 that binds a library, by its section.

Rules that bind a consumer of a whole stream (`reset`, unknown types, snapshots) are in
test_consumer.py; they need tables.
"""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from streamd.state import (
    ChangeEvent,
    ControlEvent,
    InvalidEvent,
    InvalidValue,
    MalformedEvent,
    MaterializedState,
    MissingValue,
    StateSchema,
    collection,
    decode_batch,
    decode_event,
    encode_event,
    is_change_event,
    is_control_event,
)
from streamd.state import control as make_control
from tests.state.events import ABSENT, batch, change, control, decoded

OPERATIONS = ["insert", "update", "upsert", "delete"]
CONTROLS = ["up-to-date", "snapshot-start", "snapshot-end", "reset"]

_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
_changes = st.builds(
    lambda operation, key, value, type_, old: change(
        operation, key, value, type_=type_, old_value=old
    ),
    st.sampled_from(OPERATIONS),
    st.sampled_from(["1", "2", ""]),
    _json,
    st.sampled_from(["user", "message"]),
    _json,
)


def applied(*events: Any) -> MaterializedState:
    state = MaterializedState()
    state.apply_batch([decoded(event) for event in events])
    return state


class User(msgspec.Struct):
    id: str
    name: str


class Chat(StateSchema):
    users = collection(User, type="user", key="id")


class TestSection4EventModel:
    @pytest.mark.parametrize("message", [5, "text", None, [], {}, {"headers": {}}, {"type": "a"}])
    def test_a_message_that_is_not_a_state_event_is_malformed(self, message: Any) -> None:
        before, found, after = decode_batch(
            batch(change("insert", "1", 1), message, control("reset"))
        )
        assert isinstance(found, MalformedEvent)
        assert found.reason
        assert json.loads(found.text) == message
        assert is_change_event(before)
        assert is_control_event(after)
        with pytest.raises(InvalidEvent):
            decode_event(json.dumps(message))

    @pytest.mark.parametrize(
        "event",
        [
            change("patch", "1", 1),
            change("insert", "1", 1, type_=5),  # type: ignore[arg-type]
            change("insert", 5, 1),  # type: ignore[arg-type]
            {"key": "1", "value": 1, "headers": {"operation": "insert"}},
            {"type": "user", "value": 1, "headers": {"operation": "insert"}},
            control("pause"),
            change("insert", "\ud83d", 1),
        ],
    )
    def test_an_event_that_no_version_0_1_consumer_can_apply_is_malformed(self, event: Any) -> None:
        assert [type(found) for found in decode_batch(batch(event))] == [MalformedEvent]

    def test_a_batch_that_is_not_an_array_is_refused(self) -> None:
        for text in (b"{}", b"", b"[", b"5"):
            with pytest.raises(ValueError, match=r".+"):
                decode_batch(text)

    @given(_changes)
    def test_a_change_event_survives_encoding(self, event: dict[str, Any]) -> None:
        assert json.loads(encode_event(decoded(event))) == event

    def test_a_value_with_a_lone_surrogate_is_a_value(self) -> None:
        """JavaScript writes one where it cuts an emoji in two; JSON allows the escape."""
        event = change("insert", "1", {"text": "\ud83d"})
        found = decoded(event)
        assert found.value == {"text": "\ud83d"}
        assert json.loads(encode_event(found)) == event
        assert decode_batch(batch(event, event)) == [found, found]


class TestSection4_1ChangeEvents:
    @pytest.mark.parametrize("operation", ["insert", "update", "upsert"])
    @pytest.mark.parametrize("held", [True, False])
    def test_rule_1_insert_and_update_both_set_the_value(self, operation: str, held: bool) -> None:
        before = [change("insert", "1", "old")] if held else []
        assert applied(*before, change(operation, "1", "new")).get("user", "1") == "new"

    def test_rule_1_delete_removes_the_value(self) -> None:
        state = applied(change("insert", "1", "Ann"), change("delete", "1"))
        assert state.get("user", "1", ABSENT) is ABSENT

    def test_rule_1_a_delete_of_nothing_changes_nothing(self) -> None:
        state = applied(change("insert", "1", "Ann"), change("delete", "2"))
        state.apply(decoded(change("delete", "1", type_="message")))
        assert (state.types, dict(state.get_type("user"))) == (["user"], {"1": "Ann"})

    @pytest.mark.parametrize("value", [ABSENT, None, {"name": "Ann"}])
    def test_rule_2_the_value_of_a_delete_is_ignored(self, value: Any) -> None:
        state = applied(change("insert", "1", "Ann"), change("delete", "1", value))
        assert dict(state.get_type("user")) == {}

    @pytest.mark.parametrize("operation", ["insert", "update", "upsert"])
    def test_rule_2_a_missing_value_changes_nothing_by_default(self, operation: str) -> None:
        assert applied(change("insert", "1", "Ann"), change(operation, "1")).get("user", "1") == (
            "Ann"
        )

    def test_rule_2_a_missing_value_is_an_error_by_policy(self) -> None:
        state = MaterializedState(missing_value="error")
        events = [change("insert", "1", "Ann"), change("update", "1"), change("delete", "1")]
        with pytest.raises(MissingValue, match="update of 'user' '1'"):
            state.apply_batch([decoded(event) for event in events])
        assert state.get("user", "1") == "Ann"

    def test_rule_2_null_is_a_value(self) -> None:
        state = applied(change("insert", "1", None))
        assert state.get("user", "1", ABSENT) is None

    @given(st.lists(_changes), st.data())
    def test_rule_3_old_value_decides_nothing(self, events: list[Any], data: st.DataObject) -> None:
        others = [{**event, "old_value": data.draw(_json)} for event in events]
        for event in others[::2]:
            del event["old_value"]
        assert rows(applied(*events)) == rows(applied(*others))

    @given(st.lists(_changes))
    def test_rule_4_later_events_override_earlier_ones(self, events: list[Any]) -> None:
        last = {(event["type"], event["key"]): event for event in events}
        expected = {
            place: event["value"]
            for place, event in last.items()
            if event["headers"]["operation"] != "delete"
        }
        assert rows(applied(*events)) == expected

    @pytest.mark.parametrize(
        "headers",
        [
            {"timestamp": "2030-01-01T00:00:00Z", "txid": "9"},
            {"timestamp": "yesterday", "txid": ""},
            {"timestamp": 5, "txid": {"a": 1}, "from": None, "future": []},
        ],
    )
    def test_rule_6_timestamp_and_txid_decide_nothing(self, headers: dict[str, Any]) -> None:
        first = change("insert", "1", "first", headers=headers)
        assert applied(first, change("update", "1", "second")).get("user", "1") == "second"
        assert applied(change("insert", "1", "second"), first).get("user", "1") == "first"

    def test_rule_6_txid_and_timestamp_reach_the_application(self) -> None:
        headers = {"timestamp": "2030-01-01T00:00:00Z", "txid": "9"}
        event = decoded(change("insert", "1", "first", headers=headers))
        assert (event.headers.timestamp, event.headers.txid) == tuple(headers.values())


class TestSection4_2ControlEvents:
    @pytest.mark.parametrize("kind", CONTROLS)
    def test_an_event_with_a_control_header_is_a_control_event(self, kind: str) -> None:
        event = decode_event(json.dumps(control(kind, offset="5")))
        assert is_control_event(event)
        assert not is_change_event(event)
        assert (event.headers.control, event.headers.offset) == (kind, "5")

    @pytest.mark.parametrize("operation", OPERATIONS)
    def test_an_event_with_an_operation_header_is_a_change_event(self, operation: str) -> None:
        event = decode_event(json.dumps(change(operation, "1", 1)))
        assert is_change_event(event)
        assert not is_control_event(event)

    def test_an_event_with_both_headers_is_a_change_event_as_in_the_reference(self) -> None:
        both = change("insert", "1", 1, headers={"control": "reset"})
        assert is_change_event(decode_event(json.dumps(both)))

    @pytest.mark.parametrize("kind", CONTROLS)
    def test_a_control_event_survives_encoding(self, kind: Any) -> None:
        event = make_control(kind, offset="5")
        assert json.loads(encode_event(event)) == control(kind, offset="5")
        assert decode_event(encode_event(event)) == event
        assert isinstance(event, ControlEvent)


class TestSection5StateSemantics:
    @given(st.lists(_changes), _changes)
    def test_5_2_an_event_changes_no_other_entity(self, events: list[Any], last: Any) -> None:
        before, after = rows(applied(*events)), rows(applied(*events, last))
        place = (last["type"], last["key"])
        before.pop(place, None)
        after.pop(place, None)
        assert before == after

    def test_5_2_an_update_of_nothing_and_a_second_insert_are_applied(self) -> None:
        state = applied(change("update", "1", 1), change("insert", "1", 2))
        assert state.get("user", "1") == 2


class TestSection6MaterializedState:
    @given(st.lists(_changes))
    def test_rule_2_a_batch_is_its_events_one_by_one(self, events: list[Any]) -> None:
        one_by_one = MaterializedState()
        for event in events:
            one_by_one.apply(decoded(event))
        assert rows(one_by_one) == rows(applied(*events))

    def test_rule_3_get_of_an_absent_entity_returns_the_default(self) -> None:
        state = applied(change("insert", "1", "Ann"))
        assert state.get("user", "1") == "Ann"
        assert state.get("user", "2") is None
        assert state.get("message", "1", "none") == "none"

    def test_rule_4_get_type_is_a_view_of_the_type(self) -> None:
        state = MaterializedState()
        users = state.get_type("user")
        assert dict(users) == {}
        state.apply(decoded(change("insert", "1", "Ann")))
        state.apply(decoded(change("insert", "1", "Hi", type_="message")))
        assert (dict(users), len(users), "2" in users) == ({"1": "Ann"}, 1, False)
        state.apply(decoded(change("delete", "1")))
        state.apply(decoded(change("insert", "2", "Bob")))
        assert dict(users) == {"2": "Bob"}
        assert repr(users) == "{'2': 'Bob'}"

    def test_types_are_those_with_entities_and_clear_forgets_all(self) -> None:
        state = applied(change("insert", "1", 1), change("insert", "1", 1, type_="message"))
        assert state.types == ["user", "message"]
        state.apply(decoded(change("delete", "1")))
        assert state.types == ["message"]
        state.clear()
        assert (state.types, state.get("message", "1")) == ([], None)


class TestSection7Schemas:
    def test_rule_1_a_type_has_one_schema_at_most(self) -> None:
        with pytest.raises(ValueError, match="'users' and 'people' both have the type 'user'"):
            type(
                "Twice",
                (StateSchema,),
                {"users": collection(User, type="user"), "people": collection(type="user")},
            )

    def test_rule_2_a_producer_cannot_make_an_event_that_breaks_the_schema(self) -> None:
        with pytest.raises(InvalidValue, match="name"):
            Chat.users.insert(User("1", 5))  # type: ignore[arg-type]
        with pytest.raises(InvalidValue, match="name"):
            Chat.users.update({"id": "1"})  # type: ignore[arg-type]
        with pytest.raises(InvalidValue):
            Chat.users.update(User("1", "Ann"), old_value=5)  # type: ignore[arg-type]

    def test_rule_3_a_value_that_breaks_the_schema_is_refused_to_consumers(self) -> None:
        for text in (b'{"id":"1"}', b'{"id":"1","name":5}', b"5", b"null", b'"x"', b"[]"):
            with pytest.raises(InvalidValue):
                Chat.users.decode("1", text)


class TestAppendixAProducers:
    def test_each_event_has_type_key_value_and_operation(self) -> None:
        ann = User("1", "Ann")
        plain = {"id": "1", "name": "Ann"}
        for event, operation in (
            (Chat.users.insert(ann), "insert"),
            (Chat.users.update(ann), "update"),
            (Chat.users.upsert(ann), "upsert"),
        ):
            assert json.loads(encode_event(event)) == change(operation, "1", plain)

    def test_a_delete_may_omit_the_value(self) -> None:
        assert json.loads(encode_event(Chat.users.delete("1"))) == change("delete", "1")
        of_old = Chat.users.delete(old_value=User("1", "Ann"))
        assert (of_old.key, of_old.value) == ("1", UNSET)

    def test_advisory_fields_are_as_given(self) -> None:
        event = Chat.users.update(
            User("1", "Eve"), old_value=User("1", "Ann"), txid="t", timestamp="2030-01-01T00:00:00Z"
        )
        assert json.loads(encode_event(event)) == change(
            "update",
            "1",
            {"id": "1", "name": "Eve"},
            old_value={"id": "1", "name": "Ann"},
            headers={"txid": "t", "timestamp": "2030-01-01T00:00:00Z"},
        )


def rows(state: MaterializedState) -> dict[tuple[str, str], Any]:
    return {
        (type_, key): value for type_ in state.types for key, value in state.get_type(type_).items()
    }


def test_events_of_applications_are_plain_values() -> None:
    """A producer applies its own events and reads them back to the same state."""
    event = Chat.users.insert(User("1", "Ann"))
    here = MaterializedState()
    here.apply(event)
    there = MaterializedState()
    there.apply_batch(
        [
            each
            for each in decode_batch(b"[" + encode_event(event) + b"]")
            if isinstance(each, ChangeEvent)
        ]
    )
    assert here.get("user", "1") == there.get("user", "1") == {"id": "1", "name": "Ann"}
