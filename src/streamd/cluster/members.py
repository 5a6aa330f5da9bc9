"""The members of the cluster as its leader knows them: what a change of members depends on."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import structlog
import trio

from streamd.cluster.cluster import Cluster
from streamd.group.group import Group
from streamd.group.log_formats import LogFormats
from streamd.group.proposals import OutcomeUnknown, Unavailable
from streamd.raft.interface import PeerStatus
from streamd.streams.content import UNDECODABLE
from streamd.streams.operations.planning import Member

log = structlog.get_logger("streamd.cluster")

# A live peer answers each heartbeat. The log of one that is down may be the longest.
SILENT_TICKS = 5
_HEALTH_TIMEOUT_S = 2.0


class Health(msgspec.Struct, frozen=True):
    """What a member says of itself when the leader asks; fields are only added, with defaults."""

    disk_is_low: bool = False
    may_vote: bool = True


_HEALTH = msgspec.json.Decoder(Health)


class KnownMembers:
    """Finds out how the members are, at the leader. `release` is this node's own, as its health."""

    def __init__(
        self,
        group: Group,
        cluster: Cluster,
        formats: LogFormats,
        *,
        release: str,
        own_health: Callable[[], Health],
    ) -> None:
        self._group = group
        self._cluster = cluster
        self._formats = formats
        self._release = release
        self._own_health = own_health

    async def known(self) -> tuple[Member, ...]:
        """The members of the configuration in force once they have been asked how they are, which
        may take two seconds, in the order of their ids."""
        health = await self._health()
        progress = self._group.view.peers()
        return tuple(
            self._member(node_id, progress.get(node_id), health.get(node_id, Health()))
            for node_id in sorted(self._group.view.configuration.members())
        )

    def answers(self, node_id: int) -> bool:
        """Whether a peer answered lately, at the leader."""
        return _is_heard(self._group.view.peers()[node_id])

    def _member(self, node_id: int, peer: PeerStatus | None, health: Health) -> Member:
        group, cluster = self._group, self._cluster
        is_self = node_id == group.view.node_id
        link = cluster.connections().get(node_id)
        release = self._release if is_self else link.release if link is not None else ""
        lag = 0 if is_self or peer is None else group.view.last_index - peer.match_index
        is_linked = link is not None and link.connected
        return Member(
            node_id,
            is_voter=group.view.configuration.is_voter(node_id),
            answers=is_self or (peer is not None and _is_heard(peer) and is_linked),
            may_vote=health.may_vote,
            incarnation=cluster.incarnation_of(node_id),
            lag_entries=lag,
            release=release,
            log_format=self._formats.of_members.get(node_id) or 0,
            disk_is_low=health.disk_is_low,
            address=cluster.peer_address_of(node_id) or "",
        )

    async def _health(self) -> dict[int, Health]:
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


def _is_heard(peer: PeerStatus) -> bool:
    return peer.ticks_since_heard < SILENT_TICKS
