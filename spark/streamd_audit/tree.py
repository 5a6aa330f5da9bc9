"""The hash tree over the log (docs/proofs.md, RFC 9162 section 2.1): leaves of entries, and the
roots of parts of the tree that tasks compute apart from one another.

A part is a run of leaves, as the perfect subtrees that it is made of. Parts that follow one another
are joined into one, whichever tasks read them, and a part from leaf 0 on has a root.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from hashlib import sha256
from struct import Struct
from typing import NamedTuple

import msgspec

from streamd_audit.errors import BAD_MSGPACK, Damaged
from streamd_audit.framing import Buffer
from streamd_audit.segments import COMMANDS, Entry

_HEAD = Struct(">QQBI")
_COUNT = Struct(">I")
# Of a tree with more leaves than any log has entries.
MAX_LEVEL = 64
_EMPTY = sha256(b"").digest()
# How many bytes follow the first one of MessagePack's integers and arrays; after others none.
_LENGTHS = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
_LENGTHS |= {0xDC: 2, 0xDD: 4}


class Subtree(NamedTuple):
    """The root of a perfect subtree over `1 << level` leaves from `number << level` on."""

    level: int
    number: int
    root: bytes


class _Batch(msgspec.Struct, array_like=True):
    now_ms: int
    commands: list[msgspec.Raw]


_BATCH = msgspec.msgpack.Decoder(_Batch)


def leaf_of(entry: Entry) -> bytes:
    """The hash of an entry's leaf. Raises `Damaged`."""
    payload = entry.payload
    begin, end, count, root = len(payload), len(payload), 0, _EMPTY
    if entry.kind == COMMANDS:
        try:
            commands = _BATCH.decode(payload).commands
        except msgspec.MsgspecError as error:
            raise Damaged(BAD_MSGPACK, f"entry {entry.index}: {error}", entry.index) from error
        begin, count = 0, len(commands)
        for _ in range(3):
            begin += 1 + _LENGTHS.get(payload[begin], 0)
        views = [memoryview(command) for command in commands]
        end = begin + sum(map(len, views))
        if count == 1:
            root = _leaf(views[0])
        elif count:
            root = root_of(LeafRun(0, list(map(_leaf, views))).subtrees)
    head = _HEAD.pack(entry.index, entry.term, entry.kind, begin)
    parts = b"\x00", head, payload[:begin], _COUNT.pack(count), root, payload[end:]
    return sha256(b"".join(parts)).digest()


def _leaf(content: Buffer) -> bytes:
    found = sha256(b"\x00")
    found.update(content)
    return found.digest()


class LeafRun:
    """Consecutive leaves from number `begin` on: the `subtrees` that they are made of, as few as
    they can be, and the roots of all `large` ones among these and within them, whose level is
    `least` or more. A level at a time, which takes half as long as a leaf at a time."""

    def __init__(self, begin: int, leaves: Sequence[bytes], least: int = MAX_LEVEL) -> None:
        self.large: list[Subtree] = []
        before: list[Subtree] = []
        after: list[Subtree] = []
        level, first, roots = 0, begin, leaves
        while roots:
            if level >= least:
                self.large += [Subtree(level, first + at, one) for at, one in enumerate(roots)]
            if first & 1:
                before.append(Subtree(level, first, roots[0]))
                first, roots = first + 1, roots[1:]
            if len(roots) & 1:
                after.append(Subtree(level, first + len(roots) - 1, roots[-1]))
            pairs = zip(roots[::2], roots[1::2], strict=False)
            roots = [sha256(b"\x01" + one + other).digest() for one, other in pairs]
            level, first = level + 1, first >> 1
        self.subtrees = before + after[::-1]


def push(before: list[Subtree], one: Subtree) -> list[Subtree]:
    """Add the next subtree to those before it: siblings become their parent. Returns the parents,
    the smallest first."""
    parents = []
    level, number, root = one
    while before and number & 1 and before[-1][:2] == (level, number - 1):
        root = sha256(b"\x01" + before.pop().root + root).digest()
        level, number = level + 1, number >> 1
        parents.append(Subtree(level, number, root))
    before.append(Subtree(level, number, root))
    return parents


def joined(subtrees: Iterable[Subtree]) -> list[Subtree]:
    """Subtrees that follow one another, as few as they can be."""
    found: list[Subtree] = []
    for one in subtrees:
        push(found, one)
    return found


def root_of(subtrees: Sequence[Subtree]) -> bytes:
    """The root of the tree that these make up from leaf 0 on; there is at least one."""
    *others, last = subtrees
    root = last.root
    for one in reversed(others):
        root = sha256(b"\x01" + one.root + root).digest()
    return root


def placed(size: int, roots: Sequence[bytes]) -> list[Subtree] | None:
    """The subtrees of a tree of `size` leaves, from their roots, the largest first; None if it has
    another number of them."""
    if size.bit_count() != len(roots):
        return None
    found, begin = [], 0
    for root in roots:
        level = (size - begin).bit_length() - 1
        found.append(Subtree(level, begin >> level, root))
        begin += 1 << level
    return found
