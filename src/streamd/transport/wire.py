"""Frames: what travels on a connection between two nodes, and how long it may take.

A frame is a header (big-endian: length of the payload u32, CRC32C over kind and payload u32,
kind u8) and its payload. A payload larger than a piece travels as `PART` frames and an end, so that
small frames can go between them; the end's kind carries the flag `CONTINUED`.
"""

from __future__ import annotations

import math
import re
import ssl
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from functools import partial
from struct import Struct
from typing import NamedTuple, NoReturn

import msgspec
import trio
from crc32c import crc32c

from streamd.process.attending import attend
from streamd.raft.messages import Message
from streamd.streams.content import UNDECODABLE
from streamd.transport.errors import ConnectionEnded, ProtocolError
from streamd.transport.interface import AttendedStream, Limits, PromptStream

_HEADER = Struct(">IIB")
_GROUP = Struct(">I")
_REQUEST = Struct(">IQHI")
_REPLY = Struct(">QB")
_RECEIVE_BYTES = 64 * 1024

_RELEASE = re.compile(r"[0-9A-Za-z.+-]*")
_MAX_RELEASE_CHARACTERS = 64

_MESSAGES = msgspec.msgpack.Decoder(list[Message])


class FrameKind(IntEnum):
    """What a frame carries."""

    HELLO = 1  # the dialler's first
    WELCOME = 2  # the acceptor's first, its own Hello
    REFUSED = 3  # instead of that: a `RefusalMessage`, and the end
    MESSAGES = 4  # a group's Raft messages
    REQUEST = 5
    REPLY = 6
    PART = 7  # precedes the frame that carries `CONTINUED`
    PING = 8
    PONG = 9  # the sender's release; 0.1.0 names none
    PROOF = 10  # in the handshake, if there is a secret
    CHALLENGE = 11  # the acceptor's first, to a dialler that proves itself first


CONTINUED = 0x80

_KINDS = frozenset(FrameKind) | {
    kind | CONTINUED for kind in (FrameKind.MESSAGES, FrameKind.REQUEST, FrameKind.REPLY)
}
_CRC_OF_KIND = {kind: crc32c(bytes((kind,))) for kind in _KINDS}


class ReplyStatus(IntEnum):
    """How the handler of a request ended."""

    DONE = 0  # the payload is the handler's answer
    REFUSED = 1  # a `RefusalMessage`
    FAILED = 2  # the handler broke; its effect is not known


class Request(NamedTuple):
    """A peer's request to a group; it counts as lost after `timeout_ms`."""

    group_id: int
    request_id: int
    kind: int
    timeout_ms: int
    payload: bytes


class Reply(NamedTuple):
    """The answer to the request of that id."""

    request_id: int
    status: int
    payload: bytes


class Traffic:
    """The traffic on the connections with one peer."""

    def __init__(self) -> None:
        self.sent_bytes = 0
        self.received_bytes = 0

    def add(self, other: Traffic) -> None:
        self.sent_bytes += other.sent_bytes
        self.received_bytes += other.received_bytes


# -- encoding -------------------------------------------------------------------------------------


def frame(kind: int, payload: bytes = b"") -> bytes:
    """A payload after its length, checksum and kind."""
    return _HEADER.pack(len(payload), crc32c(payload, _CRC_OF_KIND[kind]), kind) + payload


def frames(kind: int, payload: bytes, piece_bytes: int) -> Iterator[bytes]:
    """A payload as one frame, or in pieces."""
    if len(payload) <= piece_bytes:
        yield frame(kind, payload)
        return
    last = (len(payload) - 1) // piece_bytes * piece_bytes
    assert 0 < len(payload) - last <= piece_bytes, "no piece is empty or too large"
    for start in range(0, last, piece_bytes):
        yield frame(FrameKind.PART, payload[start : start + piece_bytes])
    yield frame(kind | CONTINUED, payload[last:])


def messages_payload(group_id: int, encoded: Sequence[bytes]) -> bytes:
    """Messages of a group, each already encoded, as the payload of a `MESSAGES` frame."""
    return b"".join((_GROUP.pack(group_id), _array_head(len(encoded)), *encoded))


def request_payload(request: Request) -> bytes:
    """The payload of a `REQUEST` frame."""
    head = request.group_id, request.request_id, request.kind, request.timeout_ms
    return _REQUEST.pack(*head) + request.payload


def reply_payload(reply: Reply) -> bytes:
    """The payload of a `REPLY` frame."""
    return _REPLY.pack(reply.request_id, reply.status) + reply.payload


def _array_head(length: int) -> bytes:
    """The head of a MessagePack array of `length` items."""
    if length < 16:
        return bytes((0x90 | length,))
    if length < 1 << 16:
        return b"\xdc" + length.to_bytes(2, "big")
    return b"\xdd" + length.to_bytes(4, "big")


