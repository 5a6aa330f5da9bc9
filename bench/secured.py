"""Servers that require tokens, with tokens and limits, and what a hostile client does to them."""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.errors import BenchError
from bench.machine import Cores, pinned
from bench.process import ServerProcess, free_port, process_cpu_s
from bench.servers import Streamd

ROOT = "sd_0000000000000001_" + "r" * 32
BINARY = "application/octet-stream"
_MAKERS = 16
_PATIENCE_S = 60.0


class Secured:
    """A running server; requests here are those of its root token."""

    def __init__(self, process: ServerProcess) -> None:
        self.process = process
        self.port = process.port

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> dict[str, Any]:
        """The JSON of an answer. Raises `BenchError` if it is an error."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_PATIENCE_S)
        try:
            sent = {"Authorization": f"Bearer {ROOT}", "Content-Type": "application/json"}
            raw = body if isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, raw if body is not None else None, {**sent, **headers})
            answer = connection.getresponse()
            text = answer.read()
        finally:
            connection.close()
        if answer.status >= 300:
            raise BenchError(f"{method} {path}: {answer.status} {text[:200]!r}")
        found: dict[str, Any] = json.loads(text) if text else {}
        return found

    def make_stream(self, path: str) -> None:
        self.ask("PUT", path, **{"Content-Type": BINARY})

    def make_token(self, name: str, scopes: Sequence[str]) -> str:
        made = self.ask("POST", "/auth/tokens", {"name": name, "scopes": list(scopes)})
        token: str = made["token"]
        return token

    def make_tokens(self, count: int, scopes_each: int) -> None:
        """Make tokens of many scopes, none of which permits what is measured."""

        def make(number: int) -> None:
            scopes = [f"append:tenant-{number}/stream-{place}-*" for place in range(scopes_each)]
            self.make_token(f"tenant-{number}", scopes)

        with ThreadPoolExecutor(_MAKERS) as makers:
            list(makers.map(make, range(count)))

    def limit(self, kind: str, name: str, **limits: int) -> None:
        self.ask("PUT", f"/cluster/limits/{kind}/{name}", limits)


@contextmanager
def running(
    data_dir: Path, core: int | None, *, mode: str = "required", settings: str = ""
) -> Iterator[Secured]:
    """A server on what may be in a directory already; `settings` are lines of ``[server]``."""
    data_dir.mkdir(parents=True, exist_ok=True)
    port = free_port()
    config = data_dir / "streamd.toml"
    config.write_text(f'[auth]\nmode = "{mode}"\nroot_token = "{ROOT}"\n[server]\n{settings}\n')
    command = [*Streamd().command(port, data_dir / "data"), "--config", str(config)]
    process = ServerProcess(command, port=port, core=core, log=data_dir / "log")
    try:
        process.wait_until_answering("/healthz", accept_missing=True)
        yield Secured(process)
    finally:
        process.stop()


@dataclass
class Flood:
    """What a hostile client got, by status and in connections, and its processor time. Known once
    it has ended."""

    got: dict[str, int]
    cpu_s: float


@contextmanager
def flooded(
    server: Secured, cores: Cores, behaviour: str, *, target: str, connections: int, token: str
) -> Iterator[Flood]:
    """A hostile client at work (`bench.flood`)."""
    command = [
        sys.executable, "-m", "bench.flood", "--port", str(server.port),
        "--behaviour", behaviour, "--target", target,
        "--connections", str(connections), "--token", token,
    ]  # fmt: skip
    flood = Flood({}, 0.0)
    with pinned(cores.load):
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if process.stdout.readline() != "ready\n":
            raise BenchError("the hostile client ended at its start")
        before_s = process_cpu_s(process.pid)
        yield flood
        flood.cpu_s = process_cpu_s(process.pid) - before_s
        process.stdin.close()
        words = process.stdout.readline().split()
        pairs = (word.partition("=") for word in words)
        flood.got = {name: int(count) for name, _, count in pairs}
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def fresh(directory: Path) -> Path:
    """The directory, empty."""
    with suppress(FileNotFoundError):
        shutil.rmtree(directory)
    directory.mkdir(parents=True)
    return directory
