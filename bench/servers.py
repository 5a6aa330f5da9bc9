"""The servers that can be measured. A new peer is one more class and one more line in `known`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Protocol

from bench.errors import BenchError, ToolMissing

_NODE = Path(__file__).with_name("node")
_NODE_PACKAGE = "@durable-streams/server"


class Server(Protocol):
    """A server that speaks the Durable Streams protocol."""

    @property
    def name(self) -> str: ...

    @property
    def keeps_streams(self) -> bool:
        """Whether streams outlive the process."""

    @property
    def acknowledged(self) -> str:
        """What an acknowledged append means here: what would survive, and what not."""

    @property
    def stream_root(self) -> str:
        """The path below which streams are addressed, with a slash at its end."""

    def set_up(self) -> None:
        """Install whatever is missing. Raises `BenchError`."""

    def version(self) -> str:
        """Which program in which version; called after `set_up`."""

    def command(self, port: int, data_dir: Path) -> Sequence[str]:
        """How to start it on 127.0.0.1 and `port`, with its data (if any) in `data_dir`."""


class Streamd:
    """This project's server, as installed beside the interpreter that runs the benchmark."""

    name = "streamd"
    keeps_streams = True
    acknowledged = (
        "durable: the append is in the Raft log and the log is synced (fdatasync) before the "
        "answer; one sync covers all appends that waited for it"
    )
    stream_root = "/v1/stream/"
    _script = Path(sys.executable).with_name("streamd")

    def set_up(self) -> None:
        if not self._script.exists():
            raise ToolMissing("streamd is not installed beside this Python: pip install -e .")

    def version(self) -> str:
        return f"streamd {metadata.version('streamd')}, Python {sys.version.split()[0]}"

    def command(self, port: int, data_dir: Path) -> Sequence[str]:
        return [
            str(self._script),
            "serve",
            "--listen",
            f"127.0.0.1:{port}",
            "--data-dir",
            str(data_dir),
        ]


class NodeReference:
    """The protocol authors' reference server on Node, with its defaults."""

    stream_root = "/v1/stream/"

    def __init__(self, name: str, *, keeps_streams: bool, acknowledged: str) -> None:
        self.name = name
        self.keeps_streams = keeps_streams
        self.acknowledged = acknowledged

    def set_up(self) -> None:
        if shutil.which("node") is None or shutil.which("npm") is None:
            raise ToolMissing("the Node reference server needs node (20 or newer) and npm")
        if (_NODE / "node_modules" / _NODE_PACKAGE).is_dir():
            return
        # No install scripts: the one native dependency comes prebuilt.
        done = subprocess.run(
            ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"],
            cwd=_NODE,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise BenchError(f"npm ci failed in bench/node: {done.stderr.strip()[-500:]}")

    def version(self) -> str:
        listed = (_NODE / "package.json").read_text()
        pinned_version = listed.split(f'"{_NODE_PACKAGE}": "')[1].split('"')[0]
        node = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True)
        return f"{_NODE_PACKAGE} {pinned_version}, Node {node.stdout.strip()}"

    def command(self, port: int, data_dir: Path) -> Sequence[str]:
        command = ["node", str(_NODE / "reference.mjs"), "--port", str(port)]
        return [*command, "--data-dir", str(data_dir)] if self.keeps_streams else command


def known() -> dict[str, Server]:
    """All servers by name, in the order of the table's columns."""
    servers: tuple[Server, ...] = (
        Streamd(),
        NodeReference(
            "node-memory",
            keeps_streams=False,
            acknowledged="nothing is durable: streams live in the process and end with it",
        ),
        NodeReference(
            "node-file",
            keeps_streams=True,
            acknowledged=(
                "durable: written to the stream's own file and synced (fdatasync), one append of a "
                "stream after the other; then its metadata is committed to LMDB, whose flush to "
                "disk follows in the background (a restart rebuilds the offset from the file). A "
                "created stream is a committed LMDB record and an empty file, neither synced "
                "before the answer"
            ),
        ),
    )
    return {server.name: server for server in servers}
