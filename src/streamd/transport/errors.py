"""The ways in which a handshake, a request or a connection can fail."""

from __future__ import annotations

from enum import StrEnum

import msgspec


class NotSent(Exception):
    """A request certainly never reached the peer."""


class RequestOutcomeUnknown(Exception):
    """A request was sent, at least in part, and no answer came."""


class RequestRefused(Exception):
    """A handler did not do what was asked; the refusal travels back to the asker.

    The transport itself refuses with the code OVERLOADED, without having called the handler.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class RefusalCode(StrEnum):
    """Why a peer is refused, as sent to it."""

    PROTOCOL_VERSION = "PROTOCOL_VERSION"
    SELF = "SELF"
    CLUSTER_NAME = "CLUSTER_NAME"
    CLUSTER_ID = "CLUSTER_ID"
    NODE_ID_IN_USE = "NODE_ID_IN_USE"
    NOT_EXPECTED = "NOT_EXPECTED"
    TOO_MANY_CONNECTIONS = "TOO_MANY_CONNECTIONS"
    NOT_PROVED = "NOT_PROVED"


class Refusal(Exception):
    """A node refuses to speak with a peer. The message is for the operator of that peer."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class RefusalMessage(msgspec.Struct, frozen=True, array_like=True):
    """Why a handshake or a request was refused: a stable code, and a message for people."""

    code: str
    message: str


class ConnectionEnded(Exception):
    """A connection is over; the message says why."""


class ProtocolError(ConnectionEnded):
    """The peer sent something that no correct peer sends."""
