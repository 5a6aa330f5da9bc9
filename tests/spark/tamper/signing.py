"""Heads of the log that somebody signs who has none of the cluster's keys."""

from __future__ import annotations

import msgspec

from streamd.objectstore.errors import ObjectCorrupt
from streamd.objectstore.names import HeadName, digest_of
from streamd.objectstore.segments import tree_of_segment
from streamd.objectstore.tree_frames import TreeRecorder
from streamd.proofs.heads import key_of, key_text, public_key_of, sign, signed
from streamd.proofs.published import (
    PublishedHead,
    PublishedKey,
    checked,
    head_of,
    published_key,
    read_published,
)
from streamd.streams.model import LogTree
from tests.spark.forging import Folder
from tests.spark.tamper.changes import Site, Unfit


def forge_heads(site: Site, index: int) -> str:
    """Make the heads good that contradict a log which was changed from entry `index` on: they are
    removed, or signed again by another key; or left as they are. Returns what was done, for the
    name of a change; nothing if they are removed."""
    folder, random = site.folder, site.random
    how = random.choice(("", "", "", "-heads-signed-again", "-heads-left"))
    names = [name for name in folder.names("heads") if head_name(folder, name).log_index >= index]
    if how == "-heads-left" or not names:
        return "-heads-left" * bool(names)
    try:
        trees = trees_of(folder) if how else {}
    except ObjectCorrupt as damage:
        # The change left a segment that nobody can read, and so no tree to sign.
        raise Unfit from damage
    private_key = random.randbytes(32)
    for name in names:
        old = read_published(folder.objects.pop(name))
        at = head_name(folder, name).log_index
        if at in trees:
            put_head(folder, at, trees[at], old, private_key)
    return how


def head_name(folder: Folder, name: str) -> HeadName:
    found = HeadName.parse(folder.local(name))
    assert found is not None
    return found


def put_head(
    folder: Folder, index: int, tree: LogTree, like: PublishedHead, private_key: bytes
) -> str:
    """Put the head of a tree whose last leaf is entry `index`, signed by a key that vouches for
    itself, with the time of another head."""
    last = index, checked(like).head.time_ms
    head = head_of(folder.cluster_id, folder.group_id, tree.first_index, tree.nodes, last)
    note = signed_note(folder, head.text, private_key)
    return put_published(folder, index, PublishedHead(note, [own_key(folder, private_key)]))


def put_published(folder: Folder, index: int, head: object) -> str:
    return put_content(folder, index, msgspec.json.encode(head))


def put_content(folder: Folder, index: int, content: bytes) -> str:
    """Put a head's object under its name."""
    return folder.put(str(HeadName(folder.group_id, index, digest_of(content))), content)


def signed_note(folder: Folder, text: str, private_key: bytes) -> str:
    return signed(text, private_key, key_of(folder.cluster_id, public_key_of(private_key)))


def own_key(folder: Folder, private_key: bytes) -> PublishedKey:
    """A key that nothing but itself vouches for."""
    public_key = public_key_of(private_key)
    signature = sign(key_text(folder.cluster_id, public_key), private_key)
    return published_key(folder.cluster_id, 1, public_key, b"", signature)


def trees_of(folder: Folder) -> dict[int, LogTree]:
    """The trees over the log after each entry, as segments say what was before them."""
    found = {}
    for name in folder.segments():
        frame = tree_of_segment(folder.objects[name])
        if frame is None:
            continue
        recorder = TreeRecorder(frame.tree, frame.begin)
        for entry in folder.entries(name):
            if entry.index >= frame.begin:
                recorder.add(entry)
                found[entry.index] = recorder.tree
    return found
