"""Looks up positions in old records, for forks and snapshots.

The machine decides, but it cannot wait for bytes from the cold store. So the node that takes a
request looks the position up first and puts the result into the command; records never change.
If the stream itself was replaced by the time the command takes effect, the outcome is `STALE`,
and the node repeats the lookup.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from streamd.group.group import Group
from streamd.group.proposals import Unavailable
from streamd.node.foresight import Foresight
from streamd.node.reads import Reads
from streamd.streams.chunks import OffsetMismatch
from streamd.streams.commands import Command, Outcome, Result
from streamd.streams.forks import find_anchor
from streamd.streams.model import ForkRequest, Stream, Verdict, VerifiedPosition
from streamd.streams.offsets import Position
from streamd.streams.snapshots import find_boundary

_TRIES = 5

Find = Callable[[], Awaitable[VerifiedPosition]]


class PositionLookup:
    """Finds positions in streams, wherever their records are."""

    def __init__(self, group: Group, reads: Reads, foresight: Foresight) -> None:
        self._group = group
        self._foresight = foresight
        self._reads = reads

    async def propose(
        self, make: Callable[[VerifiedPosition], Command], find: Find, size: int = 0
    ) -> Outcome:
        """Propose the command that `make` builds from the result of `find`; retry while it is
        stale.

        Raises `Unavailable`, `OutcomeUnknown`, and a `ColdError` when the records cannot be read.
        """
        for _ in range(_TRIES):
            outcome = await self._foresight.propose(make(await find()), size)
            if outcome.result is not Result.STALE:
                return outcome
        raise Unavailable(f"the stream was replaced {_TRIES} times during the request")

    async def of_fork(self, request: ForkRequest) -> VerifiedPosition:
        """Where a fork begins in its source. Raises `Unavailable`, a `ColdError`."""
        if request.offset is None:
            return VerifiedPosition()
        at = Position(*request.offset)
        source = await self._stream(request.source, at)
        if source is None:
            return VerifiedPosition()
        if at == source.tail:
            if request.sub_offset:
                return VerifiedPosition()
            return VerifiedPosition(source.stream_id, Verdict.BOUNDARY, *at)
        if at.record == source.records:
            return VerifiedPosition(source.stream_id, Verdict.NO_BOUNDARY)
        try:
            chunk, limit = await self._reads.chunk_at(source, at.record)
        except OffsetMismatch:
            return VerifiedPosition()
        return find_anchor(source, chunk, limit, at, request.sub_offset)

    async def boundary(self, key: bytes, at: Position) -> VerifiedPosition:
        """Whether a record of a stream begins at `at`. Raises `Unavailable`, a `ColdError`."""
        stream = await self._stream(key, at)
        if stream is None:
            return VerifiedPosition()
        if at.record == stream.records:
            verdict = Verdict.BOUNDARY if at == stream.tail else Verdict.NO_BOUNDARY
            return VerifiedPosition(stream.stream_id, verdict, *at)
        try:
            chunk, _ = await self._reads.chunk_at(stream, at.record)
        except OffsetMismatch:
            return VerifiedPosition()
        return find_boundary(stream, chunk, at)

    async def _stream(self, key: bytes, at: Position) -> Stream | None:
        """The stream, if it has a record at `at` or ends there."""
        await self._group.reads.catch_up()
        stream = await self._reads.stream(key)
        if stream is None or not stream.earliest.record <= at.record <= stream.records:
            return None
        return stream
