"""Rates: how much an identity, or a bucket of streams, may use in a time, by token buckets.

A token bucket fills at its rate and holds at most one second's worth. A request takes out what it
uses, and waits until that is there. One that uses more than the bucket can hold needs it full, and
leaves it in debt: a large body is possible, and paid for by the wait of the next. So in any t
seconds all requests but the last get at most ``rate * (t + 1)``.

Buckets count in billionths of a unit and in nanoseconds, in whole numbers: their sums never drift,
however many. Times are those of a clock that does not go back; if it does, no time has passed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import chain
from operator import attrgetter
from typing import Generic, NamedTuple, Protocol, TypeVar

NS_PER_S = 1_000_000_000
# A new account checks this many old ones for whether they can be removed.
_ASKED = 4

K = TypeVar("K", bound=Hashable)


class TokenBucket:
    """Grants `rate` units a second, and up to a second's worth at once."""

    __slots__ = ("_at_ns", "_held", "_most", "rate")

    def __init__(self, rate: int, now_ns: int) -> None:
        """Full. `rate` is at least 1."""
        assert rate > 0, "the rate must be positive"
        self.rate = rate
        self._at_ns = now_ns
        self._held = self._most = rate * NS_PER_S

    def take(self, now_ns: int, amount: int) -> int:
        """Take `amount`, at least 1, if that need not wait. Returns as `wait_ns`."""
        held, most = self._held, self._most
        if held < most:
            passed_ns = now_ns - self._at_ns
            if passed_ns > 0:
                held += passed_ns * self.rate
                if held > most:  # A call of min() takes longer than all the rest.
                    held = most
        self._at_ns = now_ns
        needed = amount * NS_PER_S
        if held >= needed or held == most:
            self._held = held - needed
            return 0
        self._held = held
        return -((held - min(needed, most)) // self.rate)

    def wait_ns(self, now_ns: int, amount: int) -> int:
        """How long until `amount`, at least 1, may be taken; 0 for now."""
        wait_ns = self.take(now_ns, amount)
        if not wait_ns:
            self.spend(-amount)
        return wait_ns

    def spend(self, amount: int) -> None:
        """Take `amount`, or owe it; give it back if that is negative."""
        self._held = min(self._held - amount * NS_PER_S, self._most)

    def is_full(self, now_ns: int) -> bool:
        """Whether it is as if nothing had ever been taken."""
        self.wait_ns(now_ns, 1)
        return self._held == self._most

    def change_rate(self, rate: int, now_ns: int) -> None:
        """Fill at another rate from now on. What is owed stays owed."""
        self.wait_ns(now_ns, 1)
        self.rate, self._most = rate, rate * NS_PER_S
        self._held = min(self._held, self._most)


class Rates(Protocol):
    """The limits of an account, each None for none."""

    @property
    def requests_per_s(self) -> int | None: ...
    @property
    def bytes_in_per_s(self) -> int | None: ...
    @property
    def bytes_out_per_s(self) -> int | None: ...
    @property
    def live_readers(self) -> int | None: ...
    @property
    def connections(self) -> int | None: ...


class Shortage(NamedTuple):
    """A limit that a request meets: `whose` it is, its `kind`, as in `Rates`, its value, and how
    long until it lets the request pass; 0 if that depends on others."""

    whose: str
    kind: str
    limit: int
    wait_ns: int = 0


class TableFull(Exception):
    """All accounts of a table are in use."""

    def __init__(self, shortage: Shortage) -> None:
        super().__init__()
        self.shortage = shortage


class Account:
    """What one identity or one bucket of streams may use, and has used; `whose` says which.
    `live_readers` and `connections` are how many there are now, and `refused_s` is when the last
    refusal is sent."""

    __slots__ = (
        "bytes_in",
        "bytes_out",
        "connections",
        "limits",
        "live_readers",
        "refused_s",
        "requests",
        "whose",
    )

    def __init__(self, whose: str, limits: Rates, now_ns: int) -> None:
        self.whose = whose
        self.requests: TokenBucket | None = None
        self.bytes_in: TokenBucket | None = None
        self.bytes_out: TokenBucket | None = None
        self.refused_s = 0.0
        self.live_readers = 0
        self.connections = 0
        self.change_limits(limits, now_ns)

    def change_limits(self, limits: Rates, now_ns: int) -> None:
        """Use these limits from now on. What was used stays used."""
        self.limits = limits
        self.requests = _changed(self.requests, limits.requests_per_s, now_ns)
        self.bytes_in = _changed(self.bytes_in, limits.bytes_in_per_s, now_ns)
        self.bytes_out = _changed(self.bytes_out, limits.bytes_out_per_s, now_ns)

    def take(self, now_ns: int, bytes_in: int, *, reads: bool) -> bool:
        """Charge a request, unless there is a shortage: then charge nothing. Returns whether it is
        charged.

        `bytes_in` are those of its body that are known. What it `reads` is known only
        later: until then nothing may be owed.
        """
        requests, body, answers = self.requests, self.bytes_in, self.bytes_out
        if requests is not None and requests.take(now_ns, 1):
            return False
        if bytes_in and body is not None and body.take(now_ns, bytes_in):
            self.give_back(0)
            return False
        if reads and answers is not None and answers.wait_ns(now_ns, 1):
            self.give_back(bytes_in)
            return False
        return True

    def give_back(self, bytes_in: int) -> None:
        """Undo `take`."""
        if self.requests is not None:
            self.requests.spend(-1)
        if self.bytes_in is not None:
            self.bytes_in.spend(-bytes_in)

    def spend_in(self, size: int) -> None:
        """Charge more bytes of a request's body, or with a negative number fewer. They may be
        owed."""
        if self.bytes_in is not None:
            self.bytes_in.spend(size)

    def shortages(self, now_ns: int, bytes_in: int, *, reads: bool) -> Iterator[Shortage]:
        """The limits that keep a request waiting."""
        for kind, bucket, amount in (
            ("requests_per_s", self.requests, 1),
            ("bytes_in_per_s", self.bytes_in, bytes_in),
            ("bytes_out_per_s", self.bytes_out, int(reads)),
        ):
            if bucket is not None and amount and (wait_ns := bucket.wait_ns(now_ns, amount)):
                yield Shortage(self.whose, kind, bucket.rate, wait_ns)

    def too_many(self, kind: str, now: int) -> Shortage | None:
        """The limit of live readers or connections, if there are as many `now` already."""
        most: int | None = getattr(self.limits, kind)
        return None if most is None or now < most else Shortage(self.whose, kind, most)

    def is_unused(self, now_ns: int) -> bool:
        """Whether a new account with these limits would be the same."""
        if self.live_readers or self.connections:
            return False
        buckets = self.requests, self.bytes_in, self.bytes_out
        return all(bucket is None or bucket.is_full(now_ns) for bucket in buckets)


def _changed(bucket: TokenBucket | None, rate: int | None, now_ns: int) -> TokenBucket | None:
    if rate is None:
        return None
    if bucket is None:
        return TokenBucket(rate, now_ns)
    if bucket.rate != rate:
        bucket.change_rate(rate, now_ns)
    return bucket


def take(
    accounts: Sequence[Account], now_ns: int, bytes_in: int, *, reads: bool
) -> Shortage | None:
    """Charge a request to all its accounts as `Account.take` does; or to none, and return the
    shortage that lasts the longest."""
    for place, account in enumerate(accounts):
        if not account.take(now_ns, bytes_in, reads=reads):
            for charged in accounts[:place]:
                charged.give_back(bytes_in)
            found = [one.shortages(now_ns, bytes_in, reads=reads) for one in accounts]
            return max(chain.from_iterable(found), key=attrgetter("wait_ns"))
    return None


class Accounts(Generic[K]):
    """The accounts of one kind by their keys, `most` at most; `whose` names the kind.

    Only an unused one is forgotten, which changes nothing for its owner: nobody loses a debt by
    making the table forget it. While all are in use, there is none for others.
    """

    def __init__(self, whose: str, most: int) -> None:
        self._whose = whose
        self._most = most
        self._accounts: dict[K, Account] = {}

    def __len__(self) -> int:
        return len(self._accounts)

    def get(self, key: K, limits: Rates, now_ns: int) -> Account:
        """The account of that key, with these limits from now on. Raises `TableFull`."""
        account = self._accounts.get(key)
        if account is None:
            self._forget_unused(now_ns)
            if len(self._accounts) >= self._most:
                raise TableFull(Shortage(self._whose, "accounts", self._most))
            account = self._accounts[key] = Account(self._whose, limits, now_ns)
        elif account.limits is not limits:
            account.change_limits(limits, now_ns)
        return account

    def _forget_unused(self, now_ns: int) -> None:
        """Look at those that were looked at the longest ago."""
        for _ in range(min(_ASKED, len(self._accounts))):
            key = next(iter(self._accounts))
            account = self._accounts.pop(key)
            if not account.is_unused(now_ns):
                self._accounts[key] = account
