"""A signed head is a checkpoint of a transparency log, and no bit of it can be changed."""

from __future__ import annotations

from base64 import b64encode

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamd.proofs import heads
from streamd.proofs.heads import Head, Unsigned, VerifierKey

CLUSTER = "7d0c3a52-0000-4000-8000-000000000001"
PRIVATE, OTHER = bytes(range(32)), bytes(32)
KEY = heads.key_of(CLUSTER, heads.public_key_of(PRIVATE))
HEAD = Head(CLUSTER, 0, 1, 1917, bytes(range(32)), 1_700_000_000_000)
NOTE = heads.signed(HEAD.text, PRIVATE, KEY)


def test_a_head_is_read_from_its_note() -> None:
    assert heads.parse_head(heads.text_of(NOTE, KEY)) == HEAD
    assert HEAD.index == 1917


def test_the_note_is_a_checkpoint() -> None:
    origin, size, root, time, empty, signature, end = NOTE.split("\n")
    assert origin == f"streamd/{CLUSTER}/0/1"
    assert (size, root) == ("1917", b64encode(bytes(range(32))).decode())
    assert (time, empty, end) == ("time 1700000000000", "", "")
    assert signature.startswith(f"— streamd/{CLUSTER} ")


def test_the_key_that_the_specification_shows_is_read() -> None:
    told = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"
    assert str(heads.parse_key(told)) == told


def test_a_witness_may_sign_as_well() -> None:
    witness = VerifierKey("witness.example", heads.public_key_of(OTHER))
    line = b64encode(witness.key_id + heads.sign(HEAD.text, OTHER)).decode()
    both = f"{NOTE}— witness.example {line}\n"
    assert heads.text_of(both, KEY) == heads.text_of(both, witness) == HEAD.text


@example(2065)  # One that the last character of base64 does not use.
@given(st.integers(0, len(NOTE.encode()) * 8 - 1))
def test_no_bit_of_a_note_can_be_changed(bit: int) -> None:
    changed = bytearray(NOTE.encode())
    changed[bit // 8] ^= 1 << bit % 8
    with pytest.raises((Unsigned, UnicodeDecodeError)):
        heads.text_of(changed.decode(), KEY)


@pytest.mark.parametrize(
    "text",
    [
        "",
        HEAD.text + "more\n",
        HEAD.text.replace("streamd/", "other/"),
        HEAD.text.replace("1917", "01917"),
        HEAD.text.replace("1917", "many"),
        HEAD.text.replace("time ", ""),
        HEAD.text.replace(b64encode(HEAD.root).decode(), "AAAA"),
    ],
)
def test_another_text_is_no_head(text: str) -> None:
    with pytest.raises(Unsigned):
        heads.parse_head(text)


@pytest.mark.parametrize("told", ["", "a+b", str(KEY)[:-4], str(KEY).replace("streamd/", "x/")])
def test_another_text_is_no_key(told: str) -> None:
    assert heads.parse_key(str(KEY)) == KEY
    with pytest.raises(Unsigned):
        heads.parse_key(told)


@pytest.mark.parametrize("note", ["", "text\n", HEAD.text, HEAD.text + "\n— \n", NOTE + "\n"])
def test_what_is_not_signed_is_refused(note: str) -> None:
    with pytest.raises(Unsigned):
        heads.text_of(note, KEY)


def test_a_signature_is_by_one_key_over_one_text() -> None:
    text = heads.key_text(CLUSTER, heads.public_key_of(OTHER))
    signature = heads.sign(text, PRIVATE)
    assert heads.is_signed_by(text, signature, KEY.public_key)
    assert not heads.is_signed_by(text + "x", signature, KEY.public_key)
    assert not heads.is_signed_by(text, signature, heads.public_key_of(OTHER))
    assert not heads.is_signed_by(text, signature[:-1], KEY.public_key)
    assert not heads.is_signed_by(text, signature, b"short")
