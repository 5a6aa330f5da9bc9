"""Limits of rates: charges each request to its sender and to its bucket of streams, or refuses it.

Each node counts by itself what it serves. A refusal, 429, is sent late: a client beyond its limit
that asks again at once, on however many connections, then costs the node one answer a second for
each of them. The others notice nothing, because only the refused request's connection waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import trio

from streamd.auth.rates import NS_PER_S, Account, Accounts, Shortage, TableFull, take
from streamd.http.protocol.connections import ConnectionCount, IncomingBody
from streamd.http.protocol.messages import LateAnswer, LiveResponse, Request, Response
from streamd.http.protocol.refusals import error_response
from streamd.http.protocol.routing import Target, bucket_of, takes_pieces
from streamd.http.protocol.wire import body_parts
from streamd.process.metrics import Metrics
from streamd.protocol.problems import Problem
from streamd.streams.limits import Limits
from streamd.streams.state import State

# How long a refusal waits. A full token bucket holds as much as comes in this time, so that a
# client that uses all that it may loses nothing by it.
LATE_S = 1.0
# How long at least between two refusals of one sender, and how late this makes one at most.
_SPACING_S = 0.002
MOST_LATE_S = 10.0
# How often a live reader that owes looks whether it still does. As for `LATE_S`, nothing is lost.
PAUSE_S = 1.0
ANONYMOUS = "anonymous"
_LEAST_ACCOUNTS = 16_384

# By kind of limit: in the words of messages, and as parameters of the RateLimit-Policy field.
_KINDS = {
    "requests_per_s": ("requests/s", b';w=1;qu="requests"'),
    "bytes_in_per_s": ("bytes/s in", b';w=1;qu="content-bytes"'),
    "bytes_out_per_s": ("bytes/s out", b';w=1;qu="content-bytes"'),
    "live_readers": ("live readers", b';qu="concurrent-requests"'),
    "connections": ("connections", b';qu="connections"'),
    "accounts": ("accounts on this node", b';qu="accounts"'),
}


class RateLimits:
    """Charges requests by the limits in the state.

    A request without an identity counts for `ANONYMOUS`, of which each address has an account of
    its own; so does one whose credentials are refused. Identities of the node itself have no
    limits: nobody else could raise one that keeps the administrators out. `clock` is in seconds.
    """

    def __init__(self, state: State, metrics: Metrics, max_connections: int) -> None:
        self._state = state
        self.clock = trio.lowlevel.current_clock().current_time
        self._version: object = None
        self._of_identities = self._of_buckets = False
        # Each connection uses one account of a kind at a time.
        most = max(_LEAST_ACCOUNTS, 2 * max_connections)
        self._identities: Accounts[str] = Accounts("identity", most)
        self._strangers: Accounts[str] = Accounts("identity", most)
        self._buckets: Accounts[bytes] = Accounts("bucket", most)
        self._refused = {
            f"{whose}_{kind}": 0 for whose in ("identity", "bucket") for kind in _KINDS
        }
        metrics.counter_by(
            "limit",
            "rate_limited",
            "Requests refused by a rate limit, by limit.",
            lambda: self._refused,
        )

    def exist(self) -> bool:
        """Whether anyone has limits of rates."""
        limits = self._state.limits
        if self._version is not limits.version:
            self._version = limits.version
            self._of_identities = any(map(_has_rates, limits.rows("identity").values()))
            self._of_buckets = any(map(_has_rates, limits.rows("bucket").values()))
        return self._of_identities or self._of_buckets

    def refusal(self, request: Request, route: Target | None = None) -> LateAnswer | None:
        """Charge a request to its sender, and to the bucket of its `route` if it is admitted there;
        or refuse it. Do nothing if that was done: a request may be asked about twice."""
        if request.charged_bytes is not None:
            _meter(request)
            return None
        request.charged_bytes = 0
        return self._charge(request, route) if self.exist() else None

    def _charge(self, request: Request, route: Target | None) -> LateAnswer | None:
        connection, now_ns = request.connection, int(self.clock() * NS_PER_S)
        on_behalf = request.identity, route, self._version
        # Most requests of a connection are for the same stream, and all of a client's its own.
        if connection.on_behalf != on_behalf:
            try:
                accounts = self._accounts(request, route, now_ns)
            except TableFull as full:
                return self._refuse(full.shortage)
            if (found := _move(connection, accounts)) is not None:
                return self._refuse(found, accounts)
            connection.on_behalf = on_behalf
        if not (charged := connection.accounts):
            return None
        bytes_in = _bytes_in(request)
        found = take(charged, now_ns, bytes_in, reads=request.method == "GET")
        if found is not None:
            return self._refuse(found, charged)
        request.accounts, request.charged_bytes = charged, bytes_in
        _meter(request)
        return None

    def _accounts(self, request: Request, route: Target | None, now_ns: int) -> tuple[Account, ...]:
        """Those to which a request is charged. Raises `TableFull`."""
        identity, limits_of = request.identity, self._state.limits
        if identity is not None and identity.digest:
            return ()
        accounts: tuple[Account, ...] = ()
        if self._of_identities:
            if identity is None:
                limits = limits_of.of_identity(ANONYMOUS)
                if limits is not None:
                    accounts = (self._strangers.get(request.client, limits, now_ns),)
            elif (limits := limits_of.of_identity(identity.payer)) is not None:
                accounts = (self._identities.get(identity.payer, limits, now_ns),)
        bucket = bucket_of(route) if self._of_buckets and route is not None else None
        if bucket is not None:
            limits = limits_of.of_bucket(bucket.decode())
            if limits is not None:
                accounts += (self._buckets.get(bucket, limits, now_ns),)
        return accounts

    def too_many_readers(self, request: Request) -> LateAnswer | None:
        """The refusal of a request that would be a live reader too many."""
        for account in request.accounts:
            if found := account.too_many("live_readers", account.live_readers):
                return self._refuse(found, request.accounts)
        return None

    def owes(self, accounts: Sequence[Account]) -> bool:
        """Whether live readers with these accounts must pause."""
        now_ns = int(self.clock() * NS_PER_S)
        return any(
            one.bytes_out is not None and one.bytes_out.wait_ns(now_ns, 1) for one in accounts
        )

    def _refuse(self, why: Shortage, accounts: Sequence[Account] = ()) -> LateAnswer:
        """The refusal of a request that would be charged to these accounts: after those before it,
        so that thousands of connections get no more refusals than hundreds."""
        self._refused[f"{why.whose}_{why.kind}"] += 1
        words, unit = _KINDS[why.kind]
        wait_s = max(1, ceil(why.wait_ns / NS_PER_S))
        policy = f"{why.whose}-{why.kind.replace('_', '-')}".encode()
        when = b";t=%d" % wait_s if why.wait_ns else b""
        answer = error_response(
            Problem.TOO_MANY_REQUESTS,
            f"the limit of the {why.whose}, {why.limit} {words}, is reached",
            b"Retry-After: %d\r\n"
            b'RateLimit-Policy: "%b";q=%d%b\r\nRateLimit: "%b";r=0%b\r\n'
            % (wait_s, policy, why.limit, unit, policy, when),
            close=why.kind == "connections",
        )
        now = trio.current_time()
        deadline = now + LATE_S
        if accounts:
            first = accounts[0]
            deadline = max(deadline, min(first.refused_s + _SPACING_S, now + MOST_LATE_S))
            first.refused_s = deadline
        return LateAnswer(answer, deadline)


def _has_rates(limits: Limits) -> bool:
    return any(getattr(limits, kind, None) is not None for kind in _KINDS)


def _bytes_in(request: Request) -> int:
    """What is known of the size of a request's body: at least 1 if there may be one.

    A snapshot may be large, and its sender may send nothing of what it announces for as long as it
    likes. Others of the same bucket must not wait for that to be paid.
    """
    if request.body:
        return len(request.body)
    if request.method == "PUT" and takes_pieces(request.path):
        return 1
    declared = request.headers.get(b"content-length", b"")
    if declared.isdigit():
        return int(declared)
    return 0 if request.method in ("GET", "HEAD") else 1


class _MeteredBody:
    """A body in pieces, of which `paid` bytes were charged, and the others are as they come: an
    `IncomingBody`."""

    def __init__(self, body: IncomingBody, accounts: Sequence[Account], paid: int) -> None:
        self.length = body.length
        self._body = body
        self._accounts = accounts
        self._paid = paid

    async def receive(self) -> bytes:
        data = await self._body.receive()
        if len(data) > self._paid:
            for account in self._accounts:
                account.spend_in(len(data) - self._paid)
        self._paid = max(0, self._paid - len(data))
        return data


def _meter(request: Request) -> None:
    """Charge a body in pieces as it comes."""
    body = request.incoming
    if body is not None and request.accounts:
        request.incoming = _MeteredBody(body, request.accounts, request.charged_bytes or 0)


def spend_out(accounts: Sequence[Account], size: int) -> None:
    """Charge what was read. It may be owed."""
    for account in accounts:
        if account.bytes_out is not None:
            account.bytes_out.spend(size)


def charge_answer(request: Request, response: Response | LiveResponse) -> None:
    """Charge the body of an answer to a read. Each piece of a live one without a length is charged
    when it is sent."""
    if isinstance(response, LiveResponse):
        spend_out(request.accounts, response.length or 0)
    else:
        spend_out(request.accounts, body_parts(response.body)[1])


def _move(connection: ConnectionCount, accounts: Sequence[Account]) -> Shortage | None:
    """Count a connection for these accounts only; for none if one of them has too many, which is
    returned."""
    if connection.accounts == accounts:
        return None
    connection.count_for(())
    for account in accounts:
        if found := account.too_many("connections", account.connections):
            return found
    connection.count_for(accounts)
    return None


def begin_live(accounts: Sequence[Account]) -> None:
    """Count a live reader, which must `end_live`."""
    for account in accounts:
        account.live_readers += 1


def end_live(accounts: Sequence[Account]) -> None:
    """Count a live reader no longer."""
    for account in accounts:
        account.live_readers -= 1
