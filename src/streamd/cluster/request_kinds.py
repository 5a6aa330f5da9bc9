"""The kinds of requests that nodes send each other."""

from __future__ import annotations

from enum import IntEnum


class RequestKind(IntEnum):
    """Requests between nodes, besides Raft messages."""

    JOIN = 1  # payload: the cluster's id, to remember before anything else; the answer: a Hello
    FORWARD = 2  # payload: commands to propose; the answer: their outcomes
    ADMIN = 3  # payload: an admin command, for the leader
    SNAPSHOT = 4  # payload: a step of sending a Raft snapshot
    ARCHIVE = 5  # payload: the archive's end; archive what follows, and answer the new end
    OPEN_SESSION = 6  # payload: a process's nonce; the answer: the node's session
    PACKAGE = 7  # payload: a numbered package to propose; the answer: its outcomes
    OPERATE = 8  # payload: the name of the leader's operation, or of a report; its answer
    LOG_KEY = 9  # payload: empty; the answer: the node's key. Or a key; the answer: who vouches
    HOST = 10  # payload: what the node is to do on its own host, from the leader
