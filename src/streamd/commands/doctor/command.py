"""The command line of the doctor: where to look, and how the findings are shown."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import click
from click.core import ParameterSource

from streamd.client.errors import Refused, Unavailable
from streamd.commands.doctor.findings import Examined, Finding, Level, fail
from streamd.commands.doctor.gathering import of_cluster
from streamd.commands.doctor.table import examine
from streamd.commands.node_options import Flags, node_options
from streamd.commands.operating import Operator
from streamd.commands.options import given_server, json_option, server_options
from streamd.commands.terminal import exit_on_failure
from streamd.config.loading import load
from streamd.config.settings import ConfigError

EXIT_WARNINGS = 1
EXIT_FAILURES = 2

Named = Sequence[tuple[str, Finding]]


@click.command()
@server_options
@node_options
@json_option
@click.pass_context
def doctor(context: click.Context, file: Path | None, flags: Flags, as_json: bool) -> None:
    """Find what is wrong with a running cluster, or with a node's configuration.

    With --url (or STREAMD_URL) it asks a node of the cluster, and through it all others. With the
    options of `serve`, or without any, it looks at this machine before the node starts. It changes
    nothing. Exits with 0 if all is well, 1 with warnings, 2 with failures, 3 if no node answers.
    """
    if _is_about_cluster(context, bool(file or flags)):
        with exit_on_failure(None):
            findings = _about_cluster(Operator(given_server(context)))
    else:
        findings = list(examine(_of_configuration(file, flags)))
    print(_json(findings) if as_json else "\n".join(_lines(findings)))
    sys.exit(status_of(findings))


def _about_cluster(operator: Operator) -> Named:
    """Raises `StreamdError` if no node answers."""
    try:
        return list(examine(of_cluster(operator)))
    except Refused as error:
        if isinstance(error, Unavailable):
            raise
        cure = "use a token with the scope operate:*; where there is admin.listen, that address"
        return [("node.answer", fail(f"{error.message} ({error.code})", cure=cure))]


def status_of(findings: Named) -> int:
    """The exit status: that of the worst finding."""
    levels = {finding.level for _, finding in findings}
    if Level.FAIL in levels:
        return EXIT_FAILURES
    return EXIT_WARNINGS if Level.WARN in levels else 0


def _is_about_cluster(context: click.Context, has_options_of_node: bool) -> bool:
    """Raises `click.UsageError` if both a node and a cluster are meant."""
    source = context.get_parameter_source("urls")
    if source is ParameterSource.COMMANDLINE and has_options_of_node:
        raise click.UsageError("--url is for a running cluster, the options of serve are not")
    return source is not ParameterSource.DEFAULT and not has_options_of_node


def _of_configuration(file: Path | None, flags: Flags) -> Examined:
    # It loads the server, which a cluster is examined without.
    from streamd.commands.doctor.before_start import of_configuration

    try:
        return of_configuration(load(file, os.environ, flags), file)
    except ConfigError as error:
        return Examined({}, 0, faults=[str(error)])


def _json(findings: Named) -> str:
    counts = {level: sum(one.level is level for _, one in findings) for level in Level}
    listed = [{"check": name, **finding._asdict()} for name, finding in findings]
    return json.dumps({**counts, "findings": listed}, indent=2)


def _lines(findings: Named) -> list[str]:
    width = max(len(name) for name, _ in findings)
    lines = []
    for name, finding in findings:
        about = "" if finding.node is None else f"node {finding.node}: "
        lines.append(f"{finding.level:<5} {name:<{width}}  {about}{finding.found}")
        if finding.cure is not None:
            lines.append(f"{'':<{width + 7}} -> {finding.cure}")
    counts = [(level, sum(one.level is level for _, one in findings)) for level in Level]
    lines.append(", ".join(f"{count} {level}" for level, count in counts))
    return lines
