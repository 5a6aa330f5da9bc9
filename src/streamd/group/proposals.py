"""Commands on their way into the log, and how they travel between nodes.

A command ends in one of three ways: with its outcome; with `Unavailable`, if it was not accepted
and will never take effect; or with `OutcomeUnknown`, if its outcome was not known in time. After
`Unavailable` a client may always try again; after `OutcomeUnknown` an idempotent producer may,
since its retry is recognised. Nodes send each other proposals in packages (`packages`), or by
`encode_proposals` while a member of the cluster does not understand sessions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

import msgspec
import outcome
import trio

from streamd.process.diagnostics import FillLevel
from streamd.protocol.problems import Problem
from streamd.streams.checks import fault, is_of_leader, payload_bytes
from streamd.streams.commands import (
    Archived,
    Command,
    FlushCold,
    MoveSlices,
    Outcome,
    Result,
    Scrubbed,
)
from streamd.streams.content import UNDECODABLE


class Unavailable(Exception):
    """The command was not accepted and will never take effect; try again later."""


class NotAMember(Unavailable):
    """This node is not a member of its cluster: there is nothing to wait for."""

    def __init__(self, problem: Problem, message: str) -> None:
        super().__init__(message)
        self.problem = problem


class NoRoom(Unavailable):
    """The command brings bytes, and the leader has no room for more."""


class DiskLow(NoRoom):
    """No room, because the leader's disk is nearly full; see `DISK_LOW`."""


# Between processes an error is its text, so this one is recognised by it.
DISK_LOW = (
    "the disk of the node that leads is nearly full: delete streams, or make room on it; reads and "
    "deletes go on"
)


def unavailable(why: str) -> Unavailable:
    """The error for a reason that another process has given."""
    return DiskLow(why) if why == DISK_LOW else Unavailable(why)


class OutcomeUnknown(Exception):
    """The command may have taken effect, or may yet."""


# What has become of a command.
Settled = Outcome | Unavailable | OutcomeUnknown
T = TypeVar("T")
W = TypeVar("W", bound="Awaited[Any]")


class Awaited(Generic[T]):
    """Something on its way into the log, with at most one task that waits for its outcome.

    It fails at `deadline`, on Trio's clock, unless a leader has taken it by then. `size` is its
    payload in bytes, `count` the number of its commands.
    """

    __slots__ = ("count", "deadline", "size", "tell")

    def __init__(
        self,
        size: int,
        deadline: float,
        tell: Callable[[T], None] | None = None,
        count: int = 1,
    ) -> None:
        self.size = size
        self.deadline = deadline
        self.tell = tell
        self.count = count

    def settle(self, value: T) -> None:
        """Settle it, once; the waiting task may be gone."""
        if self.tell is not None:
            tell, self.tell = self.tell, None
            tell(value)

    def fail(self, error: Unavailable | OutcomeUnknown) -> None:
        """Settle it with an error of that kind: an instance of its own for each waiting task, since
        tasks that raise one shared instance would collect each other's tracebacks in it."""
        raise NotImplementedError

    async def settled(self) -> T:
        """Wait for what it is settled with. A cancelled caller does not learn it."""
        task = trio.lowlevel.current_task()
        self.tell = lambda value: trio.lowlevel.reschedule(task, outcome.Value(value))

        def abort(_: object) -> trio.lowlevel.Abort:
            self.tell = None
            return trio.lowlevel.Abort.SUCCEEDED

        result: T = await trio.lowlevel.wait_task_rescheduled(abort)
        return result


