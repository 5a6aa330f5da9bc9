"""Heads are checked from the first key to the signature, and against earlier ones."""

from __future__ import annotations

from base64 import b64encode
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from streamd.proofs.heads import Head, Unsigned, key_of, key_text, public_key_of, sign, signed
from streamd.proofs.published import (
    PublishedHead,
    PublishedKey,
    checked,
    head_of,
    is_continued,
    published_key,
    read_published,
)
from streamd.proofs.tree import GrowingTree, Place, consistency, leaf_hash, path_of, root_of

CLUSTER = "1f0c4a57-6b1e-4f6e-9d0a-3c2b1a000001"
OTHER = "1f0c4a57-6b1e-4f6e-9d0a-3c2b1a000002"
ONE, TWO, THREE = (bytes([number]) * 32 for number in (1, 2, 3))
LEAVES = [leaf_hash(b"%d" % number) for number in range(70)]


def vouched(private: bytes, by: bytes | None = None, cluster_id: str = CLUSTER) -> PublishedKey:
    public = public_key_of(private)
    signature = sign(key_text(cluster_id, public), by or private)
    voucher = b"" if by is None else public_key_of(by)
    return published_key(cluster_id, 1, public, voucher, signature)


def note(text: str, private: bytes, cluster_id: str = CLUSTER) -> str:
    return signed(text, private, key_of(cluster_id, public_key_of(private)))


def grown(size: int) -> GrowingTree:
    tree = GrowingTree()
    for leaf in LEAVES[:size]:
        tree.add(leaf)
    return tree


def head(size: int) -> Head:
    return head_of(CLUSTER, 0, 5, grown(size).nodes, (4 + size, 1_700_000_000_000))


def published(size: int = 9, by: bytes = THREE) -> PublishedHead:
    keys = [vouched(ONE), vouched(TWO, ONE), vouched(THREE, TWO)]
    return PublishedHead(note(head(size).text, by), keys)


def test_a_head_leads_back_to_the_first_key() -> None:
    told = read_published(msgspec.json.encode(published()))
    found = checked(told)
    assert found.head == head(9)
    assert (found.head.size, found.head.index) == (9, 13)
    assert found.head.root == root_of(LEAVES[:9])
    assert found.first_key == key_of(CLUSTER, public_key_of(ONE))
    assert told.path == []


class Forged(NamedTuple):
    head: PublishedHead
    message: str


def forged() -> list[Forged]:
    right = published()
    first, second, third = right.keys
    of_other = [vouched(ONE, cluster_id=OTHER)]
    return [
        Forged(replace(right, keys=[]), "no keys"),
        Forged(replace(right, keys=[first, third]), "nothing leads from the first key"),
        Forged(replace(right, keys=[second, third]), "nothing leads from the first key"),
        Forged(replace(right, keys=[first, vouched(TWO), third]), "nothing leads"),
        Forged(replace(right, keys=[first, second]), "has not signed this"),
        Forged(published(by=ONE), "has not signed this"),
        Forged(
            replace(right, keys=[first, replace(second, signature=third.signature), third]),
            "the signature for key",
        ),
        Forged(replace(right, keys=[first, replace(second, signature="?"), third]), "base64"),
        Forged(replace(right, note=right.note.replace("\n9\n", "\n8\n")), "is not valid"),
        Forged(PublishedHead(note(head(9).text, ONE, OTHER), of_other), "of another cluster"),
        Forged(PublishedHead(note("a note\n", ONE), [first]), "not the head of a log"),
        Forged(replace(right, keys=[*right.keys, vouched(ONE, THREE, OTHER)]), "nothing leads"),
    ]


@pytest.mark.parametrize("number", range(len(forged())))
def test_a_forged_head_is_refused(number: int) -> None:
    one = forged()[number]
    with pytest.raises(Unsigned, match=one.message):
        checked(one.head)


@pytest.mark.parametrize("content", [b"", b"{}", b'{"note": 1, "keys": []}', b"\xff", b"[" * 9999])
def test_what_is_no_head_is_refused(content: bytes) -> None:
    with pytest.raises(Unsigned, match="this is not a signed head"):
        read_published(content)


# -- consistency -----------------------------------------------------------------------------------


def node(place: Place) -> bytes:
    begin = place.number << place.level
    return root_of(LEAVES[begin : begin + (1 << place.level)])


@given(st.integers(1, 70), st.integers(0, 69))
def test_a_path_proves_that_a_tree_was_continued(old: int, more: int) -> None:
    size = min(old + more, 70)
    path = path_of(consistency(old, size), node)
    assert is_continued(head(old), head(size), path)
    told = replace(published(size), consistency=[b64encode(one).decode() for one in path])
    assert read_published(msgspec.json.encode(told)).path == path


@settings(max_examples=300)
@given(st.data())
def test_no_path_proves_what_is_not_so(data: st.DataObject) -> None:
    old, size = sorted((data.draw(st.integers(1, 70)), data.draw(st.integers(1, 70))))
    path = path_of(consistency(old, size), node)
    before, after = head(old), head(size)
    match data.draw(st.integers(0, 5)):
        case 0:
            before = replace(before, root=LEAVES[0][::-1])
        case 1:
            after = replace(after, root=LEAVES[0][::-1])
        case 2:
            path = [*path, LEAVES[3]]
        case 3 if path:
            at = data.draw(st.integers(0, len(path) - 1))
            path[at] = bytes([path[at][0] ^ 1]) + path[at][1:]
        case 4 if path:
            path = path[:-1]
        case _:
            before = replace(before, first_index=6)
    assert not is_continued(before, after, path)


def test_an_earlier_head_is_no_continuation() -> None:
    assert not is_continued(head(9), head(8), [])
    assert not is_continued(head(0), head(8), [])
    assert not is_continued(head(9), replace(head(9), group_id=1), [])
