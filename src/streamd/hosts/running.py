"""Runs a command on this machine to its end, within a time, and keeps the end of its output."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress

import trio

from streamd.config.names import PREFIX
from streamd.process.cures import cure
from streamd.streams.operations.hosts import HostError

MAX_OUTPUT_BYTES = 64 * 1024
# From SIGTERM to SIGKILL, for a command whose time is over.
_GRACE_S = 2.0
# For reading the rest of the output: what a command started may hold the pipe open for ever.
_REST_S = 0.5
_SHOWN_LINES = 5
_SHOWN_CHARACTERS = 200


async def run_command(arguments: Sequence[str], *, timeout_s: float) -> str:
    """Run a command; the last `MAX_OUTPUT_BYTES` of its output and errors.

    It has no input, and none of this process's ``STREAMD_…`` variables: they are this node's, and
    some are secret. It and what it started in its process group end with a cancellation. What it
    leaves running must not write to its output. Raises `HostError` if it cannot be started, fails,
    or takes longer than `timeout_s`.
    """
    try:
        process = await trio.lowlevel.open_process(
            list(arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={k: v for k, v in os.environ.items() if not k.startswith(PREFIX)},
        )
    except OSError as error:
        raise HostError(
            f"`{shlex.join(arguments)}` cannot be started: {error.strerror}. {cure(error.errno)}"
        ) from error
    output = bytearray()
    try:
        with trio.move_on_after(timeout_s) as limit:
            await _follow(process, output)
    finally:
        if process.poll() is None:
            await _end(process)
        assert process.stdout is not None
        with trio.CancelScope(shield=True):
            await process.stdout.aclose()
    text = output.decode(errors="replace")
    if limit.cancelled_caught:
        raise HostError(_failure(arguments, f"did not end within {timeout_s:g} s", text))
    if process.returncode != 0:
        raise HostError(_failure(arguments, _ended(process.returncode or 0), text))
    return text


async def _follow(process: trio.Process, output: bytearray) -> None:
    """Read what a process writes until it has ended."""
    stream = process.stdout
    assert stream is not None

    async def read() -> None:
        async for data in stream:
            output.extend(data)
            del output[:-MAX_OUTPUT_BYTES]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(read)
        await process.wait()
        nursery.cancel_scope.deadline = trio.current_time() + _REST_S


async def _end(process: trio.Process) -> None:
    """End a process and its group, the process at the latest with SIGKILL."""
    with trio.CancelScope(shield=True):
        _signal(process, signal.SIGTERM)
        with trio.move_on_after(_GRACE_S):
            await process.wait()
        _signal(process, signal.SIGKILL)
        await process.wait()


def _signal(process: trio.Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _ended(status: int) -> str:
    return f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"


def _failure(arguments: Sequence[str], what: str, output: str) -> str:
    """A sentence that names a command and how it ended, with its last lines."""
    lines = [_printable(line) for line in output.splitlines() if line.strip()]
    last = "; ".join(lines[-_SHOWN_LINES:])
    return f"`{shlex.join(arguments)}` {what}{': ' if last else ''}{last}"


def _printable(line: str) -> str:
    """A line without what could act on a terminal, as long as a message should have it."""
    clean = "".join(one if one.isprintable() else "?" for one in line.strip())
    return clean[:_SHOWN_CHARACTERS]
