"""What foresight tells is what the machine then decides, and nothing is changed by the telling."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Any

from hypothesis import event, given
from hypothesis import strategies as st
from msgspec.structs import replace

from streamd.streams import keys
from streamd.streams.commands import (
    Append,
    Command,
    Create,
    Delete,
    Outcome,
    PublishSnapshot,
    RenewIncarnations,
    Result,
    SetLimits,
)
from streamd.streams.content import split_body
from streamd.streams.limits import Limits
from streamd.streams.model import (
    ForkRequest,
    IfMatch,
    ProducerStamp,
    Settings,
    VerifiedPosition,
    Version,
)
from streamd.streams.offsets import START, Position
from streamd.streams.queries.foresight import foresee, foresee_snapshot
from tests.streams.driver import JSON, TEXT, Driver, key

NAMES = st.sampled_from("abc")
# What changes nothing and is not foreseen: the command is made again, and a snapshot of no stream
# is refused before.
LEFT_TO_THE_LOG = {
    Append: {Result.STALE},
    Create: {Result.STALE},
    PublishSnapshot: {Result.STALE, Result.NOT_FOUND, Result.GONE},
}


PLACES = st.none() | st.builds(Position, st.integers(0, 3), st.integers(0, 9))
BODIES = st.sampled_from([b"1", b"[22]", b"[1,2,3]"])
KINDS = st.sampled_from([TEXT, TEXT, TEXT, JSON])
Step = Callable[[Driver], Command]


def _append(
    driver: Driver,
    *,
    name: str,
    kind: str,
    body: bytes,
    close: bool,
    seq: str | None,
    stamp: ProducerStamp | None,
    condition: str,
) -> Command:
    stream = driver.find(name)
    holds = IfMatch() if stream is None else IfMatch((stream.version(),))
    fails = IfMatch((Version(0, 0, 0, False),))
    if_match = {"none": None, "any": IfMatch(), "holds": holds, "fails": fails}[condition]
    data, lengths = split_body(kind, body) if body else (b"", [])
    return Append(key(name), kind, data, lengths, close or not body, seq, stamp, if_match)


def _create(
    driver: Driver, *, name: str, kind: str, body: bytes, closed: bool, ttl_ms: int | None,
    implicit: bool, conditional: bool,
) -> Command:  # fmt: skip
    del driver
    if_match = IfMatch() if conditional else None
    return Create(
        key(name), Settings(kind, ttl_ms), closed, *split_body(kind, body), implicit, if_match
    )


def _fork(
    driver: Driver, *, name: str, source: str, at: Position | None, body: bytes, is_found: bool
) -> Command:
    request = ForkRequest(key(source), at, 0)
    finding = driver.find_anchor(request) if is_found else VerifiedPosition()
    data, lengths = split_body(TEXT, body)
    return Create(key(name), Settings(fork=request), False, data, lengths, True, finding=finding)


def _publish(
    driver: Driver, *, name: str, at: Position | None, body: bytes, is_found: bool
) -> Command:
    stream = driver.find(name)
    if at is None:
        at = START if stream is None else stream.tail
    finding = driver.find_boundary(key(name), at) if is_found else VerifiedPosition()
    return PublishSnapshot(key(name), at, TEXT, len(body), body, 0, body, finding)


def _as_it_is(driver: Driver, command: Command) -> Command:
    del driver
    return command


def _steps(make: Callable[..., Command], **drawn: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(drawn).map(lambda given: partial(make, **given))


STAMPS = st.builds(ProducerStamp, st.sampled_from("pq"), st.integers(0, 1), st.integers(0, 2))
SELDOM = st.sampled_from([False, False, False, True])
QUOTAS = st.builds(
    Limits,
    max_bytes=st.none() | st.integers(0, 24),
    max_stream_bytes=st.integers(0, 12),
    max_streams=st.none() | st.integers(1, 3),
)
APPENDS = _steps(
    _append,
    name=NAMES,
    kind=KINDS,
    body=BODIES | BODIES | st.just(b""),
    close=SELDOM,
    seq=st.sampled_from([None, None, "1", "2"]),
    stamp=st.none() | STAMPS,
    condition=st.sampled_from(["none", "none", "none", "any", "holds", "fails"]),
)
CREATES = _steps(
    _create,
    name=NAMES,
    kind=KINDS,
    body=st.just(b"") | BODIES,
    closed=SELDOM,
    ttl_ms=st.sampled_from([None, None, 50]),
    implicit=st.booleans(),
    conditional=SELDOM,
)
FORKS = _steps(
    _fork,
    name=NAMES,
    source=NAMES,
    at=PLACES,
    body=st.just(b"") | BODIES,
    is_found=SELDOM.map(lambda seldom: not seldom),
)
SNAPSHOTS = _steps(
    _publish,
    name=NAMES,
    at=PLACES,
    body=st.sampled_from([b"", b"1", b"a long snapshot"]),
    is_found=SELDOM.map(lambda seldom: not seldom),
)
OTHERS = _steps(
    _as_it_is,
    command=st.builds(Delete, NAMES.map(key))
    | st.builds(SetLimits, st.just("bucket"), st.just("*"), st.none() | QUOTAS | QUOTAS)
    | st.builds(RenewIncarnations, st.integers(1, 5).map(lambda n: n << 32)),
)
PAUSES_MS = st.sampled_from([0, 0, 0, 60])
SCENES = st.lists(
    st.tuples(PAUSES_MS, APPENDS | APPENDS | CREATES | FORKS | SNAPSHOTS | OTHERS),
    min_size=5,
    max_size=20,
)


def begun(quota: Limits | None) -> Driver:
    """A driver with a stream from before there was a quota, one that will expire, and one more."""
    driver = Driver()
    driver.create("a", body=b"first")
    if quota is not None:
        driver.do(SetLimits("bucket", "*", quota))
    driver.create("b", body=b"first", ttl_ms=50)
    driver.create("c", body=b"first")
    driver.append(b"more", "c", producer=("p", 0, 0))
    return driver


def rows(driver: Driver) -> dict[bytes, bytes]:
    """The state but for its header, which changes with each entry of the log."""
    driver.flush()
    return {row: value for row, value in driver.store.rows.items() if row != keys.HEADER}


@given(st.none() | QUOTAS, SCENES)
def test_what_is_foreseen_is_what_the_machine_decides(
    quota: Limits | None, scene: list[tuple[int, Step]]
) -> None:
    """And what is not foreseen changes something, but for what only the log can decide."""
    driver = begun(quota)
    for pause_ms, step in scene:
        driver.now_ms += pause_ms
        command = step(driver)
        before = rows(driver)
        foreseen = foresee(driver.machine, command, driver.now_ms)
        assert rows(driver) == before, "to look is to change nothing"
        decided = driver.do(command)
        if foreseen is not None:
            event(f"foreseen: {decided.result}")
            assert decided == foreseen
            assert rows(driver) == before
        elif isinstance(command, Append | Create | PublishSnapshot) and rows(driver) == before:
            stream = driver.state.streams.get(command.key)
            if stream is not None and stream.kept_from is None and driver.state.header.counts:
                continue  # Another command would have counted it.
            assert decided.result in LEFT_TO_THE_LOG[type(command)]


@given(QUOTAS, SCENES, st.lists(st.tuples(SNAPSHOTS, st.integers(0, 15)), min_size=1, max_size=3))
def test_a_snapshot_that_is_foreseen_to_be_refused_is_refused(
    quota: Limits, scene: list[tuple[int, Step]], snapshots: list[tuple[Step, int]]
) -> None:
    """Before its body has come nothing is known of it but the offset and the least size."""
    driver = begun(quota)
    for pause_ms, step in scene:
        driver.now_ms += pause_ms
        driver.do(step(driver))
    for step, more in snapshots:
        command = step(driver)
        assert isinstance(command, PublishSnapshot)
        at, least = Position(*command.at), command.size
        command = replace(command, size=least + more, data=command.data + bytes(more))
        before = rows(driver)
        foreseen = foresee_snapshot(driver.machine, command.key, at, least, driver.now_ms)
        assert rows(driver) == before, "to look is to change nothing"
        decided = driver.do(command)
        if foreseen is not None:
            event(f"foreseen: {foreseen.result}")
            # The offset may be wrong besides, which is told first.
            assert decided.result is not Result.PUBLISHED
            assert rows(driver) == before


# -- what is left to the log -----------------------------------------------------------------------


def full() -> Driver:
    """A driver with a stream `s` that fills its bucket."""
    driver = Driver()
    driver.do(SetLimits("bucket", "*", Limits(max_bytes=4)))
    driver.create(body=b"full", ttl_ms=100)
    return driver


def foreseen(driver: Driver, command: Command) -> Outcome | None:
    return foresee(driver.machine, command, driver.now_ms)


def test_a_full_bucket_is_foreseen_until_the_stream_has_expired() -> None:
    """Then the append is what ends the stream."""
    driver = full()
    append = Append(key("s"), TEXT, b"x", [1])
    refusal = foreseen(driver, append)
    assert refusal == Outcome.of(Result.BUCKET_FULL, driver.stream())
    tail = driver.stream().tail
    assert foresee_snapshot(driver.machine, key("s"), tail, 5, driver.now_ms) == refusal
    driver.now_ms += 101
    assert foreseen(driver, append) is None
    assert foresee_snapshot(driver.machine, key("s"), tail, 5, driver.now_ms) is None
    assert driver.do(append).result is Result.NOT_FOUND


def test_a_stream_that_is_not_counted_yet_is_left_to_the_log() -> None:
    """The first command under a quota counts it, wherever it is applied."""
    driver = Driver()
    driver.create(body=b"full")
    driver.do(SetLimits("bucket", "*", Limits(max_bytes=4)))
    append = Append(key("s"), TEXT, b"x", [1])
    assert foreseen(driver, append) is None
    assert driver.do(append).result is Result.BUCKET_FULL
    assert foreseen(driver, append) is not None


def test_a_snapshot_at_the_offset_of_the_present_one_is_left_to_the_log() -> None:
    driver = full()
    tail = driver.stream().tail
    driver.publish(b"1234", tail)
    assert foresee_snapshot(driver.machine, key("s"), tail, 5, driver.now_ms) is None


def test_a_snapshot_whose_body_is_in_the_log_is_left_to_the_log() -> None:
    """What became of its parts is not looked at."""
    driver = full()
    tail = driver.stream().tail
    upload_id = driver.upload(tail, b"12345")
    finding = driver.find_boundary(key("s"), tail)
    publish = PublishSnapshot(key("s"), tail, TEXT, 5, b"12345", upload_id, b"", finding)
    assert foreseen(driver, publish) is None
    assert driver.do(publish).result is Result.BUCKET_FULL


def test_a_snapshot_with_the_finding_of_an_earlier_stream_is_left_to_the_log() -> None:
    driver, at = Driver(), Position(1, 2)
    driver.create(body=b"ab")
    driver.append(b"c")
    finding = driver.find_boundary(key("s"), at)
    driver.delete()
    driver.create(body=b"ab")
    driver.append(b"c")
    publish = PublishSnapshot(
        key("s"), at, TEXT, 5, sha256(b"state").digest(), 0, b"state", finding
    )
    assert foreseen(driver, publish) is None
    assert driver.do(publish).result is Result.STALE


def test_no_other_command_is_foreseen() -> None:
    driver = full()
    assert foreseen(driver, Delete(key("nowhere"))) is None
    assert driver.delete("nowhere") is Result.NOT_FOUND
