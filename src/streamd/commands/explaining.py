"""``streamd explain``: says what an error's code means, without asking a server."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from streamd.process.exits import EXIT_USAGE, end
from streamd.protocol.problems import Problem


def _offered(_: click.Context, __: click.Parameter, begun: str) -> list[CompletionItem]:
    codes = sorted({problem.code for problem in Problem})
    return [CompletionItem(code) for code in codes if code.startswith(begun.upper())]


@click.command()
@click.argument("code", shell_complete=_offered)
def explain(code: str) -> None:
    """Say what an error means, and what to do.

    CODE is the one in the error's body, {"error": {"code": ...}}, such as STREAM_NOT_FOUND.
    """
    found = [problem for problem in Problem if problem.code == code.upper()]
    if not found:
        end(f"no error has the code {code!r}; docs/errors.md lists them all", EXIT_USAGE)
    for problem in found:
        click.echo(f"{problem.code} ({problem.status}): {problem.meaning}")
        click.echo(f"  {problem.cure}")
        click.echo(f"  docs/errors.md#{problem.name}")
