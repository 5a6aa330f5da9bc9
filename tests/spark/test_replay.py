"""The audit's model of commands has the same outcomes as the server's machine for the same log."""

from __future__ import annotations

import os

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import rule
from pyspark.sql import SparkSession

from streamd.streams import producers
from streamd.streams.commands import Append, Command, Outcome, RecordOperation, SetLimits
from streamd.streams.limits import Limits
from streamd.streams.model import VerifiedPosition
from streamd.streams.subscriptions import model as subscribed
from streamd.streams.subscriptions import signing_keys as keys
from streamd.streams.subscriptions import wakes
from streamd.streams.subscriptions.commands import SubscriptionCommand
from streamd.streams.token_commands import CreateToken, RevokeToken, RotateToken
from streamd_audit.replay import links, model, run, scan, subscription_keys, subscriptions
from streamd_audit.replay.access import findings_of
from streamd_audit.replay.distribute import replay
from streamd_audit.replay.plan import Plan
from streamd_audit.replay.spans import EVENTS_DDL
from streamd_audit.rows import read_key
from tests.hostile.test_machine import _driver
from tests.hostile.values import hostile
from tests.spark.plain_replay import (
    LogEntry,
    Replayed,
    StateRows,
    log_frame,
    plain_replay,
    state_events,
)
from tests.spark.random_log import RandomLog
from tests.spark.random_subscriptions import FENCED_KEYS, WAKE_KEYS
from tests.streams.driver import Driver
from tests.streams.test_model import MachineAgainstLists

pytestmark = pytest.mark.long

ALL = os.environ.get("AUDIT_TESTS") == "all"
EXAMPLES = 200 if ALL else 50

_NOT_JUDGED = (
    "flush-cold", "drop-slices", "move-slices", "forget-packs", "archived", "scrubbed",
    "renew-incarnations", "store-part", "drop-uploads",
)  # fmt: skip


class Recorder(Driver):
    """A driver that keeps the whole log."""

    def reopen(self) -> None:
        super().reopen()
        if not hasattr(self, "log"):
            self.log: dict[int, tuple[LogEntry, list[Outcome], int]] = {}
            self.states: list[StateRows] = []

    def flush(self) -> None:
        super().flush()
        self.states.append(StateRows(self.state.header.applied_index, dict(self.store.rows)))

    def entry(self, *commands: Command) -> list[Outcome]:
        index = self.state.header.applied_index + 1
        outcomes = super().entry(*commands)
        entry = LogEntry(index, 1, self.now_ms, list(commands))
        base = self.state.header.incarnation_base
        self.log[index] = entry, [msgspec.structs.replace(one) for one in outcomes], base
        return outcomes

    def rows(self) -> dict[bytes, bytes]:
        self.flush()
        return dict(self.store.rows)


def check(driver: Recorder, replayed: Replayed) -> None:
    """The outcome of every command, the ids, the tails of all streams."""
    for entry, outcomes, base in driver.log.values():
        for position, (command, outcome) in enumerate(zip(entry.commands, outcomes, strict=True)):
            if not _is_judged(command) or outcome.result.value == "invalid":
                continue
            place = entry.index, position
            found = replayed.of_access.get(place) or replayed.results.get(place)
            if found is None and not _has_key(command) and not _is_of_access(command):
                continue
            assert found == outcome.result.value, (entry.index, position, command)
            if outcome.result.value in ("created", "uploading") and outcome.incarnation:
                number = outcome.upload_id or outcome.incarnation - base
                assert replayed.numbers[entry.index, position] == number
    assert replayed.tables[run.DIFFERENCES] == []
    assert replayed.differences == []


def _is_of_access(command: Command) -> bool:
    return isinstance(
        command, CreateToken | RotateToken | RevokeToken | SetLimits | RecordOperation
    )


def _is_judged(command: Command) -> bool:
    return command.__struct_config__.tag not in _NOT_JUDGED


def _has_key(command: Command) -> bool:
    return b"\0" in getattr(command, "key", b"")


