"""One end of the Unix socket between a worker and the process that has the group.

What is sent in one turn of the event loop is written at once. So the busier a process is, the more
commands and outcomes share a message, a write and a wake of the other side.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Generic, TypeVar

import trio

from streamd.workers.messages import Message, Piece, encode

_RECEIVE_BYTES = 256 * 1024
# While more waits, nothing that can wait is added (`has_room`).
_ENOUGH_BYTES = 4 * 1024 * 1024

M = TypeVar("M")


def _framed(message: Message) -> bytes:
    payload = encode(message)
    return len(payload).to_bytes(4, "big") + payload


class Link(Generic[M]):
    """Sends messages, and passes those that it receives to `take`.

    `before_write` are called before each write, and may send what they have gathered. As a context
    manager, whose block must not wait, it writes at the end what was sent in the block: waking the
    task that writes costs a pass of Trio's loop. What `take` raises ends `run`.
    """

    def __init__(
        self,
        sock: socket.socket,
        decode: Callable[[memoryview], M],
        gathering: AbstractContextManager[None] | None = None,
    ) -> None:
        """`gathering` is entered for each batch of messages that is received."""
        sock.setblocking(False)
        self._sock = sock
        self._decode = decode
        self._gathering = gathering or nullcontext()
        self._queue: list[bytes | Message] = []
        self._queued_bytes = 0
        self._left = memoryview(b"")  # Of what was taken out of the queue.
        self._is_due = False
        self._in_block = False
        self._due = trio.lowlevel.ParkingLot()
        self._written = trio.lowlevel.ParkingLot()
        self._ended = False
        self.before_write: list[Callable[[], None]] = []

    @property
    def has_room(self) -> bool:
        """Whether the other side receives what it is sent; True once the link has ended."""
        return self._queued_bytes < _ENOUGH_BYTES or self._ended

    async def room(self) -> None:
        """Wait until the link `has_room`."""
        while not self.has_room:
            await self._written.park()

    @property
    def last(self) -> bytes | Message | None:
        """What was sent last, as long as it waits."""
        return self._queue[-1] if self._queue else None

    def send(self, message: Message) -> None:
        """Send a message, with all others of this turn."""
        if not self._ended:
            framed = _framed(message)
            self._queue.append(framed)
            self._queued_bytes += len(framed)
            self.wake()

    def send_growing(self, message: Piece) -> None:
        """As `send`; the message may still get more numbers while it is the `last`."""
        if not self._ended:
            self._queue.append(message)
            self._queued_bytes += len(message.data)
            self.wake()

    def wake(self) -> None:
        """Write soon, even if there is nothing but what `before_write` will send."""
        if not self._is_due:
            self._is_due = True
            if not self._in_block:
                self._due.unpark()

    def __enter__(self) -> None:
        self._in_block = True

    def __exit__(self, *_: object) -> None:
        self._in_block = False
        self.flush()

    async def written(self) -> None:
        """Wait until all that was sent is written, or the link has ended."""
        while (self._is_due or self._left) and not self._ended:
            await self._written.park()

    def flush(self) -> None:
        """Write what waits now; the task that writes does the rest if the socket is full."""
        if self._is_due and not self._left:
            self._write()
            if self._left:
                self._due.unpark()

    async def run(self, take: Callable[[M], None]) -> None:
        """Send and receive until the other side ends."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write_for_ever)
                await self._receive(take)
                nursery.cancel_scope.cancel()
        finally:
            self._ended = True
            self._queue.clear()
            self._left = memoryview(b"")
            self._written.unpark_all()
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()

    async def _write_for_ever(self) -> None:
        while True:
            self._write()
            if self._left:
                await trio.lowlevel.wait_writable(self._sock)
            elif self._is_due:
                await trio.lowlevel.checkpoint()
            else:
                await self._due.park()

    def _write(self) -> None:
        """Write as much as the socket takes."""
        if not self._left:
            for gathered in self.before_write:
                gathered()
            self._is_due = False
            self._left = memoryview(self._take_queue())
        try:
            sent = self._sock.send(self._left) if self._left else 0
        except BlockingIOError:
            return
        except OSError:
            sent = len(self._left)  # The other side is gone: receiving ends, too.
        self._left = self._left[sent:]
        self._queued_bytes -= sent
        self._written.unpark_all()

    def _take_queue(self) -> bytes:
        """All that waits, as bytes."""
        queue, self._queue = self._queue, []
        framed = b"".join([one if isinstance(one, bytes) else _framed(one) for one in queue])
        self._queued_bytes = len(framed)  # Those that grew were counted without their numbers.
        return framed

    async def _receive(self, take: Callable[[M], None]) -> None:
        buffer = bytearray()
        while True:
            await trio.lowlevel.wait_readable(self._sock)
            try:
                data = self._sock.recv(_RECEIVE_BYTES)
            except BlockingIOError:
                continue
            except OSError:
                return
            if not data:
                return
            buffer += data
            with self._gathering:
                self._take_whole(buffer, take)
            self.flush()

    def _take_whole(self, buffer: bytearray, take: Callable[[M], None]) -> None:
        """Take the messages that have come whole out of `buffer`."""
        at = 0
        with memoryview(buffer) as view:
            while len(buffer) - at >= 4:
                end = at + 4 + int.from_bytes(view[at : at + 4], "big")
                if end > len(buffer):
                    break
                with view[at + 4 : end] as payload:
                    message = self._decode(payload)
                take(message)
                at = end
        del buffer[:at]
