"""Has a node act on its own host, where that is a unit of systemd and the leader has no ssh."""

from __future__ import annotations

from functools import partial

from streamd.cluster.cluster import Cluster
from streamd.config.supervisor import SupervisorConfig
from streamd.group.proposals import OutcomeUnknown, Unavailable
from streamd.hosts.commands import Deed
from streamd.hosts.control import ConfiguredHostControl
from streamd.hosts.own_host import act_on_own_host, answer_leader, ask_node
from streamd.streams.operations.hosts import Host, HostError

# An answer has its way back after the command's time.
_ANSWER_S = 5.0


def host_control(config: SupervisorConfig, cluster: Cluster, own: Host) -> ConfiguredHostControl:
    """The control of hosts of a node, which also answers the leader from now on when it asks this
    node to act on its own host, `own`."""

    async def ask(host: Host, deed: Deed, release: str) -> str:
        if host.node_id == own.node_id:
            return await act_on_own_host(config, own, deed, release)
        timeout_s = config.limit_s(deed) + _ANSWER_S
        send = partial(cluster.ask_about_host, host.node_id, timeout_s=timeout_s)
        try:
            return await ask_node(send, deed, release)
        except (Unavailable, OutcomeUnknown) as error:
            raise HostError(f"node {host.node_id} cannot {deed} itself: {error}") from error

    cluster.act_on_host = partial(answer_leader, config, own)
    return ConfiguredHostControl(config, ask)
