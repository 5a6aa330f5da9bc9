"""``streamd completion``: prints the script with which a shell completes the command line."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

_SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion script for a shell.

    bash: eval "$(streamd completion bash)" in ~/.bashrc; zsh: the same in ~/.zshrc, after compinit;
    fish: streamd completion fish > ~/.config/fish/completions/streamd.fish
    """
    made_by = get_completion_class(shell)
    assert made_by is not None
    root = context.find_root()
    click.echo(made_by(root.command, {}, "streamd", "_STREAMD_COMPLETE").source())
