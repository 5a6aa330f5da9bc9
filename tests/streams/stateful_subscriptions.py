"""Random commands about subscriptions and their streams, and lists that say what must come of them.

The lists link a stream when it should be linked by the protocol: at once. The machine does so when
it next looks at the stream, and nobody may see the difference.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule
from msgspec.structs import replace

from streamd.streams.commands import Append, Command, Create, Delete, Outcome, Result
from streamd.streams.model import ForkRequest, Settings
from streamd.streams.subscriptions.commands import (
    AcknowledgeWake,
    BeginDelivery,
    ClaimWake,
    DeleteSubscription,
    EndDelivery,
    EndLeases,
    LinkStreams,
    PutSubscription,
    ReleaseWake,
    UnlinkStream,
    WakeSubscription,
)
from streamd.streams.subscriptions.model import Ack, Subscription, SubscriptionConfig, WakeStamp
from tests.streams.driver import JSON, TEXT, key
from tests.streams.subscribed import HOOK, PULL, WAKES, Subscribed

NAMES = ("t/a", "t/b", "t/c")
STREAMS = st.sampled_from(NAMES)
IDS = st.sampled_from(["hook", "hooks", "pull", "pulls"])
NAMED = st.lists(STREAMS, max_size=2)
CONFIGS = {
    "hook": replace(HOOK, pattern="b/t/*"),
    "hooks": replace(HOOK, pattern=""),
    "pull": replace(PULL, pattern="b/t/*"),
    "pulls": replace(PULL, pattern="b/**/a"),
}
MATCHED = {"b/t/*": NAMES, "b/**/a": ("t/a",), "": ()}


class Expected:
    """A subscription as the lists have it: what it names, and what of each of its streams is
    acknowledged."""

    def __init__(self, config: SubscriptionConfig, number: int) -> None:
        self.config = config
        self.number = number
        self.named: set[str] = set()
        self.acked: dict[str, int] = {}

    def covers(self, name: str) -> bool:
        return name in self.named or name in MATCHED[self.config.pattern]


class SubscriptionRules(RuleBasedStateMachine):
    """What clients, workers and the leader do. A twin applies the same log and is stored at other
    times."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = Subscribed()
        self.twin = Subscribed()
        self.log: list[tuple[int, list[Command]]] = []
        self.tails: dict[str, int] = {}
        self.expected: dict[str, Expected] = {}
        self.stamps: list[tuple[str, WakeStamp]] = []
        self.generations: dict[str, int] = {}

    def entry(self, *commands: Command) -> list[Outcome]:
        self.log.append((self.driver.now_ms, list(commands)))
        self.twin.now_ms = self.driver.now_ms
        outcomes = self.driver.entry(*commands)
        assert self.twin.entry(*commands) == outcomes
        return outcomes

    def do(self, command: Command) -> Outcome:
        [outcome] = self.entry(command)
        return outcome

    def found(self, name: str) -> Subscription | None:
        return self.driver.state.subscriptions.by_id(name)

    @initialize(before=NAMED, after=NAMED, named=NAMED)
    def begin(self, before: list[str], after: list[str], named: list[str]) -> None:
        """Some streams are older than the subscriptions."""
        self.do(Create(key(WAKES), Settings(JSON), implicit_bucket=True))
        for name in before:
            self.create(name, 1)
        for name in CONFIGS:
            self.put(name, named)
        for name in after:
            self.create(name, 1)

    def some(self, data: st.DataObject) -> str:
        """The id of a subscription that exists, if any does."""
        return data.draw(st.sampled_from(sorted(self.expected) or ["hook"]))

    def stamp(self, data: st.DataObject) -> tuple[str, WakeStamp]:
        """A stamp that was given out: mostly the last one of a subscription."""
        name = self.some(data)
        last = [one for one in self.stamps if one[0] == name][-1:] or self.stamps
        return data.draw(st.sampled_from(last * 3 + self.stamps[-6:]))

    # -- streams ------------------------------------------------------------------------------

    def made(self, name: str, start: int, records: int) -> None:
        self.tails[name] = start + records
        for one in self.expected.values():
            if one.covers(name):
                one.acked[name] = start

    @rule(name=STREAMS, records=st.integers(0, 2))
    def create(self, name: str, records: int) -> None:
        command = Create(key(name), Settings(TEXT), False, b"x" * records, [1] * records)
        if self.do(command).result is Result.CREATED:
            self.made(name, 0, records)

    @precondition(lambda self: self.tails)
    @rule(name=STREAMS, data=st.data(), records=st.integers(0, 1))
    def fork(self, name: str, data: st.DataObject, records: int) -> None:
        source = data.draw(st.sampled_from(sorted(self.tails)))
        settings = Settings(fork=ForkRequest(key(source)))
        command = Create(key(name), settings, False, b"x" * records, [1] * records)
        if self.do(command).result is Result.CREATED:
            self.made(name, self.tails[source], records)

    @precondition(lambda self: self.tails)
    @rule(data=st.data(), count=st.integers(1, 3))
    def append(self, data: st.DataObject, count: int) -> None:
        """A run of appends in one entry."""
        name = data.draw(st.sampled_from(sorted(self.tails)))
        outcomes = self.entry(*[Append(key(name), TEXT, b"x", [1])] * count)
        first = self.tails[name] + 1
        assert [one.tail.record for one in outcomes] == list(range(first, first + count))
        self.tails[name] += count

    @rule(name=STREAMS)
    def delete(self, name: str) -> None:
        if self.do(Delete(key(name))).result is Result.DELETED:
            del self.tails[name]
            for one in self.expected.values():
                one.acked.pop(name, None)

    # -- subscriptions ------------------------------------------------------------------------

    @rule(name=IDS, named=NAMED)
    def put(self, name: str, named: list[str]) -> None:
        outcome = self.do(PutSubscription(name, CONFIGS[name], [key(one) for one in named]))
        if outcome.result is not Result.CREATED:
            assert name in self.expected
            return
        assert outcome.wake is not None
        made = self.expected[name] = Expected(CONFIGS[name], outcome.wake.number)
        made.named = set(named)
        made.acked = {one: tail for one, tail in self.tails.items() if made.covers(one)}

    @rule(name=IDS)
    def drop(self, name: str) -> None:
        assert (self.do(DeleteSubscription(name)).result is Result.DELETED) == (
            self.expected.pop(name, None) is not None
        )

    @rule(data=st.data(), stream=STREAMS)
    def link(self, data: st.DataObject, stream: str) -> None:
        name = self.some(data)
        if self.do(LinkStreams(name, [key(stream)])).result is Result.DONE:
            one = self.expected[name]
            one.named.add(stream)
            if stream in self.tails:
                one.acked.setdefault(stream, self.tails[stream])

    @rule(data=st.data(), stream=STREAMS)
    def unlink(self, data: st.DataObject, stream: str) -> None:
        name = self.some(data)
        if self.do(UnlinkStream(name, key(stream))).result is Result.DONE:
            one = self.expected[name]
            one.named.discard(stream)
            if not one.covers(stream):
                one.acked.pop(stream, None)

    # -- workers ------------------------------------------------------------------------------

    def stamped(self, name: str, outcome: Outcome) -> None:
        assert outcome.wake is not None
        report = outcome.wake
        self.stamps.append((name, WakeStamp(report.number, report.generation, report.wake_id)))

    @rule(data=st.data())
    def force(self, data: st.DataObject) -> None:
        self.do(WakeSubscription(self.some(data)))

    @rule(data=st.data())
    def claim(self, data: st.DataObject) -> None:
        self.claimed(self.some(data))

    def claimed(self, name: str) -> None:
        outcome = self.do(ClaimWake(name, "worker"))
        if outcome.result is Result.DONE:
            self.stamped(name, outcome)
        elif outcome.result is Result.NO_PENDING_WORK:
            assert not self.pending(name)

    @rule(data=st.data(), done=st.booleans(), leaves=st.booleans())
    def work(self, data: st.DataObject, done: bool, leaves: bool) -> None:
        """A worker or a receiver acknowledges everything, or leaves a stream."""
        name = self.some(data)
        if name not in self.expected:
            return
        if name.startswith("pull"):
            self.claimed(name)
        else:
            self.delivered(name, 0)
        given = [stamp for of, stamp in self.stamps if of == name][-1:]
        for stamp in given:
            streams = sorted(self.expected[name].acked)[leaves:]
            acks = [Ack(key(one), self.tails[one], self.tails[one]) for one in streams]
            outcome = self.do(AcknowledgeWake(name, stamp, acks, done))
            if outcome.result is Result.DONE:
                self.acknowledged(name, acks)

    @precondition(lambda self: self.stamps)
    @rule(data=st.data(), done=st.booleans())
    def acknowledge(self, data: st.DataObject, done: bool) -> None:
        """With a stamp of any age, and offsets that may be wrong."""
        name, stamp = self.stamp(data)
        one = self.expected.get(name)
        known = sorted(() if one is None else one.acked) or [NAMES[0]]
        streams = data.draw(st.lists(st.sampled_from(known), max_size=3, unique=True))
        acks = [self.drawn_ack(data, stream) for stream in streams]
        was_present = self.is_present(name, stamp)
        outcome = self.do(AcknowledgeWake(name, stamp, acks, done))
        if outcome.result is Result.DONE:
            assert was_present
            self.acknowledged(name, acks)
        elif was_present:
            assert outcome.result is Result.ACK_INVALID

    def drawn_ack(self, data: st.DataObject, stream: str) -> Ack:
        tail = self.tails.get(stream, 0)
        at = data.draw(st.sampled_from([tail] * 6 + [max(0, tail - 1), tail + 1]))
        return Ack(key(stream), at, at)

    def acknowledged(self, name: str, acks: list[Ack]) -> None:
        acked = self.expected[name].acked
        for ack in acks:
            stream = ack.key.decode().partition("\0")[2]
            assert acked[stream] <= ack.record <= self.tails[stream]
            acked[stream] = ack.record

    def is_present(self, name: str, stamp: WakeStamp) -> bool:
        """Whether a stamp is that of a wake that a worker has, by what can be seen of it."""
        found = self.found(name)
        if found is None or found.number != stamp.number or found.wake is None:
            return False
        until_ms = found.lease_until_ms
        if until_ms is not None and until_ms <= self.driver.now_ms:
            return False
        return (found.generation, found.wake.wake_id) == (stamp.generation, stamp.wake_id)

    @precondition(lambda self: self.stamps)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        name, stamp = self.stamp(data)
        was_present = self.is_present(name, stamp)
        outcome = self.do(ReleaseWake(name, stamp))
        assert (outcome.result is Result.DONE) == was_present

    # -- the leader ---------------------------------------------------------------------------

    @rule(data=st.data(), ahead=st.sampled_from([0, 0, 0, 1]))
    def deliver(self, data: st.DataObject, ahead: int) -> None:
        self.delivered(self.some(data), ahead)

    def delivered(self, name: str, ahead: int) -> None:
        found = self.found(name)
        if found is None or found.wake is None:
            return
        attempt = found.attempts + 1 + ahead
        outcome = self.do(BeginDelivery(found.number, found.wake.wake_id, attempt))
        if outcome.result is Result.DONE:
            assert not ahead
            self.stamped(name, outcome)

    @precondition(lambda self: self.stamps)
    @rule(data=st.data(), attempt=st.integers(1, 2), is_delivered=st.booleans(), done=st.booleans())
    def end_delivery(
        self, data: st.DataObject, attempt: int, is_delivered: bool, done: bool
    ) -> None:
        name, stamp = self.stamp(data)
        one = self.expected.get(name)
        acks = [] if one is None else [self.drawn_ack(data, stream) for stream in one.acked]
        why = "" if is_delivered else "status 500"
        command = EndDelivery(stamp.number, stamp.wake_id, attempt, is_delivered, why, acks, done)
        if self.do(command).result is Result.DONE and is_delivered and done:
            assert one is not None
            for ack in acks:
                stream = ack.key.decode().partition("\0")[2]
                if one.acked[stream] <= ack.record <= self.tails[stream]:
                    one.acked[stream] = ack.record

    @rule(by_ms=st.sampled_from([1, 400, 1_000, 70_000]))
    def time_passes(self, by_ms: int) -> None:
        self.driver.now_ms += by_ms

    @rule()
    def do_what_is_due(self) -> None:
        records = self.driver.state.subscriptions.records.values()
        times = [(one.due_ms, one.number) for one in records if one.due_ms is not None]
        due = [number for at_ms, number in sorted(times) if at_ms <= self.driver.now_ms]
        self.do(EndLeases(due[:2]))

    # -- expectations -------------------------------------------------------------------------

    def pending(self, name: str) -> set[str]:
        acked = self.expected[name].acked
        return {stream for stream, at in acked.items() if at < self.tails[stream]}
