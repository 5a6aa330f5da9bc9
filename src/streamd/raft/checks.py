"""Messages that no correct peer sends, whatever its state. The core never sees them."""

from __future__ import annotations

import msgspec

from streamd.raft.membership import decode_configuration
from streamd.raft.messages import AppendRequest, EntryKind, Heartbeat, Message


def fault(message: Message) -> str | None:
    """What is wrong with a message, regardless of its sender and the time; None if nothing is.

    Only the state machine can judge the payload of `COMMANDS`.
    """
    match message:
        case AppendRequest():
            return _append_fault(message)
        case Heartbeat(commit_index=commit_index, last_index=last_index):
            if commit_index > last_index:
                return "it has committed more than its log holds"
    return None


def _append_fault(request: AppendRequest) -> str | None:
    index, term = request.prev_index, request.prev_term
    for entry in request.entries:
        if entry.index != index + 1:
            return f"entry {entry.index} follows entry {index}"
        if not max(term, 1) <= entry.term:
            return f"entry {entry.index} of term {entry.term} follows one of term {term}"
        if entry.kind not in _KINDS:
            return f"entry {entry.index} is of the unknown kind {entry.kind}"
        if entry.kind == EntryKind.CONFIGURATION and not _is_configuration(entry.payload):
            return f"entry {entry.index} does not hold a configuration"
        index, term = entry.index, entry.term
    if term > request.term:
        return f"entry {index} of term {term} is sent in term {request.term}"
    return None


_KINDS = frozenset(EntryKind)


def _is_configuration(payload: bytes) -> bool:
    try:
        found = decode_configuration(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return bool(found.voters) and min(found.members()) >= 1