class Proposal(Awaited[Sequence[Settled]]):
    """Commands that this node proposes, or sends to the leader, in their order and in one entry.

    It is settled with what has become of each. Either all of them bring bytes (`brings_bytes`), or
    none does, and only the leader's own commands (`is_of_leader`) are alone.
    """

    __slots__ = ("commands",)

    def __init__(
        self,
        commands: Sequence[Command],
        size: int,
        deadline: float,
        tell: Callable[[Sequence[Settled]], None] | None = None,
    ) -> None:
        super().__init__(size, deadline, tell, len(commands))
        self.commands = commands

    def fail(self, error: Unavailable | OutcomeUnknown) -> None:
        self.settle([type(error)(*error.args) for _ in self.commands])

    async def outcome(self) -> Outcome:
        """Wait for the outcome of its only command. A cancelled caller does not learn it.

        Raises `Unavailable`, `OutcomeUnknown`.
        """
        [settled] = await self.settled()
        return outcome_in(settled)


def outcome_in(settled: Settled) -> Outcome:
    """The outcome, if there is one. Raises `Unavailable`, `OutcomeUnknown`."""
    if isinstance(settled, Outcome):
        return settled
    raise settled


def fail_all(waiting: Iterable[Awaited[Any]], error: Unavailable | OutcomeUnknown) -> None:
    """Settle all with an error."""
    for one in waiting:
        one.fail(error)


def settle_all(proposals: Iterable[Proposal], settled: Sequence[Settled]) -> None:
    """Settle proposals whose commands, end to end, are the first of those `settled`."""
    end = 0
    for proposal in proposals:
        start, end = end, end + proposal.count
        proposal.settle(settled[start:end])


_ENCODER = msgspec.msgpack.Encoder()
_COMMANDS = msgspec.msgpack.Decoder(list[tuple[Command, int]])
_ANSWERS = msgspec.msgpack.Decoder(list[list[Any]])


def encode_proposals(proposals: Sequence[Proposal]) -> bytes:
    """Commands and sizes, for the leader."""
    return _ENCODER.encode(
        [
            (command, payload_bytes(command))
            for proposal in proposals
            for command in proposal.commands
        ]
    )


def decode_proposals(payload: bytes, deadline: float) -> list[Proposal]:
    """The commands that another node forwards, each by itself; the sizes it claims are not trusted.

    Raises `Unavailable` for anything that this release cannot decode.
    """
    try:
        commands = _COMMANDS.decode(payload)
    except UNDECODABLE as error:
        raise Unavailable(f"cannot decode the forwarded commands: {error}") from error
    return [Proposal([command], payload_bytes(command), deadline) for command, _ in commands]


def refusal_of(command: Command) -> Settled | None:
    """The refusal of a forwarded command that is not proposed; None for one that is.

    The forwarding node has judged what its client sent, so any fault is that node's own.
    """
    if isinstance(command, FlushCold | MoveSlices | Archived | Scrubbed):
        # They name the term of the leader that made them, which is not this leader's.
        return Outcome(Result.STALE)
    if is_of_leader(command):
        return Unavailable("only the leader may propose such commands")
    return None if fault(command) is None else Outcome(Result.INVALID)


def refusals_of(proposals: Sequence[Proposal]) -> list[Settled | None]:
    """The `refusal_of` the command of each. Takes a while for many commands, and for large ones."""
    return [refusal_of(proposal.commands[0]) for proposal in proposals]


def encode_answers(settled: Sequence[Settled]) -> bytes:
    """The commands' outcomes or errors, in their order.

    An answer is an array: the text of an error or nil, whether that error leaves the outcome
    unknown, and, if there is no error, the fields of the `Outcome`.
    """
    return _ENCODER.encode([_answer(one) for one in settled])


def _answer(settled: Settled) -> tuple[Any, ...]:
    if not isinstance(settled, Outcome):
        return str(settled), isinstance(settled, OutcomeUnknown)
    return None, False, *msgspec.structs.astuple(settled)


def decode_answers(payload: bytes) -> list[Settled]:
    """Raises one of `UNDECODABLE`."""
    return [_settled(answer) for answer in _ANSWERS.decode(payload)]


def _settled(answer: list[Any]) -> Settled:
    error, is_unknown = msgspec.convert(answer[:2], tuple[str | None, bool])
    if error is not None:
        return OutcomeUnknown(error) if is_unknown else unavailable(error)
    return msgspec.convert(answer[2:], Outcome)


