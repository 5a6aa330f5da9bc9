"""Exit statuses, standard output and the progress bar of the client; and, on standard error, what
a command waits for, once that takes a while."""

from __future__ import annotations

import errno
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from threading import Condition, Thread
from typing import BinaryIO, NoReturn, TextIO

from streamd.client.core.multipart import Malformed
from streamd.client.errors import (
    OffsetGone,
    OutcomeUnknown,
    StreamdError,
    StreamNotFound,
    Unavailable,
    Unreachable,
    Unsendable,
)
from streamd.client.names import BadName
from streamd.commands.lines import LineTooLong, NotJson
from streamd.commands.stopping import Stopped
from streamd.process.exits import (
    EXIT_LOCAL,
    EXIT_REFUSED,
    EXIT_UNREACHABLE,
    EXIT_USAGE,
    Failure,
    complain,
    exit_on,
)
from streamd.protocol.problems import Problem

_SHOWN_AFTER_S = 0.5
_BUFFER_BYTES = 64 * 1024

Advance = Callable[[int], None]
_TOLD_AFTER_S = 1.0
# A command that waits repeatedly prints at most one line in this time.
_QUIET_S = 60.0


class BadInput(Exception):
    """The given input cannot be sent as asked."""


@contextmanager
def exit_on_failure(subject: str | None) -> Iterator[None]:
    """End the process with the documented status and one sentence that names the subject."""
    try:
        with exit_on(partial(_failure_of, subject)):
            yield
    except BrokenPipeError:
        _die_by(signal.SIGPIPE)
    except KeyboardInterrupt:
        _die_by(signal.SIGINT)
    except Stopped as stopped:
        if message := str(stopped):
            complain(message)
        _die_by(stopped.number)


def _failure_of(subject: str | None, error: BaseException) -> Failure | None:
    about = f"{subject}: " if subject else ""
    match error:
        case Unreachable():
            return Failure(EXIT_UNREACHABLE, error.message)
        case OutcomeUnknown():
            what = error.message if error.status is None else _busy(error)
            message = f"{about}{what}; the request may have taken effect"
            return Failure(EXIT_UNREACHABLE, message)
        case Unavailable():
            return Failure(EXIT_UNREACHABLE, about + _busy(error))
        case StreamdError():
            return Failure(EXIT_REFUSED, about + _sentence(error, subject))
        case Malformed():
            return Failure(EXIT_UNREACHABLE, f"{about}{error}")
        case BadName() | BadInput() | LineTooLong() | NotJson():
            return Failure(EXIT_USAGE, str(error))
        case Unsendable():
            return Failure(EXIT_USAGE, f"this cannot be sent in a request: {error}")
        case OSError() if not isinstance(error, BrokenPipeError):
            return Failure(EXIT_LOCAL, str(error))
    return None


def _busy(refusal: StreamdError) -> str:
    return f"the server cannot serve the request now ({refusal})"


def _sentence(refusal: StreamdError, subject: str | None) -> str:
    what = f"{refusal.message or 'refused'} ({refusal.status} {refusal.code})"
    if isinstance(refusal, StreamNotFound) and subject is None:
        # An operation of a later release is the name of a stream to an earlier one.
        return f"{what}; the node's release may not know this operation"
    if isinstance(refusal, StreamNotFound):
        return f"{what}; 'streamd create {subject}' creates it"
    if refusal.code == Problem.NOT_FOUND.code:
        return f"{what}; with admin.listen a node serves operations there only: check --url"
    if isinstance(refusal, OffsetGone) and (earliest := refusal.earliest_offset):
        return f"{what}; it begins at {earliest}; 'streamd bootstrap {subject}' reads all of it"
    return what


def _die_by(number: signal.Signals) -> NoReturn:
    """End by the signal, silently, so that a shell sees the reason."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    sys.exit(128 + number)


def descriptor(stream: TextIO | None) -> int:
    """The descriptor of a standard stream. Raises `OSError` if the process has none."""
    if stream is None:
        raise OSError(errno.EBADF, "standard input or output is closed")
    return stream.fileno()


@cache
def standard_output() -> BinaryIO:
    """Standard output for bytes, always buffered.

    Under PYTHONUNBUFFERED `sys.stdout.buffer` is not, and may write less than it is given.
    """
    return open(descriptor(sys.stdout), "wb", buffering=_BUFFER_BYTES, closefd=False)


def write(data: bytes) -> None:
    """Write to standard output."""
    standard_output().write(data)


def flush() -> None:
    """Send what was written to standard output on its way."""
    standard_output().flush()


def say(line: str) -> None:
    """Print a line on standard output."""
    write(line.encode("utf-8", "surrogateescape") + b"\n")
    flush()


@contextmanager
def progress(what: str, total_bytes: int | None, *, into_stdout: bool = False) -> Iterator[Advance]:
    """Show a bar on standard error, if it is a terminal and the transfer takes a while.

    No bar is shown when the data itself goes to the terminal.
    """
    if not _is_terminal(sys.stderr) or (into_stdout and _is_terminal(sys.stdout)):
        yield lambda _: None
        return
    bar = _Bar(what, total_bytes)
    try:
        yield bar.advance
    finally:
        bar.close()


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


class _Bar:
    def __init__(self, what: str, total_bytes: int | None) -> None:
        self._what = what
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._shown_from = time.monotonic() + _SHOWN_AFTER_S
        self._update: Callable[[int], None] | None = None
        self._stop: Callable[[], None] = lambda: None

    def advance(self, more_bytes: int) -> None:
        self._done_bytes += more_bytes
        if self._update is None and time.monotonic() >= self._shown_from:
            self._show()
        if self._update is not None:
            self._update(self._done_bytes)

    def close(self) -> None:
        self._stop()

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            DownloadColumn,
            Progress,
            TextColumn,
            TimeRemainingColumn,
            TransferSpeedColumn,
        )

        shown = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        task = shown.add_task(self._what, total=self._total_bytes)
        shown.start()
        self._update = lambda done: shown.update(task, completed=done)
        self._stop = shown.stop


class _Watch:
    """Gets what is waited for, and None when that is over. Any thread may call it."""

    def __init__(self) -> None:
        self._changed = Condition()
        self._waits: dict[object, tuple[float, str]] = {}
        self._quiet_until = float("-inf")
        self._thread: Thread | None = None

    def __call__(self, key: object, what: str | None) -> None:
        with self._changed:
            if what is None:
                self._waits.pop(key, None)
                return
            since, _ = self._waits.get(key, (time.monotonic(), ""))
            self._waits[key] = since, what
            if len(self._waits) == 1:
                self._changed.notify()
            if self._thread is None:
                self._thread = Thread(target=self._run, name="streamd-watch", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        with self._changed:
            while True:
                if not self._waits:
                    self._changed.wait()
                    continue
                now = time.monotonic()
                since, what = min(self._waits.values())
                due = max(since + _TOLD_AFTER_S, self._quiet_until)
                if due <= now:
                    complain(what)
                    self._quiet_until = now + _QUIET_S
                else:
                    self._changed.wait(due - now)


watch = _Watch()


@contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """Inside, a command waits for something that takes several requests."""
    key = object()
    watch(key, f"waiting for {what}")
    try:
        yield
    finally:
        watch(key, None)
