"""How fast a cluster comes back from the cold store alone.

``python -m bench.restore [messages]`` gives a node messages (a million, unless told otherwise; 100
bytes each, over a thousand streams), which it flushes and archives as usual, into a directory, or
with ``--minio`` into a MinIO. Then its data is deleted, and ``streamd restore`` is timed from start
to end: once from the newest checkpoint, and once without any, so that the whole log is replayed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import NamedTuple

import click
import msgspec
import trio

from bench.store import ObjectStore as MinioStore
from streamd.app import App, Environment
from streamd.config.settings import ColdConfig, Config
from streamd.group.stores import Stores
from streamd.node.node import Node
from streamd.objectstore.objects import ObjectStore
from streamd.process.threads import in_thread
from streamd.streams.commands import Append, Create
from streamd.streams.keys import stream_key
from streamd.streams.model import Settings
from streamd.tiering.async_store import open_object_store

STREAMS = 1_000
MESSAGE_BYTES = 100
WRITERS = 500
_LOOK_S = 0.05


class Restoration(NamedTuple):
    """How long the command took, its answer, and the most memory it had."""

    took_s: float
    told: dict[str, int]
    peak_mib: float


async def live(base: Path, config: ColdConfig, messages: int) -> int:
    """Append the messages to a node; returns the index of the last entry with one, archived."""
    stores = await in_thread(Stores.open, base / "data", 1)
    try:
        app = App(Config(cold=config), stores, Environment(random=Random(1)))
        async with app.running():
            return await _fill(app.node, messages)
    finally:
        stores.close()


async def _fill(node: Node, messages: int) -> int:
    streams = [stream_key(b"bench", b"s%d" % number) for number in range(STREAMS)]
    for key in streams:
        await node.group.writes.propose(Create(key, Settings("text/plain"), implicit_bucket=True))
    left = iter(range(messages))

    async def write() -> None:
        for number in left:
            data = (b"%012d" % number).ljust(MESSAGE_BYTES, b".")
            key = streams[number % STREAMS]
            await node.group.writes.propose(Append(key, "text/plain", data, [len(data)]), len(data))

    async with trio.open_nursery() as nursery:
        for _ in range(WRITERS):
            nursery.start_soon(write)
    index = node.group.view.applied_index
    state = node.group.state
    await node.group.view.wait_for(lambda: state.header.archived.index >= index, 120)
    assert state.header.archived.index >= index, "the log is not archived"
    return index


def restore(base: Path, name: str, config: ColdConfig, *choice: str) -> Restoration:
    """Restore by the command, into a directory of that name."""
    command = [sys.executable, "-m", "streamd", "restore", "--json", "--no-fence"]
    command += ["--data-dir", str(base / name), *choice]
    keys = ("backend", "fs_path", "s3_bucket", "s3_endpoint", "s3_access_key_id")
    settings = {key: str(getattr(config, key) or "") for key in (*keys, "s3_secret_access_key")}
    told = "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items() if value)
    (base / "restore.toml").write_text(f"[cold]\n{told}")
    command += ["--config", str(base / "restore.toml")]
    started = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        peak_mib = 0.0
        while process.poll() is None:
            peak_mib = max(peak_mib, _peak_mib(process.pid))
            time.sleep(_LOOK_S)
        took_s = time.perf_counter() - started
        assert process.stdout is not None
        said = process.stdout.read()
    if process.returncode:
        raise SystemExit(f"streamd restore ended with status {process.returncode}")
    return Restoration(took_s, json.loads(said), peak_mib)


def _peak_mib(pid: int) -> float:
    """The most memory that a process has had since it became this program.

    The system's account of an ended child would count what this process had when it was forked.
    """
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return 0.0


def remove_snapshots(object_store: ObjectStore) -> None:
    names = [info.name for info in object_store.page("")]
    while names:
        object_store.delete([name for name in names if name.endswith(".manifest")])
        names = [info.name for info in object_store.page("", after=names[-1])]


def measure(base: Path, config: ColdConfig, messages: int) -> None:
    """Print the figures."""
    started = time.perf_counter()
    index = trio.run(live, base, config, messages)
    took_s = time.perf_counter() - started
    print(f"{messages:,} messages appended and archived in {took_s:.1f} s, {index:,} entries")
    shutil.rmtree(base / "data")
    tell(restore(base, "newest", config), messages)
    # With the snapshots gone the log is all there is.
    object_store = open_object_store(config, base)
    remove_snapshots(object_store)
    tell(restore(base, "log", config, "--index", str(index)), messages)


def tell(done: Restoration, messages: int) -> None:
    told = done.told
    print(
        f"restored from entry {told['base_index']:,} and the log to {told['last_index']:,}, "
        f"{told['packs']} packs verified: {done.took_s:.1f} s, {messages / done.took_s:,.0f} "
        f"messages/s, peak memory {done.peak_mib:.0f} MiB"
    )


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("messages", type=click.IntRange(1), default=1_000_000)
@click.option("--minio", type=click.Path(path_type=Path, exists=True), help="A MinIO's executable.")
def main(messages: int, minio: Path | None) -> None:
    """Measure how fast MESSAGES come back, from a directory or from a MinIO."""
    with tempfile.TemporaryDirectory(prefix="streamd-bench-") as directory:
        base = Path(directory)
        if minio is None:
            measure(base, ColdConfig(backend="fs", fs_path=str(base / "cold")), messages)
            return
        store = MinioStore(minio, base)
        with store.running():
            measure(base, msgspec.convert(store.settings, ColdConfig), messages)


if __name__ == "__main__":
    main()