# -- decoding -------------------------------------------------------------------------------------


def parse_messages(payload: bytes) -> tuple[int, list[Message]]:
    """The id of a group, and messages for it. Raises `ProtocolError`."""
    if len(payload) < _GROUP.size:
        raise ProtocolError("its message names no group")
    (group_id,) = _GROUP.unpack_from(payload)
    try:
        return group_id, _MESSAGES.decode(memoryview(payload)[_GROUP.size :])
    except UNDECODABLE as error:
        raise ProtocolError(f"it sent messages that cannot be decoded: {error}") from error


def parse_request(payload: bytes) -> Request:
    """Raises `ProtocolError`."""
    if len(payload) < _REQUEST.size:
        raise ProtocolError("it sent a request without a head")
    group_id, request_id, kind, timeout_ms = _REQUEST.unpack_from(payload)
    return Request(group_id, request_id, kind, timeout_ms, payload[_REQUEST.size :])


def parse_reply(payload: bytes) -> Reply:
    """Raises `ProtocolError`."""
    if len(payload) < _REPLY.size:
        raise ProtocolError("it sent a reply without a head")
    request_id, status = _REPLY.unpack_from(payload)
    return Reply(request_id, status, payload[_REPLY.size :])


def parse_release(payload: bytes) -> str:
    """The release that a `PONG` names; empty if it names none, or nothing that can be one."""
    text = payload.decode("ascii", errors="replace")
    return text if len(text) <= _MAX_RELEASE_CHARACTERS and _RELEASE.fullmatch(text) else ""


# -- connections ----------------------------------------------------------------------------------


