"""`python -m bench.logs`: appends of 100 bytes to one stream, beside logs of other kinds.

streamd, Redis and NATS JetStream, each told to sync an append before it acknowledges it. Each has a
protocol of its own, so no client speaks to all. What sends is one loop for all, which knows of each
only what an append looks like and how its answer ends: it sends a connection's next append when the
last one is answered. It tells how much of a core it took itself: near 100 % the rate is its own.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple, Protocol

import click

from bench.errors import BenchError, ToolMissing
from bench.lines import own_directory, print_table
from bench.machine import Cores, cpu_model, disk_note, pinned
from bench.process import free_port

_DATA_DIR = Path(__file__).parents[1] / "build" / "bench"
_PAYLOAD = b"." * 100
_CONNECTIONS = 64
_WARM_UP_S, _DURATION_S = 1.0, 5.0
_START_TIMEOUT_S = _ANSWER_TIMEOUT_S = 30.0
_POLL_S = 0.02
_PIECE_BYTES = 64 * 1024


class Log(Protocol):
    """A server, and what of its protocol the load needs."""

    program: str
    creation: bytes  # makes the stream; nothing where an append does

    def command(self, port: int, directory: Path) -> list[str]:
        """How to start it on 127.0.0.1."""

    def greeting(self, connection: int) -> bytes:
        """What a connection says first; answered by what the server says first."""

    def append(self, connection: int) -> bytes:
        """One append."""

    def is_answer(self, received: bytes) -> bool:
        """Whether the answer to an append is complete."""


class Streamd:
    """This project's server, as installed beside the interpreter that runs the benchmark."""

    program = str(Path(sys.executable).with_name("streamd"))
    _head = b"/v1/stream/bench/log HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
    creation = b"PUT " + _head + b"Content-Length: 0\r\n\r\n"

    def command(self, port: int, directory: Path) -> list[str]:
        listen = f"127.0.0.1:{port}"
        return [self.program, "serve", "--listen", listen, "--data-dir", str(directory)]

    def greeting(self, connection: int) -> bytes:
        return b""

    def append(self, connection: int) -> bytes:
        return b"POST %bContent-Length: %d\r\n\r\n%b" % (self._head, len(_PAYLOAD), _PAYLOAD)

    def is_answer(self, received: bytes) -> bool:
        return received.startswith(b"HTTP/1.1 20") and received.endswith(b"\r\n\r\n")


class Redis:
    """Redis with a stream, and an append-only file that is synced before it answers."""

    program = "redis-server"
    creation = b""

    def command(self, port: int, directory: Path) -> list[str]:
        place = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(directory)]
        return [
            self.program,
            *place,
            "--save",
            "",
            *["--appendonly", "yes", "--appendfsync", "always"],
        ]

    def greeting(self, connection: int) -> bytes:
        return b""

    def append(self, connection: int) -> bytes:
        words = b"XADD", b"log", b"*", b"d", _PAYLOAD
        return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)

    def is_answer(self, received: bytes) -> bool:
        return received.startswith(b"$") and received.count(b"\r\n") == 2


class Nats:
    """NATS with a JetStream in files, which syncs each of them before it answers."""

    program = "nats-server"
    _stream = json.dumps({"name": "log", "subjects": ["log"], "storage": "file"}).encode()
    creation = b"PUB $JS.API.STREAM.CREATE.log to.0 %d\r\n%b\r\n" % (len(_stream), _stream)

    def command(self, port: int, directory: Path) -> list[str]:
        settings = directory / "nats.conf"
        store = f'jetstream {{ store_dir: "{directory}", sync_interval: always }}'
        settings.write_text(f"listen: 127.0.0.1:{port}\n{store}\n")
        return [self.program, "--config", str(settings)]

    def greeting(self, connection: int) -> bytes:
        return b'CONNECT {"verbose":false}\r\nSUB to.%d 1\r\n' % connection

    def append(self, connection: int) -> bytes:
        return b"PUB log to.%d %d\r\n%b\r\n" % (connection, len(_PAYLOAD), _PAYLOAD)

    def is_answer(self, received: bytes) -> bool:
        # The server asks now and then, on its own account, whether the connection lives.
        return received.replace(b"PING\r\n", b"").endswith(b"}\r\n")


LOGS: dict[str, Log] = {"streamd": Streamd(), "redis": Redis(), "nats": Nats()}


class Rate(NamedTuple):
    """Appends a second, the median latency in ms, and the load's own share of a core in percent."""

    appends_s: float
    p50_ms: float
    load_percent: float


