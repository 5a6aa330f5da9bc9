"""Which format of the log may be used, and what a node must understand to become a member.

A node names the highest log format that it understands when it connects (`Hello.log_format`).
Commands and rules of a format are used once the *feature level* has been raised to it, by a command
in the log (`RaiseLevel`): until then the release before can read everything. It is raised only
to what all members understand, and from then on no member may be older. Formats up to
`LAST_WITHOUT_LEVEL` are from before there was a level: they are used as soon as all members
understand them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from streamd.group.peers import Peers
from streamd.raft.messages import Configuration
from streamd.streams import keys
from streamd.streams.model import Header
from streamd.streams.state import State

SESSIONS_FORMAT = 1
TOKENS_FORMAT = 2
LIMITS_FORMAT = 3
PRODUCERS_FORMAT = 4
TREE_FORMAT = 5
OPERATIONS_FORMAT = 6
SUBSCRIPTIONS_FORMAT = 7
# Later ones wait until the feature level is raised to them.
LAST_WITHOUT_LEVEL = TREE_FORMAT


def _has_tree(header: Header) -> bool:
    return bool(header.tree.first_index or header.log_keys)


class Addition(NamedTuple):
    """What a log format adds: in words, whether a state shows that it is in use, and whether a node
    that does not know it would from then on have another state, by the state's header."""

    what: str
    is_in: Callable[[State], bool] = lambda _: False
    binds: Callable[[Header], bool] = lambda _: False


_ADDITIONS = {
    # A state shows sessions too, but only for nodes that are known.
    SESSIONS_FORMAT: Addition("sessions between nodes"),
    TOKENS_FORMAT: Addition("tokens", lambda state: len(state.tokens) > 0),
    # Without quotas a node would apply what all others refuse.
    LIMITS_FORMAT: Addition(
        "limits", lambda state: len(state.limits) > 0, lambda header: header.counts
    ),
    PRODUCERS_FORMAT: Addition("the bound on producers"),
    TREE_FORMAT: Addition(
        "the tree over the log", lambda state: _has_tree(state.header), _has_tree
    ),
    OPERATIONS_FORMAT: Addition(
        "operations",
        lambda state: state.header.features >= OPERATIONS_FORMAT,
        lambda header: header.features >= OPERATIONS_FORMAT,
    ),
    SUBSCRIPTIONS_FORMAT: Addition(
        "subscriptions",
        lambda state: state.header.features >= SUBSCRIPTIONS_FORMAT,
        lambda header: header.features >= SUBSCRIPTIONS_FORMAT,
    ),
}
# The highest log format that this release understands.
LOG_FORMAT = max(_ADDITIONS)


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
        for log_format, addition in reversed(_ADDITIONS.items()):
            if addition.is_in(state):
                return log_format
        members = self._members.configuration.members()
        has_sessions = any(state.sessions.get(keys.number(one)) is not None for one in members)
        return SESSIONS_FORMAT if has_sessions else 0

    @property
    def level(self) -> int:
        """The feature level; 0 until it was raised for the first time."""
        return self._state.header.features

    @property
    def of_members(self) -> dict[int, int | None]:
        """The log format that each member understands; None for those that this node has not
        met."""
        own, members = self._members.node_id, self._members.configuration.members()
        return {
            one: LOG_FORMAT if one == own else self._peers.log_format_of(one)
            for one in sorted(members)
        }

    @property
    def common(self) -> int:
        """The highest format that every member understands; 0 if one was not met."""
        return min((found or 0 for found in self.of_members.values()), default=0)

    @property
    def rises_by_itself(self) -> bool:
        """Whether nobody has to be asked to raise the level: there is something to raise, and
        either no other member, or nothing yet that an operator could want to take back to an
        earlier release."""
        state = self._state
        if not max(self.level, LAST_WITHOUT_LEVEL) < self.common:
            return False
        is_alone = self._members.configuration.members() == {self._members.node_id}
        is_empty = state.header.next_stream_id == 1 and not len(state.tokens) + len(state.limits)
        return is_alone or is_empty

    def may_use(self, log_format: int) -> bool:
        """Whether all members understand a format: the level says so, or, of the older formats,
        they say so, or it is already in use."""
        if log_format > LAST_WITHOUT_LEVEL:
            return self.level >= log_format
        others = self._members.configuration.members() - {self._members.node_id}
        return (
            all((self._peers.log_format_of(one) or 0) >= log_format for one in others)
            or self.in_use >= log_format
        )

    @property
    def needed(self) -> int:
        """The format that a newcomer must understand: the feature level; and of the older formats
        what all members understand, which may be in the log by now. Members that this node has not
        met do not count."""
        known = [found for found in self.of_members.values() if found is not None]
        return max(min([LAST_WITHOUT_LEVEL, *known]), self.in_use)

    def lacked_by(self, node_id: int) -> str:
        """In words, what the log uses and another member does not understand, which came back with
        an earlier release; empty if it lacks nothing, or this node has not met it."""
        understood = self._peers.log_format_of(node_id)
        return "" if understood is None else lacking(understood, self.in_use)


def lacking(understood: int, needed: int) -> str:
    """A list, in words, of the features that a node lacks if it understands the log up to a
    format."""
    return ", ".join(
        addition.what
        for log_format, addition in _ADDITIONS.items()
        if understood < log_format <= needed
    )


def unknown_to(understood: int, header: Header) -> str:
    """A list, in words, of what a state has and a node must know that applies commands to it, but
    does not if it understands the log up to a format."""
    return ", ".join(
        addition.what
        for log_format, addition in _ADDITIONS.items()
        if understood < log_format and addition.binds(header)
    )
