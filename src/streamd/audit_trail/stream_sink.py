"""An audit trail in a JSON stream of the node's own group, which all nodes of a cluster share."""

from __future__ import annotations

from collections.abc import Sequence

from streamd.audit_trail.sinks import SinkFailed
from streamd.group.group import Group
from streamd.group.proposals import OutcomeUnknown, Unavailable
from streamd.streams.commands import Append, Command, Create, Outcome, Result
from streamd.streams.content import JSON, JSON_SEPARATOR
from streamd.streams.model import Settings


class StreamSink:
    """Appends to the stream with `key`, and makes it when it does not exist.

    It proposes to the group, as no client can: no token is needed, and nothing that is recorded
    makes another entry.
    """

    def __init__(self, group: Group, key: bytes) -> None:
        self._group = group
        self._key = key

    async def open(self) -> None:
        pass  # There may be no leader yet.

    async def write(self, entries: Sequence[bytes], *, durable: bool) -> None:
        data = b"".join(entry + JSON_SEPARATOR for entry in entries)
        lengths = [len(entry) + len(JSON_SEPARATOR) for entry in entries]
        append = Append(self._key, JSON, data, lengths)
        outcome = await self._propose(append, len(data))
        if outcome.result is Result.NOT_FOUND:
            await self._propose(Create(self._key, Settings(JSON), implicit_bucket=True), 0)
            outcome = await self._propose(append, len(data))
        if outcome.result is not Result.APPENDED:
            raise SinkFailed(f"the append to the stream failed: {outcome.result.value}")

    async def reopen(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def _propose(self, command: Command, size: int) -> Outcome:
        try:
            return await self._group.writes.propose(command, size)
        except (Unavailable, OutcomeUnknown) as error:
            raise SinkFailed(str(error)) from None
