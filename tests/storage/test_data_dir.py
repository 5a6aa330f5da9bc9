"""The data directory belongs to one node for ever, and to one process at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamd.storage.data_dir import DataDir, write_durably
from streamd.storage.errors import DataDirInUse, IdentityMismatch, StorageFailed
from streamd.storage.floor import Floor, read_floor, write_floor


def test_the_first_use_makes_the_directory_and_its_identity(tmp_path: Path) -> None:
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
        (b"", "cannot be read"),
        (b'{"node_id": "one"}', "cannot be read"),
        (b'{"node_id": 1, "cluster_id": "c", "format_version": 2}', "has format 2"),
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


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    write_durably(tmp_path / "file", b"a long first content")
    write_durably(tmp_path / "file", b"short")
    assert (tmp_path / "file").read_bytes() == b"short"
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_a_floor_comes_back_as_written_and_is_zero_without_a_file(tmp_path: Path) -> None:
    assert read_floor(tmp_path / "floor") == Floor()
    write_floor(tmp_path / "floor", Floor(12, 3, 0xDEADBEEF))
    assert read_floor(tmp_path / "floor") == Floor(12, 3, 0xDEADBEEF)
