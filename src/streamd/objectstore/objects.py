"""What streamd needs from an object store: a few blocking calls, on immutable objects.

An object is written once, whole, under a name that is never used for anything else (most names
carry the digest of the content). So every call may be repeated: a PUT whose answer was lost does
no harm, and neither does a second deletion.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from streamd.objectstore.errors import ColdRefused

# Objects are written from memory in one call, so they appear whole or not at all.
MAX_OBJECT_BYTES = 64 * 1024 * 1024
# How many objects S3 lists, and deletes, in one call.
MAX_PAGE = 1000

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")
_MAX_NAME_BYTES = 512


class ObjectInfo(NamedTuple):
    """A listed object: its size in bytes and when the store says it was written, in milliseconds
    since the epoch by the store's own clock."""

    name: str
    size: int
    modified_ms: int


class ObjectStore(Protocol):
    """Named objects. Calls block, end within a time limit, and make one attempt.

    Safe to use from several threads. Every call raises `ColdUnavailable` or `ColdRefused` when the
    store fails.
    """

    @property
    def place(self) -> str:
        """Where the objects are, for messages."""
        ...

    def put(self, name: str, content: bytes) -> None:
        """Write an object, durably. It appears whole or not at all."""
        ...

    def get(self, name: str, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset` on.

        Raises `ObjectMissing`, and `ObjectCorrupt` when the object ends before that.
        """
        ...

    def stat(self, name: str) -> ObjectInfo:
        """Raises `ObjectMissing`."""
        ...

    def page(self, prefix: str, *, after: str = "", limit: int = MAX_PAGE) -> list[ObjectInfo]:
        """Up to `limit` objects whose names begin with `prefix`, in the order of their names,
        from the first after the name `after` on. An empty page is the end."""
        ...

    def delete(self, names: Sequence[str]) -> None:
        """Delete up to `MAX_PAGE` objects. Missing ones count as deleted."""
        ...

    def close(self) -> None: ...


def check_name(name: str) -> str:
    """Check that every store, file systems included, can hold the name; otherwise it is a bug."""
    if _NAME.fullmatch(name) is None or len(name) > _MAX_NAME_BYTES:
        raise ValueError(f"{name!r} is not a valid object name")
    return name


def check_put(name: str, content: bytes) -> None:
    """Raises `ColdRefused` for an object that is too large. Records written before the cold store
    was configured may be, so this is not a bug and must not end the node."""
    check_name(name)
    if len(content) > MAX_OBJECT_BYTES:
        raise ColdRefused(
            f"{name} has {len(content)} bytes, which exceeds the limit for one object"
        )
