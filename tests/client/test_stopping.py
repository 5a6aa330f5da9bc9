"""Commands that a signal stops while they hold data: nothing is lost without a word."""

from __future__ import annotations

import fcntl
import json
import re
import signal
import subprocess
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path

import pytest

from tests.client.running import Shell, heard
from tests.support.breaking_off import BUSY, breaking_off
from tests.support.server_process import ServerProcess

_DEADLINE_S = 30.0


@contextmanager
def lines_without_end(process: subprocess.Popen[bytes], pause_s: float) -> Iterator[list[int]]:
    """Write numbers to a process, one a line, until the block ends; returns those written."""
    assert process.stdin is not None
    source, written, over = process.stdin, list[int](), threading.Event()

    def write() -> None:
        for number in count():
            if over.wait(pause_s):
                return
            try:
                source.write(b"%d\n" % number)
            except OSError:
                return
            written.append(number)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield written
    finally:
        over.set()
        thread.join()


def wait_for_lines(streamd: Shell, name: str, least: int) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while len(streamd("read", name).splitlines()) < least:
        assert time.monotonic() < deadline, f"fewer than {least} lines came"


def test_lines_that_keep_coming_are_appended_as_they_come(streamd: Shell) -> None:
    """A line every 10 ms left no pause in which an earlier release sent the lines before it."""
    streamd("create", "steady")
    with (
        streamd.started("tail", "-f", "--from-start", "steady") as reader,
        streamd.started("append", "steady", "--lines") as writer,
        lines_without_end(writer, 0.01),
    ):
        expected = b"".join(b"%d\n" % number for number in range(20))
        assert heard(reader, len(expected)) == expected


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        pytest.param(signal.SIGINT, "text", marks=pytest.mark.long),
        (signal.SIGTERM, "json"),
        pytest.param(signal.SIGHUP, "text", marks=pytest.mark.long),
    ],
    ids=["SIGINT", "SIGTERM", "SIGHUP"],
)
def test_a_signal_ends_the_input_and_what_was_read_is_stored(
    streamd: Shell, number: signal.Signals, kind: str
) -> None:
    name = f"stopped-{kind}-{number.name}"
    streamd("create", name, "-t", kind)
    with streamd.started("append", name, "--lines", "--close") as writer:
        with lines_without_end(writer, 0.005) as written:
            wait_for_lines(streamd, name, 1)
            writer.send_signal(number)
            assert writer.wait(_DEADLINE_S) == -number
        stored = [int(line) for line in streamd("read", name).splitlines()]
        assert writer.stderr is not None
        assert writer.stderr.read() == b""
        assert writer.stdin is not None
        # What it had not read yet is in the pipe, where the shell's other commands find it.
        assert stored == written[: len(stored)]
        assert not json.loads(streamd("head", name, "--json"))["closed"]


@pytest.mark.long
def test_all_lines_that_were_read_are_stored(streamd: Shell) -> None:
    """The pipe is empty when the signal comes, so all were read."""
    streamd("create", "drained")
    for number in range(4):
        with streamd.started("append", "drained", "--lines") as writer:
            assert writer.stdin is not None
            writer.stdin.write(b"%d\n" % number)
            wait_until_read(writer)
            writer.send_signal(signal.SIGTERM)
            assert writer.wait(_DEADLINE_S) == -signal.SIGTERM
    assert streamd("read", "drained").split() == [b"%d" % number for number in range(4)]


def wait_until_read(process: subprocess.Popen[bytes]) -> None:
    """Wait until the process has read all that was written to it."""
    assert process.stdin is not None
    deadline = time.monotonic() + _DEADLINE_S
    unread = b"\1"
    while any(unread):
        assert time.monotonic() < deadline, "it does not read"
        unread = fcntl.ioctl(process.stdin.fileno(), termios.FIONREAD, bytes(4))


def test_the_beginning_of_a_line_is_not_appended_and_not_forgotten(streamd: Shell) -> None:
    streamd("create", "cut", "-t", "json")
    with streamd.started("append", "cut", "--lines") as writer:
        assert writer.stdin is not None
        writer.stdin.write(b'1\n{"half": ')
        wait_for_lines(streamd, "cut", 1)
        writer.send_signal(signal.SIGINT)
        assert writer.wait(_DEADLINE_S) == -signal.SIGINT
        assert writer.stderr is not None
        assert writer.stderr.read() == (
            b"streamd: cut: stopped; not confirmed as stored: the beginning of a line\n"
        )
    assert streamd("read", "cut") == b"1\n"


