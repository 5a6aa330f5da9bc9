"""What every object store does: the directory, the simulated one, and the real MinIO."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import cast

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamd.objectstore.check import check_object_store
from streamd.objectstore.errors import ColdRefused, ObjectCorrupt, ObjectMissing
from streamd.objectstore.fs import FsStore
from streamd.objectstore.objects import MAX_OBJECT_BYTES, ObjectStore
from tests.sim.objects import ObjectsOf, SimulatedObjects


@pytest.fixture(params=["fs", "simulated", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    if request.param == "fs":
        directory = FsStore(tmp_path / "cold")
        yield directory
        directory.close()
    elif request.param == "simulated":
        yield ObjectsOf(SimulatedObjects(Random(1), lambda: 1_700_000_000_000))
    else:
        yield cast("ObjectStore", request.getfixturevalue("s3"))


def _names(store: ObjectStore, prefix: str = "", after: str = "", limit: int = 1000) -> list[str]:
    return [found.name for found in store.page(prefix, after=after, limit=limit)]


def test_any_range_of_an_object_can_be_read(store: ObjectStore) -> None:
    content = bytes(range(256)) * 40
    store.put("packs/a", content)
    assert store.get("packs/a", 0, len(content)) == content
    assert store.get("packs/a", 255, 3) == content[255:258]
    assert store.get("packs/a", len(content) - 1, 1) == content[-1:]
    assert store.get("packs/a", 5, 0) == b""


def test_an_object_has_a_size_and_a_time(store: ObjectStore) -> None:
    store.put("a", b"12345")
    found = store.stat("a")
    assert (found.name, found.size) == ("a", 5)
    assert found.modified_ms > 1_600_000_000_000
    assert store.page("a")[0].size == 5


def test_a_put_may_be_repeated(store: ObjectStore) -> None:
    store.put("a", b"content")
    store.put("a", b"content")
    assert store.get("a", 0, 7) == b"content"
    assert _names(store) == ["a"]


def test_an_empty_object_is_an_object(store: ObjectStore) -> None:
    store.put("a", b"")
    assert store.stat("a").size == 0


def test_an_absent_object_is_missing(store: ObjectStore) -> None:
    store.put("a/b", b"content")
    for name in ("b", "a/c", "a", "a/b/c"):
        with pytest.raises(ObjectMissing):
            store.get(name, 0, 1)
        with pytest.raises(ObjectMissing):
            store.stat(name)


def test_a_range_beyond_the_end_is_damage_and_not_a_short_answer(store: ObjectStore) -> None:
    store.put("a", b"12345")
    with pytest.raises(ObjectCorrupt):
        store.get("a", 3, 3)
    with pytest.raises(ObjectCorrupt):
        store.get("a", 5, 1)


def test_names_are_listed_in_order_a_page_at_a_time(store: ObjectStore) -> None:
    names = sorted(
        f"log/{folder}{number:02}" for folder in ("", "a/", "a-", "b") for number in range(4)
    )
    for name in reversed(names):
        store.put(name, b"x")
    store.put("other", b"x")
    assert _names(store, "log/") == names
    paged: list[str] = []
    while page := _names(store, "log/", after=paged[-1] if paged else "", limit=3):
        assert len(page) <= 3
        paged += page
    assert paged == names
    assert _names(store, "log/a/0") == [name for name in names if name.startswith("log/a/0")]
    assert _names(store, "nothing/") == []


def test_deleting_twice_is_not_an_error(store: ObjectStore) -> None:
    for name in ("a", "b", "folder/c"):
        store.put(name, b"x")
    store.delete(["a", "folder/c", "never-there"])
    store.delete(["a", "folder/c"])
    assert _names(store) == ["b"]
    with pytest.raises(ObjectMissing):
        store.stat("a")
    store.delete([])


def test_a_large_object_is_read_back_unchanged(store: ObjectStore) -> None:
    content = bytes(range(251)) * (12 * 1024 * 1024 // 251)
    store.put("large", content)
    assert store.get("large", 0, len(content)) == content


def test_an_object_that_is_too_large_is_a_bug(store: ObjectStore) -> None:
    with pytest.raises(ColdRefused, match="exceeds the limit for one object"):
        store.put("a", bytes(MAX_OBJECT_BYTES + 1))


def test_threads_may_use_it_at_once(store: ObjectStore) -> None:
    wrong: list[int] = []

    def work(number: int) -> None:
        for step in range(5):
            name, content = f"t/{number}-{step}", bytes([number]) * 5_000
            store.put(name, content)
            if store.get(name, 10, 4_000) != content[10:4_010]:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(_names(store, "t/")) == 40


def test_the_check_leaves_no_object(store: ObjectStore) -> None:
    check_object_store(store, "1f")
    assert _names(store) == []


_part = st.text("ab-0.", min_size=1, max_size=3).filter(lambda part: not part.startswith("."))


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sets(st.lists(_part, min_size=2, max_size=2).map("/".join), max_size=12), st.data())
def test_a_directory_lists_in_the_order_of_whole_names(
    tmp_path_factory: pytest.TempPathFactory, names: set[str], data: st.DataObject
) -> None:
    root = tmp_path_factory.mktemp("cold")
    for name in names:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_bytes(b"")
    store = FsStore(root)
    ordered = sorted(names)
    after = data.draw(st.sampled_from(["", *ordered, "a", "b/", "a-/zz"]))
    prefix = data.draw(st.sampled_from(["", "a", "a/", "a-", "b/a"]))
    expected = [name for name in ordered if name.startswith(prefix) and name > after]
    assert _names(store, prefix, after) == expected
