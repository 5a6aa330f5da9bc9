"""A leaf determines its entry to the byte, and shows each command of it alone."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.proofs import leaves
from streamd.proofs.tree import EMPTY_ROOT
from streamd.raft.messages import EntryKind
from streamd.streams.codec import Batch, decode_batch, encode_batch
from streamd.streams.commands import Append, Command, Delete, Sweep
from streamd.streams.sessions import PackageStamp

COMMANDS: st.SearchStrategy[Command] = st.one_of(
    st.builds(lambda data: Append(b"b\0s", "text/plain", data, [len(data)]), st.binary()),
    st.builds(Delete, st.binary()),
    st.builds(Sweep, st.lists(st.binary(), max_size=3)),
)
STAMPS = st.lists(st.builds(PackageStamp, *[st.integers(0, 2**63 - 1)] * 5), max_size=2)
BATCHES = st.builds(Batch, st.integers(0, 2**63 - 1), st.lists(COMMANDS, max_size=40), STAMPS)


@given(BATCHES)
def test_the_parts_of_a_payload_are_the_payload(batch: Batch) -> None:
    payload = encode_batch(batch)
    prefix, commands, suffix = leaves.divide(payload)
    assert b"".join([prefix, *commands, suffix]) == payload
    assert [encode_batch(Batch(0, [one]))[3:-1] for one in batch.commands] == commands
    assert decode_batch(prefix + b"".join(commands) + suffix) == batch


@given(BATCHES, st.data())
def test_another_payload_has_another_leaf(batch: Batch, data: st.DataObject) -> None:
    payload = encode_batch(batch)
    at = data.draw(st.integers(0, len(payload) - 1))
    other = bytearray(payload)
    other[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        changed = hashed(bytes(other))
    except msgspec.MsgspecError:
        return
    assert changed != hashed(payload)


@pytest.mark.parametrize("payload", [b"", b"\xc0", b"\x91\x01", b"\x92\x01\xc0", b"\x92\xc0\x90"])
def test_what_is_no_batch_has_no_leaf(payload: bytes) -> None:
    with pytest.raises(msgspec.MsgspecError):
        hashed(payload)


def test_index_term_and_kind_are_in_the_leaf() -> None:
    payload = encode_batch(Batch(7, []))
    kinds = {
        leaves.entry_hash(index, term, EntryKind.COMMANDS, payload, has_commands=True)
        for index in (1, 2)
        for term in (1, 2)
    }
    kinds |= {
        leaves.entry_hash(1, 1, kind, payload, has_commands=False)
        for kind in (EntryKind.NOOP, EntryKind.CONFIGURATION, EntryKind.COMMANDS)
    }
    assert len(kinds) == 7


def test_an_entry_without_commands_has_the_payload_as_prefix() -> None:
    expected = leaves.hash_of(3, 2, EntryKind.CONFIGURATION, b"members", 0, EMPTY_ROOT, b"")
    kind = EntryKind.CONFIGURATION
    assert leaves.entry_hash(3, 2, kind, b"members", has_commands=False) == expected


def hashed(payload: bytes) -> bytes:
    return leaves.entry_hash(5, 2, EntryKind.COMMANDS, payload, has_commands=True)
