"""Power fails at any moment, with any unsynced pages on the disk: the node starts.

Each commit has steps of its own. `TEARS=20000 SEED=5 pytest tests/crash/test_tears.py` looks at
more images, of a seed's steps.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random

import pytest

from streamd.config.settings import ClusterConfig
from streamd.group.stores import open_core
from streamd.raft.messages import Entry, EntryKind, HardState
from streamd.streams.state import State
from tests.crash.recorded_disk import Call, Disk, calls, record
from tests.crash.recorded_steps import Contents, Script, rows_of
from tests.crash.strace import needs_strace
from tests.sim.torn_pages import Tear
from tests.support.seeds import first_seed

pytestmark = pytest.mark.long

TEARS = int(os.environ.get("TEARS", "150"))
SEED = first_seed()


@needs_strace
@pytest.mark.parametrize("kind", ["alone", "peers"])
def test_power_lost_at_any_page_of_any_write_leaves_a_node_that_starts_and_votes(
    kind: str, tmp_path: Path, summary: Callable[[str], None]
) -> None:
    script = Script(SEED, with_peers=kind == "peers")
    done = recording(script, kind, tmp_path)
    moments = sum(1 for _, disk in played(done) if disk.unsynced)
    random = Random(SEED)
    counted: Counter[str] = Counter()
    shared = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    base = Path(tempfile.mkdtemp(dir=shared or tmp_path))
    for acknowledged, disk in played(done):
        unsynced = disk.unsynced
        if not unsynced:
            continue
        # Every case occurs at least once.
        is_new = any(not counted[f"torn: {part_of(path)}"] for path in unsynced)
        for _ in range(max(int(TEARS / moments + random.random()), is_new)):
            tear = random.choice([*Tear])
            image = base / "image"
            disk.image(image, random, tear)
            check(script, image / "data", acknowledged)
            counted.update(f"torn: {part_of(path)}" for path in unsynced)
            counted[tear.value] += 1
            counted["tails cut"] += len([*image.glob("data/*.torn")])
            shutil.rmtree(image)
    base.rmdir()
    summary(f"power lost at {moments} moments, {kind}, seed {SEED}: {dict(counted)}")
    logs = ("log/journal", "log/log", "log/manifest", "state/log", "state/manifest")
    for what in (*logs, "floor", "vote"):
        assert counted[f"torn: {what}"], f"a loss of power never met the {what}"
    assert counted["tails cut"]


def recording(script: Script, kind: str, directory: Path) -> list[Call]:
    """Everything that a node does to its disk as it takes the steps."""
    data = directory / "recorded" / "data"
    data.parent.mkdir()
    command = ["-m", "tests.crash.recorded_steps", str(data), str(SEED), kind]
    record(command, directory / "trace")
    done = [*calls(directory / "trace", data.parent)]
    assert sum(call.path == "acks" and call.name == "write" for call in done) == len(script.steps)
    return done


def played(done: Sequence[Call]) -> Iterator[tuple[int, Disk]]:
    """The disk after each call, and how many steps were acknowledged by then."""
    disk, acknowledged = Disk(), 0
    for call in done:
        if call.path == "acks":
            acknowledged += call.name == "write"
        else:
            disk.do(call)
            yield acknowledged, disk


def part_of(path: str) -> str:
    """The part of a node that a file belongs to."""
    name = path.removeprefix("data/")
    for kind in (".log", ".ldb", ".dbtmp"):
        if name.endswith(kind):
            return f"{Path(name).parent}/{kind[1:]}"
    if "MANIFEST" in name:
        return f"{Path(name).parent}/manifest"
    return name.removesuffix(".new")


def check(script: Script, data: Path, acknowledged: int) -> None:
    """The node starts with everything that it acknowledged, and at most with what was under way.

    It votes, and continues.
    """
    known = [Contents(), *script.after][acknowledged : acknowledged + 2]
    if not script.with_peers and not acknowledged:
        del known[0]  # A single node has its first entry before it is open.
    stores = script.open(data)
    log = stores.log
    state = State(stores.state)
    core = open_core(stores, state, Random(0), ClusterConfig())
    assert core.may_vote
    assert log.lost_below is None
    assert log.hard_state in [each.hard_state for each in known]
    assert log.first_index - 1 in [each.base_index for each in known]
    found = log.entries(log.first_index, log.last_index + 1, 1 << 30) if core.last_index else []
    assert found in [
        [each.entries[index] for index in range(log.first_index, each.last_index + 1)]
        for each in known
    ]
    applied = state.header.applied_index
    (applied_to, *_) = [each for each in known if each.applied_index == applied]
    rows = dict(stores.state.scan(b"", b"\xff", limit=100))
    assert rows == rows_of(applied_to)

    more = Entry(log.last_index + 1, log.hard_state.term + 1, EntryKind.COMMANDS, b"more")
    log.append([more], HardState(more.term))
    stores.close()
    again = script.open(data)
    assert again.log.entries(more.index, more.index + 1, 1) == [more]
    again.close()
