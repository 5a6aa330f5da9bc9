"""Rates: what token buckets grant in a time, and which accounts may be forgotten."""

from __future__ import annotations

from itertools import accumulate
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from streamd.auth.rates import NS_PER_S, Account, Accounts, Shortage, TableFull, TokenBucket, take

rates = st.integers(1, 10**12) | st.integers(1, 10)
pauses_ns = st.integers(0, 10) | st.integers(0, 10 * NS_PER_S)
amounts = st.integers(1, 20) | st.integers(1, 10**12)
START_NS = 10**15


class Limits(NamedTuple):
    """As in the replicated table."""

    requests_per_s: int | None = None
    bytes_in_per_s: int | None = None
    bytes_out_per_s: int | None = None
    live_readers: int | None = None
    connections: int | None = None


def granted(rate: int, asked: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The times and amounts that a bucket grants to requests after these pauses."""
    bucket = TokenBucket(rate, START_NS)
    times = accumulate((pause_ns for pause_ns, _ in asked), initial=START_NS)
    next(times)
    return [
        (now_ns, amount)
        for now_ns, (_, amount) in zip(times, asked, strict=True)
        if not bucket.take(now_ns, amount)
    ]


@given(rates, st.lists(st.tuples(pauses_ns, amounts), max_size=40))
@example(1, [(0, 1), (0, 1), (NS_PER_S - 1, 1), (1, 1)])
@example(3, [(NS_PER_S // 3, 1)] * 20)
@example(10, [(0, 50), (0, 1), (4 * NS_PER_S, 1), (NS_PER_S // 10, 1)])
def test_in_any_time_all_but_the_last_get_at_most_the_rate_and_a_second_more(
    rate: int, asked: list[tuple[int, int]]
) -> None:
    found = granted(rate, asked)
    for first, (began_ns, _) in enumerate(found):
        total = 0
        for ended_ns, amount in found[first:]:
            # What came before this one; and with it, if it fits into a bucket.
            most = rate * (ended_ns - began_ns + NS_PER_S)
            assert total * NS_PER_S <= most
            total += amount
            if amount <= rate:
                assert total * NS_PER_S <= most


@given(rates, st.lists(st.tuples(pauses_ns, amounts), max_size=20), amounts)
def test_a_wait_is_as_long_as_it_must_be(
    rate: int, asked: list[tuple[int, int]], amount: int
) -> None:
    now_ns = START_NS
    bucket = TokenBucket(rate, now_ns)
    for pause_ns, taken in asked:
        now_ns += pause_ns
        bucket.take(now_ns, taken)
    wait_ns = bucket.wait_ns(now_ns, amount)
    assert wait_ns >= 0
    if wait_ns:
        assert bucket.wait_ns(now_ns + wait_ns - 1, amount) == 1, "no longer than it must be"
    assert bucket.take(now_ns + wait_ns, amount) == 0, "and no shorter"


@given(rates, st.lists(st.tuples(pauses_ns, amounts), max_size=20), amounts, amounts)
def test_a_refusal_takes_nothing_and_more_never_waits_less(
    rate: int, asked: list[tuple[int, int]], one: int, other: int
) -> None:
    now_ns = START_NS
    bucket = TokenBucket(rate, now_ns)
    for pause_ns, taken in asked:
        now_ns += pause_ns
        bucket.take(now_ns, taken)
    less, more = sorted((one, other))
    waits = [bucket.wait_ns(now_ns, amount) for amount in (less, more, less, more)]
    assert waits[:2] == waits[2:], "asking changes nothing"
    assert waits[0] <= waits[1]


@given(rates, st.lists(st.tuples(st.integers(-(10**12), 10**12), amounts), max_size=40))
def test_a_clock_that_jumps_back_grants_nothing_more(
    rate: int, asked: list[tuple[int, int]]
) -> None:
    now_ns = START_NS
    jumping, still = TokenBucket(rate, now_ns), TokenBucket(rate, START_NS)
    stood_ns = START_NS
    for jump_ns, amount in asked:
        now_ns += jump_ns
        stood_ns += max(0, jump_ns)
        waits = jumping.take(now_ns, amount), still.take(stood_ns, amount)
        assert waits[0] == waits[1] >= 0


def test_thirds_of_a_second_do_not_add_up_to_a_drift() -> None:
    bucket, now_ns, taken = TokenBucket(3, START_NS), START_NS, 3
    assert not bucket.take(now_ns, 3)
    for _ in range(30_000):
        now_ns += bucket.wait_ns(now_ns, 1)
        assert not bucket.take(now_ns, 1)
        taken += 1
    # Each wait is rounded up to a nanosecond, and what it was too long is not lost.
    assert taken == 3 + 30_000
    assert now_ns - START_NS == 10_000 * NS_PER_S


def test_a_debt_outlives_a_change_of_the_rate() -> None:
    bucket = TokenBucket(10, START_NS)
    assert not bucket.take(START_NS, 110)
    bucket.change_rate(100, START_NS)
    assert bucket.wait_ns(START_NS, 100) == 2 * NS_PER_S
    bucket.change_rate(1, START_NS + 2 * NS_PER_S)
    assert bucket.wait_ns(START_NS + 2 * NS_PER_S, 2) == 0
    assert not bucket.take(START_NS + 2 * NS_PER_S, 1), "a bucket holds a second's worth at most"
    assert bucket.wait_ns(START_NS + 2 * NS_PER_S, 1) == NS_PER_S


# -- accounts --------------------------------------------------------------------------------------


def test_a_request_is_charged_to_all_its_accounts_or_to_none() -> None:
    identity = Account("identity", Limits(requests_per_s=10), START_NS)
    bucket = Account("bucket", Limits(requests_per_s=1, bytes_in_per_s=100), START_NS)
    both = identity, bucket
    assert take(both, START_NS, 50, reads=False) is None
    refused = take(both, START_NS, 50, reads=False)
    assert refused == Shortage("bucket", "requests_per_s", 1, NS_PER_S)
    assert identity.requests is not None
    assert identity.requests.wait_ns(START_NS, 9) == 0, "the first was charged, and the second not"


def test_the_longest_wait_counts() -> None:
    account = Account(
        "identity", Limits(requests_per_s=10, bytes_in_per_s=100, bytes_out_per_s=1), START_NS
    )
    assert account.take(START_NS, 1000, reads=True)
    found = take([account], START_NS, 100, reads=True)
    assert found == Shortage("identity", "bytes_in_per_s", 100, 10 * NS_PER_S)
    assert account.bytes_out is not None
    account.bytes_out.spend(20)
    found = take([account], START_NS, 100, reads=True)
    assert found == Shortage("identity", "bytes_out_per_s", 1, 20 * NS_PER_S)
    assert take([account], START_NS, 0, reads=False) is None


@pytest.mark.parametrize(
    "short",
    [Limits(bytes_in_per_s=100), Limits(bytes_out_per_s=1)],
    ids=["its body is too large for now", "earlier answers are owed"],
)
def test_a_refused_request_costs_nothing_of_what_was_not_short(short: Limits) -> None:
    account = Account("identity", short._replace(requests_per_s=1), START_NS)
    for bucket in (account.bytes_in, account.bytes_out):
        if bucket is not None:
            bucket.spend(200)
    assert not account.take(START_NS, 50, reads=True)
    assert account.requests is not None
    assert account.requests.wait_ns(START_NS, 1) == 0


def test_a_body_that_is_longer_than_announced_is_owed_and_a_shorter_one_given_back() -> None:
    account = Account("identity", Limits(bytes_in_per_s=100), START_NS)
    assert account.take(START_NS, 50, reads=False)
    account.spend_in(150)
    assert account.bytes_in is not None
    assert account.bytes_in.wait_ns(START_NS, 100) == 2 * NS_PER_S
    account.spend_in(-100)
    assert account.bytes_in.wait_ns(START_NS, 100) == NS_PER_S
    unlimited = Account("identity", Limits(), START_NS)
    unlimited.spend_in(1 << 60)
    assert unlimited.take(START_NS, 1 << 60, reads=True)


@pytest.mark.parametrize("kind", ["live_readers", "connections"])
def test_as_many_as_the_limit_says_are_not_too_many(kind: str) -> None:
    account = Account("identity", Limits()._replace(**{kind: 2}), START_NS)
    assert account.too_many(kind, 1) is None
    assert account.too_many(kind, 2) == Shortage("identity", kind, 2)
    assert Account("identity", Limits(), START_NS).too_many(kind, 1 << 60) is None


def test_another_rate_holds_from_now_on_for_what_is_left() -> None:
    account = Account("identity", Limits(requests_per_s=1), START_NS)
    assert account.take(START_NS, 0, reads=False)
    account.change_limits(Limits(requests_per_s=10), START_NS)
    assert not account.take(START_NS, 0, reads=False)
    assert account.take(START_NS + NS_PER_S // 10, 0, reads=False)


KEYS = st.sampled_from("abcdef")


@given(
    st.integers(1, 3),
    st.lists(st.tuples(KEYS, st.integers(0, 2 * NS_PER_S), st.integers(1, 30)), max_size=60),
)
@example(1, [("a", 0, 30), ("b", 0, 1), ("c", 0, 1), ("a", 0, 1), ("a", 2 * NS_PER_S, 1)])
def test_a_full_table_grants_nobody_more_than_an_endless_one(
    most: int, asked: list[tuple[str, int, int]]
) -> None:
    limits = Limits(bytes_in_per_s=10)
    small: Accounts[str] = Accounts("bucket", most)
    endless: Accounts[str] = Accounts("bucket", 1000)
    now_ns = START_NS
    for key, pause_ns, amount in asked:
        now_ns += pause_ns
        fair = endless.get(key, limits, now_ns)
        try:
            account = small.get(key, limits, now_ns)
        except TableFull:
            continue
        assert len(small) <= most
        is_granted = take([account], now_ns, amount, reads=False) is None
        assert is_granted == (take([fair], now_ns, amount, reads=False) is None)


@given(
    st.tuples(*[st.integers(1, 5)] * 6),
    st.lists(st.tuples(st.integers(0, NS_PER_S), st.integers(0, 9), st.booleans()), max_size=20),
)
def test_a_refused_request_leaves_all_accounts_as_they_were(
    rates_per_s: tuple[int, ...], asked: list[tuple[int, int, bool]]
) -> None:
    """A copy that sees only the requests that were charged is always in the same state."""

    def both() -> list[Account]:
        halves = rates_per_s[:3], rates_per_s[3:]
        return [Account("identity", Limits(*half), START_NS) for half in halves]

    accounts, copies = both(), both()
    now_ns = START_NS
    for pause_ns, size, reads in asked:
        now_ns += pause_ns
        shortage = take(accounts, now_ns, size, reads=reads)
        if shortage is None:
            assert take(copies, now_ns, size, reads=reads) is None
        else:
            waits = [
                one.wait_ns
                for account in copies
                for one in account.shortages(now_ns, size, reads=reads)
            ]
            assert shortage.wait_ns == max(waits)


def test_readers_and_connections_keep_an_account() -> None:
    limits = Limits(live_readers=1)
    accounts: Accounts[str] = Accounts("bucket", 1)
    account = accounts.get("a", limits, START_NS)
    for attribute in ("live_readers", "connections"):
        setattr(account, attribute, 1)
        with pytest.raises(TableFull):
            accounts.get("b", limits, START_NS)
        assert accounts.get("a", limits, START_NS) is account
        setattr(account, attribute, 0)
    assert accounts.get("b", limits, START_NS) is not account


def test_accounts_follow_their_limits() -> None:
    accounts: Accounts[str] = Accounts("bucket", 2)
    account = accounts.get("a", Limits(requests_per_s=1), START_NS)
    assert account.take(START_NS, 0, reads=False)
    same = accounts.get("a", Limits(bytes_out_per_s=5, requests_per_s=1), START_NS)
    assert same is account
    assert not account.take(START_NS, 0, reads=False), "what was used stays used"
    accounts.get("a", Limits(), START_NS)
    assert account.take(START_NS, 10**9, reads=True)
