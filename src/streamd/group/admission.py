"""Limits what may wait here for the log: this node's commands, and what other nodes send."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeVar

import trio
from msgspec.structs import replace

from streamd.group.drafts import Drafting
from streamd.group.log_formats import PRODUCERS_FORMAT
from streamd.group.packages import (
    Decision,
    ForeignPackage,
    bytes_refused,
    decode_package,
    encode_decision,
)
from streamd.group.peers import Peers
from streamd.group.proposals import (
    NotAMember,
    Proposal,
    ProposalBatch,
    Unavailable,
    decode_proposals,
    encode_answers,
    refusals_of,
)
from streamd.group.session_opener import SessionOpener
from streamd.group.touches import until_now
from streamd.process.diagnostics import FillLevel
from streamd.process.threads import RunBlocking
from streamd.raft.core import Core, Role
from streamd.streams.checks import are_of_clients
from streamd.streams.commands import Append, Command, Outcome, Result, brings_bytes
from streamd.streams.content import SMALL_BYTES
from streamd.streams.sessions import PackageStamp
from streamd.streams.state import State

W = TypeVar("W")
V = TypeVar("V")

# How long a write may wait for a leader to take it.
PROPOSE_TIMEOUT_S = 10.0


class Admission:
    """The only way into the queues of `Drafting`. `proposed` is called when something was added.

    The sending node has judged what it forwards. It is judged again here: a faulty node must not
    get a command into the log that no client could have asked for.
    """

    def __init__(
        self,
        core: Core,
        state: State,
        drafting: Drafting,
        opener: SessionOpener,
        peers: Peers,
        run_blocking: RunBlocking,
        now_ms: Callable[[], int],
        proposed: Callable[[], None],
    ) -> None:
        self._core = core
        self._state = state
        self._drafting = drafting
        self._opener = opener
        self._peers = peers
        self._now_ms = now_ms
        self._proposed = proposed
        self._run_blocking = run_blocking
        self._counts_producers = False
        self._judging = trio.CapacityLimiter(1)
        # Infinite without a cold store.
        self.hot_limit_bytes = math.inf
        # Whether this node's disk is nearly full; the node's disk guard sets it.
        self.is_disk_low = False
        # Commands that other nodes forwarded although no client can have asked for them.
        self.refused_commands = 0

    @property
    def held(self) -> dict[str, FillLevel]:
        """How full the queues are."""
        return self._drafting.held

    @property
    def is_full(self) -> bool:
        """Whether more bytes wait for the cold store than `hot_limit_bytes`."""
        return self._state.header.hot_bytes > self.hot_limit_bytes

    @property
    def _takes_no_bytes(self) -> bool:
        """Whether a leader refuses commands that bring bytes."""
        return self.is_disk_low or self.is_full

    @property
    def _leads(self) -> bool:
        return self._core.role == Role.LEADER

    def add(self, proposal: Proposal) -> None:
        """Queue a proposal of this node for the log. Raises `Unavailable`."""
        self.must_be_member()
        self._add(proposal)
        self._proposed()

    def must_be_member(self) -> None:
        """Raises `NotAMember` if no leader can be expected to hear of this node. While one is
        known, it may know better than this node's log."""
        if not self._core.leader_id and (found := self._peers.outsider()) is not None:
            raise NotAMember(found.problem, found.advice)

    @property
    def has_room(self) -> bool:
        """Whether bytes that come to this node are taken, as far as it decides: if it leads."""
        return not (self._takes_no_bytes and self._leads)

    def must_have_room(self) -> None:
        """Raises `NoRoom` without `has_room`."""
        if not self.has_room:
            raise bytes_refused(is_disk_low=self.is_disk_low)

    def _add(self, proposal: Proposal) -> None:
        for command in proposal.commands:
            if type(command) is Append and command.producer is not None:
                proposal.commands = list(map(self._counted, proposal.commands))
                break
        if brings_bytes(proposal.commands[0]):
            self.must_have_room()
        self._drafting.add(proposal)

    def _counted(self, command: Command) -> Command:
        """The command so that its producer, if it has one, counts, once all members count alike."""
        stamp = command.producer if isinstance(command, Append) else None
        if not self._counts_producers:
            self._counts_producers = self._opener.formats.may_use(PRODUCERS_FORMAT)
        if stamp is None or stamp.counted or not self._counts_producers:
            return command
        return replace(command, producer=replace(stamp, counted=True))

    # -- for other nodes ----------------------------------------------------------------------

    async def propose_forwarded(self, payload: bytes) -> bytes:
        """Propose the commands that a node without a session forwarded; returns once all are
        settled.

        A command that the API would have refused gets the outcome `INVALID`.
        Raises `Unavailable` when this node is not the leader: nothing was proposed.
        """
        if not self._leads:
            raise Unavailable("this node is not the leader")
        proposals = decode_proposals(payload, trio.current_time() + PROPOSE_TIMEOUT_S)
        refusals = await self._judge(refusals_of, proposals, len(payload))
        batch = ProposalBatch(proposals)
        for proposal, refusal in zip(proposals, refusals, strict=True):
            if refusal is not None:
                self.refused_commands += 1
                proposal.settle([refusal])
                continue
            proposal.commands = [until_now(proposal.commands[0], self._now_ms())]
            try:
                self._add(proposal)
            except Unavailable as error:
                proposal.settle([error])
        self._proposed()
        await batch.wait()
        return encode_answers(batch.settled)

    async def propose_package(self, node_id: int, payload: bytes) -> bytes:
        """Propose a package of another node; returns once it is decided. However many copies of a
        package are proposed, it takes effect once.

        Raises `Unavailable` when this copy did not get into the log, `OutcomeUnknown` when this
        node was deposed meanwhile.
        """
        if not self._leads or node_id not in self._core.configuration.members():
            raise Unavailable(f"this node is not the leader of node {node_id}")
        sent = decode_package(payload)
        # One command that no client can have asked for makes the whole package suspect.
        if not await self._judge(are_of_clients, sent.commands, len(payload)):
            self.refused_commands += len(sent.commands)
            invalid = [Outcome(Result.INVALID) for _ in sent.commands]
            return encode_decision(Decision(invalid))
        # The log may have the package already, and only the log can tell whether it took effect.
        is_first = not sent.is_repeated
        if self._takes_no_bytes and is_first and any(map(brings_bytes, sent.commands)):
            return encode_decision(Decision(is_full=True, is_disk_low=self.is_disk_low))
        if not self._leads:
            raise Unavailable("this node is no longer the leader")
        stamp = PackageStamp(
            node_id, sent.session_id, sent.sequence, sent.lowest, len(sent.commands)
        )
        now_ms = self._now_ms()
        commands: list[Command] = [until_now(command, now_ms) for command in sent.commands]
        package = ForeignPackage(stamp, commands, trio.current_time() + PROPOSE_TIMEOUT_S)
        self._drafting.add_foreign(package)
        self._proposed()
        return encode_decision(Decision(await package.outcomes()))

    async def open_session(self, node_id: int, payload: bytes) -> bytes:
        """Open a session for a node that asks. Raises `Unavailable`, `OutcomeUnknown`."""
        return await self._opener.open_for(node_id, payload)

    async def _judge(self, judge: Callable[[W], V], what: W, size: int) -> V:
        """Judge what another node sent, in a thread if it is large."""
        if size <= SMALL_BYTES:
            return judge(what)
        return await self._run_blocking(judge, what, limiter=self._judging)
