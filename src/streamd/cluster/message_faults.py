"""What is wrong with a Raft message of a peer, before the core gets it."""

from __future__ import annotations

from streamd.raft.checks import fault
from streamd.raft.messages import AppendRequest, EntryKind, Message
from streamd.streams.codec import decode_batch
from streamd.streams.content import UNDECODABLE


def message_fault(message: Message) -> str | None:
    """What is wrong with a message, or with the commands in it; None if nothing is."""
    return fault(message) or _payload_fault(message)


def _payload_fault(message: Message) -> str | None:
    """What is wrong with the commands in a message, if they cannot be decoded.

    Once stored they would end this node at each start. Without them it lags until it runs the
    leader's release.
    """
    if not isinstance(message, AppendRequest):
        return None
    for entry in message.entries:
        if entry.kind == EntryKind.COMMANDS:
            try:
                decode_batch(entry.payload)
            except UNDECODABLE as error:
                return f"entry {entry.index} has a command that this release does not know: {error}"
    return None
