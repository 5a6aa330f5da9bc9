"""The directory store: no partly written object is ever visible, and errors say why."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from streamd.objectstore.errors import ColdRefused, ColdUnavailable, ObjectMissing
from streamd.objectstore.fs import FsStore
from tests.storage.images import copy_of

CONTENT = b"all of it" * 1000


def _before_each(
    monkeypatch: pytest.MonkeyPatch, happened: Callable[[str], None], *names: str
) -> None:
    """Call `happened` before each call of these functions of `os`."""
    for name in names:
        real = getattr(os, name)

        def call(*args: Any, name: str = name, real: Any = real, **kwargs: Any) -> Any:
            happened(name)
            return real(*args, **kwargs)

        monkeypatch.setattr(os, name, call)


def test_a_crash_at_any_step_leaves_the_object_whole_or_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[bool] = []

    def crash(call: str) -> None:
        image = FsStore(copy_of(tmp_path / "cold", tmp_path / "image"))
        names = [found.name for found in image.page("")]
        seen.append(names == ["packs/a"])
        assert names in ([], ["packs/a"])
        if names:
            assert image.get("packs/a", 0, len(CONTENT)) == CONTENT

    (tmp_path / "cold").mkdir()
    with monkeypatch.context() as patched:
        _before_each(patched, crash, "fsync", "rename")
        FsStore(tmp_path / "cold").put("packs/a", CONTENT)
    assert seen[0] is False
    assert seen[-1] is True, "the directory is synced after the rename"
    assert len(seen) >= 4


@pytest.mark.parametrize("failing", ["fsync", "rename"])
@pytest.mark.parametrize("code", [errno.EIO, errno.ENOSPC])
def test_a_failed_put_leaves_no_object_and_may_be_retried(
    failing: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FsStore(tmp_path)
    store.put("packs/a", b"makes the directories")

    def fail(call: str) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patched:
        _before_each(patched, fail, failing)
        with pytest.raises(ColdUnavailable, match=os.strerror(code)):
            store.put("packs/b", CONTENT)
    with pytest.raises(ObjectMissing):
        store.stat("packs/b")
    store.put("packs/b", CONTENT)
    assert store.get("packs/b", 0, len(CONTENT)) == CONTENT


def test_remains_of_an_interrupted_write_are_removed(tmp_path: Path) -> None:
    store = FsStore(tmp_path)
    store.put("a", b"x")
    left = tmp_path / ".tmp" / "left"
    left.write_bytes(b"half of someth")
    yesterday = time.time() - 86_400
    os.utime(left, (yesterday, yesterday))
    assert [found.name for found in store.page("")] == ["a"]
    store.close()
    assert os.listdir(tmp_path) == ["a"]


def test_a_reader_of_a_directory_removes_no_file_of_a_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, rename = FsStore(tmp_path), os.rename

    def look_and_rename(source: Path, target: Path) -> None:
        other = FsStore(tmp_path)
        assert other.page("") == []
        other.close()
        rename(source, target)

    monkeypatch.setattr(os, "rename", look_and_rename)
    store.put("a", CONTENT)
    assert store.get("a", 0, len(CONTENT)) == CONTENT


def test_a_path_that_is_not_a_directory_is_an_operators_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ColdRefused, match=str(tmp_path / "file")):
        FsStore(tmp_path / "file" / "cold").put("a", b"x")
