"""``streamd node``: looks at the host of a node, starts and stops it, executes commands there."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import click
import trio
from click.core import ParameterSource

from streamd.client.errors import StreamdError
from streamd.commands.operating import Operator
from streamd.commands.options import Command, given_server, server_options
from streamd.commands.terminal import exit_on_failure
from streamd.config.loading import load
from streamd.config.settings import Config, ConfigError
from streamd.hosts.commands import Deed, Given, command_for
from streamd.hosts.control import ConfiguredHostControl
from streamd.hosts.running import run_command
from streamd.process.cures import cure
from streamd.process.exits import EXIT_LOCAL, EXIT_REFUSED, EXIT_USAGE, end
from streamd.streams.operations.hosts import Host, HostError

_EVERYWHERE = (
    click.argument("node_id", type=click.IntRange(min=1), metavar="NODE"),
    click.option(
        "--config",
        "file",
        type=click.Path(path_type=Path, exists=True, dir_okay=False),
        required=True,
        help="The configuration of a node of the cluster, with its section [supervisor].",
    ),
    click.option(
        "--address",
        metavar="HOST:PORT",
        help="The address of the node's peers' port. [default: asked of the cluster]",
    ),
)


@click.group()
def node() -> None:
    """Look at the host of a node, start and stop the node, execute commands there.

    What does it is in the section [supervisor] of the configuration. It is done from this machine;
    a node executes nothing for a client. With kind = "systemd" and no ssh, only a node of this
    machine can be reached, which is the one that the configuration belongs to.
    """


def _on_a_host(command: Command) -> Command:
    """Give a command the options by which it finds a node's host; it gets the configuration and
    the host first."""

    @server_options
    @functools.wraps(command)
    def wrapped(node_id: int, file: Path, address: str | None, **given: object) -> None:
        context = click.get_current_context()
        with _failures():
            config = load(file, os.environ, {})
            command(config, _host(config, node_id, address, context), **given)

    for option in reversed(_EVERYWHERE):
        wrapped = option(wrapped)
    return wrapped


@contextmanager
def _failures() -> Iterator[None]:
    with exit_on_failure(None):
        try:
            yield
        except ConfigError as error:
            end(str(error), EXIT_USAGE)
        except HostError as error:
            end(str(error), EXIT_REFUSED)


def _host(config: Config, node_id: int, address: str | None, context: click.Context) -> Host:
    """Where a node is: as given, of the configuration's own node, or as the cluster knows it."""
    is_own = node_id == config.server.node_id
    if config.supervisor.kind == "systemd" and config.supervisor.ssh is None and not is_own:
        raise HostError(
            f"node {node_id} is on another machine, and supervisor.ssh is not set: run this "
            "command there, with that node's configuration"
        )
    if address is None and is_own:
        address = config.cluster.address
    if address is None:
        address = _known_address(node_id, config, context)
    return Host(node_id, address, "")


def _known_address(node_id: int, config: Config, context: click.Context) -> str:
    """The address of a member's peers' port, as the nodes say that the options name, or else the
    node of the configuration. Raises `HostError`."""
    server = given_server(context)
    if context.get_parameter_source("urls") is ParameterSource.DEFAULT:
        own = config.admin.listen or config.server.advertise or config.server.listen
        server = server._replace(urls=[f"http{'s' * bool(config.server.tls_cert)}://{own}"])
    try:
        members = Operator(server).get("/cluster/status").get("members", [])
    except StreamdError as error:
        raise HostError(
            f"the cluster was asked where node {node_id} is, and did not say: {error}. Name it "
            "with --address"
        ) from error
    for member in members:
        if member["node_id"] == node_id:
            return str(member["peer_address"])
    raise HostError(f"the cluster has no member {node_id}: name its address with --address")


@node.command()
@_on_a_host
def status(config: Config, host: Host) -> None:
    """Show what the supervisor knows of NODE; exits as its command does."""
    _become(config, "status", host)


@node.command()
@_on_a_host
@click.option("-n", "--lines", type=click.IntRange(min=0), default=100, show_default=True)
@click.option("-f", "--follow", is_flag=True, help="Show new lines as they come.")
def logs(config: Config, host: Host, lines: int, follow: bool) -> None:
    """Show the end of NODE's log."""
    _become(config, "logs", host, Given(lines=lines, follow=follow))


@node.command("exec")
@_on_a_host
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED, metavar="COMMAND...")
def execute(config: Config, host: Host, words: tuple[str, ...]) -> None:
    """Execute a command on the host of NODE; put -- before it."""
    _become(config, "exec", host, Given(words=words))


@node.command()
@_on_a_host
def restart(config: Config, host: Host) -> None:
    """Restart NODE, whatever the others do meanwhile.

    Nothing is checked before. `streamd operations restart-recovery` and `rolling-restart` look
    first whether the cluster can spare the node.
    """
    _act(config, "restart", host)


@node.command()
@_on_a_host
def stop(config: Config, host: Host) -> None:
    """Stop NODE, so that it does not start again by itself.

    `streamd operations drain` transfers leadership first.
    """
    _act(config, "stop", host)


@node.command()
@_on_a_host
def start(config: Config, host: Host) -> None:
    """Start NODE, after a stop or a drain."""
    _act(config, "start", host)


def _act(config: Config, deed: Literal["start", "stop", "restart"], host: Host) -> None:
    """Do a deed to a node; nothing is printed if it is done."""

    async def on_this_machine(host: Host, deed: Deed, release: str) -> str:
        supervisor = config.supervisor
        command = command_for(supervisor, deed, host, Given(release))
        await run_command(command, timeout_s=supervisor.limit_s(deed))
        return ""

    control = ConfiguredHostControl(config.supervisor, on_this_machine)
    deeds = {"start": control.start, "stop": control.stop, "restart": control.restart}
    if left := trio.run(deeds[deed], host):
        raise HostError(_unable(config, deed, left))


def _become(config: Config, deed: Deed, host: Host, given: Given | None = None) -> None:
    """Become the command that does a deed: it has this terminal, and its status is this one's."""
    command = command_for(config.supervisor, deed, host, given)
    if not command:
        raise HostError(_unable(config, deed, f"{deed} of node {host.node_id}"))
    try:
        os.execvp(command[0], command)  # noqa: S606 - on purpose without a shell
    except OSError as error:
        end(f"{command[0]} cannot be started: {error.strerror}. {cure(error.errno)}", EXIT_LOCAL)


def _unable(config: Config, deed: str, what: str) -> str:
    kind = config.supervisor.kind
    if kind == "command":
        return f"{what}: supervisor.{deed} is not set"
    return f'{what}: no command does that with supervisor.kind = "{kind}"'
