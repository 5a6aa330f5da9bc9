"""`python -m tests.state_db.copier URL STREAM FILE [STATEMENT]`: copy a stream into SQLite, once.

With a STATEMENT it kills itself, as `kill -9` would, where SQLite begins the statement of that
number. It prints `copied` at its end.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from typing import Any

import anyio

from streamd.client import AsyncClient
from streamd.state.db import SQLite, StreamDB
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


async def main(url: str, name: str, path: str) -> None:
    async with AsyncClient(url) as client:
        db = StreamDB(Chat, client.stream(name), store=SQLite(path))
        await db.preload()
        await db.close()
    print("copied", flush=True)


if __name__ == "__main__":
    if len(sys.argv) > 4:
        DyingConnection.left = int(sys.argv[4])
        connect = sqlite3.connect

        def dying(*args: Any, **options: Any) -> sqlite3.Connection:
            return connect(*args, factory=DyingConnection, **options)

        sqlite3.connect = dying  # type: ignore[assignment]
    url, name, path = sys.argv[1:4]
    anyio.run(main, url, name, path)
