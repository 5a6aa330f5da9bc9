"""The consumer for asyncio and Trio, from which `consuming` is generated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from streamd.client.closing import AsyncClosing
from streamd.client.core.consuming import ConsumerFlows
from streamd.client.errors import MessageMismatch

if TYPE_CHECKING:
    from streamd.client.async_driving import AsyncDriver

T = TypeVar("T")


class AsyncConsumer(AsyncClosing, Generic[T]):
    """Iterates over a stream's messages, after those that it has handled, in earlier starts too.

    `commit` says that all messages that came are handled. A start begins after the last commit: so
    each message is handled at least once, and those after the last commit twice if the process was
    killed. One thread or task at a time uses a consumer; a start of the same name elsewhere takes
    over, and the next `commit` of the earlier one raises `ConsumerFenced`.
    """

    # For the blocking client:
    # >>> from streamd.client import Client, MemoryPositions
    # >>> client = Client("http://127.0.0.1:4437")
    # >>> stream = client.stream("help/jobs")
    # >>> info = stream.create("application/json", data='["first", "second"]', closed=True)
    # >>> positions = MemoryPositions()
    # >>> with stream.consumer("worker", positions=positions) as consumer:
    # ...     print(next(consumer))
    # ...     consumer.commit()
    # first
    # >>> with stream.consumer("worker", positions=positions) as consumer:
    # ...     print(list(consumer))
    # ['second']
    # >>> client.close()

    def __init__(self, driver: AsyncDriver, flows: ConsumerFlows) -> None:
        self._driver = driver
        self._flows = flows
        self._messages = driver.iterate(flows.messages())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name} of {self._flows.stream.name.written}>"

    def __aiter__(self) -> AsyncConsumer[T]:
        return self

    async def __anext__(self) -> T:
        try:
            position, message = await anext(self._messages)
        except MessageMismatch as mismatch:
            self._flows.position = mismatch.position
            raise
        self._flows.position = position
        found: T = message
        return found

    @property
    def name(self) -> str:
        """The name under which the position is kept."""
        return self._flows.name

    @property
    def position(self) -> str | None:
        """The position after the last message that came, as `read_json` takes it; None before the
        first."""
        return self._flows.position

    async def commit(self) -> None:
        """Keep the position after the last message that came: that one and all before it are
        handled.

        It may be repeated after any failure, and does nothing before the first message. Raises
        `ConsumerFenced`, and what keeps the position raises.
        """
        await self._driver.run(self._flows.commit())

    async def seek(self, position: str) -> None:
        """Go on at another position, and keep it: "-1" is the start, "now" the present end.

        This is how a consumer goes on after `StreamReplaced`, and after `OffsetGone` at its
        `earliest_offset`. Raises as `commit` does, and `ValueError`.
        """
        await self._messages.close()
        try:
            await self._driver.run(self._flows.seek(position))
        finally:
            self._messages = self._driver.iterate(self._flows.messages())

    async def close(self) -> None:
        """Receive no more, and end the connection. It keeps no position."""
        await self._messages.close()
