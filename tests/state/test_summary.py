"""Snapshots of a stream: applied, they give the state that they summarize."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from streamd.state import MaterializedState, decode_batch, is_change_event, is_control_event
from streamd.state.summary import Summary
from tests.state.events import batch, change, control

_values = st.sampled_from([None, 1, "ü", "\ud83d", {"a": [1.5]}])
_events = st.one_of(
    st.builds(
        lambda operation, key, value, type_: change(operation, key, value, type_=type_),
        st.sampled_from(["insert", "update", "upsert", "delete"]),
        st.sampled_from(["1", "2", ""]),
        _values,
        st.sampled_from(["user", "other"]),
    ),
    st.sampled_from([control("reset"), control("up-to-date"), change("update", "1"), 5]),
)


def state_of(array: bytes) -> dict[tuple[str, str], Any]:
    state = MaterializedState()
    for event in decode_batch(array):
        if is_change_event(event):
            state.apply(event)
        elif is_control_event(event) and event.headers.control == "reset":
            state.clear()
    return {
        (type_, key): value for type_ in state.types for key, value in state.get_type(type_).items()
    }


@given(st.lists(_events), st.data())
def test_a_snapshot_has_the_state_of_the_messages(events: list[Any], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(events)))
    first, second = Summary(), Summary()
    first.apply(batch(*events[:at]))
    assert second.apply(first.snapshot("5")) == 0
    second.apply(batch(*events[at:]))
    assert state_of(second.snapshot("9")) == state_of(batch(*events))


def test_a_snapshot_is_marked_and_keeps_values_as_they_were_sent() -> None:
    summary = Summary()
    text = b'{"n": 123456789012345678901234567890.10}'
    event = b'{"type":"flag","key":"1","value":%b,"headers":{"operation":"update"}}' % text
    assert summary.apply(b"[%b, 5]" % event) == 1
    assert summary.events == 2
    snapshot = summary.snapshot("7")
    assert text in snapshot
    first, *_, last = json.loads(snapshot)
    assert first == control("snapshot-start", offset="7")
    assert last == control("snapshot-end", offset="7")


def test_a_number_beyond_all_floats_leaves_the_snapshot_json() -> None:
    """The stream is trimmed to its snapshot: one that no reader can decode loses the state."""
    odd = b'{"type":"a","key":"%d","value":[1e999,1.10],"headers":{"operation":"insert"%b}}'
    summary = Summary()
    for key, advisory in enumerate((b"", b',"txid":5', b',"txid":"\\ud800"')):
        summary.apply(b"[" + odd % (key, advisory) + b"]")
    snapshot = summary.snapshot("1")
    again = Summary()
    assert again.apply(snapshot) == 0
    assert again.snapshot("1") == snapshot
    assert b"Infinity" not in snapshot
    assert snapshot.count(b"[1e999,1.10]") >= 2


def test_summaries_are_equal_by_what_was_sent_and_not_by_how_it_came() -> None:
    one, other = Summary(), Summary()
    one.apply(
        batch(change("insert", "1", 5), change("insert", "2", 6), change("delete", "2", None))
    )
    assert not one.equals(other)
    other.apply(batch(change("insert", "1", 4)))
    assert not one.equals(other)
    other.apply(batch(change("update", "1", 5)))
    assert one.equals(other)
    assert one.size == other.size
