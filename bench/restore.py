"""How fast a cluster comes back from the cold store alone.

``python -m bench.restore [messages]`` has a node take messages (a million, unless told otherwise;
100 bytes each, over a thousand streams), which it flushes and archives as it always does, into a
directory. Then its data is deleted, and ``streamd restore`` is timed, from its start to its end:
once from the newest snapshot, and once to an entry before it, so that the whole log is replayed.
"""

from __future__ import annotations

import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

import trio

from streamd.blocking import in_thread
from streamd.cold_store import Cold, open_object_store
from streamd.config import ColdConfig
from streamd.http.live import Hub
from streamd.metrics import Metrics
from streamd.node import Node, wall_clock_ms
from streamd.stores import Stores
from streamd.streams.commands import Append, Create
from streamd.streams.keys import stream_key
from streamd.streams.model import Settings

STREAMS = 1_000
MESSAGE_BYTES = 100
WRITERS = 500


async def live(base: Path, messages: int) -> int:
    """Have a node take the messages; returns the last entry with one of them in it, archived."""
    config = ColdConfig(backend="fs", fs_path=str(base / "cold"))
    object_store = open_object_store(config, base)
    assert object_store is not None
    cold = Cold(
        object_store, run_blocking=in_thread, random=Random(1), max_requests=config.max_requests
    )
    stores = await in_thread(Stores.open, base / "data", 1)
    try:
        node = Node(
            stores,
            run_blocking=in_thread,
            clock_ms=wall_clock_ms,
            random=Random(1),
            audience=Hub(wall_clock_ms, 1),
            metrics=Metrics(),
            cold=cold,
            cold_config=config,
        )
        async with node.running():
            return await _fill(node, messages)
    finally:
        stores.close()


async def _fill(node: Node, messages: int) -> int:
    streams = [stream_key(b"bench", b"s%d" % number) for number in range(STREAMS)]
    for key in streams:
        await node.group.propose(Create(key, Settings("text/plain"), implicit_bucket=True))
    left = iter(range(messages))

    async def write() -> None:
        for number in left:
            data = (b"%012d" % number).ljust(MESSAGE_BYTES, b".")
            key = streams[number % STREAMS]
            await node.group.propose(Append(key, "text/plain", data, [len(data)]), len(data))

    async with trio.open_nursery() as nursery:
        for _ in range(WRITERS):
            nursery.start_soon(write)
    index = node.group.core.applied_index
    state = node.group.state
    await node.group.wait_for(lambda: state.header.archived.index >= index, 120)
    assert state.header.archived.index >= index, "the log is not archived"
    return index


def restore(base: Path, name: str, *choice: str) -> tuple[float, dict[str, int]]:
    """Restore by the command; how long it took, in seconds, and what it said."""
    command = [sys.executable, "-m", "streamd", "restore", "--json", "--no-fence"]
    command += ["--from", f"fs:{base / 'cold'}", "--data-dir", str(base / name), *choice]
    started = time.perf_counter()
    told = subprocess.run(command, check=True, capture_output=True, text=True)
    return time.perf_counter() - started, json.loads(told.stdout)


def main() -> None:
    """Print the figures."""
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory(prefix="streamd-bench-") as directory:
        base = Path(directory)
        started = time.perf_counter()
        index = trio.run(live, base, messages)
        took_s = time.perf_counter() - started
        print(f"{messages:,} messages appended and archived in {took_s:.1f} s, {index:,} entries")
        shutil.rmtree(base / "data")
        took_s, told = restore(base, "newest")
        print(
            f"restored from a snapshot as of entry {told['base_index']:,} and the log to "
            f"{told['last_index']:,}, {told['packs']} packs verified: {took_s:.1f} s, "
            f"{messages / took_s:,.0f} messages/s"
        )
        # With the snapshots gone the log is all there is.
        for manifest in (base / "cold").rglob("*.manifest"):
            manifest.unlink()
        took_s, told = restore(base, "log", "--index", str(index))
        print(
            f"restored from the log alone, all {told['last_index']:,} entries: {took_s:.1f} s, "
            f"{messages / took_s:,.0f} messages/s"
        )
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        print(f"peak memory of a restore: {peak:.0f} MiB")


if __name__ == "__main__":
    main()
