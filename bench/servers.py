"""The servers that can be measured. A new peer is one more class and one more line in `known`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
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
        return f"streamd {metadata.version('durable-streamd')}, {interpreter()}"

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


class Binary:
    """A server that is built elsewhere: the environment's `variable` gives the path of it."""

    keeps_streams = True
    stream_root = "/v1/stream/"

    def __init__(self, variable: str, binary: Path) -> None:
        self.binary = binary
        self._variable = variable

    def set_up(self) -> None:
        if not os.access(self.binary, os.X_OK) or self.binary.is_dir():
            raise ToolMissing(f"{self._variable}: {self.binary} is not a program that can be run")

    def version(self) -> str:
        return f"{self.binary.name} of {self._variable}"


class RustServer(Binary):
    """The protocol authors' server in Rust, with its defaults."""

    name = "rust"
    stream_root = "/"
    acknowledged = (
        "durable: the append is in a write-ahead log, of which there is one for each core, and the "
        "log is synced (fdatasync); appends that waited for one sync share it"
    )

    def command(self, port: int, data_dir: Path) -> Sequence[str]:
        return [str(self.binary), "--port", str(port), "--data-dir", str(data_dir)]


class CaddyServer(Binary):
    """The protocol authors' server in Go, a plugin of Caddy, file-backed."""

    name = "caddy"
    acknowledged = (
        "durable: the append is in the stream's file and the file is synced (fsync); then its "
        "metadata is committed to bbolt, which syncs as well; one append of all streams after the "
        "other"
    )

    def command(self, port: int, data_dir: Path) -> Sequence[str]:
        site = data_dir.parent / f"{data_dir.name}.caddyfile"
        site.write_text(
            "{\n\tadmin off\n\tauto_https off\n}\n"
            f"http://127.0.0.1:{port} {{\n\troute /v1/stream/* {{\n"
            f"\t\tdurable_streams {{\n\t\t\tdata_dir {data_dir}\n\t\t}}\n\t}}\n}}\n"
        )
        return [str(self.binary), "run", "--config", str(site), "--adapter", "caddyfile"]


def interpreter() -> str:
    """The Python that runs this, and whether it was built with optimisation: that is worth
    10 to 15 % of every figure."""
    options = sysconfig.get_config_var("CONFIG_ARGS") or ""
    kind = "optimised" if "--enable-optimizations" in options else "not optimised"
    return f"Python {sys.version.split()[0]} ({kind} build)"


def known(environment: Mapping[str, str] = os.environ) -> dict[str, Server]:
    """All servers by name, in the order of the table's columns.

    The Rust and the Caddy server are there where `BENCH_RUST` and `BENCH_CADDY` name a binary.
    """
    servers: list[Server] = [
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
    ]
    if rust := environment.get("BENCH_RUST"):
        servers.append(RustServer("BENCH_RUST", Path(rust)))
    if caddy := environment.get("BENCH_CADDY"):
        servers.append(CaddyServer("BENCH_CADDY", Path(caddy)))
    return {server.name: server for server in servers}