def test_input_whose_end_was_cut_off_is_not_appended_but_counted(streamd: Shell) -> None:
    streamd("create", "piece", "-t", "bytes")
    with streamd.started("append", "piece", "--close") as writer:
        assert writer.stdin is not None
        writer.stdin.write(bytes((1 << 20) + 1000))
        wait_until_read(writer)
        writer.send_signal(signal.SIGTERM)
        assert writer.wait(_DEADLINE_S) == -signal.SIGTERM
        assert writer.stderr is not None
        told = re.fullmatch(
            rb"streamd: piece: stopped; not confirmed as stored: (\d+) bytes that were read\n",
            writer.stderr.read(),
        )
    assert told is not None
    assert len(streamd("read", "piece")) + int(told[1]) == (1 << 20) + 1000


@contextmanager
def writer_of_a_stopped_server(directory: Path, lines: bytes) -> Iterator[subprocess.Popen[bytes]]:
    """A command that has read these lines, and whose server has stopped before it got them."""
    with ServerProcess(directory) as server:
        streamd = Shell(server.url)
        streamd("create", "log")
        with streamd.started("append", "log", "--lines") as writer:
            assert writer.stdin is not None
            writer.stdin.write(b"one\n")
            wait_for_lines(streamd, "log", 1)
            server.signal(signal.SIGSTOP)
            try:
                writer.stdin.write(lines)
                wait_until_read(writer)
                yield writer
            finally:
                server.signal(signal.SIGCONT)


def test_lines_that_were_not_confirmed_are_counted_without_the_server(tmp_path: Path) -> None:
    with writer_of_a_stopped_server(tmp_path / "data", b"two\nthree\n") as writer:
        writer.send_signal(signal.SIGINT)
        assert writer.wait(_DEADLINE_S) == -signal.SIGINT
        assert writer.stderr is not None
        assert writer.stderr.read().splitlines()[-1] == (
            b"streamd: log: stopped; not confirmed as stored: 2 lines that were read"
        )


@pytest.mark.long
def test_a_second_signal_ends_the_command_before_its_time_is_over(tmp_path: Path) -> None:
    """Its time never ends here: a process inherits which signals are blocked."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    try:
        with writer_of_a_stopped_server(tmp_path / "data", b"two\n") as writer:
            deadline = time.monotonic() + _DEADLINE_S
            while writer.poll() is None:
                assert time.monotonic() < deadline, "the second signal does not end it"
                writer.send_signal(signal.SIGINT)
                with suppress(subprocess.TimeoutExpired):
                    writer.wait(0.1)
            assert writer.returncode == -signal.SIGINT
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


@pytest.mark.long
def test_a_signal_that_the_shell_ignores_stays_ignored(streamd: Shell) -> None:
    """As with nohup, or for a command that a script put into the background."""
    streamd("create", "kept")
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with streamd.started("append", "kept", "--lines") as writer:
            signal.signal(signal.SIGHUP, former)
            assert writer.stdin is not None
            writer.stdin.write(b"one\n")
            wait_for_lines(streamd, "kept", 1)
            writer.send_signal(signal.SIGHUP)
            writer.stdin.write(b"two\n")
            wait_for_lines(streamd, "kept", 2)
            writer.stdin.close()
            assert writer.wait(_DEADLINE_S) == 0
    finally:
        signal.signal(signal.SIGHUP, former)


# --- commands that hold output


def test_what_a_tail_has_shown_is_complete_when_it_is_stopped(streamd: Shell) -> None:
    streamd("create", "shown")
    with streamd.started("tail", "-f", "shown") as reader:
        for number in range(3):
            streamd("append", "shown", given=b"%d\n" % number)
            assert heard(reader, 2) == b"%d\n" % number, "each append at once"
        reader.send_signal(signal.SIGTERM)
        assert reader.wait(_DEADLINE_S) == -signal.SIGTERM
        assert reader.stdout is not None
        assert reader.stdout.read() == b""


def answer(data: bytes) -> bytes:
    """A part of a stream, with more to come."""
    return (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n"
        b"Stream-Next-Offset: 0000000000000001_0000000000000005\r\n"
        b"Content-Length: %d\r\n\r\n%b" % (len(data), data)
    )


def test_a_read_that_breaks_off_has_shown_all_that_it_received() -> None:
    with breaking_off(answer(b"first"), BUSY) as (url, _):
        done = Shell(url).run("read", "demo/long", "--retry-for", "0")
    assert (done.returncode, done.stdout) == (3, b"first")


def test_a_read_shows_each_part_before_it_waits_for_the_next() -> None:
    with (
        breaking_off(answer(b"first"), BUSY) as (url, _),
        Shell(url).started("read", "demo/long", "--retry-for", "600") as reader,
    ):
        assert heard(reader, 5) == b"first"
        reader.send_signal(signal.SIGINT)
        assert reader.wait(_DEADLINE_S) == -signal.SIGINT
