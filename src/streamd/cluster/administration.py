"""Admin commands: add, promote and remove members, transfer leadership.

An operator may ask any node; it passes the command on to the leader.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Annotated, Any

import msgspec
import structlog
import trio
from msgspec.structs import replace

from streamd import __version__
from streamd.cluster.cluster import Cluster
from streamd.cluster.members import KnownMembers
from streamd.group.group import Group
from streamd.group.log_formats import (
    LAST_WITHOUT_LEVEL,
    LOG_FORMAT,
    OPERATIONS_FORMAT,
    LogFormats,
    lacking,
)
from streamd.group.proposals import OutcomeUnknown, Unavailable
from streamd.protocol.problems import Problem, ProblemError
from streamd.raft.core import (
    ChangeInProgress,
    InvalidConfiguration,
    InvalidTransfer,
    NotLeader,
    Overloaded,
    TransferInProgress,
)
from streamd.raft.messages import Configuration
from streamd.streams.commands import RaiseLevel
from streamd.streams.operations.model import Step
from streamd.streams.operations.planning import (
    CAUGHT_UP_ENTRIES,
    Member,
    View,
    after,
    quorum_lost,
)
from streamd.streams.operations.requests import Begin, Cancel, Confirm, Pause, RaiseFeatures, Resume
from streamd.transport import Hello
from streamd.transport import errors as transport_errors

log = structlog.get_logger("streamd.cluster")

_MEET_TIMEOUT_S = 5.0
_CHANGE_TIMEOUT_S = 10.0
# From the end of one leader's office to the next one's first message.
_SUCCESSION_S = 0.5


# The limit of the configuration, and small enough for a command between nodes.
NodeId = Annotated[int, msgspec.Meta(ge=1, le=2**63 - 1)]


class Add(msgspec.Struct, frozen=True, tag="add"):
    """Add the node at a peer address as a learner."""

    address: str


class Promote(msgspec.Struct, frozen=True, tag="promote"):
    """Make a learner a voter, replacing another voter if one is named."""

    node_id: NodeId
    replacing: NodeId | None = None


class Remove(msgspec.Struct, frozen=True, tag="remove"):
    """Remove a node from the cluster; its id must not be used again."""

    node_id: NodeId


class Transfer(msgspec.Struct, frozen=True, tag="transfer"):
    """Transfer leadership to a voter (default: the most up-to-date voter)."""

    node_id: NodeId | None = None


MemberCommand = Add | Promote | Remove | Transfer | RaiseFeatures
# What the driver of operations takes (`node.operations`).
ForOperations = Begin | Pause | Resume | Cancel | Confirm
AdminCommand = MemberCommand | ForOperations

_ENCODER = msgspec.json.Encoder()
_ADMIN_COMMAND = msgspec.json.Decoder(AdminCommand)


class _Reply(msgspec.Struct):
    result: dict[str, Any] = {}
    code: str | None = None
    message: str = ""


_REPLY = msgspec.json.Decoder(_Reply)


class Administration:
    """Carries out admin commands, here or at the leader."""

    def __init__(self, group: Group, cluster: Cluster, members: KnownMembers) -> None:
        self._group = group
        self._cluster = cluster
        self._members = members
        self._formats = LogFormats(group.view, group.state, cluster)
        self._one_at_a_time = trio.Lock()
        # A level to which a command that may yet take effect raises the features.
        self._raising = 0
        # Carries out requests about operations at the leader.
        self.operate: Callable[[ForOperations], Awaitable[dict[str, Any]]] | None = None

    async def perform(self, command: AdminCommand) -> dict[str, Any]:
        """Carry out a command, here or at the leader; returns leader and members afterwards.

        Raises `ProblemError`, `Unavailable` when no leader takes it in time, `OutcomeUnknown`.
        """
        ends_at = trio.current_time() + _CHANGE_TIMEOUT_S
        self._group.admission.must_be_member()
        while True:
            asked = self._group.view.leader_id
            try:
                return await self._ask_leader(command)
            except Unavailable:
                left_s = ends_at - trio.current_time()
                group = self._group
                if not await group.view.wait_for(
                    lambda: group.view.leader_id not in (0, asked),  # noqa: B023 - awaited at once
                    left_s,
                ):
                    raise

    async def _ask_leader(self, command: AdminCommand) -> dict[str, Any]:
        leader_id = self._group.view.leader_id
        if not leader_id:
            raise Unavailable("no leader is known")
        if leader_id == self._group.view.node_id:
            return await self.carry_out(command)
        is_newer = isinstance(command, ForOperations | RaiseFeatures)
        if is_newer and (self._cluster.log_format_of(leader_id) or 0) < OPERATIONS_FORMAT:
            raise Problem.FEATURES_NOT_RAISED.error(
                f"node {leader_id}, which leads, runs a release without operations"
            )
        payload = await self._cluster.ask_to_administer(leader_id, _ENCODER.encode(command))
        reply = _REPLY.decode(payload)
        if reply.code is not None:
            # A later release may have codes of its own.
            problem = Problem.__members__.get(reply.code, Problem.INVALID_CONFIGURATION)
            raise problem.error(reply.message)
        return reply.result

    async def administer(self, payload: bytes) -> bytes:
        """Carry out an encoded command that another node passed on. Raises `Unavailable`."""
        try:
            return _ENCODER.encode(_Reply(await self.carry_out(_ADMIN_COMMAND.decode(payload))))
        except ProblemError as error:
            return _ENCODER.encode(_Reply(code=error.problem.code, message=str(error)))

    async def carry_out(self, command: AdminCommand) -> dict[str, Any]:
        """Carry out a command here. Raises as `perform`, and `Unavailable` on any node but the
        leader."""
        if isinstance(command, ForOperations):
            self._must_lead()
            assert self.operate is not None, "the node has its driver"
            return await self.operate(command)
        async with self._one_at_a_time:
            self._must_lead()
            match command:
                case Add(address=address):
                    await self._add(address)
                case Promote(node_id=node_id, replacing=replacing):
                    await self._promote(node_id, replacing)
                case Remove(node_id=node_id):
                    await self._remove(node_id)
                case Transfer(node_id=wanted):
                    await self._transfer(wanted)
                case RaiseFeatures():
                    await self._raise_features()
                    return self.features()
        configuration = self._group.view.configuration
        return {
            "leader_id": self._group.view.leader_id or None,
            "voters": sorted(configuration.voters),
            "learners": sorted(configuration.learners),
        }

    # -- members ------------------------------------------------------------------------------

    async def _add(self, address: str) -> None:
        hello = await self._cluster.meet(address, _MEET_TIMEOUT_S)
        if hello is None:
            raise Problem.NO_ANSWER.error(f"no node of this cluster answers at {address}")
        self._with_learner(self._group.view.configuration, hello)
        _must_be_empty(hello)
        try:
            now = await self._cluster.invite(hello.node_id)
        except (
            transport_errors.NotSent,
            transport_errors.RequestOutcomeUnknown,
            transport_errors.RequestRefused,
        ) as error:
            raise Problem.NOT_JOINED.error(f"node {hello.node_id} did not join: {error}") from error
        # The introduction at its connection is out of date if the node was a member in between.
        _must_be_empty(now)
        await self._change(lambda current: self._with_learner(current, hello))

    def _with_learner(self, current: Configuration, newcomer: Hello) -> Configuration:
        """Raises `ProblemError` for a node that is a member already, or is too old."""
        target = _with_learner(current, newcomer)
        self._must_understand(newcomer.node_id, newcomer.log_format)
        return target

    def _must_understand(self, node_id: int, log_format: int | None) -> None:
        """Raises `ProblemError` for a node that could not read the log. 0.1.0 would even end
        on its first unknown command."""
        needed = max(self._formats.needed, self._raising)
        if log_format is not None and log_format < needed:
            own = f"node {self._group.view.node_id} runs {__version__}"
            raise Problem.RELEASE_TOO_OLD.error(
                f"node {node_id} runs {self._release_of(node_id)} of streamd, which does not "
                f"understand this cluster's log: it lacks {lacking(log_format, needed)}. Run the "
                f"members' release on it ({own}), with an empty data directory",
            )

    def _release_of(self, node_id: int) -> str:
        connection = self._cluster.connections().get(node_id)
        return connection.release if connection and connection.release else "an earlier release"

    async def _promote(self, node_id: int, replacing: int | None) -> None:
        def promoted(current: Configuration) -> Configuration:
            if node_id not in current.learners:
                raise Problem.NOT_A_LEARNER.error(f"node {node_id} is not a learner")
            if replacing is not None and replacing not in current.voters:
                raise Problem.NOT_A_VOTER.error(f"node {replacing} is not a voter")
            lag = self._group.view.last_index - self._group.view.peers()[node_id].match_index
            if lag > CAUGHT_UP_ENTRIES:
                raise Problem.NOT_CAUGHT_UP.error(f"node {node_id} lags by {lag} entries")
            self._must_understand(node_id, self._cluster.log_format_of(node_id))
            voters = tuple(sorted({*current.voters, node_id} - {replacing}))
            learners = tuple(one for one in current.learners if one != node_id)
            return replace(current, voters=voters, learners=learners)

        await self._change(promoted, Step("promote", node_id, replacing=replacing or 0))

    async def _remove(self, node_id: int) -> None:
        step, current = Step("remove", node_id), self._group.view.configuration
        if node_id not in current.members():
            raise Problem.NOT_A_MEMBER.error(f"node {node_id} is not a member")
        if node_id == self._group.view.node_id and current.voters != (node_id,):
            members = await self._members.known()
            self._must_lead()
            self._must_leave_quorum(step, members)
            # The next leader removes this node: a leader that removed itself could not answer.
            await self._transfer(None)
            raise Unavailable("leadership was transferred; repeat the request at the new leader")

        def without(current: Configuration) -> Configuration:
            if current.voters == (node_id,):
                raise Problem.LAST_VOTER.error("the last voter cannot be removed")
            voters = tuple(one for one in current.voters if one != node_id)
            learners = tuple(one for one in current.learners if one != node_id)
            return replace(current, voters=voters, learners=learners)

        await self._change(without, step)

    async def _change(
        self, change: Callable[[Configuration], Configuration], step: Step | None = None
    ) -> None:
        """Propose the result of `change` on the configuration, and wait until it alone is in force
        and committed. `step` is the same change, if it is one of the voters."""
        group = self._group
        index, target = await self._propose(change, step)

        def settled() -> bool:
            found = group.view.configuration
            final = not found.voters_outgoing and found.voters == target.voters
            # Another leader may have replaced the entry.
            return group.view.commit_index >= index and final and found.learners == target.learners

        if not await self._group.view.wait_for(settled, _CHANGE_TIMEOUT_S):
            raise OutcomeUnknown("the change is not committed yet; check the cluster's status")

    async def _propose(
        self, change: Callable[[Configuration], Configuration], step: Step | None
    ) -> tuple[int, Configuration]:
        """Append a changed configuration as soon as the previous one is settled; returns the
        entry's index and the new configuration. The change applies to the configuration in force
        then: during a wait, another command or another leader may have changed it."""
        group = self._group
        ends_at = trio.current_time() + _CHANGE_TIMEOUT_S
        while True:
            self._must_lead()
            await self._know_the_level(ends_at)
            members = await self._members.known() if step is not None else ()
            self._must_lead()
            committed, current = group.view.commit_index, group.view.configuration
            target = _of_members_only(change(current))
            is_settled = current == group.view.committed_configuration
            if step is not None and is_settled and not current.voters_outgoing:
                self._must_leave_quorum(step, members)
            try:
                return group.view.propose_configuration(target), target
            except ChangeInProgress as error:
                left_s = ends_at - trio.current_time()
                if not await group.view.wait_for(partial(_beyond, group, committed), left_s):
                    raise Problem.CHANGE_IN_PROGRESS.error(str(error)) from error
            except InvalidConfiguration as error:
                raise Problem.INVALID_CONFIGURATION.error(str(error)) from error
            except (NotLeader, Overloaded, TransferInProgress) as error:
                raise Unavailable(str(error)) from error

    def _must_leave_quorum(self, step: Step, members: tuple[Member, ...]) -> None:
        """Raises `ProblemError` if a step would leave less than a quorum of voters that answer and
        may vote. A voter that lags counts: it confirms what it gets."""
        view = View(self._group.now_ms(), self._group.view.leader_id, members)
        whole = frozenset(one.node_id for one in members if one.is_whole)
        if lost := quorum_lost(step, view, whole):
            missing = ", ".join(
                f"node {one.node_id} {'repairs its log' if one.answers else 'does not answer'}"
                for one in after(step, view).members
                if one.is_voter and not one.is_whole
            )
            raise Problem.QUORUM_AT_RISK.error(f"{lost}: {missing}")

    # -- features -----------------------------------------------------------------------------

    def features(self) -> dict[str, Any]:
        """The feature level, the highest one that this release knows, and the log format that each
        member understands, None for one that this node has not met."""
        members = {str(one): found for one, found in self._formats.of_members.items()}
        return {"level": self._formats.level, "highest": LOG_FORMAT, "members": members}

    async def raise_new_features(self) -> bool:
        """Raise the level if nobody has to be asked. Returns whether it is as high as it can be
        without being asked."""
        if self._formats.rises_by_itself:
            await self.carry_out(RaiseFeatures())
        return self._formats.level >= LOG_FORMAT

    async def _raise_features(self) -> None:
        """While this runs nothing else changes the members, so those that are asked are all."""
        group = self._group
        await self._know_the_level(trio.current_time() + _CHANGE_TIMEOUT_S)
        level = self._formats.common
        if group.view.committed_configuration != group.view.configuration:
            raise Problem.CHANGE_IN_PROGRESS.error("a change of the members is not committed")
        if level <= max(self._formats.level, LAST_WITHOUT_LEVEL):
            if self._formats.level >= LOG_FORMAT:
                return
            raise Problem.FEATURES_NOT_RAISED.error(
                f"no level above {max(level, self._formats.level)} is understood by every member: "
                f"{self._formats.of_members}"
            )
        self._raising = level
        try:
            await group.writes.propose(RaiseLevel(level))
        except Unavailable:
            self._raising = 0
            raise
        self._raising = 0
        log.info("raised the feature level", to=level)

    async def _know_the_level(self, ends_at: float) -> None:
        """Wait until an entry of this term is applied, and so all of earlier terms: one may raise
        the level. Raises `Unavailable`."""
        group = self._group

        def is_known() -> bool:
            return group.state.header.applied_term == group.view.term or not group.view.leads

        if not await group.view.wait_for(is_known, ends_at - trio.current_time()):
            raise Unavailable("nothing of this leader's term is applied yet")
        self._must_lead()

    def _must_lead(self) -> None:
        if not self._group.view.leads:
            raise Unavailable("this node is not the leader")

    # -- leadership -----------------------------------------------------------------------------

    async def hand_over(self) -> None:
        """Transfer leadership before this node stops, if it leads and another voter answers: the
        others need no election timeout to notice. Gives up after about one such timeout."""
        group = self._group
        to = self._successor() if group.view.leads else None
        if to is None or not self._members.answers(to):
            return
        try:
            group.view.transfer(to)
        except (NotLeader, InvalidTransfer) as error:
            log.warning("leadership is not being transferred", to=to, reason=str(error))
            return

        # The transfer itself ends after an election timeout.
        await group.view.wait_for(lambda: not group.view.transferring, _CHANGE_TIMEOUT_S)
        if group.view.leads or not await group.view.wait_for(
            lambda: group.view.leader_id != 0, _SUCCESSION_S
        ):
            log.warning("leadership could not be transferred in time", to=to)
        else:
            log.info("leadership transferred", to=group.view.leader_id)

    def _successor(self) -> int | None:
        """The voter that is fit best to lead in this leader's place; None without another one."""
        group = self._group
        others = [one for one in group.view.configuration.voters if one != group.view.node_id]
        peers = group.view.peers()
        return max(
            others,
            key=lambda one: (self._members.answers(one), peers[one].match_index),
            default=None,
        )

    async def _transfer(self, wanted: int | None) -> None:
        group = self._group
        if wanted == group.view.node_id:
            return
        to = wanted if wanted is not None else self._successor()
        if to is None:
            raise Problem.NOT_A_VOTER.error("the cluster has no other voter")
        try:
            group.view.transfer(to)
        except NotLeader as error:
            raise Unavailable(str(error)) from error
        except InvalidTransfer as error:
            raise Problem.NOT_A_VOTER.error(str(error)) from error
        await group.view.wait_for(
            lambda: group.view.leader_id not in (0, group.view.node_id), _CHANGE_TIMEOUT_S
        )
        if group.view.leader_id != to:
            raise Problem.NOT_TRANSFERRED.error(f"node {to} did not become the leader")


def _must_be_empty(newcomer: Hello) -> None:
    """Raises `ProblemError`."""
    if not newcomer.log_is_empty:
        node_id, address = newcomer.node_id, newcomer.peer_address
        raise Problem.NOT_EMPTY.error(f"node {node_id} at {address} already has data")


def _with_learner(current: Configuration, newcomer: Hello) -> Configuration:
    """Raises `ProblemError` when the newcomer is a member already."""
    node_id = newcomer.node_id
    if node_id in current.members():
        raise Problem.MEMBER_ALREADY.error(f"node {node_id} is already a member")
    address = (node_id, newcomer.peer_address, newcomer.client_address)
    known = [one for one in current.addresses if one[0] != node_id]
    return replace(
        current,
        learners=tuple(sorted((*current.learners, node_id))),
        addresses=tuple(sorted((*known, address))),
    )


def _of_members_only(target: Configuration) -> Configuration:
    """Without the addresses of leaving nodes, which a joint configuration still has."""
    members = {*target.voters, *target.learners}
    addresses = tuple(one for one in target.addresses if one[0] in members)
    return replace(target, addresses=addresses)


def _beyond(group: Group, index: int) -> bool:
    return group.view.commit_index > index