def admissions() -> st.SearchStrategy[Command]:
    """Commands about a few tokens and limits, so that they meet."""
    ids, names = st.integers(0, 2), st.sampled_from(["ci", "ops"])
    digests = st.sampled_from([bytes(32), b"\1" * 32])
    ends = st.none() | st.integers(0, 60)
    rows = st.none() | st.builds(Limits, requests_per_s=st.integers(1, 2))
    return st.one_of(
        st.builds(CreateToken, ids, names, digests, st.just(["read:*"]), ends, digests),
        st.builds(RotateToken, ids, digests, st.integers(0, 60), ends, digests),
        st.builds(RevokeToken, ids),
        st.builds(SetLimits, st.sampled_from(["bucket", "identity"]), names, rows),
    )


class ModelAgainstMachine(MachineAgainstLists):
    """The same random lives of streams, judged at their end by the audit's model."""

    def __init__(self) -> None:
        super().__init__()
        self.driver = self.recorder = Recorder()
        self.reference.now_ms = self.driver.now_ms

    @rule(command=admissions())
    def admit(self, command: Command) -> None:
        """What clients may do changes; no stream does."""
        outcome = self.driver.do(command)
        self.log.append((self.driver.now_ms, command, outcome.result))

    def teardown(self) -> None:
        last = max(self.recorder.log, default=0)
        applied = self.driver.state.header.applied_index
        assert last == applied
        log = [self.recorder.log[index][0] for index in sorted(self.recorder.log)]
        if self.flushing is not None:
            self.end_flush()
        self.recorder.flush()
        check(self.recorder, plain_replay(log, None, *self.recorder.states))
        super().teardown()


TestModelAgainstMachine = ModelAgainstMachine.TestCase
TestModelAgainstMachine.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=50, deadline=None
)


@settings(max_examples=EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(hostile(Command, finding=hostile(VerifiedPosition)), min_size=1, max_size=8),
    st.integers(0, 200),
)
def test_hostile_commands_have_the_same_outcomes_as_in_the_machine(
    commands: list[Command], waited_ms: int
) -> None:
    inhabited = _driver()
    before = StateRows(inhabited.state.header.applied_index, dict(inhabited.store.rows))
    first = inhabited.state.header.next_stream_id
    driver = Recorder(inhabited.store, inhabited.objects)
    for command in commands:
        for row in driver.state.missing([command]):
            driver.state.install(row, driver.store.get(row))
        driver.do(command)
        driver.now_ms += waited_ms
    driver.now_ms += 1
    log = [driver.log[index][0] for index in sorted(driver.log)]
    after = StateRows(driver.state.header.applied_index, driver.rows())
    check(driver, plain_replay(log, before, after, first_number=first))


