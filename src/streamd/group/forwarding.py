"""Writes of a node that does not lead, on their way to the leader."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import trio

from streamd.group.opening import Opener
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

MAX_FORWARDS = 16


class Forwarding:
    """Requests to the leader, a few at a time. Those that an earlier leader has not answered are
    not waited for: it may never answer, and they would take the places of those to the next.

    After a refusal nothing is sent until `resume`. `wake` is called when more may be sent.
    """

    def __init__(
        self,
        peers: Peers,
        intake: ProposalQueue[Proposal],
        packages: OwnPackages,
        opener: Opener,
        wake: Callable[[], None],
    ) -> None:
        self._peers = peers
        self._intake = intake
        self._packages = packages
        self._opener = opener
        self._wake = wake
        self._under_way = 0
        self._pauses = False
        self._is_full = False
        # Requests without a number, whose outcome is unknown if they are not answered.
        self._plain: set[trio.CancelScope] = set()

    def resume(self) -> None:
        """Some time has passed: what was refused may be tried again."""
        self._pauses = False

    def leader_changed(self) -> None:
        """Wait for nothing of the leader before."""
        self._pauses = False
        self._packages.lose_all()
        for call in self._plain:
            call.cancel()

    def send(
        self, nursery: trio.Nursery, leader_id: int, max_commands: int, max_bytes: int
    ) -> None:
        """Send what waits to the leader, as far as may be now."""
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
        if not self._intake:
            return None
        if self._packages.session_id:
            if not self._packages.has_room:
                return None
            package = self._packages.pack(self._intake.take(max_commands, max_bytes))
            return self._call_with(leader_id, package)
        if not self._opener.is_refused:
            return None
        scope = trio.CancelScope()
        self._plain.add(scope)
        proposals = self._intake.take(max_commands, max_bytes)
        return partial(self._forward, leader_id, proposals, scope)

    def _call_with(self, leader_id: int, package: OwnPackage) -> Callable[[], Awaitable[None]]:
        payload = encode_package(package, self._packages.stamp(package))
        package.call = trio.CancelScope()
        return partial(self._send_package, leader_id, package, payload, package.call)

    async def _send_package(
        self, leader_id: int, package: OwnPackage, payload: bytes, call: trio.CancelScope
    ) -> None:
        """Send a package once. If the call is cancelled, somebody else has seen to the package."""
        try:
            with call:
                decision = decode_decision(await self._peers.send_package(leader_id, payload))
                if package.call is not call:
                    return
                if decision.is_full:
                    self._packages.refused_for_bytes(package)
                elif len(decision.outcomes) == package.count:
                    self._packages.decided(package.session_id, package.sequence, decision.outcomes)
                else:
                    raise OutcomeUnknown("the leader's answer is to something else")
        except Unavailable:
            # It is in no log by this attempt. Tried again at the next tick, when there may be
            # another leader.
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
            self._intake.put_back(proposals)
        except OutcomeUnknown as error:
            fail_all(proposals, error)
        finally:
            self._plain.discard(call)
            self._ended()

    def _ended(self) -> None:
        """A request has ended: there is a place for another. Not to be told of it otherwise keeps
        packages large: those who have just been answered have more to write in a moment."""
        self._under_way -= 1
        if self._is_full:
            self._is_full = False
            self._wake()
