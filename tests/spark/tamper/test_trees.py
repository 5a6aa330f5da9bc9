"""What the rules of trees and heads find that somebody makes good who can write to the store."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from streamd.objectstore.names import HeadName
from streamd.objectstore.segments import tree_of_segment
from streamd.proofs.published import read_published
from streamd.streams.model import LogTree
from streamd_audit.findings import Finding
from tests.spark.forging import Folder
from tests.spark.tamper import log_forgery, of_trees, signing
from tests.spark.tamper.memory_store import MemoryStore
from tests.spark.tamper.stores import Grown
from tests.spark.tamper.twin import Twin

KEY = bytes(range(32))


@pytest.fixture
def folder(stores: tuple[Grown, Grown]) -> Folder:
    return Folder(stores[0].objects, stores[0].cluster_id)


@pytest.fixture
def keep(stores: tuple[Grown, Grown], tmp_path: Path) -> Callable[[int], Path]:
    """Writes the head number so many of the untouched store to a file."""
    whole = Folder(stores[0].objects, stores[0].cluster_id)

    def write(number: int) -> Path:
        path = tmp_path / f"{number}.head"
        path.write_bytes(whole.objects[whole.names("heads")[number]])
        return path

    return write


def judged(folder: Folder, *kept: Path) -> Sequence[Finding]:
    """The faults of a store, each once."""
    verdict = Twin(folder.cluster_id).verdict(MemoryStore(folder.objects), None, kept)
    return [fault.finding for fault in verdict.faults]


def kinds(folder: Folder, *kept: Path) -> list[str]:
    return [one.kind for one in judged(folder, *kept)]


def frame_of(folder: Folder, name: str) -> tuple[int, int, tuple[bytes, ...], bytes]:
    found = tree_of_segment(folder.objects[name])
    assert found is not None
    return found.first_index, found.begin, found.nodes, found.tiles


# -- trees -----------------------------------------------------------------------------------


def test_entries_before_the_first_part_of_a_tree_are_in_it(folder: Folder) -> None:
    """The next segment names the hashes that they should have; nobody has compared them."""
    first = folder.segments()[0]
    of_trees.put_frame(folder, first, b"")
    [found] = judged(folder)
    assert (found.kind, found.object) == ("tree_differs", folder.segments()[1])


def test_entries_between_parts_of_a_tree_are_in_it(folder: Folder) -> None:
    _, _, third, *_ = folder.segments()
    of_trees.put_frame(folder, third, b"")
    assert kinds(folder) == ["tree_differs"]


def test_a_part_begins_with_an_entry_of_its_segment(folder: Folder) -> None:
    last = folder.segments()[-1]
    first_index, begin, nodes, _ = frame_of(folder, folder.segments()[1])
    of_trees.put_frame(folder, last, of_trees.frame((first_index, begin, nodes, b"")))
    [found] = judged(folder)
    assert (found.kind, found.object) == ("tree_differs", folder.segments()[-1])


def test_a_segment_that_overlaps_names_the_tree_before_it(folder: Folder) -> None:
    name = folder.segments()[1]
    previous = log_forgery.previous_of(folder, name)
    first, *entries = folder.entries(name)
    after = log_forgery.sealed(folder, previous, [first]).places[0]
    nodes = tuple(bytes(32) for _ in range(after.index.bit_count()))
    made = log_forgery.sealed(folder, after, entries, tree=LogTree(1, nodes))
    put = folder.put(log_forgery.name_of(folder, made), made.content)
    [found] = judged(folder)
    assert (found.kind, found.object) == ("tree_differs", put)


def test_what_retention_has_left_begins_with_any_tree(stores: tuple[Grown, Grown]) -> None:
    folder = Folder(stores[0].objects, stores[0].cluster_id)
    for name in folder.segments()[:1]:
        del folder.objects[name]
    assert kinds(folder) == []


# -- kept heads ------------------------------------------------------------------------------


def test_a_tree_that_begins_again_is_not_that_of_a_kept_head(
    folder: Folder, keep: Callable[[int], Path]
) -> None:
    begun = log_forgery.previous_of(folder, folder.segments()[3]).index + 1
    log_forgery.forge_log(folder, {}, restart=begun)
    for name in folder.names("heads"):
        if signing.head_name(folder, name).log_index >= begun:
            del folder.objects[name]
    assert kinds(folder) == []
    assert kinds(folder, keep(-1)) == ["history_changed"]
    assert kinds(folder, keep(0)) == []


def test_heads_older_than_the_archive_prove_nothing(
    folder: Folder, keep: Callable[[int], Path]
) -> None:
    for name in folder.segments()[:4]:
        del folder.objects[name]
    for name in folder.manifests()[:2]:
        for piece in folder.pieces(name):
            del folder.objects[piece]
        del folder.objects[name]
    assert kinds(folder) == []
    assert kinds(folder, keep(0)) == ["not_audited"]
    assert kinds(folder, keep(0), keep(-1)) == []


# -- heads in the store ----------------------------------------------------------------------


def test_a_head_is_signed_by_a_key_that_the_state_knows(folder: Folder) -> None:
    name = folder.names("heads")[0]
    like = read_published(folder.objects.pop(name))
    index = HeadName.parse(folder.local(name))
    assert index is not None
    tree = signing.trees_of(folder)[index.log_index]
    signing.put_head(folder, index.log_index, tree, like, KEY)
    assert kinds(folder) == ["head_damaged"]


@pytest.mark.parametrize("more", ["in the note", "in the JSON", "another node"])
def test_a_head_has_nothing_that_is_not_signed(folder: Folder, more: str) -> None:
    name = folder.names("heads")[0]
    index = signing.head_name(folder, name).log_index
    said = json.loads(folder.objects.pop(name))
    if more == "in the note":
        said["note"] += "or else\n"
    elif more == "in the JSON":
        said["paid"] = True
    else:
        said["keys"][0]["node"] += 1
    signing.put_published(folder, index, said)
    assert kinds(folder) == ["head_damaged"]


def test_a_head_of_nested_lists_is_damaged(folder: Folder) -> None:
    content = b"[" * 100_000
    signing.put_content(folder, 5, content)
    assert kinds(folder) == ["head_damaged"]
