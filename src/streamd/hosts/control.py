"""Restarts nodes, stops them and installs releases, as the driver of operations asks: one
`HostControl` for all kinds of supervisors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from streamd.config.supervisor import SupervisorConfig
from streamd.hosts.commands import Deed, Given, command_for, pod_report, update_strategy
from streamd.hosts.running import run_command
from streamd.streams.operations.hosts import Host, HostError

_POLL_S = 1.0

# Has a node act on its own host. Raises `HostError`.
AskNode = Callable[[Host, Deed, str], Awaitable[str]]


class ConfiguredHostControl:
    """Does what the section ``[supervisor]`` says. See `HostControl` for what its methods return.

    `ask_node` reaches the host of a node that is a unit of systemd there, if there is no ssh.
    """

    def __init__(self, config: SupervisorConfig, ask_node: AskNode) -> None:
        self._config = config
        self._ask_node = ask_node

    async def restart(self, host: Host) -> str:
        if self._config.kind == "kubernetes":
            return await self._replace_pod(host)
        return await self._act("restart", host)

    async def start(self, host: Host) -> str:
        return await self._act("start", host)

    async def stop(self, host: Host) -> str:
        return await self._act("stop", host)

    async def install(self, host: Host, release: str) -> str:
        if self._config.kind == "kubernetes" and self._config.image is not None:
            await self._must_replace_on_delete(host)
        return await self._act("install", host, release)

    async def _act(self, deed: Deed, host: Host, release: str = "") -> str:
        config = self._config
        command = command_for(config, deed, host, Given(release))
        if not command:
            return instruction(deed, host, release)
        if config.kind == "systemd" and config.ssh is None:
            return await self._ask_node(host, deed, release)
        await run_command(command, timeout_s=config.limit_s(deed))
        return ""

    async def _replace_pod(self, host: Host) -> str:
        """Delete a pod, and wait until the stateful set has another one that is ready."""
        limit_s = self._config.timeout_s
        with trio.move_on_after(limit_s):
            before, _ = await self._pod(host)
            await run_command(command_for(self._config, "restart", host), timeout_s=limit_s)
            while True:
                uid, is_ready = await self._pod(host)
                if is_ready and uid != before:
                    return ""
                await trio.sleep(_POLL_S)
        raise HostError(
            f"node {host.node_id} has no new pod that is ready within {limit_s} s: see `streamd "
            "node status` and `streamd node logs`"
        )

    async def _pod(self, host: Host) -> tuple[str, bool]:
        """A pod's unique id and whether it is ready; empty without a pod."""
        command = pod_report(self._config, host)
        uid, _, ready = (await run_command(command, timeout_s=self._config.timeout_s)).partition(
            " "
        )
        return uid.strip(), ready.strip() == "True"

    async def _must_replace_on_delete(self, host: Host) -> None:
        """Raises `HostError` for a stateful set that replaces its pods itself: several at once
        could be away, and none would have transferred leadership first."""
        command = update_strategy(self._config, host)
        found = (await run_command(command, timeout_s=self._config.timeout_s)).strip()
        if found != "OnDelete":
            raise HostError(
                f"the stateful set {self._config.stateful_set} replaces its pods by itself "
                f"(updateStrategy {found or 'unknown'}): set spec.updateStrategy.type to OnDelete"
            )


def instruction(deed: Deed, host: Host, release: str = "") -> str:
    """What an operator must do, where no command does it."""
    where = f"node {host.node_id} ({host.peer_address})"
    match deed:
        case "stop":
            return f"stop {where}, so that it does not start again"
        case "install":
            return f"install release {release} for {where}"
    return f"{deed} {where}"
