"""Where an audit trail is written to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class SinkFailed(Exception):
    """Entries could not be stored; the message says why."""


class Sink(Protocol):
    """Stores entries, JSON values without line breaks."""

    async def open(self) -> None:
        """Get ready to write. Raises `SinkFailed` if what is configured cannot work."""
        ...

    async def write(self, entries: Sequence[bytes], *, durable: bool) -> None:
        """Store entries; `durable` ones survive a crash of the machine once this returns.

        Raises `SinkFailed`: some of them may be stored nevertheless.
        """
        ...

    async def reopen(self) -> None:
        """Write to what has the name now. Raises `SinkFailed`, and then goes on as before."""
        ...

    async def close(self) -> None: ...
