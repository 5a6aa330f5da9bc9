"""What the transport needs from its user and from the network, and what it may raise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import msgspec
import trio

from streamd.raft.messages import Message
from streamd.transport.hello import Hello


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What is allowed, each per peer unless it says otherwise. The defaults fit production."""

    max_frame_bytes: int = 8 * 1024 * 1024  # a received frame's payload
    piece_bytes: int = 1024 * 1024  # about what is written at once, and how long a heartbeat waits
    max_packet_bytes: int = 64 * 1024 * 1024  # one message, request or reply, parts together
    max_waiting_messages: int = 4096  # in each queue: urgent and bulk
    max_waiting_bytes: int = 64 * 1024 * 1024  # in each queue
    max_requests: int = 256  # under way, in each direction
    max_request_bytes: int = 64 * 1024 * 1024  # of incoming ones under way; of waiting replies
    max_handshakes: int = 64  # of incoming connections of strangers, all together
    max_handshakes_per_host: int = 16  # with IPv6 per /64; also of a member's host
    max_sessions: int = 64  # incoming connections after their handshake; peers have one besides
    max_unfinished_bytes: int = 128 * 1024 * 1024  # parts from nodes that are no members, together
    max_routes: int = 64  # addresses dialled before their node is known, all together
    connect_timeout_s: float = 3.0
    handshake_timeout_s: float = 5.0
    ping_interval_s: float = 1.0
    silence_timeout_s: float = 5.0  # without receiving anything
    frame_timeout_s: float = 10.0  # from a frame's first byte to its last, in or out
    backoff_min_s: float = 0.05
    backoff_max_s: float = 2.0


class PeerConnection(msgspec.Struct, frozen=True):
    """The state of the connection to a dialled peer. Counters run since the peer was first
    known. `release` is the version of streamd that the peer sent on this connection or the last
    one."""

    connected: bool
    address: str
    sent_bytes: int
    received_bytes: int
    dropped_messages: int
    last_error: str
    release: str = ""


class Handler(Protocol):
    """The node that uses a transport. Only `on_request` may wait."""

    def hello(self) -> Hello:
        """This node's current identity; asked for at each handshake."""

    def check(self, peer: Hello) -> None:
        """Raise `Refusal` for a peer that this node will not speak with, on either side."""

    def on_peer(self, peer: Hello) -> None:
        """A handshake has succeeded, in either direction."""

    def on_messages(self, peer_id: int, group_id: int, messages: list[Message]) -> None:
        """Raft messages for a group have arrived. Raise `ProtocolError` to end the connection, also
        for an unknown group; any other exception ends the transport."""

    async def on_request(self, peer_id: int, group_id: int, kind: int, payload: bytes) -> bytes:
        """Answer a request to a group. Cancelled when the asker no longer waits.

        Raise `RequestRefused` if nothing was done, `RequestOutcomeUnknown` if that is not known;
        any other exception tells the asker the same, and is logged as an error.
        """


@runtime_checkable
class PromptStream(Protocol):
    """A stream that can also be written to without a wait, and so without a task."""

    def send_now(self, data: bytes) -> int:
        """Send as much as fits; returns how many bytes. A broken connection takes none."""


@runtime_checkable
class AttendedStream(Protocol):
    """A stream that can be read from without a task, whenever its descriptor is readable."""

    def fileno(self) -> int:
        """The descriptor; it stays open until the stream is closed."""

    def receive_now(self, max_bytes: int) -> bytes | None:
        """What is there, empty at the end, or None. Raises as `receive_some` does."""


@runtime_checkable
class Resolver(Protocol):
    """A network whose addresses have hosts."""

    async def hosts_of(self, address: str) -> frozenset[str]:
        """The IP addresses at which an address is; none if that cannot be found out."""


class Network(Protocol):
    """The source of the streams: TCP, or memory. `PromptStream`s that are `AttendedStream`s are the
    fastest."""

    async def connect(self, address: str) -> trio.abc.Stream:
        """Raises `OSError` when it cannot."""

    async def listen(self) -> Sequence[trio.abc.Listener[trio.abc.Stream]]:
        """Raises `OSError` when it cannot."""
