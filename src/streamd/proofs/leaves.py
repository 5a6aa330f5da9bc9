"""The leaf of a log entry.

A leaf is the index, term and kind of its entry, and what the entry holds. In place of the commands
of a batch it has the root of a tree over them, so that one command can be shown without the others:

    index (8), term (8), kind (1), length of the prefix (4), prefix, number of commands (4),
    root of the tree over the commands, suffix

A command's leaf is its bytes in the payload. The prefix is everything in the payload before the
first command, the suffix everything after the last one, so a leaf determines its payload to the
byte. Of an entry without commands, the prefix is the payload, and the suffix is empty.
"""

from __future__ import annotations

from hashlib import sha256
from struct import Struct
from typing import NamedTuple

import msgspec

from streamd.proofs.tree import EMPTY_ROOT, leaf_hash, root_of

_HEAD = Struct(">QQBI")
_COUNT = Struct(">I")
# The sizes of MessagePack's integers and arrays after their first byte; others have none.
_LENGTHS = {0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8, 0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8}
_LENGTHS |= {0xDC: 2, 0xDD: 4}


class _Batch(msgspec.Struct, array_like=True):
    now_ms: int
    commands: list[msgspec.Raw]


_BATCH = msgspec.msgpack.Decoder(_Batch)


class Divided(NamedTuple):
    """A payload, divided: end to end its parts are the payload."""

    prefix: bytes
    commands: list[bytes]
    suffix: bytes


def divide(payload: bytes) -> Divided:
    """Divide the payload of an entry with commands. Raises `msgspec.MsgspecError` for any other."""
    raws = _BATCH.decode(payload).commands
    # The array of the batch, its stamp, and the array of the commands.
    begin = 0
    for _ in range(3):
        begin += 1 + _LENGTHS.get(payload[begin], 0)
    commands = list(map(bytes, raws))
    end = begin + sum(map(len, commands))
    return Divided(payload[:begin], commands, payload[end:])


def commands_root(commands: list[bytes]) -> bytes:
    """The root of the tree over an entry's commands."""
    # As `leaf_hash` of each: there are many.
    return root_of([sha256(b"\x00" + command).digest() for command in commands])


def entry_hash(index: int, term: int, kind: int, payload: bytes, *, has_commands: bool) -> bytes:
    """The hash of an entry's leaf. Raises `msgspec.MsgspecError` for a payload without commands
    that should have some."""
    if not has_commands:
        return hash_of(index, term, kind, payload, 0, EMPTY_ROOT, b"")
    prefix, commands, suffix = divide(payload)
    return hash_of(index, term, kind, prefix, len(commands), commands_root(commands), suffix)


def hash_of(
    index: int, term: int, kind: int, prefix: bytes, count: int, root: bytes, suffix: bytes
) -> bytes:
    """The hash of the leaf with these parts."""
    head = _HEAD.pack(index, term, kind, len(prefix))
    return leaf_hash(b"".join((head, prefix, _COUNT.pack(count), root, suffix)))
