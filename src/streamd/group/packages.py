"""Packages: a node's commands on their way to the log, sent again until their outcome is known.

This is the node's side of `streams.sessions`. A package keeps its number and its commands as long
as any leader may have it in its log; the state applies it once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

import msgspec
import trio

from streamd.group.proposals import (
    DISK_LOW,
    Awaited,
    DiskLow,
    NoRoom,
    OutcomeUnknown,
    Proposal,
    Unavailable,
    fail_all,
    settle_all,
)
from streamd.process.metrics import Metrics
from streamd.streams.bounds import Number
from streamd.streams.checks import payload_bytes
from streamd.streams.commands import Command, Outcome, Result, brings_bytes
from streamd.streams.content import UNDECODABLE
from streamd.streams.sessions import MAX_REMEMBERED, PackageStamp

# The largest distance between the oldest undecided package's number and the newest: the state
# remembers that many.
MAX_UNDECIDED = MAX_REMEMBERED // 2
# How long a write that a leader may have may take, beyond the time it may wait for a leader.
DECIDE_TIMEOUT_S = 5.0


class OwnPackage:
    """Commands of this node's clients under one number.

    `attempts` counts the copies that a leader may have in its log. `call` is the request to the
    leader that is under way.
    """

    __slots__ = (
        "attempts",
        "call",
        "count",
        "deadline",
        "is_under_way",
        "proposals",
        "sequence",
        "session_id",
        "size",
    )

    def __init__(self, session_id: int, sequence: int, proposals: list[Proposal]) -> None:
        self.session_id = session_id
        self.sequence = sequence
        self.proposals = proposals
        self.count = sum(proposal.count for proposal in proposals)
        self.size = sum(proposal.size for proposal in proposals)
        self.deadline = min(proposal.deadline for proposal in proposals)
        self.attempts = 0
        self.is_under_way = False
        self.call: trio.CancelScope | None = None

    @property
    def commands(self) -> list[Command]:
        return [command for proposal in self.proposals for command in proposal.commands]


class OwnPackages:
    """This node's undecided packages, and the session in which they are numbered.

    `put_back` takes proposals that certainly did not take effect and should be tried again.
    """

    def __init__(
        self, node_id: int, metrics: Metrics, put_back: Callable[[Sequence[Proposal]], None]
    ) -> None:
        self._node_id = node_id
        self._metrics = metrics
        self._put_back = put_back
        # 0 while there is none.
        self.session_id = 0
        self._next = 1
        self._undecided: dict[int, OwnPackage] = {}
        self._waiting: deque[OwnPackage] = deque()

    @property
    def lowest(self) -> int:
        """The lowest number that may still be sent again."""
        return next(iter(self._undecided), self._next)

    @property
    def has_room(self) -> bool:
        """Whether another package may be numbered."""
        return self._next - self.lowest < MAX_UNDECIDED

    @property
    def has_waiting(self) -> bool:
        """Whether a package waits to be sent again."""
        while self._waiting and self._waiting[0].sequence not in self._undecided:
            self._waiting.popleft()
        return bool(self._waiting)

    def open(self, session_id: int) -> None:
        """Number packages in this session from now on."""
        self.session_id = session_id
        self._metrics.sessions_opened += 1

    def pack(self, proposals: list[Proposal]) -> OwnPackage:
        """A new package to send."""
        package = OwnPackage(self.session_id, self._next, proposals)
        self._undecided[self._next] = package
        self._next += 1
        return package

    def take_waiting(self, max_commands: int, max_bytes: int) -> list[OwnPackage]:
        """Packages to send again: as many as the limits allow, at least one if any waits."""
        taken: list[OwnPackage] = []
        while self.has_waiting:
            package = self._waiting[0]
            max_commands -= package.count
            max_bytes -= package.size
            if taken and (max_commands < 0 or max_bytes < 0):
                break
            taken.append(self._waiting.popleft())
        return taken

    def stamp(self, package: OwnPackage) -> PackageStamp:
        """Mark a package as sent; returns the stamp of this copy."""
        package.is_under_way = True
        package.attempts += 1
        self._metrics.packages_resent += package.attempts > 1
        return PackageStamp(
            self._node_id, package.session_id, package.sequence, self.lowest, package.count
        )

    # -- their outcomes -----------------------------------------------------------------------

    def refused(self, package: OwnPackage) -> None:
        """Send it again: the last copy certainly got into no log."""
        package.attempts -= 1
        self._wait(package)

    def lost(self, package: OwnPackage) -> None:
        """Send it again: the last copy may be in a log."""
        self._wait(package)

    def lose_all(self) -> None:
        """Send all again: the leader changed, and any copy may be in a log."""
        for package in self._undecided.values():
            if package.is_under_way:
                self._wait(package)

    def _wait(self, package: OwnPackage) -> None:
        _end_call(package)
        package.is_under_way = False
        self._waiting.append(package)

    def refused_for_bytes(self, package: OwnPackage, *, is_disk_low: bool) -> None:
        """The leader takes no more bytes now, and no copy is in any log: fail the commands with
        bytes, and send the others again."""
        self._forget(package)
        full = [one for one in package.proposals if brings_bytes(one.commands[0])]
        self._put_back([one for one in package.proposals if not brings_bytes(one.commands[0])])
        fail_all(full, bytes_refused(is_disk_low=is_disk_low))

    def decided(self, session_id: int, sequence: int, outcomes: Sequence[Outcome]) -> None:
        """Settle a package, by the leader's answer or because this node has applied it."""
        package = self._undecided.get(sequence)
        if package is None or package.session_id != session_id:
            return
        if len(outcomes) != package.count:
            return
        self._forget(package)
        if outcomes[0].result is Result.SESSION_LOST:
            self._session_lost(package)
            return
        settle_all(package.proposals, outcomes)

    def _session_lost(self, package: OwnPackage) -> None:
        """The session is gone: this node was removed from the cluster, or another process has its
        id. If this was the only copy, its commands never took effect."""
        if package.session_id == self.session_id:
            self.session_id = 0
        if package.attempts == 1:
            self._put_back(package.proposals)
        else:
            fail_all(package.proposals, OutcomeUnknown("the node's session with the log was lost"))

    def expire(self, now: float) -> None:
        """Fail everything undecided past its deadline."""
        for package in [one for one in self._undecided.values() if one.deadline <= now]:
            if package.attempts:
                late = now - DECIDE_TIMEOUT_S
                error: Unavailable | OutcomeUnknown = OutcomeUnknown(
                    "no leader reported the write's outcome in time"
                )
            else:
                late, error = now, Unavailable("no leader accepted the write in time")
            fail_all([one for one in package.proposals if one.deadline <= late], error)
            if all(one.deadline <= late for one in package.proposals):
                self._forget(package)

    def _forget(self, package: OwnPackage) -> None:
        _end_call(package)
        del self._undecided[package.sequence]


