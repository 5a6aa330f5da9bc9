"""`python -m tests.state_db.copier URL STREAM FILE [END]`: copy a stream into SQLite, once.

With an END it is killed: a number is that of the statement at whose beginning SQLite kills the
process, as `kill -9` would. `copy:SECONDS` is processor time since it opened the file, after which
the kernel ends it wherever it is; `compact:SECONDS` is the same for publishing a snapshot. It
prints `copied` at its end.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from collections.abc import Callable
from typing import Any

import anyio

from streamd.client import AsyncClient, AsyncStream
from streamd.state.db import SQLite, compact
from tests.state_db.chat import Chat


class DyingConnection(sqlite3.Connection):
    """A connection that counts its statements, and kills the process at one of them."""

    left = 0

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.set_trace_callback(self._count)

    @classmethod
    def _count(cls, _statement: str) -> None:
        cls.left -= 1
        if cls.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def on_connect(connect: Callable[..., sqlite3.Connection]) -> None:
    """Open databases by this function."""
    sqlite3.connect = connect  # type: ignore[assignment]


def end_after(seconds: float) -> None:
    """Let the kernel end this process, which has no handler for the signal."""
    signal.setitimer(signal.ITIMER_PROF, seconds)


async def copy(stream: AsyncStream, path: str) -> None:
    db = Chat(stream, store=SQLite(path))
    await db.preload()
    await db.close()


async def main(*words: str) -> None:
    url, name, path, end = (*words, "")[:4]
    task, _, seconds = end.rpartition(":")
    connect = sqlite3.connect
    if end and not task:
        DyingConnection.left = int(end)
        on_connect(lambda *args, **options: connect(*args, factory=DyingConnection, **options))
    elif task == "copy":

        def timed(*args: Any, **options: Any) -> sqlite3.Connection:
            end_after(float(seconds))
            connection: sqlite3.Connection = connect(*args, **options)
            return connection

        on_connect(timed)
    async with AsyncClient(url) as client:
        stream = client.stream(name)
        if task == "compact":
            await stream.head()
            end_after(float(seconds))
            await compact(stream, longer_than=0)
        else:
            await copy(stream, path)
        signal.setitimer(signal.ITIMER_PROF, 0)
    print("copied", flush=True)


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
