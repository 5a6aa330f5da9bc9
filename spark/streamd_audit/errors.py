"""The errors of the audit's decoders and of its store."""

from __future__ import annotations

# What can be wrong with bytes. The names are stable: rows of the data sources carry them.
TOO_SHORT = "too_short"  # the object ends before what it claims to hold
TOO_LONG = "too_long"  # there are bytes that nothing accounts for
WRONG_MAGIC = "wrong_magic"  # another kind of object
UNKNOWN_VERSION = "unknown_version"  # written by a later release
HEAD_CRC = "head_crc"  # the head does not have its checksum
BODY_CRC = "body_crc"  # the bytes after the head do not have their checksum
FOOTER_CRC = "footer_crc"  # a pack's footer does not have its checksum
SLICE_CRC = "slice_crc"  # a slice does not have the checksum at its beginning
NAME_DIGEST = "name_digest"  # SHA-256 of the object is not the one in its name
MISNAMED = "misnamed"  # the name says other numbers than the content
BAD_ZSTD = "bad_zstd"  # not the one zstd frame that the format asks for
BAD_MSGPACK = "bad_msgpack"  # not the MessagePack that the format asks for
CONTRADICTION = "contradiction"  # fields contradict each other
TOO_LARGE = "too_large"  # more than the format allows
CHAIN = "chain"  # an entry does not have the checksum that its place in the log requires
OTHER_CLUSTER = "other_cluster"  # an object of another cluster
WRONG_SLICE = "wrong_slice"  # a slice is whole, but not the one that was referred to
BAD_ROW = "bad_row"  # a row's key has no known shape
UNKNOWN_FIELD = "unknown_field"  # elements, or rows, that only a later release can have written
UNREADABLE = "unreadable"  # the store cannot serve this object, and serves others

KINDS = frozenset(
    (
        TOO_SHORT, TOO_LONG, WRONG_MAGIC, UNKNOWN_VERSION, HEAD_CRC, BODY_CRC, FOOTER_CRC,
        SLICE_CRC, NAME_DIGEST, MISNAMED, BAD_ZSTD, BAD_MSGPACK, CONTRADICTION, TOO_LARGE, CHAIN,
        OTHER_CLUSTER, WRONG_SLICE, BAD_ROW, UNKNOWN_FIELD, UNREADABLE,
    )
)  # fmt: skip


class Damaged(Exception):
    """An object's bytes are not what a server wrote.

    `kind` is one of `KINDS`; `detail` says in a line what was expected and found; `at` is the
    index of the log entry, or the number of the slice or the piece, where there is one.
    """

    def __init__(self, kind: str, detail: str, at: int | None = None) -> None:
        super().__init__(kind, detail, at)
        self.kind = kind
        self.detail = detail
        self.at = at

    def __str__(self) -> str:
        return f"{self.kind}: {self.detail}"


class StoreFailed(Exception):
    """The store cannot be listed or read; nothing is known about its objects."""


class ObjectMissing(Exception):
    """The store answers, but has no object of that name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name

    def __str__(self) -> str:
        return f"there is no object {self.name}"
