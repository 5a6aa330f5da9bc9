"""The part of the tree over the log (`proofs.tree`) that a segment's entries add.

A segment carries it in a frame of its own, which readers of the entries skip::

    frame  magic of a skippable zstd frame, length of what follows; the part, and the part's length

The length at the end, like the magic and the first length little endian, lets a reader find the
frame from the object's end without the entries. No entry can be mistaken for it: the payload of a
batch ends with its packages, so its last four bytes would be a length of at least 16 MiB.

Hashes of leaves, and of subtrees of fewer than 256 of them, are not kept: a reader that needs
one computes it from the entries.
"""

from __future__ import annotations

from struct import Struct

import msgspec

from streamd.objectstore.errors import ObjectCorrupt
from streamd.objectstore.framing import decoded
from streamd.proofs.leaves import entry_hash
from streamd.proofs.tree import HASH_BYTES, GrowingTree, Place
from streamd.raft.messages import Entry, EntryKind
from streamd.streams.content import UNDECODABLE
from streamd.streams.model import LogTree

# The level of the lowest subtrees whose roots are kept, each of 256 leaves.
TILE_LEVEL = 8
MAGIC = 0x184D2A5D
_HEAD = Struct("<II")
_LENGTH = Struct("<I")
_TOO_MANY_BYTES = 1 << 24


class TreeFrame(msgspec.Struct, frozen=True, array_like=True):
    """The part of the tree that the entries from `begin` to the segment's last one add.

    The tree's first leaf is entry `first_index`; `nodes` are those of the tree before `begin`.
    `tiles` are the roots, end to end, of all perfect subtrees of `TILE_LEVEL` or above that the
    entries complete, in the order in which they do.
    """

    first_index: int
    begin: int
    nodes: tuple[bytes, ...]
    tiles: bytes

    @property
    def tree(self) -> LogTree:
        """The tree before the entry `begin`."""
        return LogTree(self.first_index, self.nodes)

    def tile(self, place: Place) -> bytes | None:
        """The root of a perfect subtree; None unless the entries complete it, and it is kept."""
        level, number = place
        before = self.begin - self.first_index
        size = (number + 1) << level
        if level < TILE_LEVEL or size <= before:
            return None
        at = (_completed(size - 1) - _completed(before) + level - TILE_LEVEL) * HASH_BYTES
        return self.tiles[at : at + HASH_BYTES] or None


_FRAME = msgspec.msgpack.Decoder(TreeFrame)


class TreeRecorder:
    """Adds entries to the tree, and keeps what the frame has of it."""

    def __init__(self, tree: LogTree, begin: int) -> None:
        """`tree` is that before entry `begin`. Raises `ObjectCorrupt` if there is no such tree."""
        self._first_index = tree.first_index
        self._begin = begin
        self._nodes = tree.nodes
        try:
            self._tree = GrowingTree(begin - tree.first_index, tree.nodes)
        except ValueError as error:
            raise ObjectCorrupt(f"the tree before entry {begin} cannot be: {error}") from error
        self._tiles: list[bytes] = []

    @property
    def tree(self) -> LogTree:
        """The tree after the last entry."""
        return LogTree(self._first_index, tuple(self._tree.nodes))

    def add(self, entry: Entry) -> None:
        """Raises `ObjectCorrupt` for an entry that should hold commands but does not."""
        completed = self._tree.add(leaf_of(entry))
        if len(completed) >= TILE_LEVEL:
            self._tiles += completed[TILE_LEVEL - 1 :]

    def frame(self) -> bytes:
        part = TreeFrame(self._first_index, self._begin, self._nodes, b"".join(self._tiles))
        encoded = msgspec.msgpack.encode(part)
        head = _HEAD.pack(MAGIC, len(encoded) + _LENGTH.size)
        return head + encoded + _LENGTH.pack(len(encoded))


def leaf_of(entry: Entry) -> bytes:
    """The hash of an entry's leaf. Raises `ObjectCorrupt` as `TreeRecorder.add` does."""
    has_commands = entry.kind == EntryKind.COMMANDS
    try:
        return entry_hash(
            entry.index, entry.term, entry.kind, entry.payload, has_commands=has_commands
        )
    except UNDECODABLE as error:
        raise ObjectCorrupt(f"entry {entry.index} holds no commands: {error}") from error


def frame_bytes(before: bytes | memoryview) -> int:
    """The size of the frame at the end of `before`, what precedes the rest of an object; 0 if there
    is none. Of `before` the beginning may be missing, even that of the frame."""
    if len(before) < _LENGTH.size:
        return 0
    (length,) = _LENGTH.unpack_from(before, len(before) - _LENGTH.size)
    size = int(_HEAD.size + length + _LENGTH.size)
    if size >= _TOO_MANY_BYTES:
        return 0
    if size > len(before):
        return size
    head = _HEAD.pack(MAGIC, length + _LENGTH.size)
    return size if before[len(before) - size :][: _HEAD.size] == head else 0


def read_frame(before: bytes | memoryview) -> TreeFrame | None:
    """The frame at the end of `before`, which has all of it; None if there is none.

    Raises `ObjectCorrupt` for one that no segment can have.
    """
    size = frame_bytes(before)
    if not 0 < size <= len(before):
        return None
    encoded = bytes(before[len(before) - size + _HEAD.size : len(before) - _LENGTH.size])
    frame = decoded(_FRAME, encoded, "the tree of a log segment")
    is_there = 0 < frame.first_index <= frame.begin
    if not is_there or len(frame.nodes) != frame.tree.size_at(frame.begin - 1).bit_count():
        raise ObjectCorrupt("a log segment has a part of the tree that cannot be")
    return frame


def _completed(size: int) -> int:
    """How many perfect subtrees of `TILE_LEVEL` or above a tree of `size` leaves has."""
    count = 0
    size >>= TILE_LEVEL
    while size:
        count += size
        size >>= 1
    return count
