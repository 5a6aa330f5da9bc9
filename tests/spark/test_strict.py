"""Bytes that a later release, or a forger, adds to MessagePack are not passed over."""

from __future__ import annotations

import msgspec
import pytest

from streamd_audit.commands import decode_batch
from streamd_audit.errors import BAD_MSGPACK, UNKNOWN_FIELD, Damaged
from streamd_audit.strict import check_known

APPEND = [
    "append", b"b\0s", "text/plain", b"one", [3], False, None, ["p", 0, 0, False], None, None
]  # fmt: skip
BATCH = [1_700_000_000_000, [APPEND], [[1, 2, 3, 0, 1]]]


def check(said: object, content: bytes | None = None) -> None:
    content = msgspec.msgpack.encode(said) if content is None else content
    check_known(decode_batch(content), content, "a batch")


def test_what_this_release_writes_is_known() -> None:
    check(BATCH)


def test_what_earlier_releases_left_out_is_known() -> None:
    """Fields at the end of a batch, a command and its parts."""
    check([BATCH[0], [[*APPEND[:7], ["p", 0, 0]]]])


@pytest.mark.parametrize(
    "said",
    [
        [*BATCH, []],
        [BATCH[0], [[*APPEND, None]], []],
        [BATCH[0], [[*APPEND[:7], ["p", 0, 0, False, 1]]]],
        [BATCH[0], [APPEND], [[1, 2, 3, 0, 1, 5]]],
    ],
    ids=["in the batch", "in a command", "in a part of a command", "in a package"],
)
def test_an_element_more_is_unknown(said: object) -> None:
    with pytest.raises(Damaged) as caught:
        check(said)
    assert caught.value.kind == UNKNOWN_FIELD


def test_a_number_in_more_bytes_than_it_needs_is_damage() -> None:
    content = msgspec.msgpack.encode(BATCH)
    assert content.endswith(b"\x95\x01\x02\x03\x00\x01")
    with pytest.raises(Damaged) as caught:
        check(None, content[:-1] + b"\xcc\x01")
    assert caught.value.kind == BAD_MSGPACK
