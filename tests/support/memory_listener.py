"""A listener to whom streams are handed in memory."""

from __future__ import annotations

import trio


class MemoryListener(trio.abc.Listener[trio.abc.Stream]):
    """Accepts the streams that come over a channel."""

    def __init__(self, dialled: trio.MemoryReceiveChannel[trio.abc.Stream]) -> None:
        self._dialled = dialled

    async def accept(self) -> trio.abc.Stream:
        return await self._dialled.receive()

    async def aclose(self) -> None:
        await self._dialled.aclose()
