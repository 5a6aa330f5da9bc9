"""Faults in a live reader's deliveries, and their messages."""

from __future__ import annotations

from typing import Any

from tests.jepsen_like.deliveries import fault_in_delivery
from tests.jepsen_like.history import Kind, Operation, Outcome

_APPENDS: list[tuple[str, Outcome]] = [("<a>", "ok"), ("<b>", "unknown"), ("<c>", "ok")]


def _operation(client: str, kind: Kind, outcome: Outcome = "ok", **details: Any) -> Operation:
    return Operation(client, kind, 1, 2, outcome, "s", **details)


def _fault(final: str, *pieces: str) -> str:
    appends = [_operation("w", "append", outcome, payload=data) for data, outcome in _APPENDS]
    given = [_operation("r", "deliver", data=piece) for piece in pieces]
    broken_off = _operation("r", "deliver", "fail", refusal="connection reset")
    read = _operation("final n1", "final_read", data=final)
    return fault_in_delivery([*appends, *given, broken_off, read], "r", "s")


def test_the_whole_stream_in_order_is_not_a_fault() -> None:
    assert not _fault("<a><b><c>", "<a>", "", "<b><c>")


def test_an_append_of_unknown_outcome_may_take_effect_after_the_reader_left() -> None:
    assert not _fault("<a><c><b>", "<a><c>")


def test_a_missing_acknowledged_append_is_a_fault() -> None:
    fault = _fault("<a><b><c>", "<a>")
    assert "lacks '<c>'" in fault
    assert "payload='<c>'" in fault
    assert "connection reset" in fault


def test_an_append_of_unknown_outcome_excuses_only_one_effect() -> None:
    assert "lacks '<b>'" in _fault("<a><c><b><b>", "<a><c>")


def test_a_piece_given_twice_is_a_fault() -> None:
    fault = _fault("<a><b><c>", "<a>", "<b>", "<b>", "<c>")
    assert "was given '<b>' where the stream goes on with '<c>', at byte 6" in fault


def test_a_piece_left_out_is_a_fault() -> None:
    assert "at byte 3" in _fault("<a><b><c>", "<a>", "<c>")


def test_more_than_the_stream_has_is_a_fault() -> None:
    assert "goes on with ''" in _fault("<a><b><c>", "<a><b><c>", "<d>")
