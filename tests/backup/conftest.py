"""The recorded history that restores start from."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from streamd.streams.commands import Delete, SetLimits
from streamd.streams.limits import Limits
from tests.backup.history import MINUTE_MS, UNFLUSHED, Copy, History
from tests.backup.test_archive import a_round, archived
from tests.support.archived import NOW_MS, cold_in, log_of
from tests.support.nodes import Clock, append_to, create, key, running_node

# Some of the appends are refused.
QUOTA = Limits(max_bytes=60_000)


@pytest.fixture(scope="session")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("history")


@pytest.fixture
async def history(recorded: Path) -> History:
    """Half an hour of a cluster's life with two checkpoints, recorded once."""
    place, data = recorded / "cold", recorded / "data"
    if not (recorded / "done").exists():
        cold, _ = cold_in(place)
        clock = Clock(NOW_MS)
        async with running_node(data, cold=cold, clock=clock, cold_config=UNFLUSHED) as node:
            await node.group.writes.propose(create("a"))
            await node.group.writes.propose(create("short-lived", ttl_ms=5 * MINUTE_MS))
            for minute in range(30):
                clock.now_ms = NOW_MS + minute * MINUTE_MS
                await append_to(node, "a", b"minute %d;" % minute)
                await node.group.writes.propose(create(f"s{minute % 7}"))
                await append_to(node, f"s{minute % 7}", bytes([minute]) * 5000)
                if minute == 3:
                    await node.group.writes.propose(SetLimits("bucket", "bucket", QUOTA))
                if minute % 5 == 4:
                    await node.group.writes.propose(Delete(key(f"s{(minute * 3) % 7}")))
                    await archived(node)
                if minute in (8, 20):
                    await archived(node)
                    await a_round(node, "snapshot")
            await archived(node)
            (recorded / "done").write_text(
                f"{node.stores.data_dir.identity.cluster_id} "
                f"{node.group.state.header.archived.index}"
            )
    cluster_id, index = (recorded / "done").read_text().split()
    return History(place, cluster_id, log_of(data), int(index))


@pytest.fixture
def copy(tmp_path: Path, history: History) -> Copy:
    shutil.copytree(history.place, tmp_path / "cold")
    return Copy(tmp_path / "cold", history.cluster_id)
