"""Connections between nodes: Raft messages, requests and replies, with each peer verified.

Every node dials each peer that it knows and accepts connections from others, so two nodes share two
connections: on the one that it dialled, a node sends its messages and requests and gets replies. A
connection begins with a handshake (`hello`): protocol version, cluster, node id; with `credentials`
both sides prove who they are. Then `wire.Wire` carries frames with a length, a kind and a checksum.
A long payload is sent in pieces, so a heartbeat never waits for more than one piece.

The life of a message: `Transport.send` gives it to the peer's `links.Link`, whose `outbox.Outbox`
queues it, urgent messages apart from bulk, and writes it at once if the connection takes it, or
wakes the link's writer. The peer's `sessions.PeerSession` decodes it and calls
`Handler.on_messages`. A full queue drops its oldest messages: Raft sends them again. A request
(`requests`) instead waits for room, has a deadline, and ends in a reply, `NotSent` (it certainly
did nothing) or `RequestOutcomeUnknown`.

Modules: `transport` joins the rest; `links` dial and reconnect with backoff, `sessions` accept;
`connection` is what both ends share; `requests` matches replies; `network` is TCP with or without
TLS, which tests replace by memory; `interface` is what a user provides; `errors` are its failures.

Invariants:

- Each queue, frame, piece, handshake and session count has a limit in `Limits`; a peer can use up
  neither memory nor descriptors, and strangers cannot take the places of members.
- A connection on which nothing arrives for `silence_timeout_s` ends; pings keep a quiet one alive.
- A request whose fate is unknown is never reported as not sent.
- Messages of one peer and one queue arrive in order, at most once, or not at all.
- Nothing that a peer sends ends the process, except an error that the handler raises on purpose
  (`fatal`): bytes that do not parse end the connection.
- Each message and request carries the id of its group; a frame has messages of one group. The
  handler refuses those of a group that it does not host.
- One live session per node id: a second node with that id is refused, a restarted one replaces it.

The transport must never interpret a Raft message, retry a request by itself, or block a heartbeat
on bulk data.

Read on: docs/transport.md (frames byte by byte), docs/security.md, docs/partial-partitions.md,
tests/transport/test_hostile.py.
"""

from streamd.transport.credentials import Credentials
from streamd.transport.errors import (
    NotSent,
    Refusal,
    RefusalCode,
    RequestOutcomeUnknown,
    RequestRefused,
)
from streamd.transport.hello import PROTOCOL_VERSION, Hello
from streamd.transport.interface import Handler, Limits, Network, PeerConnection
from streamd.transport.network import TcpNetwork, TlsContexts, ssl_contexts
from streamd.transport.transport import Transport

__all__ = [
    "PROTOCOL_VERSION",
    "Credentials",
    "Handler",
    "Hello",
    "Limits",
    "Network",
    "NotSent",
    "PeerConnection",
    "Refusal",
    "RefusalCode",
    "RequestOutcomeUnknown",
    "RequestRefused",
    "TcpNetwork",
    "TlsContexts",
    "Transport",
    "ssl_contexts",
]
