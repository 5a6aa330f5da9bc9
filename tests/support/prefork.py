"""Servers and other commands, forked from a process that has already imported what they import.

The imports take a third to three quarters of a second of a processor, several times as long as the
rest of a start, and the tests start hundreds of servers and run as many commands. So each process
of the tests has one parent of them, which imports once and then forks. A forked server differs from
``python -m streamd serve`` in the command line that `ps` shows, and in that it ends without tearing
down the interpreter. Servers under a wrapper, such as strace, and workers are started as usual.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib import import_module
from typing import IO, Any, NoReturn

from tests.support import tether

_MAX_REQUEST_BYTES = 128 * 1024
# Variables that matter when the interpreter starts, or when a module is imported.
_AT_START = ("PYTHON", "LD_", "STREAMD_PURE_PYTHON")


def start(
    arguments: Sequence[str],
    environment: Mapping[str, str],
    output: IO[bytes],
    wrapper: Sequence[str] = (),
) -> Forked | subprocess.Popen[bytes]:
    """Start ``streamd`` in a session of its own, which ends with this process at the latest.

    `environment` is added to this process's. `wrapper` is put before the command.
    """
    everything = {**os.environ, **environment}
    if wrapper or any(name.startswith(_AT_START) for name in environment):
        command = [*wrapper, sys.executable, "-m", "streamd", *arguments]
        return tether.start(command, env=everything, stdout=output, stderr=output)
    with open(os.devnull, "rb") as nothing:
        return Forked(arguments, everything, (nothing, output, output))


def run(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    given: bytes = b"",
    timeout_s: float = 60.0,
) -> subprocess.CompletedProcess[bytes]:
    """Run a command of ``streamd`` to its end, however it ends, with `given` on standard input.

    `environment` is all that it gets; without one, it gets this process's. Raises
    `subprocess.TimeoutExpired`.
    """
    environment = os.environ if environment is None else environment
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        read, write = os.pipe()
        with os.fdopen(read, "rb") as source:
            forked = Forked(arguments, environment, (source, output, errors))
        feeder = threading.Thread(target=_feed, args=(write, given))
        feeder.start()
        try:
            status = forked.wait(timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(forked.pid, signal.SIGKILL)
            raise
        finally:
            feeder.join()
        said = [os.pread(file.fileno(), _size(file), 0) for file in (output, errors)]
    return subprocess.CompletedProcess(["streamd", *arguments], status, *said)


def run_text(
    *arguments: str, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """`run`, with what the command prints as text."""
    ran = run(arguments, environment=environment)
    output, errors = ran.stdout.decode(), ran.stderr.decode()
    return subprocess.CompletedProcess(ran.args, ran.returncode, output, errors)


def _feed(pipe: int, given: bytes) -> None:
    """Write as much as the other end takes, and close the pipe."""
    with suppress(BrokenPipeError), os.fdopen(pipe, "wb") as target:
        target.write(given)


def _size(file: IO[bytes]) -> int:
    return os.fstat(file.fileno()).st_size


class Forked:
    """A forked server or command, with what `subprocess.Popen` has of a process."""

    def __init__(
        self,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        streams: tuple[IO[bytes], IO[bytes], IO[bytes]],
    ) -> None:
        """`streams` are its standard input, output and errors."""
        request = {
            "arguments": list(arguments),
            "environment": dict(environment),
            "directory": os.getcwd(),
        }
        read, write = os.pipe()
        self._told = os.fdopen(read, "rb", buffering=0)
        try:
            descriptors = [write, *(stream.fileno() for stream in streams)]
            socket.send_fds(_parent(os.getpid()), [json.dumps(request).encode()], descriptors)
        finally:
            os.close(write)
        self.pid = int(self._told.readline())
        self.returncode: int | None = None
        # Several threads may wait for it.
        self._lock = threading.Lock()
        tether.hold(self.pid)

    def poll(self) -> int | None:
        """The exit status, negative for a signal, or None while it runs."""
        return self._status_within(0)

    def wait(self, timeout: float | None = None) -> int:
        """The exit status. Raises `subprocess.TimeoutExpired`."""
        status = self._status_within(timeout)
        if status is None:
            raise subprocess.TimeoutExpired("streamd", timeout or 0)
        return status

    def _status_within(self, timeout_s: float | None) -> int | None:
        if self.returncode is None:
            try:
                is_over = bool(select.select([self._told], [], [], timeout_s)[0])
            except ValueError:  # Another thread has just read it, and closed the pipe.
                is_over = True
            with self._lock:
                if is_over and self.returncode is None:
                    self.returncode = int(self._told.readline())
                    self._told.close()
        return self.returncode


@cache
def _parent(_: int) -> socket.socket:
    """The connection to the parent of servers of the process with this id."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        number = theirs.fileno()
        tether.start([sys.executable, "-m", __name__, str(number)], pass_fds=[number])
    return ours


# -- in the parent of servers ----------------------------------------------------------------


def _fork_for(requests: socket.socket) -> None:
    """Fork a process for each request, until nobody can ask any more.

    The pipe that comes with a request gets a line with the process's id, then one with its status.
    """
    with selectors.DefaultSelector() as selector:
        selector.register(requests, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is requests:
                    content, descriptors, _, _ = socket.recv_fds(requests, _MAX_REQUEST_BYTES, 4)
                    if not content:
                        return
                    request, (told, *streams) = json.loads(content), descriptors
                    _load(request["arguments"])
                    gc.freeze()  # so that no fork looks through what was imported, and copies it
                    if not (pid := os.fork()):
                        _become(request, told, streams)
                    for stream in streams:
                        os.close(stream)
                    selector.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, told))
                else:
                    selector.unregister(key.fd)
                    os.close(key.fd)
                    pid, told = key.data
                    _, status = os.waitpid(pid, 0)
                    with suppress(BrokenPipeError), os.fdopen(told, "wb") as pipe:
                        pipe.write(b"%d\n" % os.waitstatus_to_exitcode(status))


def _load(arguments: list[str]) -> None:
    """Import what the command needs, unless another has needed it."""
    import click

    from streamd.commands.cli import main

    command = next(iter(arguments), "serve")
    main.get_command(click.Context(main), command)
    import_module("streamd.config.loading")
    if command != "serve":
        # A client does so when it connects.
        import_module("streamd.client.connecting")
        import_module("httpcore")


def _become(request: dict[str, Any], told: int, streams: list[int]) -> NoReturn:
    """Run the command that was asked for, in the forked process."""
    status: object = 1
    try:
        os.setsid()
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
        os.write(told, b"%d\n" % os.getpid())
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.chdir(request["directory"])
        os.environ.clear()
        os.environ.update(request["environment"])
        sys.argv = ["streamd", *request["arguments"]]
        runpy.run_module("streamd", run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        status = ended.code
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status if isinstance(status, int) else int(status is not None))


if __name__ == "__main__":
    import streamd.commands.serve
    import streamd.objectstore.s3  # noqa: F401

    _fork_for(socket.socket(fileno=int(sys.argv[1])))