@pytest.fixture
def two_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Streams remember two producers, each for half a second."""
    monkeypatch.setattr(producers, "MAX_PRODUCERS", 2)
    monkeypatch.setattr(producers, "MIN_IDLE_MS", 500)
    monkeypatch.setattr(model, "_MAX_PRODUCERS", 2)
    monkeypatch.setattr(model, "_MIN_IDLE_MS", 500)


def test_the_model_has_the_bounds_of_the_machine() -> None:
    assert model._MAX_PRODUCERS == producers.MAX_PRODUCERS
    assert model._MIN_IDLE_MS == producers.MIN_IDLE_MS
    assert links.MAX_LINKS == subscribed.MAX_LINKS
    audited = subscriptions._MAX_SUBSCRIPTIONS, subscriptions._MAX_NAMED
    assert audited == (subscribed.MAX_SUBSCRIPTIONS, subscribed.MAX_NAMED)
    assert subscriptions._MAX_NAMED_IN_ALL == subscribed.MAX_NAMED_IN_ALL
    assert subscriptions._MAX_AT_CREATION == wakes._MAX_AT_CREATION
    assert subscription_keys._MAX_KEYS == keys.MAX_SUBSCRIPTION_KEYS
    assert subscription_keys._KEPT_MS == keys.KEPT_MS


@pytest.mark.parametrize("quotas", [False, True])
@pytest.mark.parametrize("seed", range(12))
@pytest.mark.usefixtures("two_producers")
def test_a_long_log_has_the_same_outcomes_as_in_the_machine(seed: int, quotas: bool) -> None:
    made = RandomLog(seed, 400, quotas=quotas)
    made.flush()
    assert len(made.states) > 2
    replayed = plain_replay(made.log, None, *made.states)
    assert replayed.tables[run.DIFFERENCES] == []
    assert replayed.differences == []
    known = replayed.results | replayed.of_access
    for entry in made.log:
        for position, outcome in enumerate(made.outcomes[entry.index]):
            found = known.get((entry.index, position))
            if found not in ("known", "lost") and _is_judged(entry.commands[position]):
                assert found == outcome.result.value, (entry.index, entry.commands[position])
    results = {*replayed.results.values()}
    assert {"known", "created", "published"} <= results
    assert "too-many-producers" in results or quotas
    assert bool(results & {"bucket-full", "stream-full", "too-many-streams"}) == quotas


@pytest.mark.parametrize("quotas", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_a_log_of_subscriptions_has_the_same_outcomes_as_in_the_machine(
    seed: int, quotas: bool
) -> None:
    made = RandomLog(seed, 600, quotas=quotas, subscriptions=True)
    made.flush()
    replayed = plain_replay(made.log, None, *made.states)
    assert replayed.tables[run.DIFFERENCES] == []
    for entry in made.log:
        for position, outcome in enumerate(made.outcomes[entry.index]):
            found = replayed.results.get((entry.index, position))
            command = entry.commands[position]
            is_judged = isinstance(command, SubscriptionCommand) and found not in ("known", "lost")
            if is_judged and outcome.result.value != "invalid":
                assert found == outcome.result.value, (entry.index, command)
    results = {*replayed.results.values()}
    assert {"no-pending-work", "write-fenced", "write-out-of-scope"} <= results


def test_such_logs_have_fenced_writes_that_take_effect() -> None:
    logs = [RandomLog(seed, 600, subscriptions=True) for seed in range(6)]
    assert any(
        isinstance(command, Append)
        and command.fence is not None
        and outcome.result.value == "appended"
        for made in logs
        for entry in made.log
        for command, outcome in zip(entry.commands, made.outcomes[entry.index], strict=True)
    )


@pytest.mark.parametrize("quotas", [False, True])
def test_the_replay_in_spark_has_the_same_outcomes(spark: SparkSession, quotas: bool) -> None:
    """Distributed over scopes, with nothing of the log in one place."""
    made = RandomLog(9, 200, wild=False, quotas=quotas, subscriptions=not quotas)
    made.flush()
    states = spark.createDataFrame(
        [
            (0, index, position, op, read_key(key)[0], key, value)
            for op, index, position, key, value in state_events(None, made.states)
        ],
        EVENTS_DDL,
    )
    plans = {0: Plan(None, tuple(state.index for state in made.states))}
    replayed = replay(log_frame(spark, made.log), states, plans, range(scan.WRONG))
    plain = plain_replay(made.log, None, *made.states)
    assert replayed.settled
    assert replayed.differences.collect() == []
    assert replayed.access.count() == len(plain.of_access) > 0
    assert findings_of(replayed.access, states, plans, "c").collect() == []
    assert replayed.buckets.collect() == []
    outcomes = {
        (row["index"], row["position"]): row["result"] for row in replayed.outcomes.collect()
    }
    appends = replayed.appends.collect()
    appended = {place: result for place, result in plain.results.items() if result == "appended"}
    assert outcomes == {place: r for place, r in plain.results.items() if place not in appended}
    entries = [run.decode_appended(row["detail"]).entries for row in appends]
    assert {index for index, _ in appended} <= {index for some in entries for index in some}
    streams = replayed.streams.collect()
    found = {}
    for row in streams:
        found[row["bucket"], row["stream"]] = row["stream_id"], row["records"], row["bytes"]
    there = {}
    for key in (*made.keys, *WAKE_KEYS, *FENCED_KEYS):
        stream = made.driver.state.streams.get(key)
        if stream is not None:
            bucket, _, name = key.decode().partition("\0")
            there[bucket, name] = stream.stream_id, stream.records, stream.size
    assert found == there
    by_id: dict[int, int] = {}
    for row in sorted(appends, key=lambda row: row["start_record"]):
        assert row["stream_id"] is not None
        expected = by_id.setdefault(row["stream_id"], row["start_record"])
        assert row["start_record"] == expected
        by_id[row["stream_id"]] += row["records"]
