"""Limits in the state: set and cleared by the log."""

from __future__ import annotations

import msgspec
import pytest

from streamd.streams import quotas
from streamd.streams.checks import fault
from streamd.streams.codec import decode_batch
from streamd.streams.commands import Outcome, Result, SetLimits
from streamd.streams.content import UNDECODABLE
from streamd.streams.limits import Kind, Limits
from tests.streams.driver import Driver

SOME = Limits(requests_per_s=100)
OTHER = Limits(max_bytes=10)


def result(driver: Driver, kind: Kind, name: str, limits: Limits | None) -> Result:
    outcome = driver.do(SetLimits(kind, name, limits))
    assert outcome == Outcome(outcome.result)
    return outcome.result


def test_limits_are_set_replaced_and_cleared() -> None:
    driver = Driver()
    table = driver.state.limits
    assert result(driver, "bucket", "agents", SOME) is Result.DONE
    assert result(driver, "bucket", "agents", OTHER) is Result.DONE
    assert table.of_bucket("agents") == OTHER
    assert table.of_identity("agents") is None
    assert result(driver, "bucket", "agents", None) is Result.DELETED
    assert table.of_bucket("agents") is None
    assert result(driver, "bucket", "agents", None) is Result.LIMITS_NOT_FOUND


@pytest.mark.parametrize("kind", ["bucket", "identity"])
def test_those_of_the_star_are_for_all_without_limits_of_their_own(kind: Kind) -> None:
    driver = Driver()
    driver.do(SetLimits(kind, "*", SOME))
    driver.do(SetLimits(kind, "own", OTHER))
    driver.do(SetLimits(kind, "exempt", Limits()))
    table = driver.state.limits
    look_up = table.of_bucket if kind == "bucket" else table.of_identity
    assert [look_up(name) for name in ("own", "exempt", "another")] == [OTHER, Limits(), SOME]


def test_each_change_is_another_version() -> None:
    driver = Driver()
    seen = [driver.state.limits.version]
    for limits in (SOME, OTHER, None):
        driver.do(SetLimits("bucket", "agents", limits))
        seen.append(driver.state.limits.version)
    assert len(set(map(id, seen))) == len(seen)


def test_limits_survive_a_restart() -> None:
    driver = Driver()
    driver.do(SetLimits("bucket", "agents", SOME))
    driver.do(SetLimits("identity", "ü", OTHER))
    driver.do(SetLimits("identity", "cleared", SOME))
    driver.flush()
    driver.do(SetLimits("identity", "cleared", None))
    driver.flush()
    driver.reopen()
    assert driver.state.limits.rows("bucket") == {"agents": SOME}
    assert driver.state.limits.rows("identity") == {"ü": OTHER}


def test_there_is_room_for_a_limited_number_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "MAX_ROWS", 2)
    driver = Driver()
    assert result(driver, "bucket", "aaaa", SOME) is Result.DONE
    assert result(driver, "identity", "b", SOME) is Result.DONE
    assert result(driver, "bucket", "cccc", SOME) is Result.TOO_MANY_LIMITS
    assert result(driver, "bucket", "aaaa", OTHER) is Result.DONE
    driver.do(SetLimits("identity", "b"))
    assert result(driver, "bucket", "cccc", SOME) is Result.DONE


@pytest.mark.parametrize(
    ("command", "field"),
    [
        (SetLimits("bucket", "agents", OTHER), None),
        (SetLimits("bucket", "_default", SOME), None),
        (SetLimits("bucket", "*", SOME), None),
        (SetLimits("bucket", "A bucket of v1", SOME), None),
        (SetLimits("bucket", "", SOME), "name"),
        (SetLimits("bucket", "a/b", SOME), "name"),
        (SetLimits("bucket", "a\0b", SOME), "name"),
        (SetLimits("bucket", "x" * 2000), "name"),
        (SetLimits("identity", "jwt:a/b", SOME), None),
        (SetLimits("identity", "", SOME), "name"),
        (SetLimits("identity", "a\nb", SOME), "name"),
        (SetLimits("identity", "x" * 257, SOME), "name"),
        (SetLimits("identity", "ci", OTHER), "limits"),
        (SetLimits("identity", "ci", Limits(max_streams=0)), "limits"),
        (SetLimits("identity", "ci", Limits(max_stream_bytes=0)), "limits"),
        (SetLimits("identity", "ci", Limits(max_subscriptions=0)), None),
        (SetLimits("bucket", "ci", Limits(max_subscriptions=0)), "limits"),
        (SetLimits("identity", "ci"), None),
    ],
)
def test_a_command_is_judged_before_it_is_proposed(command: SetLimits, field: str | None) -> None:
    assert fault(command) == field


@pytest.mark.parametrize(
    "limits", [[0], [-1], [2**53], [None] * 3 + [-1], [None] * 5 + [2**53], ["1"]]
)
def test_amounts_out_of_range_are_not_decoded(limits: list[object]) -> None:
    payload = msgspec.msgpack.encode([1, [["set-limits", "bucket", "agents", limits]]])
    with pytest.raises(UNDECODABLE):
        decode_batch(payload)
