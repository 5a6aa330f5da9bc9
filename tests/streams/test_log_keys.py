"""Nodes' keys for heads of the log are in the state, each with the one that vouches for it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from streamd.streams.commands import AddLogKey, RenewIncarnations, Result
from streamd.streams.log_keys import MAX_LOG_KEYS, LogKey
from tests.streams.driver import Driver

SIGNATURE = bytes(64)


def public(number: int) -> bytes:
    return number.to_bytes(32, "big")


def key(number: int, signed_by: int | None = None, node_id: int = 1) -> LogKey:
    return LogKey(
        node_id, public(number), b"" if signed_by is None else public(signed_by), SIGNATURE
    )


@pytest.fixture
def driver() -> Driver:
    return Driver()


def add(driver: Driver, number: int, one: LogKey) -> Result:
    return driver.do(AddLogKey(number, one)).result


def test_a_key_vouches_for_each_further_one(driver: Driver) -> None:
    keys = [key(1), key(2, 1, node_id=2), key(3, 2, node_id=2)]
    assert [add(driver, number, one) for number, one in enumerate(keys)] == [Result.DONE] * 3
    assert add(driver, 1, keys[1]) is Result.DONE, "a repetition"
    driver.flush()
    driver.reopen()
    assert driver.state.header.log_keys == tuple(keys)
    driver.do(RenewIncarnations(5))
    assert driver.state.header.log_keys == (), "another cluster trusts another key first"


def test_a_key_for_which_none_could_vouch_is_kept(driver: Driver) -> None:
    assert add(driver, 0, key(1)) is Result.DONE
    assert add(driver, 1, key(2)) is Result.DONE
    assert driver.state.header.log_keys == (key(1), key(2))


@pytest.mark.parametrize(
    ("number", "one"),
    [
        (0, key(2)),
        (2, key(2, 1)),
        (1, key(2, 3)),
        (1, key(2, 2)),
        (1, key(1, 1)),
        (1, key(1, None, 2)),
    ],
    ids=["not the first", "not the next", "of a stranger", "of itself", "again", "of another node"],
)
def test_a_key_that_does_not_follow_from_those_known_is_refused(
    driver: Driver, number: int, one: LogKey
) -> None:
    add(driver, 0, key(1))
    assert add(driver, number, one) is Result.STALE
    assert driver.state.header.log_keys == (key(1),)


@pytest.mark.parametrize(
    "one",
    [
        replace(key(2, 1), public_key=b"short"),
        replace(key(2, 1), signed_by=b"short"),
        replace(key(2, 1), signature=b"short"),
        replace(key(2, 1), node_id=-1),
    ],
    ids=["key", "signer", "signature", "node"],
)
def test_what_cannot_be_a_key_is_refused(driver: Driver, one: LogKey) -> None:
    add(driver, 0, key(1))
    assert add(driver, 1, one) is Result.INVALID


def test_a_cluster_has_a_limited_number_of_keys(driver: Driver) -> None:
    for number in range(MAX_LOG_KEYS):
        signed_by = number or None
        assert add(driver, number, key(number + 1, signed_by)) is Result.DONE
    one = key(MAX_LOG_KEYS + 1, 1)
    assert add(driver, MAX_LOG_KEYS, one) is Result.TOO_MANY_LOG_KEYS
    assert len(driver.state.header.log_keys) == MAX_LOG_KEYS
