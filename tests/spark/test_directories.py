"""A directory store holds whatever somebody put there; none of it ends or blocks a listing."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from streamd_audit.directories import DirectoryStore
from streamd_audit.errors import UNREADABLE, Damaged, ObjectMissing
from streamd_audit.listing import listing_findings, look_through

CLUSTER = "7d0c3a52-7c4f-4a44-9f0d-0123456789ab"
PACK = f"packs/00000000/0000000000000001-00000000-{0:064x}.pack"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The cluster's folder, with one object."""
    found = tmp_path / CLUSTER
    (found / PACK).parent.mkdir(parents=True)
    (found / PACK).write_bytes(b"0123456789")
    return found


@pytest.fixture
def store(folder: Path) -> DirectoryStore:
    return DirectoryStore(folder.parent)


def odd(store: DirectoryStore) -> dict[str, str]:
    return {one.name.removeprefix(f"{CLUSTER}/"): one.what for one in store.odd(f"{CLUSTER}/")}


def names(store: DirectoryStore) -> list[str]:
    return [one.name.removeprefix(f"{CLUSTER}/") for page in store.list() for one in page]


def test_a_name_in_another_encoding_is_reported(folder: Path, store: DirectoryStore) -> None:
    with open(os.fsencode(folder / "packs") + b"/\xff\xfe", "wb"):
        pass
    os.mkdir(os.fsencode(folder) + b"/\xfd")
    assert odd(store) == {
        "packs/\\xff\\xfe": "a name in another encoding than UTF-8",
        "\\xfd/": "a name in another encoding than UTF-8",
    }
    assert names(store) == [PACK]


def test_a_pipe_blocks_neither_the_listing_nor_a_read(folder: Path, store: DirectoryStore) -> None:
    os.mkfifo(folder / "pipe")
    assert odd(store) == {"pipe": "a pipe"}
    with pytest.raises(Damaged, match="is a pipe") as caught:
        store.read(f"{CLUSTER}/pipe")
    assert caught.value.kind == UNREADABLE


def test_a_socket_cannot_be_an_object(
    folder: Path, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket(socket.AF_UNIX) as opened:
        monkeypatch.chdir(folder)  # the name of a socket has to be short
        opened.bind("socket")
    assert odd(store) == {"socket": "a socket"}
    with pytest.raises(Damaged):
        store.read(f"{CLUSTER}/socket")


def test_links_that_lead_nowhere_or_round_are_reported(folder: Path, store: DirectoryStore) -> None:
    (folder / "loop").symlink_to(folder / "loop")
    (folder / "nothing").symlink_to(folder / "absent")
    (folder / "packs" / "up").symlink_to(folder)
    assert set(odd(store)) == {"loop", "nothing", "packs/up/"}
    assert names(store) == [PACK]
    with pytest.raises(Damaged):
        store.read(f"{CLUSTER}/loop")
    with pytest.raises(ObjectMissing):
        store.read(f"{CLUSTER}/nothing")


def test_a_link_to_another_folder_is_followed(folder: Path, store: DirectoryStore) -> None:
    """As on a machine whose disk became too small."""
    (folder / "packs").rename(folder.parent.parent / "elsewhere")
    (folder / "packs").symlink_to(folder.parent.parent / "elsewhere")
    assert names(store) == [PACK]
    assert odd(store) == {}


def test_a_folder_instead_of_an_object_is_reported(folder: Path, store: DirectoryStore) -> None:
    (folder / PACK).unlink()
    (folder / PACK).mkdir()
    assert odd(store) == {f"{PACK}/": "a folder with the name of an object"}
    with pytest.raises(ObjectMissing):
        store.read(f"{CLUSTER}/{PACK}")


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root may read everything."""
    is_root = os.geteuid() == 0
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)


def test_what_may_not_be_read_is_reported(folder: Path, store: DirectoryStore) -> None:
    (folder / "secret").mkdir(mode=0o000)
    (folder / PACK).chmod(0o000)
    for each in [folder, *folder.parents]:
        if each.is_relative_to(tempfile.gettempdir()) and str(each) != tempfile.gettempdir():
            each.chmod(each.stat().st_mode | 0o555)
    with as_nobody():
        assert set(odd(store)) == {"secret/"}
        assert names(store) == [PACK]
        with pytest.raises(Damaged) as caught:
            store.read(f"{CLUSTER}/{PACK}")
    (folder / "secret").chmod(0o700)
    assert caught.value.kind == UNREADABLE


def test_odd_things_are_findings(folder: Path, store: DirectoryStore) -> None:
    os.mkfifo(folder / "pipe")
    (folder / ".hidden").write_bytes(b"")
    listing = look_through(store, CLUSTER)
    found = listing_findings(listing, CLUSTER, [(0, 1, 1)], lambda _: False)
    told = [(one.kind, (one.object or "").rpartition("/")[2]) for one in found]
    assert told == [("object_unknown", ".hidden"), ("object_odd", "pipe")]
