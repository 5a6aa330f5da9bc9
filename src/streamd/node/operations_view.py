"""The cluster as the driver of operations sees it and acts on it, at the leader."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec
import structlog
import trio

from streamd.cluster.administration import (
    SILENT_TICKS,
    Add,
    Administration,
    MemberCommand,
    Promote,
    Remove,
    Transfer,
)
from streamd.cluster.cluster import Cluster
from streamd.group.group import Group
from streamd.group.log_formats import LogFormats
from streamd.group.proposals import OutcomeUnknown, Unavailable
from streamd.node.operations_driver import DeedFailed
from streamd.protocol.problems import ProblemError
from streamd.raft.interface import PeerStatus
from streamd.streams.commands import RecordOperation, Result
from streamd.streams.content import UNDECODABLE
from streamd.streams.operations.hosts import Host, HostControl, HostError
from streamd.streams.operations.model import Operation, Step, in_words
from streamd.streams.operations.planning import Member, Newcomer, View
from streamd.streams.operations.requests import RaiseFeatures

log = structlog.get_logger("streamd.operations")

_MEET_TIMEOUT_S = 5.0
_HEALTH_TIMEOUT_S = 2.0
# The archive is fresh enough for a node to be stopped.
_ARCHIVE_LIMIT_MS = 300_000


class Health(msgspec.Struct, frozen=True):
    """What a member says of itself when the leader asks; fields are only added, with defaults."""

    disk_is_low: bool = False


_HEALTH = msgspec.json.Decoder(Health)


class LeaderSurroundings:
    """The replicated records, the members and their hosts. Implements `ClusterView`."""

    def __init__(
        self,
        group: Group,
        cluster: Cluster,
        administration: Administration,
        formats: LogFormats,
        *,
        release: str,
        hosts: HostControl | None,
        own_health: Callable[[], Health],
        archive_age_ms: Callable[[], int | None],
    ) -> None:
        """Without `hosts` the operator is asked to do what needs hands there."""
        self._group = group
        self._cluster = cluster
        self._administration = administration
        self._formats = formats
        self._release = release
        self._hosts = hosts
        self._own_health = own_health
        self._archive_age_ms = archive_age_ms

    def current(self) -> Operation | None:
        """The operation that has not ended."""
        return self._group.state.operations.current

    def now_ms(self) -> int:
        """Log time, in ms since the epoch."""
        return self._group.now_ms()

    async def record(self, operation: Operation) -> bool:
        """As `Surroundings.record`."""
        outcome = await self._group.writes.propose(RecordOperation(operation))
        return outcome.result is Result.DONE

    # -- the view -----------------------------------------------------------------------------

    async def view(self) -> View:
        """As `Surroundings.view`; members are asked how they are."""
        health = await self._health_of_members()
        group, connections = self._group, self._cluster.connections()
        configuration = group.view.configuration
        progress = group.view.peers()
        committed = group.view.committed_configuration == configuration
        members = tuple(
            self._member(node_id, progress.get(node_id), health.get(node_id, Health()))
            for node_id in sorted(configuration.members())
        )
        return View(
            now_ms=group.now_ms(),
            leader_id=group.view.leader_id,
            members=members,
            is_settled=committed and not configuration.voters_outgoing,
            level=self._formats.level,
            connected=frozenset(one for one, link in connections.items() if link.connected),
            archive_age_ms=self._archive_age_ms(),
            archive_limit_ms=_ARCHIVE_LIMIT_MS,
        )

    def _member(self, node_id: int, peer: PeerStatus | None, health: Health) -> Member:
        group, cluster = self._group, self._cluster
        is_self = node_id == group.view.node_id
        link = cluster.connections().get(node_id)
        release = self._release if is_self else link.release if link is not None else ""
        lag = 0 if is_self or peer is None else group.view.last_index - peer.match_index
        answers = is_self or (peer is not None and peer.ticks_since_heard < SILENT_TICKS)
        return Member(
            node_id,
            is_voter=group.view.configuration.is_voter(node_id),
            answers=answers and (is_self or (link is not None and link.connected)),
            incarnation=cluster.incarnation_of(node_id),
            lag_entries=lag,
            release=release,
            log_format=self._formats.of_members.get(node_id) or 0,
            disk_is_low=health.disk_is_low,
            address=cluster.peer_address_of(node_id) or "",
        )

    async def _health_of_members(self) -> dict[int, Health]:
        """What each member says of itself; nothing of one that does not answer soon."""
        own_id = self._group.view.node_id
        found = {own_id: self._own_health()}

        async def ask(node_id: int) -> None:
            try:
                answer = await self._cluster.ask_to_operate(node_id, b"health")
                if answer is not None:
                    found[node_id] = _HEALTH.decode(answer)
            except (Unavailable, OutcomeUnknown, *UNDECODABLE) as error:
                log.debug("a member does not say how it is", member=node_id, error=str(error))

        with trio.move_on_after(_HEALTH_TIMEOUT_S):
            async with trio.open_nursery() as nursery:
                for node_id in sorted(self._group.view.configuration.members() - {own_id}):
                    nursery.start_soon(ask, node_id)
        return found

    async def meet(self, addresses: Sequence[str]) -> tuple[Newcomer, ...]:
        """As `ClusterView.meet`."""
        found = []
        for address in addresses:
            hello = await self._cluster.meet(address, _MEET_TIMEOUT_S)
            if hello is not None:
                found.append(Newcomer(address, hello.node_id, hello.log_format))
        return tuple(found)

    # -- deeds --------------------------------------------------------------------------------

    async def carry_out(self, step: Step) -> str:
        """As `Surroundings.carry_out`, on this node as the leader and on hosts."""
        node_id = step.node_id
        match step.deed:
            case "transfer-leadership":
                return await self._administer(Transfer())
            case "add":
                return await self._administer(Add(step.address))
            case "promote":
                return await self._administer(Promote(node_id, step.replacing or None))
            case "remove":
                return await self._administer(Remove(node_id))
            case "raise-features":
                return await self._administer(RaiseFeatures())
        return await self._act_on_host(step)

    async def _administer(self, command: MemberCommand) -> str:
        try:
            await self._administration.carry_out(command)
        except (ProblemError, Unavailable, OutcomeUnknown) as error:
            raise DeedFailed(str(error)) from error
        return ""

    async def _act_on_host(self, step: Step) -> str:
        peer_address = step.address or self._cluster.peer_address_of(step.node_id)
        if not peer_address:
            raise DeedFailed(f"the address of node {step.node_id} is not known")
        if self._hosts is None:
            return f"{in_words(step)} ({peer_address})"
        client_address = self._cluster.client_address_of(step.node_id) or ""
        host = Host(step.node_id, peer_address, client_address)
        try:
            if step.deed == "restart":
                return await self._hosts.restart(host)
            if step.deed == "stop":
                return await self._hosts.stop(host)
            return await self._hosts.install(host, step.release)
        except HostError as error:
            raise DeedFailed(str(error)) from error
