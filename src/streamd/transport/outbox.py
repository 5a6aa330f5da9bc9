"""What waits to be written to one peer, and in which order it goes.

Small frames that affect the election clock go first: each write begins with them. Then bulk
messages and packets take turns, about one piece a write, so that nothing urgent waits for more than
the piece on its way. All queues are bounded.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import structlog
import trio

from streamd.raft.messages import AppendRequest, Message
from streamd.transport.interface import Limits
from streamd.transport.wire import FrameKind, frame, frames, messages_payload

log = structlog.get_logger("streamd.transport")

_ENCODER = msgspec.msgpack.Encoder()
_SMALL_FRAME_BYTES = 64  # the overhead of a frame, and a little more


class MessageQueue:
    """Encoded messages, each with its group's id. Without room the oldest give way to the newest;
    `dropped` counts them."""

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._waiting: deque[tuple[int, bytes]] = deque()
        self._bytes = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, group_id: int, encoded: bytes) -> None:
        self._waiting.append((group_id, encoded))
        self._bytes += len(encoded)
        while len(self._waiting) > 1 and (
            len(self._waiting) > self._max_messages or self._bytes > self._max_bytes
        ):
            self._bytes -= len(self._waiting.popleft()[1])
            self.dropped += 1
        assert self._waiting, "the newest message always stays"

    def take(self, max_bytes: int) -> bytes:
        """The payload of a frame with the oldest messages, as many of one group as fit and at
        least one."""
        group_id, oldest = self._waiting.popleft()
        taken, size = [oldest], len(oldest)
        while self._waiting:
            of_group, encoded = self._waiting[0]
            if of_group != group_id or size + len(encoded) > max_bytes:
                break
            self._waiting.popleft()
            taken.append(encoded)
            size += len(encoded)
        self._bytes -= size
        assert self._bytes >= 0, "the queue counts what it holds"
        return messages_payload(group_id, taken)

    def clear(self) -> None:
        self.dropped += len(self._waiting)
        self._waiting.clear()
        self._bytes = 0


class Packet(NamedTuple):
    """A request or a reply. `on_taken` is called when its first byte is about to be written."""

    kind: FrameKind
    payload: bytes
    on_taken: Callable[[], None]


class Outbox:
    """The queues of one connection's writer. Their owner limits the number of packets."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._urgent = MessageQueue(limits.max_waiting_messages, limits.max_waiting_bytes)
        self._bulk = MessageQueue(limits.max_waiting_messages, limits.max_waiting_bytes)
        self._packets: OrderedDict[int, Packet] = OrderedDict()
        self._packets_put = 0
        self._under_way: Iterator[bytes] = iter(())
        self._packet_is_next = False
        self._control: dict[FrameKind, bytes] = {}
        self._too_large = 0
        self._wake = trio.Event()

    @property
    def dropped_messages(self) -> int:
        return self._urgent.dropped + self._bulk.dropped + self._too_large

    @property
    def waiting_packets(self) -> int:
        return len(self._packets)

    def put_messages(self, group_id: int, messages: Sequence[Message]) -> None:
        """Queue a group's messages; without room the oldest give way, as on a lossy network."""
        for message in messages:
            encoded = _ENCODER.encode(message)
            if len(encoded) + _SMALL_FRAME_BYTES > self._limits.max_packet_bytes:
                log.error("a message is too large to be sent", to=message.to, bytes=len(encoded))
                self._too_large += 1
            elif isinstance(message, AppendRequest) or len(encoded) > self._limits.piece_bytes // 2:
                # Appends without entries as well: one that overtakes earlier entries would look
                # like a gap.
                self._bulk.put(group_id, encoded)
            else:
                self._urgent.put(group_id, encoded)
        self._wake.set()

    def put_packet(self, packet: Packet) -> int:
        """Queue a packet; returns the number by which it can be taken back."""
        self._packets_put += 1
        self._packets[self._packets_put] = packet
        self._wake.set()
        return self._packets_put

    def take_back(self, number: int) -> bool:
        """Returns whether the packet was still waiting; it will then never be written."""
        return self._packets.pop(number, None) is not None

    def put_control(self, kind: FrameKind) -> None:
        """Queue a PING or PONG; at most one of each waits."""
        self._control[kind] = frame(kind)
        self._wake.set()

    def drop_messages(self) -> None:
        """Drop the waiting messages: they mean nothing by the time the peer is connected again."""
        self._urgent.clear()
        self._bulk.clear()

    def end_connection(self) -> None:
        """Drop what was cut off in the middle or concerns this connection only."""
        self._packets.clear()
        self._control.clear()
        self._under_way = iter(())
        self.drop_messages()

    async def wait(self) -> None:
        """Return when there may be something to write."""
        await self._wake.wait()

    def take(self) -> bytes:
        """Frames to write now, a piece or two; empty if nothing waits."""
        taken = [*self._control.values()]
        self._control.clear()
        if self._urgent:
            payload = self._urgent.take(self._limits.piece_bytes)
            taken.append(frame(FrameKind.MESSAGES, payload))
        room = self._limits.piece_bytes
        while room > 0 and (piece := self._next_piece(room)):
            taken.append(piece)
            room -= len(piece)
        if not taken:
            self._wake = trio.Event()
        return b"".join(taken)

    def _next_piece(self, room: int) -> bytes:
        piece = next(self._under_way, b"")
        if not piece and (self._packets or self._bulk):
            self._under_way = self._next_packet(room)
            piece = next(self._under_way)
        return piece

    def _next_packet(self, room: int) -> Iterator[bytes]:
        if self._packets and (self._packet_is_next or not self._bulk):
            self._packet_is_next = False
            _, packet = self._packets.popitem(last=False)
            packet.on_taken()
            return frames(packet.kind, packet.payload, self._limits.piece_bytes)
        self._packet_is_next = True
        return frames(FrameKind.MESSAGES, self._bulk.take(room), self._limits.piece_bytes)
