"""Commands on their way into the log, and how they travel between nodes.

A proposal ends in one of three ways: its outcome is known; it was not accepted and will never
take effect (`Unavailable`); or nobody here knows (`OutcomeUnknown`), because the node that had it
in its log lost the lead or the connection. Only the second may be tried again without thought;
after the third an idempotent producer's retry is recognised.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence

import msgspec
import outcome
import trio

from streamd.codec import UNDECODABLE
from streamd.streams.checks import fault, is_of_leader, payload_bytes
from streamd.streams.commands import (
    Archived,
    Command,
    FlushCold,
    MoveSlices,
    Outcome,
    Result,
)
from streamd.streams.offsets import Position
from streamd.streams.sessions import PackageStamp


class Unavailable(Exception):
    """The command was not accepted and will never take effect; try again later."""


class OutcomeUnknown(Exception):
    """The command may have taken effect, or may yet."""


Settled = outcome.Outcome[Outcome]


class Proposal:
    """A command, its payload's size in bytes, and who is told what became of it.

    `deadline` is when it is given up while no leader takes it, on Trio's clock.
    """

    __slots__ = ("command", "deadline", "size", "tell")

    def __init__(
        self,
        command: Command,
        size: int,
        deadline: float,
        tell: Callable[[Settled], None] | None = None,
    ) -> None:
        self.command = command
        self.size = size
        self.deadline = deadline
        self.tell = tell

    def settle(self, value: Settled) -> None:
        """Say once what became of it; nobody may be listening any more."""
        if self.tell is not None:
            tell, self.tell = self.tell, None
            tell(value)

    async def settled(self) -> Outcome:
        """Wait for the outcome. Cancelled, the caller learns nothing of it.

        Raises `Unavailable`, `OutcomeUnknown`.
        """
        task = trio.lowlevel.current_task()
        self.tell = lambda value: trio.lowlevel.reschedule(task, value)

        def abort(_: object) -> trio.lowlevel.Abort:
            self.tell = None
            return trio.lowlevel.Abort.SUCCEEDED

        result: Outcome = await trio.lowlevel.wait_task_rescheduled(abort)
        return result


def give_up(proposals: Iterable[Proposal], error: Unavailable | OutcomeUnknown) -> None:
    """Settle all with an error, each with its own: an outcome can be taken but once."""
    for proposal in proposals:
        proposal.settle(outcome.Error(type(error)(*error.args)))


class PendingEntry:
    """An entry's commands, kept until the entry at its index commits here."""

    __slots__ = ("commands", "now_ms", "packages", "proposals", "term")

    def __init__(
        self,
        term: int,
        now_ms: int,
        commands: list[Command],
        packages: Sequence[PackageStamp] = (),
        proposals: Sequence[Proposal] = (),
    ) -> None:
        self.term = term
        self.now_ms = now_ms
        self.commands = commands
        self.packages = packages
        self.proposals = proposals

    def give_up(self, error: Unavailable | OutcomeUnknown) -> None:
        """End all of its proposals alike."""
        give_up(self.proposals, error)
        self.proposals = ()


class _Answer(msgspec.Struct, array_like=True):
    """What became of one forwarded command; `unknown` is None where there is an outcome."""

    refusal: str | None = None
    unknown: bool = False
    result: Result | None = None
    tail: tuple[int, int] = (0, 0)
    closed: bool = False
    content_type: str = ""
    epoch: int = 0
    seq: int = 0
    incarnation: int = 0
    earliest: tuple[int, int] = (0, 0)
    upload_id: int = 0

    @classmethod
    def of(cls, settled: Settled) -> _Answer:
        if isinstance(settled, outcome.Error):
            unknown = isinstance(settled.error, OutcomeUnknown)
            return cls(str(settled.error), unknown)
        value = settled.unwrap()
        return cls(
            None,
            False,
            value.result,
            (value.tail.record, value.tail.byte),
            value.closed,
            value.content_type,
            value.epoch,
            value.seq,
            value.incarnation,
            (value.earliest.record, value.earliest.byte),
            value.upload_id,
        )

    def settled(self) -> Settled:
        if self.result is None:
            kind = OutcomeUnknown if self.unknown else Unavailable
            return outcome.Error(kind(self.refusal or ""))
        return outcome.Value(
            Outcome(
                self.result,
                Position(*self.tail),
                self.closed,
                self.content_type,
                self.epoch,
                self.seq,
                self.incarnation,
                Position(*self.earliest),
                self.upload_id,
            )
        )


_ENCODER = msgspec.msgpack.Encoder()
_COMMANDS = msgspec.msgpack.Decoder(list[tuple[Command, int]])
_ANSWERS = msgspec.msgpack.Decoder(list[_Answer])