def take_answers(proposals: Sequence[Proposal], payload: bytes) -> None:
    """Settle each with its answers. Raises `OutcomeUnknown` for answers that cannot be decoded:
    the leader may run another release."""
    try:
        answers = decode_answers(payload)
    except UNDECODABLE as error:
        raise OutcomeUnknown(f"cannot decode the leader's answer: {error}") from error
    if len(answers) != sum(proposal.count for proposal in proposals):
        raise OutcomeUnknown("the leader's answer belongs to another request")
    settle_all(proposals, answers)


class ProposalQueue(Generic[W]):
    """Proposals that wait to get into a log entry, or to be sent to the leader; bounded in commands
    and bytes, which the last one that is taken may exceed.

    `taken` counts the commands that have left the queue.
    """

    def __init__(self, max_commands: int, max_bytes: int) -> None:
        self._max_commands = max_commands
        self._max_bytes = max_bytes
        self.waiting: deque[W] = deque()
        self._bytes = 0
        self._commands = 0
        self.taken = 0

    @property
    def held(self) -> tuple[FillLevel, FillLevel]:
        """The commands and the bytes that wait."""
        commands = FillLevel(self._commands, self._max_commands)
        return commands, FillLevel(self._bytes, self._max_bytes)

    def add(self, one: W) -> None:
        """Raises `Unavailable` when too much is waiting already."""
        if self._commands >= self._max_commands or self._bytes > self._max_bytes:
            raise Unavailable("too many writes are waiting")
        self.waiting.append(one)
        self._bytes += one.size
        self._commands += one.count

    def take(self, max_commands: int, max_bytes: int, *, at_least_one: bool = True) -> list[W]:
        """Take the oldest, as many as the limits allow."""
        taken: list[W] = []
        size = count = 0
        for one in self.waiting:
            if (size + one.size > max_bytes or count + one.count > max_commands) and (
                taken or not at_least_one
            ):
                break
            size += one.size
            count += one.count
            taken.append(one)
        for _ in taken:
            self.waiting.popleft()
        self._bytes -= size
        self._commands -= count
        self.taken += count
        return taken

    def put_back(self, waiting: Sequence[W]) -> None:
        """Return what the log did not take to the front of the queue."""
        self.waiting.extendleft(reversed(waiting))
        self._bytes += sum(one.size for one in waiting)
        self._commands += sum(one.count for one in waiting)

    def expire(self, now: float) -> None:
        """Fail everything that has waited past its deadline."""
        if not self.waiting or self.waiting[0].deadline > now:
            return
        late = [one for one in self.waiting if one.deadline <= now]
        self.waiting = deque(one for one in self.waiting if one.deadline > now)
        self._let_go(late)
        fail_all(late, Unavailable("no leader accepted the write in time"))

    def refuse_all(self, error: Unavailable) -> None:
        """Fail everything that waits."""
        waiting, self.waiting = self.waiting, deque()
        self._let_go(waiting)
        fail_all(waiting, error)

    def _let_go(self, gone: Iterable[W]) -> None:
        for one in gone:
            self._bytes -= one.size
            self._commands -= one.count


class ProposalBatch:
    """Waits for several proposals, of a command each, at once; `settled` has what has become of
    each, in order."""

    def __init__(self, proposals: Sequence[Proposal]) -> None:
        self.settled: list[Settled] = [OutcomeUnknown()] * len(proposals)
        self._left = len(proposals)
        self._done = trio.Event()
        for place, proposal in enumerate(proposals):
            proposal.tell = self._teller(place)

    async def wait(self) -> None:
        """Return once all are settled."""
        if self._left:
            await self._done.wait()

    def _teller(self, place: int) -> Callable[[Sequence[Settled]], None]:
        def tell(value: Sequence[Settled]) -> None:
            [self.settled[place]] = value
            self._left -= 1
            if not self._left:
                self._done.set()

        return tell
