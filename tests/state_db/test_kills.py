"""A process is killed while it copies or compacts a stream: no change is lost or repeated."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any

import anyio
import pytest

from streamd.client import AsyncClient
from streamd.state.db import compact
from tests.state.events import ABSENT, batch, change, control
from tests.state_db.chat import Chat, Stream
from tests.state_db.copies import assert_true, kept, record_number, state_after
from tests.support.long import first_quick

ROOT = Path(__file__).parents[2]


def copier(stream: Stream, path: Path, *more: str) -> subprocess.Popen[str]:
    words = [stream.server_url, stream.name, str(path), *more]
    return subprocess.Popen(
        [sys.executable, "-m", "tests.state_db.copier", *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def random_events(random: Random, count: int) -> list[Any]:
    events: list[Any] = []
    for number in range(count):
        if random.random() < 0.01:
            events.append(control("reset"))
            continue
        operation = random.choice(["insert", "update", "upsert", "delete"])
        value = ABSENT if operation == "delete" else {"name": f"{number}-{'x' * 1500}"}
        events.append(change(operation, str(random.randrange(20)), value))
    return events


@pytest.mark.long
def test_a_kill_at_any_statement_neither_loses_nor_repeats_a_change(
    stream: Stream, tmp_path: Path
) -> None:
    """Each process is killed a little further on in its work, until one comes to the end."""
    path, random = tmp_path / "state.db", Random(15)
    events = random_events(random, 2000)  # three chunks of a read
    for at in range(0, len(events), 500):
        stream.append(batch(*events[at : at + 500]))
    statement, found = 1, []
    while True:
        with copier(stream, path, str(statement)) as process:
            printed, _ = process.communicate(timeout=60)
        found.append(assert_true(path, events).events)
        if process.returncode == 0:
            break
        assert (process.returncode, printed) == (-signal.SIGKILL, "")
        statement += random.randrange(2, 12)
    assert printed == "copied\n"
    assert found[-1] == len(events)
    assert found == sorted(found)
    assert len(set(found)) > 2, "kills fell between commits"


@pytest.mark.long
def test_a_kill_from_outside_neither_loses_nor_repeats_a_change(
    stream: Stream, tmp_path: Path
) -> None:
    path, random = tmp_path / "state.db", Random(16)
    events = random_events(random, 6000)
    done = 0
    while done < len(events):
        stream.append(batch(*events[done : done + 1500]))
        done += 1500
        with copier(stream, path) as process:
            seen = kept(path)
            while process.poll() is None and kept(path) == seen:
                pass
            process.kill()
        assert_true(path, events)
    with copier(stream, path) as process:
        assert process.communicate(timeout=60)[0] == "copied\n"
    assert assert_true(path, events).events == len(events)


def fill(stream: Stream, events: list[Any]) -> None:
    for at in range(0, len(events), 250):
        stream.append(batch(*events[at : at + 250]))


def copy_now(stream: Stream, path: Path) -> None:
    with copier(stream, path) as process:
        assert process.communicate(timeout=60)[0] == "copied\n"


def read(_stream: Stream, _path: Path) -> str:
    """The copy begins with the stream's first message."""
    return "copy"


def rebuild(stream: Stream, path: Path) -> str:
    """The copy was kept for another schema."""
    copy_now(stream, path)
    with closing(sqlite3.connect(path)) as file, file:
        file.execute("UPDATE copy SET schema = 'another'")
    return "copy"


def adopt(stream: Stream, path: Path) -> str:
    """A snapshot has replaced messages that the copy lacks."""
    copy_now(stream, path)
    fill(stream, random_events(Random(18), 500))

    async def trim() -> None:
        async with AsyncClient(stream.server_url) as client:
            assert await compact(client.stream(stream.name), longer_than=0)

    anyio.run(trim)
    fill(stream, random_events(Random(19), 2500))
    return "copy"


def publish(_stream: Stream, _path: Path) -> str:
    """The process publishes a snapshot, and the server trims the stream."""
    return "compact"


def moments(seed: int) -> Iterator[float]:
    """Times of a processor in seconds, each a little later."""
    random, moment_s = Random(seed), 0.0
    while True:
        moment_s += random.uniform(0.002, 0.01)
        yield moment_s


@pytest.mark.parametrize("prepare", first_quick([read, rebuild, adopt, publish]))
def test_a_kill_at_any_moment_neither_loses_nor_repeats_a_change(
    stream: Stream, tmp_path: Path, prepare: Callable[[Stream, Path], str]
) -> None:
    """Within a statement, a write to the file, or a request: the kernel ends the process when it
    has used up its time."""
    path, events = tmp_path / "state.db", random_events(Random(17), 4500)
    fill(stream, events)
    task = prepare(stream, path)
    if prepare is adopt:
        events += random_events(Random(18), 500) + random_events(Random(19), 2500)
    kills = 0
    for moment_s in moments(15):
        with copier(stream, path, f"{task}:{moment_s}") as process:
            process.communicate(timeout=60)
        if path.exists():
            found = kept(path)
            assert found.rows == state_after(events[: record_number(found.next_offset)])
        if process.returncode == 0:
            break
        assert process.returncode == -signal.SIGPROF
        kills += 1
    assert kills > 1, "it ended before a kill fell into its work"
    assert_readers_see(stream, events)


def assert_readers_see(stream: Stream, events: list[Any]) -> None:
    """Check what a reader materializes that begins now."""

    async def main() -> None:
        async with AsyncClient(stream.server_url) as client:
            db = Chat(client.stream(stream.name))
            await db.preload()
            await db.close()
        expected = {key: row["name"] for (_, key), row in state_after(events).items()}
        assert {key: user.name for key, user in db.users.items()} == expected

    anyio.run(main)
