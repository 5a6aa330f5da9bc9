"""How a limit is divided among addresses, and how slowly a body may come."""

from __future__ import annotations

from random import Random

import pytest

from streamd.config.settings import ServerConfig
from streamd.http.sockets.fair_limits import Allotment, FairLimit, LimitReached
from streamd.http.sockets.incoming import Pace
from streamd.process.addresses import client_of
from tests.support.seeds import seeds


def take_all(fair: FairLimit, client: str) -> list[Allotment]:
    """The number of single-unit requests that `client` is granted."""
    taken = []
    for _ in range(fair.limit + 1):
        allotment = fair.allotment(client)
        try:
            allotment.hold(1)
        except LimitReached:
            break
        taken.append(allotment)
    return taken


@pytest.mark.parametrize("limit", [4, 16, 64, 1000])
def test_greedy_addresses_leave_a_share_for_the_next(limit: int) -> None:
    fair = FairLimit(limit)
    first = take_all(fair, "a")
    assert len(first) == limit // 2
    for number in range(limit):
        before = fair.held
        allotment = fair.allotment(f"{number}")
        if before == limit:
            break
        allotment.hold(1)
        assert fair.held == before + 1, "who has nothing yet is given what is left"
    assert len(take_all(FairLimit(limit), "b")) == limit // 2


def test_greedy_addresses_that_come_together_get_equal_shares() -> None:
    fair = FairLimit(100)
    clients = dict.fromkeys("abcd", 0)
    for _ in range(100):
        for client in clients:
            try:
                fair.allotment(client).hold(1)
            except LimitReached:
                continue
            clients[client] += 1
    assert set(clients.values()) <= {20, 21}
    assert fair.limit - fair.held >= 16


def test_a_single_request_has_the_whole_limit() -> None:
    fair = FairLimit(10)
    allotment = fair.allotment("a")
    allotment.hold(10)
    with pytest.raises(LimitReached):
        allotment.hold(11)
    assert fair.held == 10
    with pytest.raises(LimitReached):
        fair.allotment("b").hold(1)


def test_released_shares_can_be_granted_again() -> None:
    random = Random(1)
    fair = FairLimit(50)
    held = {(client, number): fair.allotment(client) for client in "abc" for number in range(5)}
    for _ in range(2000):
        allotment = random.choice(list(held.values()))
        try:
            allotment.hold(random.randrange(20))
        except LimitReached:
            assert fair.held > 0
        assert fair.held == sum(allotment.held for allotment in held.values()) <= 50
        assert sum(fair.clients.values()) == fair.held
    for allotment in held.values():
        allotment.release()
    assert (fair.held, fair.clients) == (0, {})


def test_ipv6_clients_are_counted_by_network() -> None:
    assert client_of("2001:db8:1:2::1") == client_of("2001:db8:1:2:ffff::2")
    assert client_of("2001:db8:1:2::1") != client_of("2001:db8:1:3::1")
    assert client_of("fe80::1%eth0") == client_of("fe80::2%eth1")
    assert client_of("192.0.2.1") != client_of("192.0.2.2")


# -- the pace of a body ----------------------------------------------------------------------------


def pace() -> Pace:
    """At least 100 bytes a second in each 10 s."""
    return Pace(ServerConfig(body_timeout_ms=10_000, body_min_bytes_per_s=100))


def given_up_after(pieces: list[tuple[float, int]]) -> float | None:
    """The time at which a body is refused whose `pieces` come after so many seconds each."""
    body, time_s = pace(), 0.0
    for waited_s, size in pieces:
        time_s += waited_s
        if not body.keeps_up(waited_s, size):
            return time_s
    return None


def test_a_fast_start_does_not_pay_for_a_slow_end() -> None:
    burst = [(0.01, 200_000)]
    assert 10 <= (given_up_after(burst + [(1.0, 1)] * 100) or 0) <= 12.5
    assert 10 <= (given_up_after(burst + [(0.001, 0)] * 100_000) or 0) <= 12.5
    assert given_up_after(burst + [(1.0, 101)] * 100) is None


def test_a_steady_body_may_be_as_slow_as_the_rate() -> None:
    assert given_up_after([(0.5, 51)] * 1000) is None
    assert 10 <= (given_up_after([(0.5, 49)] * 1000) or 0) <= 12.5


@pytest.mark.parametrize("seed", seeds(20))
def test_no_window_of_a_body_is_much_slower_than_the_rate(seed: int) -> None:
    """Until it is refused, the body had the rate in every window, up to its granularity."""
    random = Random(seed)
    body, arrivals, time_s = pace(), [(0.0, 0)], 0.0
    for _ in range(2000):
        waited_s, size = random.expovariate(2), random.choice([0, 1, 50, 100, 2000])
        time_s += waited_s
        if not body.keeps_up(waited_s, size):
            break
        arrivals.append((time_s, arrivals[-1][1] + size))
        long_ago = [total for at_s, total in arrivals if at_s <= time_s - 20]
        assert not long_ago or arrivals[-1][1] - long_ago[-1] >= 1000