@contextmanager
def running(log: Log, directory: Path, core: int | None) -> Iterator[int]:
    """A server on a port of its own, which it yields. Raises `BenchError`."""
    if shutil.which(log.program) is None:
        raise ToolMissing(f"{log.program} is not on the PATH")
    port = free_port()
    with pinned(core), (directory / "output").open("wb") as output:
        process = subprocess.Popen(
            log.command(port, directory), stdout=output, stderr=output, start_new_session=True
        )
    try:
        _wait_until_listening(log, port, process)
        yield port
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _wait_until_listening(log: Log, port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_TIMEOUT_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(_POLL_S)
        else:
            return
    raise BenchError(f"{log.program} does not listen")


def measure(log: Log, port: int, connections: int, duration_s: float) -> Rate:
    """Append on each connection, one append after the other. Raises `BenchError`."""
    with ExitStack() as stack:
        sockets: dict[int, socket.socket] = {}
        appends: dict[int, bytes] = {}
        for number in range(connections):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            connection.settimeout(_ANSWER_TIMEOUT_S)
            if greeting := log.greeting(number):
                connection.recv(_PIECE_BYTES)
                connection.sendall(greeting)
            if number == 0 and log.creation:
                connection.sendall(log.creation)
                connection.recv(_PIECE_BYTES)
            sockets[connection.fileno()] = connection
            appends[connection.fileno()] = log.append(number)
        _run(log, sockets, appends, min(_WARM_UP_S, duration_s))
        before_s = time.process_time()
        latencies_s = _run(log, sockets, appends, duration_s)
        load_s = time.process_time() - before_s
    return Rate(
        len(latencies_s) / duration_s,
        statistics.median(latencies_s) * 1000,
        load_s / duration_s * 100,
    )


def _run(
    log: Log, sockets: dict[int, socket.socket], appends: dict[int, bytes], duration_s: float
) -> list[float]:
    """The latency of each append, until a time has passed and each was answered."""
    poll = select.epoll()
    sent_at: dict[int, float] = {}
    received = dict.fromkeys(sockets, b"")
    latencies_s = []
    for number, connection in sockets.items():
        poll.register(number, select.EPOLLIN)
        sent_at[number] = time.monotonic()
        connection.sendall(appends[number])
    end = time.monotonic() + duration_s
    while sent_at:
        ready = poll.poll(_ANSWER_TIMEOUT_S)
        if not ready:
            raise BenchError(f"{log.program} does not answer: {received}")
        for number, _ in ready:
            piece = sockets[number].recv(_PIECE_BYTES)
            received[number] += piece
            if not log.is_answer(received[number]):
                if not piece:
                    raise BenchError(f"{log.program} hung up: {received[number]!r}")
                continue
            now = time.monotonic()
            latencies_s.append(now - sent_at.pop(number))
            received[number] = b""
            if now < end:
                sent_at[number] = now
                sockets[number].sendall(appends[number])
    poll.close()
    return latencies_s


def lines(names: list[str], rounds: int, duration_s: float) -> Iterator[str]:
    """The machine, and a row of each round of each log."""
    cores = Cores.choose()
    yield f"{cpu_model()}; {cores.describe()}; data on {disk_note(_DATA_DIR)}"
    yield f"{'':<10}{'64 connections':>16}{'p50':>10}{'load':>8}{'one connection, p50':>22}"
    for _ in range(rounds):
        for name in names:
            log = LOGS[name]
            with (
                own_directory(_DATA_DIR, "logs-", needs_wrk=False) as directory,
                running(log, directory, cores.server) as port,
                pinned(cores.load),
            ):
                lone = measure(log, port, 1, duration_s)
                many = measure(log, port, _CONNECTIONS, duration_s)
            many_of_it = (
                f"{many.appends_s:>14,.0f}/s{many.p50_ms:>7.2f} ms{many.load_percent:>6.0f} %"
            )
            yield f"{name:<10}{many_of_it}{lone.p50_ms:>19.2f} ms"


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--only", type=click.Choice([*LOGS]), multiple=True, help="By default all.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--duration-s", type=float, default=_DURATION_S, show_default=True)
def main(only: tuple[str, ...], rounds: int, duration_s: float) -> None:
    """Measure appends to one stream beside Redis and NATS JetStream."""
    _DATA_DIR.mkdir(parents=True, exist_ok=True)
    try:
        print_table(lines([*(only or LOGS)], rounds, duration_s), _DATA_DIR)
    except BenchError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
