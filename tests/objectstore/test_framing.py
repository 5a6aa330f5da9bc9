"""Heads of objects: whole or refused, and a later version is not mistaken for damage."""

from __future__ import annotations

import pytest

from streamd.objectstore.errors import ColdRefused, ObjectCorrupt
from streamd.objectstore.framing import Head

HEAD = Head(b"SDXX", 1, "IQ", "a thing")


def test_a_head_is_decoded_whatever_follows_it() -> None:
    head = HEAD.pack(7, 2**40)
    assert len(head) == HEAD.size
    assert HEAD.unpack(head + b"what follows") == (7, 2**40)


def test_a_head_of_something_else_is_refused() -> None:
    with pytest.raises(ObjectCorrupt, match="this is not a thing"):
        HEAD.unpack(Head(b"SDYY", 1, "IQ", "another").pack(7, 8))


def test_a_later_version_is_not_damage_and_asks_for_a_later_streamd() -> None:
    with pytest.raises(
        ColdRefused, match="a thing is of version 2, which this release does not know"
    ):
        HEAD.unpack(Head(b"SDXX", 2, "IQ", "a thing").pack(7, 8))
