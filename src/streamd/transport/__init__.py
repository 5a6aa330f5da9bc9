"""Nodes speak with each other: Raft messages, requests and replies over checked connections."""

from streamd.transport.credentials import Credentials
from streamd.transport.errors import (
    NotSent,
    OutcomeUnknown,
    Refusal,
    RefusalCode,
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
    "OutcomeUnknown",
    "PeerConnection",
    "Refusal",
    "RefusalCode",
    "RequestRefused",
    "TcpNetwork",
    "TlsContexts",
    "Transport",
    "ssl_contexts",
]
