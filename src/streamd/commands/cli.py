"""The command line."""

from __future__ import annotations

import errno
import os
from importlib import import_module
from pathlib import Path

import click

from streamd import __version__
from streamd.commands.node_options import Flags, node_options
from streamd.process.exits import Failure, exit_on

EXIT_STORAGE = 1
EXIT_CONFIG = 2

# The module of each command. It is imported when the command runs: the client does not load the
# server, nor the server the client, so both start fast.
_ELSEWHERE = {
    "append": "streamd.commands.writing:append",
    "backup": "streamd.commands.backup:backup",
    "bootstrap": "streamd.commands.snapshots:bootstrap",
    "close": "streamd.commands.managing:close",
    "cluster": "streamd.commands.cluster:cluster",
    "cold": "streamd.commands.cold:cold",
    "config": "streamd.commands.checking:config",
    "completion": "streamd.commands.completion:completion",
    "create": "streamd.commands.managing:create",
    "debug": "streamd.commands.bundle:debug",
    "delete": "streamd.commands.managing:delete",
    "doctor": "streamd.commands.doctor.command:doctor",
    "explain": "streamd.commands.explaining:explain",
    "fork": "streamd.commands.managing:fork",
    "head": "streamd.commands.managing:head",
    "keys": "streamd.commands.keys:keys",
    "limits": "streamd.commands.limits:limits",
    "list": "streamd.commands.managing:list_streams",
    "log-head": "streamd.commands.log_heads:log_head",
    "log-key": "streamd.commands.log_heads:log_key",
    "node": "streamd.commands.node:node",
    "operations": "streamd.commands.operations:operations",
    "prove": "streamd.commands.proving:prove",
    "read": "streamd.commands.reading:read",
    "recover": "streamd.commands.recover:recover",
    "restore": "streamd.commands.backup:restore_command",
    "sign": "streamd.commands.sign:sign",
    "snapshot": "streamd.commands.snapshots:snapshot",
    "subscription": "streamd.commands.subscriptions:subscription",
    "tail": "streamd.commands.reading:tail",
    "token": "streamd.commands.token:token",
    "verify": "streamd.commands.verifying:verify",
}


class _Commands(click.Group):
    """Imports the module of a command when the command is looked up."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *_ELSEWHERE])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _ELSEWHERE:
            return super().get_command(ctx, cmd_name)
        module, _, name = _ELSEWHERE[cmd_name].partition(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command


def _version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    """Print the version and exit."""
    if asked:
        from streamd.http.sockets.batch_io import LANGUAGE

        click.echo(f"streamd, version {__version__} (batch I/O in {LANGUAGE})")
        context.exit()


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_version,
    help="Show the version and exit.",
)
def main() -> None:
    """A distributed server for Durable Streams, and its client."""


@main.command()
@node_options
def serve(file: Path | None, flags: Flags) -> None:
    """Serve streams until stopped.

    Flags override environment variables (STREAMD_SERVER_NODE_ID, …), which override the file.
    """
    import trio

    from streamd.cluster.cluster import FormationError
    from streamd.commands.serve import serve as serve_node
    from streamd.config.loading import load
    from streamd.config.settings import ConfigError
    from streamd.process.attending import AttendingClock
    from streamd.process.cures import with_cure
    from streamd.process.logs import set_up_logging
    from streamd.process.privacy import forget_in_environment, keep_private
    from streamd.process.threads import share_one_heap
    from streamd.raft.core import RaftViolation
    from streamd.storage.errors import StorageError, in_words

    is_member = False

    def failure_of(error: BaseException) -> Failure | None:
        match error:
            case ConfigError():
                return Failure(EXIT_CONFIG, str(error))
            case StorageError():
                return Failure(EXIT_STORAGE, in_words(error, is_member=is_member))
            case RaftViolation() | FormationError():
                return Failure(EXIT_STORAGE, str(error))
            case OSError() if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                return Failure(EXIT_STORAGE, with_cure(error))
        return None

    with exit_on(failure_of):
        config = load(file, os.environ, flags)
        is_member = config.cluster.name is not None
        set_up_logging(config.log.format, config.log.level)
        cold = config.cold
        forget_in_environment(
            (config.auth.root_token, cold.s3_secret_access_key, cold.s3_session_token)
        )
        share_one_heap()
        keep_private()
        trio.run(serve_node, config, clock=AttendingClock())
