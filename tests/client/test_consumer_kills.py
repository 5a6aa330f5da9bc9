"""A consumer that is killed at any moment handles every message, and repeats only the last ones."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from uuid import uuid4

import pytest

from streamd.client import Client
from tests.support.server_process import ServerProcess

MESSAGES = 24
PROGRAM = """
import sys
from streamd.client import Client, FilePositions, StreamPositions

url, name, kind, where = sys.argv[1:]
positions = FilePositions(where) if kind == "file" else StreamPositions(where, compact_every=5)
with Client(url) as client, client.stream(name).consumer("me", positions=positions) as consumer:
    for message in consumer:
        print(message, flush=True)
        consumer.commit()
        print("kept", message, flush=True)
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("server") / "data") as server:
        yield server


@pytest.mark.long
@pytest.mark.parametrize("kind", ["file", "stream"])
def test_a_kill_at_any_moment_loses_no_message_and_repeats_none_that_was_kept(
    server: ServerProcess, tmp_path: Path, kind: str
) -> None:
    random = Random(7)
    name = f"demo/{uuid4()}"
    where = str(tmp_path / "positions") if kind == "file" else f"positions/{uuid4()}"
    with Client(server.url) as client:
        stream = client.stream(name)
        stream.create("application/json")
        for start in range(0, MESSAGES, 4):
            stream.append_json(*range(start, start + 4))
        stream.close()
    command = [sys.executable, "-c", PROGRAM, server.url, name, kind, where]
    last = kept = -1
    starts = 0
    while kept < MESSAGES - 1:
        starts += 1
        lines = killed_after(command, random.randrange(1, 14))
        handled = [int(line) for line in lines if not line.startswith("kept")]
        if not handled:
            # The one before was killed when it had kept the last position, and not yet said so.
            assert last == MESSAGES - 1
            break
        # It goes on where the position was kept, at the latest that it said so, or one later.
        assert handled[0] in (kept + 1, kept + 2)
        assert handled[0] <= last + 1
        assert handled == list(range(handled[0], handled[0] + len(handled)))
        last = handled[-1]
        kept = max([kept, *(int(line.split()[1]) for line in lines if line.startswith("kept"))])
    assert starts > 2


def killed_after(command: list[str], count: int) -> list[str]:
    """The lines that a program wrote until it was killed, once it had written so many, or ended."""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if len(lines) == count:
                process.kill()
    return lines
