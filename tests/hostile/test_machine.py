"""Commands in the log may be anything: the machine has an outcome for each, the same on every
replica."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamd.streams import keys
from streamd.streams.codec import Batch, decode_batch, encode_batch
from streamd.streams.commands import (
    Append,
    BeginUpload,
    Command,
    Create,
    Delete,
    DropSlices,
    DropUploads,
    FlushCold,
    ForgetPacks,
    MovedSlice,
    MoveSlices,
    NewSlice,
    PublishSnapshot,
    Result,
    StorePart,
    Sweep,
    Touch,
)
from streamd.streams.model import ForkRequest, IfMatch, Settings, Verdict, VerifiedPosition
from streamd.streams.offsets import Position
from tests.hostile.values import hostile
from tests.streams.driver import TEXT, Driver, key
from tests.streams.memory_store import MemoryStore

_LAST = 2**64 - 1


def _inhabited() -> Driver:
    """A machine with some of everything: records in memory and cold, a fork, an upload."""
    driver = Driver()
    driver.create("s", body=b"one")
    driver.create("t", "application/json", body=b'[1, "two", {"three": 3}]')
    driver.append(b"two")
    driver.flush_cold()
    driver.append(b"three")
    driver.fork("u", "s", Position(2, 6), ttl_ms=1000)
    driver.create("v", ttl_ms=5)
    driver.publish(b"snapshot", Position(1, 3))
    driver.upload(Position(2, 6), b"part")
    driver.flush()
    return driver


_ROWS = dict(_inhabited().store.rows)
_OBJECTS = dict(_inhabited().objects)


def _driver() -> Driver:
    return Driver(MemoryStore(_ROWS), dict(_OBJECTS))


def _apply(driver: Driver, command: Command) -> Result:
    """Apply commands as from the log: loaded ahead, decoded, applied."""
    [decoded] = decode_batch(encode_batch(Batch(driver.now_ms, [command]))).commands
    for row in driver.state.missing([decoded]):
        driver.state.install(row, driver.store.get(row))
    return driver.do(decoded).result


_FINDING = VerifiedPosition(1, Verdict.BOUNDARY, -5, 3)

_ONCE_FATAL: dict[str, Command] = {
    "create without a bucket": Create(b"no-nul-here", Settings(TEXT), implicit_bucket=True),
    "append without a bucket": Append(b"no-nul-here", TEXT, b"x", [1], if_match=IfMatch()),
    "delete without a bucket": Delete(b"no-nul-here", IfMatch()),
    "a fork before the beginning": Create(
        key("w"), Settings(fork=ForkRequest(key("s"), (2, 6), 1)), finding=_FINDING
    ),
    "a fork beyond all numbers": Create(
        key("w"),
        Settings(fork=ForkRequest(key("s"), (2, 6), 1)),
        finding=VerifiedPosition(1, Verdict.BOUNDARY, 2, _LAST),
    ),
    "a part of a negative upload": StorePart(-1, 0, b"x"),
    "a negative upload published": PublishSnapshot(key("s"), (3, 11), TEXT, 1, b"", -1),
    "a snapshot before the beginning": PublishSnapshot(
        key("v"), (-1, 0), TEXT, 1, b"", 0, b"x", VerifiedPosition(4, Verdict.BOUNDARY, -1, 0)
    ),
    "a negative upload dropped": DropUploads([1, -1]),
    "a negative slice dropped": DropSlices(1, [2, -1]),
    "a slice of a negative blob": FlushCold(
        1, 9, "p", 1, [NewSlice(b"\0blob", -1, 0, 0, 1, 1, 0, 1, 0, b"")]
    ),
    "a pack of a negative term": FlushCold(-1, 9, "p", 1, []),
    "a negative slice moved": MoveSlices(1, 9, "p", 1, [MovedSlice(-1, 2, 1, 1, 0, 1, 0)]),
    "a negative pack forgotten": ForgetPacks([(1, 1), (1, -1)]),
}


@pytest.mark.parametrize("command", _ONCE_FATAL.values(), ids=_ONCE_FATAL.keys())
def test_an_impossible_command_has_an_outcome_and_changes_nothing(command: Command) -> None:
    driver, other = _driver(), _driver()
    assert _apply(driver, command) is Result.INVALID
    other.entry()
    driver.flush()
    other.flush()
    assert driver.store.rows == other.store.rows


@pytest.mark.parametrize(
    "command",
    [
        Create(key("w"), Settings(TEXT, ttl_ms=_LAST)),
        Create(key("w"), Settings(TEXT, expires_at_ms=_LAST)),
        Touch([(key("v"), 4, _LAST)]),
        BeginUpload(key("v"), (-1, 0)),
        Create(key("w"), Settings(fork=ForkRequest(key("u"), (2, 7), 1))),
    ],
    ids=["window", "expiry", "touch", "upload", "fork"],
)
def test_impossibly_large_numbers_do_no_harm(command: Command) -> None:
    driver = _driver()
    _apply(driver, command)
    driver.now_ms += 10_000
    assert _apply(driver, Sweep([key("v"), key("w")])) is Result.DONE
    driver.flush()
    driver.reopen()


@settings(
    max_examples=3 * settings().max_examples, deadline=None, suppress_health_check=list(HealthCheck)
)
@given(st.lists(hostile(Command), min_size=1, max_size=8), st.integers(0, 7))
def test_no_command_stops_the_machine_and_invalid_ones_have_no_effect(
    commands: list[Command], flushed_after: int
) -> None:
    """Nothing raises, in applying or in storing; a replica that skips `INVALID` commands ends with
    the same rows."""
    driver, other = _driver(), _driver()
    for number, command in enumerate(commands):
        if _apply(driver, command) is Result.INVALID:
            other.entry()
        else:
            _apply(other, command)
        if number == flushed_after:
            driver.flush()
            other.flush()
            driver.reopen()
    driver.flush()
    other.flush()
    assert driver.store.rows == other.store.rows
    driver.now_ms += 10**6
    driver.do(Sweep([row[1:] for row in driver.store.rows if row[:1] == keys.STREAM]))
    driver.flush()


def test_a_command_of_an_earlier_release_keeps_its_effect() -> None:
    """An absurd but harmless command keeps its former effect, or replicas would differ."""
    driver = _driver()
    assert _apply(driver, Create(b"\0nameless", Settings(TEXT), implicit_bucket=True)) is (
        Result.CREATED
    )
    assert _apply(driver, Append(key("s"), TEXT, b"abc", [1])) is Result.APPENDED
    assert _apply(driver, Append(b"no-nul-here", TEXT, b"abc", [3])) is Result.NOT_FOUND
    assert msgspec.msgpack.encode(driver.state.header.streams) == b"\x05"
