"""Offsets as clients see them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.streams.offsets import START, Position, parse_offset

POSITIONS = st.builds(Position, st.integers(0, 10**16 - 1), st.integers(0, 10**16 - 1))


def test_a_token_is_two_numbers_of_sixteen_digits() -> None:
    assert START.token() == b"0000000000000000_0000000000000000"
    assert Position(12, 3456).token() == b"0000000000000012_0000000000003456"


@given(POSITIONS)
def test_a_token_is_parsed_into_its_position(position: Position) -> None:
    assert parse_offset(position.token()) == position


@given(POSITIONS, POSITIONS)
def test_tokens_are_in_the_order_of_their_positions(one: Position, other: Position) -> None:
    assert (one < other) == (one.token() < other.token())


@pytest.mark.parametrize(
    "token",
    [
        b"",
        b"-1",
        b"now",
        b"0",
        b"0_0",
        b"0000000000000000-0000000000000000",
        b"000000000000000_00000000000000000",
        b"0000000000000000_000000000000000",
        b"0000000000000000_00000000000000000",
        b"0000000000000000_0000000000000000\n",
        b" 0000000000000000_0000000000000000",
        b"000000000000000a_0000000000000000",
        "０000000000000000_0000000000000000".encode(),
        b"-000000000000001_0000000000000000",
    ],
)
def test_malformed_tokens_are_not_parsed(token: bytes) -> None:
    assert parse_offset(token) is None
