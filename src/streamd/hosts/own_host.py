"""A node acts on its own host when the leader asks over the peer port: on its unit of systemd.

What the leader can ask for is one of three deeds. The commands are those of this node's own
configuration, so no peer can have another one executed.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec

from streamd.config.supervisor import SupervisorConfig
from streamd.hosts.commands import Deed, Given, command_for
from streamd.hosts.control import instruction
from streamd.hosts.running import run_command
from streamd.streams.operations.hosts import Host, HostError

_ENCODER = msgspec.json.Encoder()


class HostRequest(msgspec.Struct, frozen=True):
    """What the leader asks a node to do on its own host."""

    deed: Literal["restart", "stop", "install"]
    release: str = ""


class HostReply(msgspec.Struct, frozen=True):
    """What is left for an operator to do, if anything; or the `error` that ended it."""

    left: str = ""
    error: str | None = None


_REQUEST = msgspec.json.Decoder(HostRequest)
_REPLY = msgspec.json.Decoder(HostReply)


async def act_on_own_host(config: SupervisorConfig, own: Host, deed: Deed, release: str) -> str:
    """Do a deed to this node itself; what is left for an operator to do.

    systemd only takes the order to restart or stop this process: it could not wait for its own end.
    Raises `HostError`.
    """
    if config.kind != "systemd" or config.ssh is not None:
        raise HostError(f"node {own.node_id} is not configured as a unit of systemd on its host")
    command = command_for(config, deed, own, Given(release, wait=deed == "install"))
    if not command:
        return instruction(deed, own, release)
    await run_command(command, timeout_s=config.limit_s(deed))
    return ""


async def answer_leader(config: SupervisorConfig, own: Host, payload: bytes) -> bytes:
    """Carry out an encoded `HostRequest`. Raises `msgspec.DecodeError` for anything else."""
    request = _REQUEST.decode(payload)
    try:
        reply = HostReply(await act_on_own_host(config, own, request.deed, request.release))
    except HostError as error:
        reply = HostReply(error=str(error))
    return _ENCODER.encode(reply)


async def ask_node(send: Callable[[bytes], Awaitable[bytes]], deed: Deed, release: str) -> str:
    """Ask a node to act on its own host; `send` takes the request there.

    Raises `HostError`, and what `send` raises.
    """
    assert deed in ("restart", "stop", "install")
    reply = _REPLY.decode(await send(_ENCODER.encode(HostRequest(deed, release))))
    if reply.error is not None:
        raise HostError(reply.error)
    return reply.left
