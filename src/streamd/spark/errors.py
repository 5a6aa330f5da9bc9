"""Errors that end a query that reads. Each is a line for the user: what, where, and the cure."""

from __future__ import annotations

from streamd.streams.offsets import Position


class Trimmed(Exception):
    """The requested records are gone: a snapshot replaced them.

    `earliest` is the first offset that can still be read.
    """

    def __init__(self, stream: str, earliest: Position) -> None:
        super().__init__(
            f"{stream} begins at {earliest.token().decode()}: a snapshot replaced everything "
            "before it. Start there with option starting_offset, or set option "
            "on_trimmed=snapshot to continue from the snapshot whenever this happens"
        )
        self.stream = stream
        self.earliest = earliest

    def __reduce__(self) -> tuple[type[Trimmed], tuple[str, Position]]:
        return Trimmed, (self.stream, self.earliest)


class StreamMissing(Exception):
    """A stream does not exist, or another one has its name."""


class StoreChanged(Exception):
    """Something that a state of the store names no longer exists: a later query finds a later
    state."""


class TooManyStreams(Exception):
    """A prefix selects more streams than one query reads."""


class BadRecord(Exception):
    """A record does not fit the schema (raised in mode failfast)."""


class NoAnswer(Exception):
    """No server could be reached in the time for retries."""


class NotUnderstood(Exception):
    """A server's answer is not as expected; the server may be older than this package."""
