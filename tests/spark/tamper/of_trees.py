"""Changes to the hash trees over the log that segments have parts of, and to signed heads."""

from __future__ import annotations

from random import Random
from struct import pack_into
from typing import Any

import msgspec
from crc32c import crc32c

from streamd.objectstore.segments import tree_of_segment
from streamd.objectstore.tree_frames import MAGIC
from streamd.proofs.published import PublishedHead, read_published
from tests.spark.forging import Folder, named_segment
from tests.spark.resealing import SEGMENT_HEAD, good_head
from tests.spark.tamper import leaves, log_forgery, signing
from tests.spark.tamper.changes import Site, change

_FIELDS = "first_index", "begin", "nodes", "tiles"
_OF_HEADS = "cluster", "group", "first_index", "size", "root", "time"


def put_frame(folder: Folder, name: str, frame: bytes) -> None:
    """Give a segment this frame in place of its own, with its checksum and its name made good."""
    content = folder.objects[name]
    at = content.rindex(MAGIC.to_bytes(4, "little"))
    end = at + 8 + int.from_bytes(content[at + 4 : at + 8], "little")
    body = content[SEGMENT_HEAD:at] + frame + content[end:]
    start = bytearray(content[:SEGMENT_HEAD])
    pack_into(">QI", start, SEGMENT_HEAD - 16, len(body), crc32c(body))
    made = good_head(bytes(start), SEGMENT_HEAD) + body
    folder.replace(name, named_segment(folder, name, made), made)


def frame(value: Any) -> bytes:
    """The frame with a part of the tree that is this array."""
    encoded = msgspec.msgpack.encode(value)
    size = len(encoded)
    head = MAGIC.to_bytes(4, "little") + (size + 4).to_bytes(4, "little")
    return head + encoded + size.to_bytes(4, "little")


def _where(site: Site, name: str) -> str:
    names = site.folder.segments()
    return "last" if name == names[-1] else "first" if name == names[0] else "middle"


@change("element")
def tree_frame(site: Site) -> str:
    """A field of a segment's part of the tree."""
    folder, random = site.folder, site.random
    name = random.choice(folder.segments())
    where = _where(site, name)
    found = msgspec.msgpack.decode(msgspec.msgpack.encode(tree_of_segment(folder.objects[name])))
    path = random.choice([path for path in leaves.places(found) if path])
    how, value = leaves.changed(random, leaves.at(found, path))
    put_frame(folder, name, frame(leaves.with_changed(found, path, value)))
    return f"tree/{_FIELDS[path[0]]}/{where}: {how}, {folder.local(name)[:46]}"


@change("element")
def tree_frames_swapped(site: Site) -> str:
    """A segment's part of the tree in another one, of this log or of another cluster's."""
    folder, random = site.folder, site.random
    name = random.choice(folder.segments())
    where = _where(site, name)
    foreign = Folder(site.foreign.objects, site.foreign.cluster_id)
    whose, other = random.choice((("own", folder), ("foreign", foreign)))
    taken = tree_of_segment(other.objects[random.choice(other.segments())])
    put_frame(folder, name, frame(taken))
    return f"tree/of-another-{whose}/{where}: {folder.local(name)[:46]}"


@change("element")
def trees_gone(site: Site) -> str:
    """The parts of the tree of some segments."""
    folder, random = site.folder, site.random
    names = folder.segments()
    count = random.randrange(1, len(names))
    what = random.choice(("the-first", "the-last", "some", "all"))
    chosen = {
        "the-first": names[:count], "the-last": names[-count:], "all": names,
        "some": random.sample(names, count),
    }[what]  # fmt: skip
    for name in chosen:
        put_frame(folder, name, b"")
    return f"tree/gone-of-{what}: of {len(chosen)} segments"


@change("history")
def tree_begun_again(site: Site) -> str:
    """The tree begins again within the log, as after a gap, and everything agrees with that."""
    folder = site.folder
    begun = [log_forgery.previous_of(folder, name).index + 1 for name in folder.segments()]
    first = site.random.choice(begun[1:])
    log_forgery.forge_log(folder, {}, restart=first)
    return f"tree-begun-again{signing.forge_heads(site, first)}: from entry {first} on"


# -- heads -------------------------------------------------------------------------------------


def _a_head(site: Site) -> tuple[str, int, PublishedHead]:
    """The name of a head, its last entry, and what it says."""
    name = site.one_of("heads")
    index = signing.head_name(site.folder, name).log_index
    return name, index, read_published(site.objects[name])


@change("element")
def head_object(site: Site) -> str:
    """A place in a head's JSON, its name made good."""
    name, index, head = _a_head(site)
    said = msgspec.to_builtins(head)
    path = site.random.choice([path for path in leaves.places(said) if path])
    how, value = leaves.changed(site.random, leaves.at(said, path))
    del site.objects[name]
    signing.put_published(site.folder, index, leaves.with_changed(said, path, value))
    return f"head/{'.'.join(map(str, path))}: {how}, head {index}"


@change("element")
def head_signed_again(site: Site) -> str:
    """A field of what is signed, or none, with another key's signature; or its own one's left."""
    folder, random = site.folder, site.random
    name, index, head = _a_head(site)
    text = head.note.partition("\n\n")[0] + "\n"
    # Half of them with nothing changed: it is all that the list allows, after the states.
    field = random.choice(("nothing", random.choice(_OF_HEADS)))
    if field != "nothing":
        text = _told(random, text, field)
    private_key = random.randbytes(32)
    note = signing.signed_note(folder, text, private_key)
    keys = [signing.own_key(folder, private_key)]
    how = random.choice(("its-own-key", "its-own-key", "vouched-for-by-none", "with-the-first-key"))
    if how == "vouched-for-by-none":
        keys = [*head.keys, *keys]
    elif how == "with-the-first-key":
        # A note may have several signatures.
        note, keys = note + head.note.rpartition("\n\n")[2], [*head.keys]
    del site.objects[name]
    signing.put_published(folder, index, PublishedHead(note, keys))
    states = [folder.manifest(one).of.index for one in folder.manifests()]
    when = "reached" if index <= states[-1] else "after-states"
    return f"head/signed-by-{how}-{when}/{field}: head {index}"


def _told(random: Random, text: str, field: str) -> str:
    """What a head tells, with another value of a field."""
    origin, size, root, time, _ = text.split("\n")
    parts = [*origin.split("/")[1:], size, root, time.removeprefix("time ")]
    at = _OF_HEADS.index(field)
    old = parts[at]
    value = leaves.changed(random, int(old) if old.isdigit() else old)[1]
    parts[at] = str(value)
    cluster, group, first_index, size, root, time = parts
    return f"streamd/{cluster}/{group}/{first_index}\n{size}\n{root}\ntime {time}\n"


@change("object")
def head_elsewhere(site: Site) -> str:
    """A head under the name of another entry, of this cluster or of another."""
    folder, random = site.folder, site.random
    name, index, _ = _a_head(site)
    whose = random.choice(("own", "foreign"))
    objects = site.objects if whose == "own" else site.foreign.objects
    others = [each for each in sorted(objects) if "/heads/" in each and each != name]
    content = objects[random.choice(others)]
    del site.objects[name]
    signing.put_published(folder, index, msgspec.Raw(content))
    return f"heads/another-{whose}-in-its-place: head {index}"
