"""What ends a query that reads. Spark shows the user the last line of it."""

from __future__ import annotations

from streamd.streams.offsets import Position


class Trimmed(Exception):
    """Records that were asked for are gone: a snapshot stands for them.

    `earliest` is the first offset that can still be read.
    """

    def __init__(self, stream: str, earliest: Position) -> None:
        super().__init__(
            f"{stream} begins at {earliest.token().decode()}: a snapshot stands for what was "
            "before it. Start there with option starting_offset, or set option "
            "on_trimmed=snapshot to go on from the snapshot whenever this happens"
        )
        self.stream = stream
        self.earliest = earliest

    def __reduce__(self) -> tuple[type[Trimmed], tuple[str, Position]]:
        return Trimmed, (self.stream, self.earliest)


class StreamMissing(Exception):
    """A stream is not there, or another of the same name is."""


class StoreChanged(Exception):
    """What a state of the store names is not there any more: a later query finds a later state."""


class TooManyStreams(Exception):
    """A prefix selects more streams than one query reads."""


class BadRecord(Exception):
    """A record is not what the schema says, in mode failfast."""


class NotUnderstood(Exception):
    """A server's answer is not as it should be; one older than this package, for example."""