def encode_proposals(proposals: Sequence[Proposal]) -> bytes:
    """Commands and sizes, for the leader."""
    return _ENCODER.encode([(proposal.command, proposal.size) for proposal in proposals])


def decode_proposals(payload: bytes, deadline: float) -> list[Proposal]:
    """The commands that another node forwards; it is not asked how large they are.

    Raises `Unavailable` for what this release does not understand.
    """
    try:
        commands = _COMMANDS.decode(payload)
    except UNDECODABLE as error:
        raise Unavailable(f"the forwarded commands are not understood: {error}") from error
    return [Proposal(command, payload_bytes(command), deadline) for command, _ in commands]


def refusal_of(command: Command) -> Settled | None:
    """What becomes of a forwarded command that is not proposed; None for one that is.

    The forwarding node has judged what its client sent, so any fault is that node's own.
    """
    if isinstance(command, FlushCold | MoveSlices | Archived):
        # They name the term of the leader that made them, which is not this one's.
        return outcome.Value(Outcome(Result.STALE))
    if is_of_leader(command):
        return outcome.Error(Unavailable("only the leader makes such commands"))
    return None if fault(command) is None else outcome.Value(Outcome(Result.INVALID))


def refusals_of(proposals: Sequence[Proposal]) -> list[Settled | None]:
    """As `refusal_of`, of each. Takes a while for many, and for large ones."""
    return [refusal_of(proposal.command) for proposal in proposals]


def encode_answers(settled: Sequence[Settled]) -> bytes:
    """What became of the commands, in their order."""
    return _ENCODER.encode([_Answer.of(one) for one in settled])


def decode_answers(payload: bytes) -> list[Settled]:
    """Raises `msgspec.DecodeError`."""
    return [answer.settled() for answer in _ANSWERS.decode(payload)]


def take_answers(proposals: Sequence[Proposal], payload: bytes) -> None:
    """Settle each with its answer. Raises `OutcomeUnknown` for answers that are not understood:
    the leader may run another release."""
    try:
        answers = decode_answers(payload)
    except (msgspec.DecodeError, RecursionError) as error:
        raise OutcomeUnknown(f"the leader's answer is not understood: {error}") from error
    if len(answers) != len(proposals):
        raise OutcomeUnknown("the leader's answer is to something else")
    for proposal, settled in zip(proposals, answers, strict=True):
        proposal.settle(settled)


class Intake:
    """Proposals that wait to become log entries, or to be forwarded to who makes them such.

    `taken` counts those that do not wait any more.
    """

    def __init__(self, max_commands: int, max_bytes: int) -> None:
        self._max_commands = max_commands
        self._max_bytes = max_bytes
        self._waiting: deque[Proposal] = deque()
        self._bytes = 0
        self.taken = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, proposal: Proposal) -> None:
        """Raises `Unavailable` when too much waits already."""
        if len(self._waiting) >= self._max_commands or self._bytes > self._max_bytes:
            raise Unavailable("too many writes are waiting")
        self._waiting.append(proposal)
        self._bytes += proposal.size

    def take(self, max_commands: int, max_bytes: int) -> list[Proposal]:
        """The oldest ones, as many as the limits allow, but at least one."""
        taken: list[Proposal] = []
        size = 0
        while self._waiting and len(taken) < max_commands:
            size += self._waiting[0].size
            if size > max_bytes and taken:
                break
            taken.append(self._waiting.popleft())
        self._bytes -= sum(proposal.size for proposal in taken)
        self.taken += len(taken)
        return taken

    def put_back(self, proposals: Sequence[Proposal]) -> None:
        """Return what nobody took, before everything that came since."""
        self._waiting.extendleft(reversed(proposals))
        self._bytes += sum(proposal.size for proposal in proposals)

    def expire(self, now: float) -> None:
        """Give up those that waited past their deadline."""
        if not self._waiting or self._waiting[0].deadline > now:
            return
        late = [proposal for proposal in self._waiting if proposal.deadline <= now]
        self._waiting = deque(p for p in self._waiting if p.deadline > now)
        self._bytes -= sum(proposal.size for proposal in late)
        give_up(late, Unavailable("no leader took the write in time"))


class Gathering:
    """Waits for several proposals at once; `settled` has what became of each, in order."""

    def __init__(self, proposals: Sequence[Proposal]) -> None:
        self.settled: list[Settled] = [outcome.Error(OutcomeUnknown())] * len(proposals)
        self._left = len(proposals)
        self._done = trio.Event()
        for place, proposal in enumerate(proposals):
            proposal.tell = self._teller(place)

    async def wait(self) -> None:
        """Return once all are settled."""
        if self._left:
            await self._done.wait()

    def _teller(self, place: int) -> Callable[[Settled], None]:
        def tell(value: Settled) -> None:
            self.settled[place] = value
            self._left -= 1
            if not self._left:
                self._done.set()

        return tell
