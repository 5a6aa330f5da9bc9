"""The outside of a group: the other nodes, and the listeners for changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from streamd.group.proposals import Unavailable
from streamd.protocol.problems import Problem
from streamd.raft.messages import Configuration, Message
from streamd.streams.commands import Change


class ChangeListener(Protocol):
    """Learns what changed, for the live readers of streams."""

    @property
    def present(self) -> bool:
        """Whether there are listeners; otherwise changes are not collected."""

    async def publish(self, group_id: int, changes: dict[int, Change]) -> None:
        """Take the changes of a group's streams since the last call, by stream id. Those made
        meanwhile come with the next call."""

    def start_over(self, group_id: int) -> None:
        """Read everything of a group again: its state was replaced as a whole."""


class Outsider(NamedTuple):
    """Why a node is not a member: what clients get, a word or two for tables, and what its operator
    can do."""

    problem: Problem
    word: str
    advice: str


class Peers(Protocol):
    """The connection to the other members of the group."""

    def outsider(self) -> Outsider | None:
        """Why this node is not a member of the group; None if it is one."""

    def send(self, messages: Sequence[Message]) -> None:
        """Send what can be sent without waiting; Raft repeats what is lost."""

    async def forward(self, leader_id: int, payload: bytes) -> bytes:
        """Ask the leader to propose encoded commands; returns the encoded answers.

        Raises `Unavailable` when they certainly were not proposed, else `OutcomeUnknown`.
        """

    async def send_package(self, leader_id: int, payload: bytes) -> bytes:
        """Ask the leader to propose a package; returns the decision. Raises as `forward`."""

    async def open_session(self, leader_id: int, payload: bytes) -> bytes:
        """Ask the leader to open a session for this node. Raises as `forward`."""

    def log_format_of(self, node_id: int) -> int | None:
        """The log format that a node understands; None until it has connected."""

    def configured(self, configuration: Configuration) -> None:
        """Take the configuration in force; called when it changes."""

    def snapshots_wanted(self, members: Sequence[int]) -> None:
        """Send these members a Raft snapshot, and call `GroupStorage.snapshot_ended` for each."""


class NoPeers:
    """The peers of a node that runs alone."""

    def outsider(self) -> Outsider | None:
        return None

    def send(self, messages: Sequence[Message]) -> None:
        assert not messages, "a single voter has no peer to talk to"

    async def forward(self, leader_id: int, payload: bytes) -> bytes:
        raise Unavailable("this node has no peers")

    async def send_package(self, leader_id: int, payload: bytes) -> bytes:
        raise Unavailable("this node has no peers")

    async def open_session(self, leader_id: int, payload: bytes) -> bytes:
        raise Unavailable("this node has no peers")

    def log_format_of(self, node_id: int) -> int | None:
        return None

    def configured(self, configuration: Configuration) -> None:
        pass

    def snapshots_wanted(self, members: Sequence[int]) -> None:
        raise AssertionError("a single voter has no peer that needs a snapshot")
