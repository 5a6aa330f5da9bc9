"""Sends the writes of a follower to the leader."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import trio

from streamd.group.packages import OwnPackage, OwnPackages, decode_decision, encode_package
from streamd.group.peers import Peers
from streamd.group.proposals import (
    OutcomeUnknown,
    Proposal,
    ProposalQueue,
    Unavailable,
    encode_proposals,
    fail_all,
    take_answers,
)
from streamd.group.session_opener import SessionOpener

MAX_FORWARDS = 16


class Forwarding:
    """Sends requests to the leader, at most `MAX_FORWARDS` at a time.

    When the leader changes, requests to the former one are abandoned: it may never answer, and
    they would leave no room for requests to the next. After a refusal nothing is sent until
    `resume`. `wake` is called when more may be sent.
    """

    def __init__(
        self,
        peers: Peers,
        queue: ProposalQueue[Proposal],
        packages: OwnPackages,
        opener: SessionOpener,
        wake: Callable[[], None],
    ) -> None:
        self._peers = peers
        self._queue = queue
        self._packages = packages
        self._opener = opener
        self._wake = wake
        self._under_way = 0
        self._pauses = False
        self._is_full = False
        # Requests without a number: if they are not answered, their outcome is unknown.
        self._plain: set[trio.CancelScope] = set()

    def resume(self) -> None:
        """Allow requests again after a refusal; called at each tick."""
        self._pauses = False

    def leader_changed(self) -> None:
        """Abandon requests to the former leader."""
        self._pauses = False
        self._packages.lose_all()
        for call in self._plain:
            call.cancel()

    def send(
        self, nursery: trio.Nursery, leader_id: int, max_commands: int, max_bytes: int
    ) -> None:
        """Send the leader as many of the waiting commands as the limits allow."""
        while not self._pauses:
            if self._under_way >= MAX_FORWARDS:
                self._is_full = True
                return
            call = self._next_call(leader_id, max_commands, max_bytes)
            if call is None:
                return
            self._under_way += 1
            nursery.start_soon(call)

    def _next_call(
        self, leader_id: int, max_commands: int, max_bytes: int
    ) -> Callable[[], Awaitable[None]] | None:
        waiting = self._packages.take_waiting(1, 0)
        if waiting:
            return self._call_with(leader_id, waiting[0])
        if not self._queue.waiting:
            return None
        if self._packages.session_id:
            if not self._packages.has_room:
                return None
            package = self._packages.pack(self._queue.take(max_commands, max_bytes))
            return self._call_with(leader_id, package)
        if not self._opener.is_refused:
            return None
        scope = trio.CancelScope()
        self._plain.add(scope)
        proposals = self._queue.take(max_commands, max_bytes)
        return partial(self._forward, leader_id, proposals, scope)

    def _call_with(self, leader_id: int, package: OwnPackage) -> Callable[[], Awaitable[None]]:
        payload = encode_package(package, self._packages.stamp(package))
        package.call = trio.CancelScope()
        return partial(self._send_package, leader_id, package, payload, package.call)

    async def _send_package(
        self, leader_id: int, package: OwnPackage, payload: bytes, call: trio.CancelScope
    ) -> None:
        """Send a package once. If the call is cancelled, the canceller settles the package."""
        try:
            with call:
                decision = decode_decision(await self._peers.send_package(leader_id, payload))
                if package.call is not call:
                    return
                if decision.is_full:
                    self._packages.refused_for_bytes(package, is_disk_low=decision.is_disk_low)
                elif len(decision.outcomes) == package.count:
                    self._packages.decided(package.session_id, package.sequence, decision.outcomes)
                else:
                    raise OutcomeUnknown("the leader's answer belongs to another request")
        except Unavailable:
            # This copy is in no log. Try again at the next tick, maybe with another leader.
            self._pauses = True
            if package.call is call:
                self._packages.refused(package)
        except OutcomeUnknown:
            self._pauses = True
            if package.call is call:
                self._packages.lost(package)
        finally:
            self._ended()

    async def _forward(
        self, leader_id: int, proposals: list[Proposal], call: trio.CancelScope
    ) -> None:
        """Send proposals to a leader in a cluster that has no sessions yet."""
        try:
            with call:
                answers = await self._peers.forward(leader_id, encode_proposals(proposals))
                take_answers(proposals, answers)
            if call.cancelled_caught:
                fail_all(proposals, OutcomeUnknown("the leader changed before it answered"))
        except Unavailable:
            self._pauses = True
            self._queue.put_back(proposals)
        except OutcomeUnknown as error:
            fail_all(proposals, error)
        finally:
            self._plain.discard(call)
            self._ended()

    def _ended(self) -> None:
        """A request has ended: there is room for another. If no request waits for room, the next
        turn comes soon enough, and packages stay large: a client that has just been answered
        writes again in a moment."""
        self._under_way -= 1
        if self._is_full:
            self._is_full = False
            self._wake()
