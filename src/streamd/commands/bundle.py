"""``streamd debug bundle``: what a person needs who looks for a fault, from all nodes, in a file.

The nodes give nothing that holds secrets: the configuration has them hidden, the logs, metrics,
tasks and profiles never had them. Time and size are bounded: a node that does not answer is asked
once, and named in the manifest.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import click

from streamd import __version__
from streamd.client.errors import StreamdError
from streamd.commands.operating import AT_LEADER, Json, Operator, server_group
from streamd.process.exits import complain
from streamd.process.redaction import shown

# The reports that a node gives, and the paths at which it gives them. The first shows whether it
# answers.
_PATHS = {
    "status": "/cluster/debug/nodes/{}/status",
    "facts": "/cluster/nodes/{}",
    **{
        name: f"/cluster/debug/nodes/{{}}/{name}"
        for name in ("config", "cold", "memory", "metrics", "log", "tasks", "profile")
    },
}
_MAX_FILE_BYTES = 8 * 1024 * 1024
_MAX_BYTES = 128 * 1024 * 1024
_MAX_ASKED = 8
_NOT_ASKED = "not asked for: the node does not answer"


class _Report(NamedTuple):
    """A node's report as a file, or why there is none."""

    node: int
    report: str
    name: str = ""
    content: bytes = b""
    error: str = ""


@server_group
def debug() -> None:
    """Collect what a person needs who looks for a fault."""


@debug.command()
@click.option(
    "-o",
    "--output",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="The archive to write. [default: streamd-debug-TIME.tar.gz]",
)
@click.pass_obj
def bundle(operator: Operator, file: Path | None) -> None:
    """Write reports of all nodes into an archive, without secrets.

    Of each node: status, facts as for the doctor, configuration, cold store, memory, metrics, the
    last lines of its log, tasks and a profile of five seconds. `manifest.json` lists what there is,
    and what there is not.
    """
    now = datetime.now(UTC)
    file = file or Path(f"streamd-debug-{now:%Y%m%dT%H%M%SZ}.tar.gz")
    # Before the nodes are asked, because the name may be taken.
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as target:
            reports = list(_bounded(_collect(operator)))
            _write(target, reports, now)
    except BaseException:
        file.unlink()
        raise
    for one in reports:
        if one.error not in ("", _NOT_ASKED):
            complain(f"node {one.node}, {one.report}: {one.error}")
    count = sum(bool(one.name) for one in reports)
    print(f"{file}: {count} reports, {file.stat().st_size} bytes")


def _collect(operator: Operator) -> Iterator[_Report]:
    """The reports of all members. Raises `StreamdError` if no node gives its status."""
    status = operator.get("/cluster/status", AT_LEADER)
    members = [member["node_id"] for member in status.get("members", [])] or [status["node_id"]]
    with ThreadPoolExecutor(_MAX_ASKED) as threads:
        for found in threads.map(lambda node: _of_node(operator, node), members):
            yield from found


def _of_node(operator: Operator, node: int) -> list[_Report]:
    found: list[_Report] = []
    for name, path in _PATHS.items():
        if found and found[0].error:
            found.append(_Report(node, name, error=_NOT_ASKED))
        else:
            found.append(_fetch(operator, node, name, path.format(node)))
    return found


def _fetch(operator: Operator, node: int, name: str, path: str) -> _Report:
    try:
        envelope = operator.get(path)
    except StreamdError as error:
        return _Report(node, name, error=error.message or str(error))
    report: Json | None = envelope["report"]
    if report is None:
        return _Report(node, name, error=envelope["error"])
    is_text = set(report) == {"text"}
    text = report["text"] if is_text else json.dumps(report, indent=2) + "\n"
    file = f"node-{node}/{name}.{'txt' if is_text else 'json'}"
    return _Report(node, name, file, text.encode(errors="backslashreplace"))


def _bounded(reports: Iterator[_Report]) -> Iterator[_Report]:
    """The reports, cut where one is too long, and without those for which no room is left."""
    left = _MAX_BYTES
    for one in reports:
        content = one.content[: min(left, _MAX_FILE_BYTES)]
        if one.content and not content:
            yield _Report(one.node, one.report, error="the archive is full")
        else:
            error = "" if len(content) == len(one.content) else "cut: it is too long"
            yield one._replace(content=content, error=one.error or error)
        left -= len(content)


def _write(target: io.BufferedWriter, reports: list[_Report], now: datetime) -> None:
    files = {one.name: one.content for one in reports if one.name}
    manifest = {
        "made_at": now.isoformat(timespec="seconds"),
        "made_by": f"streamd {__version__}",
        "files": [
            {"name": name, "bytes": len(content), "sha256": sha256(content).hexdigest()}
            for name, content in files.items()
        ],
        "missing": [
            {"node": one.node, "report": one.report, "error": shown(one.error)}
            for one in reports
            if one.error
        ],
    }
    listed = json.dumps(manifest, indent=2).encode() + b"\n"
    with tarfile.open(fileobj=target, mode="w:gz") as archive:
        for name, content in {"manifest.json": listed, **files}.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode, entry.mtime = len(content), 0o600, int(time.time())
            archive.addfile(entry, io.BytesIO(content))
