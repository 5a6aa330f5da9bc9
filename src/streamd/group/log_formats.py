"""Which format of the log may be used, and what a node must understand to become a member.

A node names the highest log format that it understands when it connects (`Hello.log_format`).
Commands and rules of a format are used once all members understand it, as the version of an etcd
cluster is the lowest of its members' versions. From then on no member may be older.
"""

from __future__ import annotations

from typing import Protocol

from streamd.group.peers import Peers
from streamd.raft.messages import Configuration
from streamd.streams import keys
from streamd.streams.codec import (
    ADDED_BY_FORMAT,
    LIMITS_FORMAT,
    LOG_FORMAT,
    SESSIONS_FORMAT,
    TOKENS_FORMAT,
    TREE_FORMAT,
)
from streamd.streams.state import State


class Members(Protocol):
    """The members of a group, as one of them knows them."""

    @property
    def node_id(self) -> int: ...

    @property
    def configuration(self) -> Configuration: ...


class LogFormats:
    """What this node knows about the log formats of the members."""

    def __init__(self, members: Members, state: State, peers: Peers) -> None:
        self._members = members
        self._state = state
        self._peers = peers

    @property
    def in_use(self) -> int:
        """The highest format that the state shows to be in use."""
        state = self._state
        if state.header.tree.first_index or state.header.log_keys:
            return TREE_FORMAT
        if len(state.limits):
            return LIMITS_FORMAT
        if len(state.tokens):
            return TOKENS_FORMAT
        members = self._members.configuration.members()
        has_sessions = any(state.sessions.get(keys.number(one)) is not None for one in members)
        return SESSIONS_FORMAT if has_sessions else 0

    def may_use(self, log_format: int) -> bool:
        """Whether all members understand a format: they say so, or it is already in use."""
        others = self._members.configuration.members() - {self._members.node_id}
        return (
            all((self._peers.log_format_of(one) or 0) >= log_format for one in others)
            or self.in_use >= log_format
        )

    @property
    def needed(self) -> int:
        """The format that a newcomer must understand: what all members understand may be in the
        log by now. Members that this node has not met do not count."""
        members = self._members.configuration.members() - {self._members.node_id}
        known = (self._peers.log_format_of(one) for one in members)
        common = min([LOG_FORMAT, *(found for found in known if found is not None)])
        return max(common, self.in_use)

    def lacked_by(self, node_id: int) -> str:
        """In words, what the log uses and another member does not understand, which came back with
        an earlier release; empty if it lacks nothing, or this node has not met it."""
        understood = self._peers.log_format_of(node_id)
        return "" if understood is None else lacking(understood, self.in_use)


def lacking(understood: int, needed: int) -> str:
    """A list, in words, of the features that a node lacks if it understands the log up to a
    format."""
    return ", ".join(
        what for number, what in ADDED_BY_FORMAT.items() if understood < number <= needed
    )
