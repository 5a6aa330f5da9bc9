"""One measurement on one server in one round: a fresh process on a fresh data directory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.figures import Figure
from bench.machine import Cores
from bench.process import ServerProcess, free_port
from bench.results import Results, Values
from bench.servers import Server


@dataclass(frozen=True)
class Trial:
    """What a measurement is given."""

    server: Server
    cores: Cores
    data_dir: Path
    """Empty, and for this trial alone."""
    duration_s: float
    """How long to load the server."""
    idle_streams: int
    live_streams: int
    """How many streams a loaded node has, each appended to once."""
    readers: int
    """How many SSE connections to them a loaded node has."""
    results: Results
    """For remarks; values are returned."""

    def target(self, name: str) -> str:
        """The path of a stream."""
        return f"{self.server.stream_root}{name}"

    def processor_time(self, figure: Figure, used_us: float | None) -> Values:
        """The value of a figure of processor time, or none with a remark that says why."""
        if used_us is None:
            self.results.remark("this system has no /proc, so that processor times are not known")
            return {}
        return {figure: used_us}

    @contextmanager
    def launched(self) -> Iterator[ServerProcess]:
        """A server that was just started and need not answer yet; ended with the block."""
        port = free_port()
        streams = self.data_dir / "streams"
        process = ServerProcess(
            self.server.command(port, streams),
            port=port,
            core=self.cores.server,
            log=self.data_dir / "log",
        )
        try:
            yield process
        except BaseException:
            process.kill()
            raise
        process.stop()

    @contextmanager
    def running(self) -> Iterator[ServerProcess]:
        """A server that answers, without any stream."""
        with self.launched() as process:
            process.wait_until_answering(self.target("absent"), accept_missing=True)
            yield process
