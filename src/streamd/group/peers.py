"""Whom a group speaks to: the other nodes, and those who read live."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from streamd.group.proposals import Unavailable
from streamd.raft.messages import Configuration, Message
from streamd.streams.commands import Change


class ChangeListener(Protocol):
    """Those who follow streams live."""

    @property
    def present(self) -> bool:
        """Whether anyone is there to be told."""

    def publish(self, group_id: int, changes: dict[int, Change]) -> None:
        """Take the changes of a group's streams since the last time, by stream id. Must not
        block."""

    def start_over(self, group_id: int) -> None:
        """Read again everything of a group: its state was replaced as a whole."""


class Peers(Protocol):
    """The way to the other members of the group."""

    def send(self, messages: Sequence[Message]) -> None:
        """Send as far as that goes without waiting; Raft repeats what is lost."""

    async def forward(self, leader_id: int, payload: bytes) -> bytes:
        """Have the leader propose encoded commands; returns the encoded answers.

        Raises `Unavailable` when they certainly were not proposed, else `OutcomeUnknown`.
        """

    async def send_package(self, leader_id: int, payload: bytes) -> bytes:
        """Have the leader propose a package; returns the encoded decision. Raises as `forward`."""

    async def open_session(self, leader_id: int, payload: bytes) -> bytes:
        """Have the leader open a session for this node. Raises as `forward`."""

    def log_format_of(self, node_id: int) -> int | None:
        """What a node understands of a log; None while it was never met."""

    def configured(self, configuration: Configuration) -> None:
        """Hear of the configuration in force when it has changed."""

    def snapshots_wanted(self, members: Sequence[int]) -> None:
        """Send these members a snapshot, and tell the core when that is done."""


class NoPeers:
    """A node by itself."""

    def send(self, messages: Sequence[Message]) -> None:
        assert not messages, "a single voter has nobody to talk to"

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
        raise AssertionError("a single voter has nobody to send a snapshot to")
