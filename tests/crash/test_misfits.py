"""A data directory that does not fit the configuration is refused, and left as it was."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from streamd.config.settings import ClusterConfig
from streamd.group.log_formats import LOG_FORMAT
from streamd.group.stores import Stores
from streamd.raft.membership import BOOTSTRAP_HARD_STATE, bootstrap_entry
from streamd.raft.messages import Entry, EntryKind, HardState
from streamd.streams import keys
from streamd.streams.codec import Batch, encode_batch
from streamd.streams.commands import RaiseLevel
from streamd.streams.state import State
from tests.storage.images import newest_file
from tests.support.nodes import append, create
from tests.support.server_process import ServerProcess

_CLUSTER = ClusterConfig(name="letters", bootstrap_node_id=1)
_ADDRESSES = ((1, "a:1", "a:2"), (2, "b:1", "b:2"), (3, "c:1", "c:2"))


def _member(data: Path) -> None:
    """The data of node 2 of three."""
    stores = Stores.open(data, 2, _CLUSTER)
    stores.data_dir.join("1f0a")
    stores.log.append([bootstrap_entry([1, 2, 3], _ADDRESSES)], BOOTSTRAP_HARD_STATE)
    for index, command in ((2, create("a")), (3, append("a", b"x" * 5000))):
        payload = encode_batch(Batch(1_000, [command]))
        stores.log.append([Entry(index, 7, EntryKind.COMMANDS, payload)], HardState(7, 2))
    stores.close()


def _member_without_a_name(data: Path) -> None:
    """As a release left it that did not note the cluster's name."""
    _member(data)
    _change_identity(data, cluster_name="")


def _member_without_entries(data: Path) -> None:
    stores = Stores.open(data, 2, _CLUSTER)
    stores.data_dir.join("1f0a")
    stores.close()


def _member_with_damage(data: Path) -> None:
    _member(data)
    file, written = newest_file(data)
    content = bytearray(file.read_bytes())
    content[written[len(written) // 2]] ^= 0x10
    file.write_bytes(content)


def _single(data: Path) -> None:
    Stores.open(data, 2).close()


def _single_without_identity(data: Path) -> None:
    _single(data)
    (data / "identity.json").unlink()


def _single_with_damaged_identity(data: Path) -> None:
    _single(data)
    (data / "identity.json").write_bytes(b"{\0")


def _of_a_later_release(data: Path) -> None:
    _single(data)
    _change_identity(data, format_version=99)


def _of_a_raised_level(data: Path) -> None:
    """As a later release leaves it once the feature level was raised to what it brings."""
    stores = Stores.open(data, 2)
    header = State(stores.state).header
    header.features = LOG_FORMAT + 1
    stores.state.write([(keys.HEADER, msgspec.msgpack.encode(header))])
    stores.close()


def _change_identity(data: Path, **fields: object) -> None:
    file = data / "identity.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


_VOTERS = ("'letters'", "voters 1, 2, 3", "cluster.routes", "recover --offline")


@pytest.mark.parametrize(
    ("make", "variables", "words"),
    [
        (_member, {}, _VOTERS),
        (_member_without_a_name, {}, _VOTERS[1:]),
        (_member_without_entries, {}, ("node 2 of the cluster 'letters'", "cluster.routes")),
        (_member_with_damage, {}, ("node 2 of the cluster 'letters'", "cluster.routes")),
        (_member, {"CLUSTER_NAME": "digits"}, ("named letters, not digits", "set cluster.name")),
        (_member, {"SERVER_NODE_ID": "3"}, ("belongs to node 2, not 3", "set server.node_id")),
        (_single, {"SERVER_NODE_ID": "1"}, ("belongs to node 2, not 1", "set server.node_id")),
        (_single_without_identity, {}, ("identity.json is missing", '{"node_id":2')),
        (_single_with_damaged_identity, {}, ("identity.json is damaged", "from a copy")),
        (_of_a_later_release, {}, ("format 99", "start the release that wrote it")),
        (_of_a_raised_level, {}, (f"level {LOG_FORMAT + 1}", "start the release that wrote it")),
    ],
)
def test_it_is_refused(
    make: Callable[[Path], None],
    variables: dict[str, str],
    words: tuple[str, ...],
    tmp_path: Path,
) -> None:
    data = tmp_path / "data"
    make(data)
    before = _kept(data)
    named = {"SERVER_NODE_ID": "2", **variables}
    environment = {f"STREAMD_{name}": value for name, value in named.items()}
    server = ServerProcess(data, environment=environment)
    server.start()
    assert server.wait() == 1, server.output
    last = server.output.splitlines()[-1]
    assert last.startswith("streamd: ")
    assert "Traceback" not in server.output
    for word in words:
        assert word in last
    assert _kept(data) == before


def _kept(data: Path) -> dict[str, bytes]:
    """What says whose data these are, and how far the log is known to reach."""
    names = ("identity.json", "floor", "vote", "lost")
    return {name: (data / name).read_bytes() for name in names if (data / name).exists()}


def test_a_level_that_this_release_does_not_understand_ends_it(tmp_path: Path) -> None:
    """A later release was killed before it had stored the state to which its log leads."""
    stores = Stores.open(tmp_path, 1)
    payload = encode_batch(Batch(1_000, [RaiseLevel(LOG_FORMAT + 1)]))
    entries = [bootstrap_entry([1], _ADDRESSES[:1]), Entry(2, 7, EntryKind.COMMANDS, payload)]
    stores.log.append(entries, HardState(7, 1))
    stores.close()
    for _ in range(2):
        server = ServerProcess(tmp_path)
        server.start()
        assert server.wait() == 1, server.output
        last = server.output.splitlines()[-1]
        assert last.startswith(f"streamd: log entry 2 raises the feature level to {LOG_FORMAT + 1}")
        assert "start the release that wrote it" in last


def test_a_member_opens_once_its_cluster_is_configured_again(tmp_path: Path) -> None:
    _member(tmp_path)
    server = ServerProcess(tmp_path, environment={"STREAMD_SERVER_NODE_ID": "2"})
    server.start()
    assert server.wait() == 1
    stores = Stores.open(tmp_path, 2, _CLUSTER)
    assert stores.log.last_index == 3
    assert stores.log.lost_below is None
    stores.close()


def test_several_nodes_cannot_share_a_directory_as_their_cold_store(tmp_path: Path) -> None:
    environment = {"STREAMD_CLUSTER_NAME": "letters", "STREAMD_COLD_BACKEND": "fs"}
    server = ServerProcess(tmp_path / "data", environment=environment)
    server.start()
    assert server.wait() == 2
    assert 'cold.backend = "fs" is for a single node' in server.output
    assert not (tmp_path / "data").exists()
