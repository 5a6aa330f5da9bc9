"""The cluster as the driver of operations sees it and acts on it, at the leader."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from streamd.cluster.administration import (
    Add,
    Administration,
    MemberCommand,
    Promote,
    Remove,
    Transfer,
)
from streamd.cluster.cluster import Cluster
from streamd.cluster.members import KnownMembers
from streamd.group.group import Group
from streamd.group.log_formats import LogFormats
from streamd.group.proposals import OutcomeUnknown, Unavailable
from streamd.node.operations_driver import DeedFailed
from streamd.protocol.problems import ProblemError
from streamd.streams.commands import RecordOperation, Result
from streamd.streams.operations.hosts import Host, HostControl, HostError
from streamd.streams.operations.model import Operation, Step, in_words
from streamd.streams.operations.planning import Newcomer, View
from streamd.streams.operations.requests import RaiseFeatures

_MEET_TIMEOUT_S = 5.0
# The archive is fresh enough for a node to be stopped.
_ARCHIVE_LIMIT_MS = 300_000


class LeaderSurroundings:
    """The replicated records, the members and their hosts. Implements `ClusterView`."""

    def __init__(
        self,
        group: Group,
        cluster: Cluster,
        administration: Administration,
        formats: LogFormats,
        members: KnownMembers,
        *,
        hosts: HostControl | None,
        archive_age_ms: Callable[[], int | None],
    ) -> None:
        """Without `hosts` the operator is asked to do what needs hands there."""
        self._group = group
        self._cluster = cluster
        self._administration = administration
        self._formats = formats
        self._members = members
        self._hosts = hosts
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
        members = await self._members.known()
        group, connections = self._group, self._cluster.connections()
        configuration = group.view.configuration
        committed = group.view.committed_configuration == configuration
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
