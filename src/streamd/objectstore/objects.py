"""What streamd asks of an object store: a few calls that block, on immutable objects.

An object is written once, whole, under a name that nothing else is ever written under (most carry
the digest of their content), so every call may be repeated: a PUT whose answer was lost does no
harm, and neither does deleting twice.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from streamd.objectstore.errors import ColdRefused

# Objects are written from memory in one call, which is what makes them appear whole or not at all.
MAX_OBJECT_BYTES = 64 * 1024 * 1024
# What S3 lists, and deletes, in one call.
MAX_PAGE = 1000

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*(/[A-Za-z0-9_-][A-Za-z0-9._-]*)*")
_MAX_NAME_BYTES = 512


class ObjectInfo(NamedTuple):
    """An object as it is listed: its size in bytes and when the store says it was written, in
    milliseconds since the epoch by the store's own clock."""

    name: str
    size: int
    modified_ms: int


class ObjectStore(Protocol):
    """Named objects. Calls block, end within a time limit, and make one attempt.

    Safe to use from several threads. Every call raises `ColdUnavailable` or `ColdRefused` when
    the store does not do its part.
    """

    @property
    def place(self) -> str:
        """Where the objects are, for messages."""
        ...

    def put(self, name: str, content: bytes) -> None:
        """Write an object, durably. It is there whole or not at all."""
        ...

    def get(self, name: str, offset: int, length: int) -> bytes:
        """Exactly `length` bytes from `offset` on.

        Raises `ObjectMissing`, and `ObjectCorrupt` when the object ends before them.
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
        """Delete up to `MAX_PAGE` objects. One that is not there is deleted already."""
        ...

    def close(self) -> None: ...


def check_name(name: str) -> str:
    """Names are what every store, file systems included, can hold. A bug if not."""
    if _NAME.fullmatch(name) is None or len(name) > _MAX_NAME_BYTES:
        raise ValueError(f"{name!r} is not a valid object name")
    return name


def check_put(name: str, content: bytes) -> None:
    """Raises `ColdRefused` for an object that is too large. Records written before the cold store
    was configured may be, so this is not a bug and must not end the node."""
    check_name(name)
    if len(content) > MAX_OBJECT_BYTES:
        raise ColdRefused(f"{name} has {len(content)} bytes, more than an object may have")
