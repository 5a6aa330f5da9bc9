"""What waits to be written to one peer, and in which order it goes.

Small frames that affect the election clock go first: each write begins with them. Then bulk
messages and packets take turns, about one piece a write, so that nothing urgent waits for more than
the piece on its way. All queues are bounded.

What is put is written at once if it is small and the connection takes it; the connection's writer
task writes the rest. The task's turn would come one pass of Trio later, on each side of each
message, and would cost more than the write.
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
from streamd.transport.wire import FrameKind, Wire, frame, frames, messages_payload

log = structlog.get_logger("streamd.transport")

_ENCODER = msgspec.msgpack.Encoder()
_SMALL_FRAME_BYTES = 64  # the overhead of a frame, and a little more
# The most that is written without the writer's task: more would delay a turn of the group.
_PROMPT_BYTES = 64 * 1024


class MessageQueue:
    """Encoded messages, each with its group's id. Without room the oldest give way to the newest;
    `dropped` counts them."""

    def __init__(self, max_messages: int, max_bytes: int) -> None:
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._waiting: deque[tuple[int, bytes]] = deque()
        self.bytes = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, group_id: int, encoded: bytes) -> None:
        self._waiting.append((group_id, encoded))
        self.bytes += len(encoded)
        while len(self._waiting) > 1 and (
            len(self._waiting) > self._max_messages or self.bytes > self._max_bytes
        ):
            self.bytes -= len(self._waiting.popleft()[1])
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
        self.bytes -= size
        assert self.bytes >= 0, "the queue counts what it holds"
        return messages_payload(group_id, taken)

    def clear(self) -> None:
        self.dropped += len(self._waiting)
        self._waiting.clear()
        self.bytes = 0


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
        self._packet_bytes = 0
        self._packets_put = 0
        self._under_way: Iterator[bytes] = iter(())
        self._packet_is_next = False
        self._control: dict[FrameKind, bytes] = {}
        self._too_large = 0
        self._wire: Wire | None = None
        self._is_writing = False
        # What the connection did not take at once.
        self._rest = b""
        self._writer_waits = trio.lowlevel.ParkingLot()

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
        self._write_promptly()

    def put_packet(self, packet: Packet) -> int:
        """Queue a packet; returns the number by which it can be taken back."""
        self._packets_put += 1
        self._packets[self._packets_put] = packet
        self._packet_bytes += len(packet.payload)
        self._write_promptly()
        return self._packets_put

    def take_back(self, number: int) -> bool:
        """Returns whether the packet was still waiting; it will then never be written."""
        packet = self._packets.pop(number, None)
        if packet is not None:
            self._packet_bytes -= len(packet.payload)
        return packet is not None

    def put_control(self, kind: FrameKind, payload: bytes = b"") -> None:
        """Queue a PING or PONG; at most one of each waits."""
        self._control[kind] = frame(kind, payload)
        self._write_promptly()

    def drop_messages(self) -> None:
        """Drop the waiting messages: they mean nothing by the time the peer is connected again."""
        self._urgent.clear()
        self._bulk.clear()

    # -- writing ----------------------------------------------------------------------------------

    def begin_connection(self, wire: Wire) -> None:
        """Write to this connection from now on; its writer's task runs soon."""
        self._wire = wire

    def end_connection(self) -> None:
        """Drop what was cut off in the middle or concerns this connection only."""
        self._wire = None
        self._is_writing = False
        self._rest = b""
        self._packets.clear()
        self._packet_bytes = 0
        self._control.clear()
        self._under_way = iter(())
        self.drop_messages()

    def _write_promptly(self) -> None:
        wire = self._wire
        if wire is None:
            return
        waiting_bytes = self._urgent.bytes + self._bulk.bytes + self._packet_bytes
        if not (self._is_writing or self._rest or waiting_bytes > _PROMPT_BYTES):
            while data := self.take():
                written = wire.write_now(data)
                if written < len(data):
                    self._rest = data[written:]
                    break
            else:
                return
        self._writer_waits.unpark()

    async def write(self, wire: Wire) -> None:
        """Write until nothing waits. Raises `ConnectionEnded`."""
        while data := self.take():
            self._is_writing = True
            await wire.write(data)
            self._is_writing = False

    async def wait(self) -> None:
        """Return when there may be something to write."""
        await self._writer_waits.park()

    def take(self) -> bytes:
        """Frames to write now, a piece or two; empty if nothing waits."""
        if self._rest:
            rest, self._rest = self._rest, b""
            return rest
        taken = [*self._control.values()]
        self._control.clear()
        if self._urgent:
            payload = self._urgent.take(self._limits.piece_bytes)
            taken.append(frame(FrameKind.MESSAGES, payload))
        room = self._limits.piece_bytes
        while room > 0 and (piece := self._next_piece(room)):
            taken.append(piece)
            room -= len(piece)
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
            self._packet_bytes -= len(packet.payload)
            packet.on_taken()
            return frames(packet.kind, packet.payload, self._limits.piece_bytes)
        self._packet_is_next = True
        return frames(FrameKind.MESSAGES, self._bulk.take(room), self._limits.piece_bytes)
