"""What a recorded node writes, step by step, and what it must have after each of them.

Run as a script with a data directory, a seed, and whether the node has peers, it takes the steps,
with buffers so small that LevelDB often begins new files. A file `acks` beside the directory has a
line for each step that is done.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import msgspec

from streamd.config.settings import ClusterConfig
from streamd.group.stores import Stores
from streamd.raft.membership import BOOTSTRAP_HARD_STATE, bootstrap_entry
from streamd.raft.messages import Entry, EntryKind, HardState
from streamd.storage import journal, leveldb_log, state_store
from streamd.streams import keys
from streamd.streams.model import Header
from tests.storage.images import compact

STEPS = 60
PEERS = ClusterConfig(name="torn", listen="127.0.0.1:1", bootstrap_node_id=1)

NO_HARD_STATE = HardState()

_BUFFER_BYTES = 64 * 1024
# Most entries fit, and the journal begins again several times.
_JOURNAL_BYTES = 1024 * 1024
# Rows of the state that no table has; their content tells the applied index.
_ROWS = [b"\xf0%d" % number for number in range(5)]
_SIZES = (10, 300, 20_000, 20_000, 70_000)


@dataclass
class Contents:
    """What a node has confirmed to have."""

    entries: dict[int, Entry] = field(default_factory=dict)
    hard_state: HardState = NO_HARD_STATE
    base_index: int = 0
    last_index: int = 0
    applied_index: int = 0


Step = Callable[[Stores], Stores]


def rows_of(contents: Contents) -> dict[bytes, bytes]:
    """The rows of the state at an applied index."""
    applied = contents.applied_index
    if not applied:
        return {}
    configuration = contents.entries[1].payload
    header = Header(applied, contents.entries[applied].term, configuration=configuration)
    rows = {keys.HEADER: msgspec.msgpack.encode(header)}
    for number, row in enumerate(_ROWS):
        # Each is written by every fifth entry.
        writer = applied - (applied - number) % len(_ROWS)
        if writer > 0:
            rows[row] = b"%d:" % writer + Random(writer).randbytes(_SIZES[writer % 4])
    return rows


class Script:
    """The steps of a seed. `after[n]` are the contents after `n` steps."""

    def __init__(self, seed: int, *, with_peers: bool) -> None:
        self._random = Random(seed)
        self.with_peers = with_peers
        self.now = Contents()
        self.after: list[Contents] = []
        self.steps: list[Step] = []
        self._add(self._found())
        while len(self.steps) < STEPS:
            self._add(self._any_step())

    def open(self, directory: Path) -> Stores:
        return Stores.open(directory, 1, PEERS if self.with_peers else None)

    def _add(self, step: Step) -> None:
        self.steps.append(step)
        self.after.append(deepcopy(self.now))

    def _found(self) -> Step:
        first = bootstrap_entry([1, 2, 3] if self.with_peers else [1])
        self.now.entries[1], self.now.last_index = first, 1
        self.now.hard_state = BOOTSTRAP_HARD_STATE

        def found(stores: Stores) -> Stores:
            if self.with_peers:  # otherwise it has done so by itself
                stores.log.append([first], BOOTSTRAP_HARD_STATE)
            return stores

        return found

    def _any_step(self) -> Step:
        kinds = {
            self._append: 12,
            self._replace: 2,
            self._vote: 2,
            self._sync_floor: 2,
            self._settle: 2,
            self._apply: 5,
            self._cut: 1,
            self._reopen: 1,
        }
        return self._random.choices([*kinds], [*kinds.values()])[0]()

    def _append(self) -> Step:
        return self._write(self.now.last_index + 1, None)

    def _replace(self) -> Step:
        """Another leader's entries replace the last ones."""
        lowest = max(self.now.applied_index, self.now.last_index - 3, 1) + 1
        first = self._random.randint(lowest, self.now.last_index + 1)
        return self._write(first, HardState(self.now.hard_state.term + 1, 1))

    def _write(self, first: int, hard_state: HardState | None) -> Step:
        now, random = self.now, self._random
        now.hard_state = hard_state or now.hard_state
        entries = [
            Entry(
                first + place,
                now.hard_state.term,
                EntryKind.COMMANDS,
                random.randbytes(random.choice(_SIZES)),
            )
            for place in range(random.choice((1, 1, 2, 5)))
        ]
        for index in range(first, now.last_index + 1):
            del now.entries[index]
        now.entries |= {entry.index: entry for entry in entries}
        now.last_index = entries[-1].index

        def write(stores: Stores) -> Stores:
            stores.log.append(entries, hard_state)
            return stores

        return write

    def _vote(self) -> Step:
        vote = self.now.hard_state = HardState(self.now.hard_state.term + 1, 1)

        def store(stores: Stores) -> Stores:
            stores.log.append([], vote)
            return stores

        return store

    def _sync_floor(self) -> Step:
        def sync(stores: Stores) -> Stores:
            stores.log.sync_floor()
            return stores

        return sync

    def _settle(self) -> Step:
        def settle(stores: Stores) -> Stores:
            stores.log.settle()
            return stores

        return settle

    def _apply(self) -> Step:
        self.now.applied_index = self._random.randint(self.now.applied_index, self.now.last_index)
        rows = rows_of(self.now)

        def apply(stores: Stores) -> Stores:
            stores.state.write(rows.items())
            return stores

        return apply

    def _cut(self) -> Step:
        now = self.now
        through = now.base_index = self._random.randint(now.base_index, now.applied_index)

        def cut(stores: Stores) -> Stores:
            compact(stores.log, through)
            return stores

        return cut

    def _reopen(self) -> Step:
        def reopen(stores: Stores) -> Stores:
            path = stores.data_dir.path
            stores.close()
            return self.open(path)

        return reopen


def small_buffers() -> None:
    leveldb_log._WRITE_BUFFER_BYTES = state_store._WRITE_BUFFER_BYTES = _BUFFER_BYTES
    journal.MAX_BYTES = _JOURNAL_BYTES


def main(directory: Path, seed: int, *, with_peers: bool) -> None:
    small_buffers()
    script = Script(seed, with_peers=with_peers)
    acks = os.open(directory.with_name("acks"), os.O_WRONLY | os.O_CREAT)
    stores = script.open(directory)
    for step in script.steps:
        stores = step(stores)
        os.write(acks, b"done\n")
    stores.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), with_peers=sys.argv[3] == "peers")
