"""A lost cluster, its store, and the operator's commands."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import trio

from streamd.config.settings import ColdConfig
from streamd.raft.messages import Entry, EntryKind
from streamd.streams.codec import time_of_batch
from streamd.tiering.async_store import AsyncObjectStore
from tests.support import prefork
from tests.support.archived import Said, cold_in, state_after
from tests.support.flaky_store import FlakyStore

MINUTE_MS = 60_000
# Nothing is flushed, so that a state's rows have every record.
UNFLUSHED = ColdConfig(
    backend="fs", flush_after_ms=10**9, snapshot_interval_minutes=10, archive_retention_hours=1000
)


class History(NamedTuple):
    """A lost cluster: its log as it was, and its archive."""

    place: Path
    cluster_id: str
    entries: list[Entry]
    archived_index: int

    def cold(self) -> tuple[AsyncObjectStore, FlakyStore]:
        return cold_in(self.place)

    def as_of(self, index: int) -> Said:
        return state_after(self.entries[:index])

    def times(self) -> list[int]:
        """Log time as of each entry, from the first on."""
        found, now_ms = [], 0
        for entry in self.entries:
            if entry.kind == EntryKind.COMMANDS:
                now_ms = max(now_ms, time_of_batch(entry.payload))
            found.append(now_ms)
        return found


class Ran(NamedTuple):
    exit_code: int
    stdout: str
    output: str


async def streamd(*arguments: str) -> Ran:
    """The command, as an operator runs it."""
    found = await trio.to_thread.run_sync(prefork.run_text, *arguments)
    return Ran(found.returncode, found.stdout, found.stdout + found.stderr)


def files_in(place: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in place.rglob("*") if file.is_file()}


def damage(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


class Copy(NamedTuple):
    """A copy of the history's store for a test to damage."""

    path: Path
    cluster_id: str

    def objects(self, kind: str) -> list[Path]:
        return sorted((self.path / self.cluster_id / kind / "00000000").iterdir())

    async def is_found_damaged(self) -> bool:
        found = await streamd("backup", "verify", "--from", f"fs:{self.path}")
        return found.exit_code == 1 and "DAMAGE" in found.output

    async def restore(self, new: Path, *choice: str) -> Ran:
        place = ("--from", f"fs:{self.path}", "--data-dir", str(new), "--no-fence")
        return await streamd("restore", *place, *choice)
