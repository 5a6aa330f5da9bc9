"""Signed heads in the form in which readers get them, with the keys from a cluster's first one on.

JSON: ``{"note": …, "keys": [{"key": …, "node": 1, "signed_by": …, "signature": …}, …]}``. Keys are
in the form of verifier keys of signed notes, signatures in base64. The first key has signed itself;
it is the one that people compare with what they have kept. Each further one is vouched for by the
one before it, and the last one has signed the note.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from streamd.proofs.heads import (
    Head,
    Unsigned,
    VerifierKey,
    from_base64,
    is_signed_by,
    key_of,
    key_text,
    parse_head,
    parse_key,
    text_of,
)
from streamd.proofs.tree import folded, node_hash


class PublishedKey(msgspec.Struct, frozen=True):
    """A node's key, and the signature of the key `signed_by` over it; None for itself."""

    key: str
    node: int
    signed_by: str | None
    signature: str


class PublishedHead(msgspec.Struct, frozen=True):
    """A signed head, with the chain of keys to its signer. `consistency` is the path that proves
    that an earlier tree is the beginning of this one, if there was a question for it."""

    note: str
    keys: list[PublishedKey]
    consistency: list[str] | msgspec.UnsetType = msgspec.UNSET

    @property
    def path(self) -> list[bytes]:
        """The hashes of `consistency`. Raises `Unsigned` if some are not in base64."""
        told = [] if isinstance(self.consistency, msgspec.UnsetType) else self.consistency
        return [from_base64(one) for one in told]


class Checked(NamedTuple):
    """A head whose signature is valid, and the first key, to which all trust goes back."""

    head: Head
    first_key: VerifierKey


def published_key(
    cluster_id: str, node_id: int, public_key: bytes, signed_by: bytes, signature: bytes
) -> PublishedKey:
    """A key in the form in which readers get it; an empty `signed_by` stands for itself."""
    voucher = str(key_of(cluster_id, signed_by)) if signed_by else None
    key = str(key_of(cluster_id, public_key))
    return PublishedKey(key, node_id, voucher, b64encode(signature).decode())


def read_published(encoded: bytes) -> PublishedHead:
    """Raises `Unsigned` for what has not the form of one."""
    try:
        return msgspec.json.decode(encoded, type=PublishedHead)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise Unsigned(f"this is not a signed head: {error}") from error


def checked(published: PublishedHead) -> Checked:
    """The head, if the last of its keys has signed it, and each key the next one. Raises
    `Unsigned`."""
    keys = [parse_key(one.key) for one in published.keys]
    if not keys:
        raise Unsigned("the head names no keys")
    for key, told, voucher in zip(keys, published.keys, [keys[0], *keys], strict=False):
        said = key if told.signed_by is None else parse_key(told.signed_by)
        text = key_text(key.name.removeprefix("streamd/"), key.public_key)
        if said != voucher or key.name != keys[0].name:
            raise Unsigned(f"nothing leads from the first key to key {key.key_id.hex()}")
        if not is_signed_by(text, from_base64(told.signature), voucher.public_key):
            raise Unsigned(f"the signature for key {key.key_id.hex()} is not valid")
    head = parse_head(text_of(published.note, keys[-1]))
    if keys[-1].name != f"streamd/{head.cluster_id}":
        raise Unsigned("the key is that of another cluster than the head")
    return Checked(head, keys[0])


def is_continued(old: Head, new: Head, path: Sequence[bytes]) -> bool:
    """Whether a path proves that the tree of `new` begins with that of `old` (RFC 9162 section
    2.1.4.2)."""
    same_log = (old.cluster_id, old.group_id, old.first_index)
    if same_log != (new.cluster_id, new.group_id, new.first_index) or not 0 < old.size <= new.size:
        return False
    if old.size == new.size:
        return not path and old.root == new.root
    # A whole subtree of the new tree is not in the path: the old root itself.
    nodes = [*path] if old.size & (old.size - 1) else [old.root, *path]
    if not nodes:
        return False
    number, last = old.size - 1, new.size - 1
    while number & 1:
        number, last = number >> 1, last >> 1
    old_root = new_root = nodes[0]
    for node in nodes[1:]:
        if not last:
            return False
        if number & 1 or number == last:
            old_root, new_root = node_hash(node, old_root), node_hash(node, new_root)
            while not number & 1 and number:
                number, last = number >> 1, last >> 1
        else:
            new_root = node_hash(new_root, node)
        number, last = number >> 1, last >> 1
    return not last and old_root == old.root and new_root == new.root


def head_of(
    cluster_id: str, group_id: int, first_index: int, nodes: Sequence[bytes], last: tuple[int, int]
) -> Head:
    """The head of a tree with these nodes, whose `last` leaf is an entry of an index and a log
    time."""
    index, time_ms = last
    return Head(cluster_id, group_id, first_index, index - first_index + 1, folded(nodes), time_ms)
