"""What a page of a large bucket costs, by where in the bucket it lies.

``python -m bench.listing [streams]`` fills a store with a bucket of streams (a million, unless
told otherwise) and reads pages of it the way the server does, without HTTP around it.
"""

from __future__ import annotations

import resource
import statistics
import sys
import tempfile
import time
from pathlib import Path

from streamd.storage.state_store import StateStore
from streamd.streams.commands import Create
from streamd.streams.keys import stream_key
from streamd.streams.machine import Machine
from streamd.streams.model import Settings
from streamd.streams.queries.listing import ListQuery, list_streams
from streamd.streams.state import State

BUCKET = b"bench"
PAGE = 1000
REPEATS = 20
_BATCH = 10_000


def name(number: int) -> bytes:
    return b"stream-%012d" % number


def fill(store: StateStore, count: int) -> None:
    """Create the streams through the machine, a log entry for each `_BATCH`."""
    state = State(store)
    machine = Machine(state)
    settings = Settings("text/plain")
    for index, first in enumerate(range(0, count, _BATCH), start=1):
        numbers = range(first, min(first + _BATCH, count))
        machine.apply(
            index,
            1,
            1_000_000 + index,
            [
                Create(stream_key(BUCKET, name(number)), settings, implicit_bucket=True)
                for number in numbers
            ],
        )
        machine.take_changes()
        store.write(state.begin_flush())
        state.end_flush()


def page_ms(store: StateStore, after: bytes) -> float:
    """The median time of one page, in milliseconds."""
    times: list[float] = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        page = list_streams(store, ListQuery(BUCKET, b"", after, PAGE), 0)
        times.append((time.perf_counter() - started) * 1000)
        assert len(page.streams) == PAGE, len(page.streams)
    return statistics.median(times)


def walk(store: StateStore) -> tuple[int, float, float]:
    """List the whole bucket, page after page: how many streams, seconds, MiB of growth."""
    started = time.perf_counter()
    before = most = resident_mib()
    seen, after, more = 0, b"", True
    while more:
        page = list_streams(store, ListQuery(BUCKET, b"", after, PAGE), 0)
        seen += len(page.streams)
        after, more = page.cursor or b"", page.has_more
        most = max(most, resident_mib())
    return seen, time.perf_counter() - started, most - before


def resident_mib() -> float:
    """The process's memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1024 / 1024


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    with tempfile.TemporaryDirectory() as directory:
        store = StateStore(Path(directory))
        fill(store, count)
        store.close()
        store = StateStore(Path(directory))
        for part in (0.0, 0.1, 0.5, 0.9, 1.0):
            after = name(int((count - PAGE - 1) * part)) if part else b""
            print(f"page of {PAGE} at {part:4.0%}: {page_ms(store, after):6.2f} ms")
        seen, seconds, growth_mib = walk(store)
        print(f"all {seen} streams in {seconds:.1f} s, in pages of {PAGE}")
        print(f"memory grew by {growth_mib:.1f} MiB meanwhile, of which the store's cache has 32")
        store.close()


if __name__ == "__main__":
    main()
