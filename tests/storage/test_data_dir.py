"""The data directory belongs to one node permanently, and to one process at a time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from streamd.raft.chain import ChainPosition
from streamd.storage.data_dir import DataDir
from streamd.storage.errors import DataDirInUse, IdentityMismatch, LogCorrupt, StorageFailed
from streamd.storage.files import read_checked, write_checked, write_durably
from streamd.storage.log_evidence import LogEvidence


def test_the_first_use_creates_the_directory_and_its_identity(tmp_path: Path) -> None:
    first = DataDir.open(tmp_path / "a" / "b", node_id=3)
    assert first.identity.node_id == 3
    first.close()
    again = DataDir.open(tmp_path / "a" / "b", node_id=3)
    assert again.identity == first.identity
    again.close()


def test_two_directories_never_share_a_cluster_id(tmp_path: Path) -> None:
    one, other = DataDir.open(tmp_path / "one", 1), DataDir.open(tmp_path / "other", 1)
    assert one.identity.cluster_id != other.identity.cluster_id
    one.close()
    other.close()


def test_a_directory_in_use_is_refused_until_it_is_closed(tmp_path: Path) -> None:
    first = DataDir.open(tmp_path, 1)
    with pytest.raises(DataDirInUse, match="in use by another streamd"):
        DataDir.open(tmp_path, 1)
    first.close()
    DataDir.open(tmp_path, 1).close()


def test_another_nodes_directory_is_refused_and_released(tmp_path: Path) -> None:
    DataDir.open(tmp_path, 1).close()
    with pytest.raises(IdentityMismatch, match="belongs to node 1, not 2"):
        DataDir.open(tmp_path, 2)
    DataDir.open(tmp_path, 1).close()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is damaged"),
        (b'{"node_id": "one"}', "is damaged"),
        (b'{"node_id": 1, "cluster_id": "c", "format_version": 3}', "has format 3"),
    ],
)
def test_an_identity_that_cannot_be_trusted_is_refused(
    content: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / "identity.json").write_bytes(content)
    with pytest.raises(IdentityMismatch, match=message):
        DataDir.open(tmp_path, 1)


def test_a_path_that_is_a_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageFailed, match="file"):
        DataDir.open(tmp_path / "file", 1)


def test_a_file_is_replaced_atomically(tmp_path: Path) -> None:
    write_durably(tmp_path / "file", b"a long first content")
    write_durably(tmp_path / "file", b"short")
    assert (tmp_path / "file").read_bytes() == b"short"
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_a_floor_is_read_back_and_is_zero_without_a_file(tmp_path: Path) -> None:
    assert LogEvidence(tmp_path / "floor").floor() == ChainPosition()
    LogEvidence(tmp_path / "floor").note_floor(ChainPosition(12, 3, 0xDEADBEEF))
    assert LogEvidence(tmp_path / "floor").floor() == ChainPosition(12, 3, 0xDEADBEEF)


# -- membership of a cluster ----------------------------------------------------------------------


def test_a_joining_node_has_no_cluster_until_it_joins_one_permanently(tmp_path: Path) -> None:
    joining = DataDir.open(tmp_path, 2, cluster_name="prod", joining=True)
    assert joining.identity.cluster_id == ""
    joining.close()
    again = DataDir.open(tmp_path, 2, cluster_name="prod", joining=True)
    again.join("the-cluster")
    again.join("the-cluster")
    with pytest.raises(IdentityMismatch, match="holds data of cluster the-cluster, not of other"):
        again.join("other")
    again.close()
    for joining_still in (True, False):
        later = DataDir.open(tmp_path, 2, joining=joining_still)
        assert later.identity.cluster_id == "the-cluster"
        assert later.identity.cluster_name == "prod"
        later.close()


def test_a_node_that_waited_to_join_may_found_a_cluster_after_all(tmp_path: Path) -> None:
    DataDir.open(tmp_path, 1, joining=True).close()
    founder = DataDir.open(tmp_path, 1)
    assert founder.identity.cluster_id
    founder.close()
    again = DataDir.open(tmp_path, 1, joining=True)
    assert again.identity == founder.identity
    again.close()


def test_a_name_given_later_is_kept_and_another_one_refused(tmp_path: Path) -> None:
    DataDir.open(tmp_path, 1).close()
    DataDir.open(tmp_path, 1, cluster_name="prod").close()
    with pytest.raises(IdentityMismatch, match="the cluster named prod, not test"):
        DataDir.open(tmp_path, 1, cluster_name="test")
    unnamed = DataDir.open(tmp_path, 1)
    assert unnamed.identity.cluster_name == "prod"
    unnamed.close()


def test_an_identity_written_before_clusters_had_names_is_read(tmp_path: Path) -> None:
    (tmp_path / "identity.json").write_bytes(
        b'{"node_id": 1, "cluster_id": "c", "format_version": 1}'
    )
    old = DataDir.open(tmp_path, 1)
    assert (old.identity.cluster_id, old.identity.cluster_name) == ("c", "")
    old.close()


def test_a_directory_is_marked_so_that_a_release_without_a_journal_refuses_it(
    tmp_path: Path,
) -> None:
    """It would take the log for what LevelDB has of it."""
    (tmp_path / "identity.json").write_bytes(
        b'{"node_id": 1, "cluster_id": "c", "format_version": 1}'
    )
    DataDir.open(tmp_path, 1).close()
    assert b'"format_version":2' in (tmp_path / "identity.json").read_bytes()


def test_a_checked_file_is_read_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "file"
    assert read_checked(file, ChainPosition) is None
    write_checked(file, ChainPosition(12, 3, 4))
    assert read_checked(file, ChainPosition) == ChainPosition(12, 3, 4)
    whole = file.read_bytes()
    for place in range(len(whole)):
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(LogCorrupt, match="damaged"):
            read_checked(file, ChainPosition)
        file.write_bytes(whole[:place])
        with pytest.raises(LogCorrupt, match="damaged"):
            read_checked(file, ChainPosition)


def test_a_file_is_written_whole_despite_partial_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, content: write(file, content[:3]))
    write_durably(tmp_path / "file", b"0123456789")
    assert (tmp_path / "file").read_bytes() == b"0123456789"