class Unfinished:
    """Bytes of incomplete packets, over several connections."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.size = 0

    def add(self, size: int) -> None:
        """Raises `ConnectionEnded` when there would be too many."""
        if self.size + size > self._max_bytes:
            raise ConnectionEnded("strangers have too many bytes of unfinished parts")
        self.size += size

    def remove(self, size: int) -> None:
        self.size -= size
        assert self.size >= 0, "no part is removed twice"


class Wire:
    """Frames over a stream, within the limits. One task may read while another writes.

    Neither direction waits for ever: `watch` and `write` end a connection whose peer falls silent,
    does not end a frame, or does not read.
    """

    def __init__(self, stream: trio.abc.Stream, limits: Limits) -> None:
        self._stream = stream
        self._prompt = stream if isinstance(stream, PromptStream) else None
        self._limits = limits
        self._buffer = bytearray()
        self._parts = bytearray()
        self._whole_by = math.inf
        self._heard_at = trio.current_time()
        # The frame in the buffer, if one has begun, must end by then.
        self._frame_by = math.inf
        # Shared with other connections: their incomplete packets count together.
        self.unfinished: Unfinished | None = None
        self.traffic = Traffic()

    def write_now(self, data: bytes) -> int:
        """Write as much as the stream takes without waiting; returns how many bytes that is.

        `write` must not be under way. A broken connection takes nothing: `write` reports it.
        """
        if self._prompt is None:
            return 0
        written = self._prompt.send_now(data)
        self.traffic.sent_bytes += written
        return written

    async def write(self, data: bytes) -> None:
        """Write whole frames. Raises `ConnectionEnded`."""
        with trio.move_on_after(self._limits.frame_timeout_s) as patience:
            try:
                await self._stream.send_all(data)
            except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
                raise ConnectionEnded(describe(error)) from error
        if patience.cancelled_caught:
            raise ConnectionEnded("it does not read the messages sent to it")
        self.traffic.sent_bytes += len(data)

    async def watch(self) -> NoReturn:
        """Wait until the peer has fallen silent, and raise `ConnectionEnded`.

        A task of its own does this, because a cancel scope for each read costs more than the read.
        """
        while True:
            # A frame that begins meanwhile may be due before the silence is.
            within_s = self._limits.frame_timeout_s
            await trio.sleep_until(min(self._due_at, trio.current_time() + within_s))
            # If the whole process has paused, what came in time may still wait to be read.
            await trio.lowlevel.checkpoint()
            if trio.current_time() >= self._due_at:
                begun = bool(self._buffer)
                raise ConnectionEnded(
                    "its frame arrived too slowly" if begun else "it sent nothing for too long"
                )

    @property
    def _due_at(self) -> float:
        """When something must have arrived."""
        silent_at = self._heard_at + self._limits.silence_timeout_s
        return min(silent_at, self._frame_by) if self._buffer else silent_at

    async def read_packets(self, take: Callable[[int, bytes], None]) -> NoReturn:
        """Call `take`, which must not wait, with each packet. Raises `ConnectionEnded`, and what
        `take` raises."""
        if isinstance(self._stream, AttendedStream):
            self._take_packets(take)  # They came with the end of the handshake.
            await attend(self._stream.fileno(), partial(self._receive_now, self._stream, take))
        while True:
            take(*await self.read_packet())

    def _receive_now(self, stream: AttendedStream, take: Callable[[int, bytes], None]) -> None:
        try:
            data = stream.receive_now(_RECEIVE_BYTES)
        except trio.BrokenResourceError as error:
            raise ConnectionEnded(describe(error)) from error
        if data is not None:
            self._received(data)
            self._take_packets(take)

    def _take_packets(self, take: Callable[[int, bytes], None]) -> None:
        while (packet := self._take_packet()) is not None:
            take(*packet)

    async def read_packet(self) -> tuple[int, bytes]:
        """The next frame, parts put together. Raises `ConnectionEnded`."""
        while (packet := self._take_packet()) is None:
            await self._receive()
        return packet

    def _take_packet(self) -> tuple[int, bytes] | None:
        """The packet whose end is next in the buffer, if that is complete."""
        while (found := self._take_frame(self._limits.max_frame_bytes)) is not None:
            kind, payload = found
            if self._parts and trio.current_time() > self._whole_by:
                raise ConnectionEnded("the parts of its message arrived too slowly")
            if kind == FrameKind.PART:
                self._add_part(payload)
            elif kind & CONTINUED:
                self._add_part(payload)
                whole = bytes(self._parts)
                self.forget_parts()
                return kind & ~CONTINUED, whole
            else:
                return kind, payload
        return None

    def _add_part(self, payload: bytes) -> None:
        limits = self._limits
        if not payload or len(self._parts) + len(payload) > limits.max_packet_bytes:
            raise ProtocolError("it sent parts that are empty or too large in total")
        if self.unfinished is not None:
            self.unfinished.add(len(payload))
        if not self._parts:
            self._whole_by = trio.current_time() + limits.frame_timeout_s
        self._parts += payload
        # As long as a frame for each piece. Small parts gain no time.
        self._whole_by += limits.frame_timeout_s * len(payload) / limits.piece_bytes

    def forget_parts(self) -> None:
        """Release the parts of a packet: it is complete, or the connection has ended."""
        if self.unfinished is not None:
            self.unfinished.remove(len(self._parts))
        self._parts = bytearray()
        self._whole_by = math.inf

    async def read_frame(self, max_bytes: int) -> tuple[int, bytes]:
        """The next frame, its payload at most `max_bytes`. Raises `ConnectionEnded`."""
        while (found := self._take_frame(max_bytes)) is None:
            await self._receive()
        return found

    def _take_frame(self, max_bytes: int) -> tuple[int, bytes] | None:
        """The frame at the beginning of the buffer, if it is complete."""
        if len(self._buffer) < _HEADER.size:
            return None
        length, crc, kind = _HEADER.unpack_from(self._buffer)
        if length > max_bytes:
            raise ProtocolError(f"it sent a frame of {length} bytes, the limit is {max_bytes}")
        if kind not in _KINDS:
            raise ProtocolError(f"it sent a frame of unknown kind {kind}")
        end = _HEADER.size + length
        if len(self._buffer) < end:
            return None
        with memoryview(self._buffer) as view:
            payload = bytes(view[_HEADER.size : end])
        del self._buffer[:end]
        if self._buffer:
            self._frame_by = trio.current_time() + self._limits.frame_timeout_s
        if crc32c(payload, _CRC_OF_KIND[kind]) != crc:
            raise ProtocolError("it sent a frame with a wrong checksum")
        return kind, payload

    async def _receive(self) -> None:
        try:
            data = await self._stream.receive_some(_RECEIVE_BYTES)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise ConnectionEnded(describe(error)) from error
        self._received(data)

    def _received(self, data: bytes | bytearray) -> None:
        if not data:
            raise ConnectionEnded("it closed the connection")
        self._heard_at = trio.current_time()
        if not self._buffer:
            self._frame_by = self._heard_at + self._limits.frame_timeout_s
        self._buffer += data
        self.traffic.received_bytes += len(data)


def describe(error: BaseException) -> str:
    """An error of the network, described by its cause."""
    while True:
        if isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        elif isinstance(error.__cause__, OSError | BaseExceptionGroup):
            error = error.__cause__
        else:
            break
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate was refused: {error.verify_message}"
    if isinstance(error, ssl.SSLEOFError):
        # Python's TLS tells the refused side nothing.
        return "it broke off TLS; if it refused this node's certificate, its log says why"
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return text or type(error).__name__