def _end_call(package: OwnPackage) -> None:
    if package.call is not None:
        package.call.cancel()
        package.call = None


HOT_TIER_FULL = "the hot tier is full: the cold store is not accepting flushes"


def bytes_refused(*, is_disk_low: bool) -> NoRoom:
    """The error for bytes that a leader does not take, for want of space on its disk or else in
    the hot tier."""
    return DiskLow(DISK_LOW) if is_disk_low else NoRoom(HOT_TIER_FULL)


class ForeignPackage(Awaited[list[Outcome] | Unavailable | OutcomeUnknown]):
    """A package of another node, on its way into this leader's log."""

    __slots__ = ("commands", "stamp")

    def __init__(self, stamp: PackageStamp, commands: list[Command], deadline: float) -> None:
        super().__init__(sum(map(payload_bytes, commands)), deadline, count=len(commands))
        self.stamp = stamp
        self.commands = commands

    def fail(self, error: Unavailable | OutcomeUnknown) -> None:
        self.settle(type(error)(*error.args))

    async def outcomes(self) -> list[Outcome]:
        """Wait for the outcomes of its commands. Raises `Unavailable`, `OutcomeUnknown`."""
        found = await self.settled()
        if isinstance(found, list):
            return found
        raise found


# -- between nodes --------------------------------------------------------------------------------


class SentPackage(msgspec.Struct, frozen=True, array_like=True):
    """A package on its way to the leader. `is_repeated` says that another leader may have a copy;
    the package must then not be refused for its content."""

    session_id: Number
    sequence: Number
    lowest: Number
    is_repeated: bool
    commands: list[Command]


class Decision(msgspec.Struct, frozen=True, array_like=True):
    """The leader's answer: the outcome of each command. With `is_full` the leader takes no more
    bytes now and did nothing; `is_disk_low` says that its disk is the reason."""

    outcomes: list[Outcome] = []
    is_full: bool = False
    is_disk_low: bool = False


_ENCODER = msgspec.msgpack.Encoder()
_SENT = msgspec.msgpack.Decoder(SentPackage)
_DECISION = msgspec.msgpack.Decoder(Decision)


def encode_package(package: OwnPackage, stamp: PackageStamp) -> bytes:
    """A package for the leader, under its stamp."""
    return _ENCODER.encode(
        SentPackage(
            stamp.session_id,
            stamp.sequence,
            stamp.lowest,
            package.attempts > 1,
            package.commands,
        )
    )


def decode_package(payload: bytes) -> SentPackage:
    """Raises `Unavailable` for anything but a package that this release understands."""
    try:
        sent = _SENT.decode(payload)
    except UNDECODABLE as error:
        raise Unavailable(f"cannot decode the package: {error}") from error
    if not sent.commands:
        raise Unavailable("the package is empty")
    return sent


def encode_decision(decision: Decision) -> bytes:
    """A decision for the node that sent the package."""
    return _ENCODER.encode(decision)


def decode_decision(payload: bytes) -> Decision:
    """Raises `OutcomeUnknown` for an answer that cannot be decoded: the leader may run another
    release."""
    try:
        return _DECISION.decode(payload)
    except UNDECODABLE as error:
        raise OutcomeUnknown(f"cannot decode the leader's answer: {error}") from error
