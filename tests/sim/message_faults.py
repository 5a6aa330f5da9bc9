"""Raft messages that are lost, doubled, or kept until others have overtaken them.

Connections of TCP do not do that to bytes, but Raft must not rely on it; and what is kept may
arrive in a later life of the node it was meant for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random

import trio

from streamd.raft.messages import Message

Deliver = Callable[[Sequence[Message]], None]


class MessageFaults:
    """Brings messages to nodes; `lost`, `doubled` and `kept` are shares of all messages."""

    def __init__(self, random: Random, counted: Counter[str]) -> None:
        self._random = random
        self._counted = counted
        self.lost = self.doubled = self.kept = 0.0
        self.kept_s = 0.0
        self.late: trio.MemorySendChannel[tuple[float, Message]]
        self.late, self._late = trio.open_memory_channel[tuple[float, Message]](1000)

    def heal(self) -> None:
        self.lost = self.doubled = self.kept = 0.0

    def sort(self, messages: Sequence[Message]) -> list[Message]:
        """Those that arrive now."""
        if not self.lost and not self.doubled and not self.kept:
            return list(messages)
        arriving: list[Message] = []
        for message in messages:
            if self._random.random() < self.lost:
                self._counted["messages lost"] += 1
            elif self._random.random() < self.kept:
                self._keep(message)
            else:
                arriving.append(message)
                if self._random.random() < self.doubled:
                    self._counted["messages doubled"] += 1
                    self._keep(message)
        return arriving

    def _keep(self, message: Message) -> None:
        at = trio.current_time() + self._random.random() * self.kept_s
        try:
            self.late.send_nowait((at, message))
        except trio.WouldBlock:
            self._counted["messages lost"] += 1

    async def deliver_late(self, deliver: Callable[[Message], bool]) -> None:
        """Deliver a kept message when its time has come; `deliver` says whether a node accepted
        it."""

        async def deliver_at(at: float, message: Message) -> None:
            await trio.sleep_until(at)
            self._counted["messages overtaken by others"] += deliver(message)

        async with trio.open_nursery() as nursery:
            async for at, message in self._late:
                nursery.start_soon(deliver_at, at, message)
