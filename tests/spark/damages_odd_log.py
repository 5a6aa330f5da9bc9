"""Damage of the log that keeps the value of its checksums, or that only others reveal."""

from __future__ import annotations

from struct import pack

import msgspec
from crc32c import crc32c
from msgspec.structs import replace

from streamd.objectstore.segments import SegmentWriter, read_entries, read_segment_head
from streamd.raft.messages import Entry, EntryKind
from streamd.streams.codec import decode_batch, encode_batch
from streamd.streams.commands import Append
from streamd.streams.model import Stream
from tests.spark.damages import Catalogue, Expected, Scene
from tests.spark.forging import Folder, Rows, edit_row, named_segment, raw_segment, stream_row

ODD_LOG = Catalogue("The log: odd damage")


@ODD_LOG.add(is_whole=True)
def element_that_keeps_the_chain(scene: Scene) -> list[Expected]:
    """A batch has an element more, whose bytes keep the value of the chain."""
    folder = scene.folder
    index = _an_append(folder)
    name = folder.segment_of(index)
    entries = folder.entries(name)
    at = index - entries[0].index
    entries[at] = _with_same_chain(folder, index)
    content = raw_segment(folder, name, entries)
    new = folder.replace(name, named_segment(folder, name, content), content)
    return [Expected("format_unknown", new, index=index), Expected("tree_differs")]


@ODD_LOG.add(is_whole=True)
def overlap_that_keeps_the_chain(scene: Scene) -> list[Expected]:
    """A second segment has another entry of the same chain, which the first one covers."""
    folder = scene.folder
    index = _an_append(folder)
    name = folder.segment_of(index)
    head = read_segment_head(folder.objects[name])
    entries = folder.entries(name)[: index - head.previous.index]
    writer = SegmentWriter(head.group_id, head.previous, folder.cluster_id)
    for entry in entries:
        writer.add(entry)
    made = writer.finish()
    like = folder.put(made.name, made.content)
    entries[-1] = _with_same_chain(folder, index)
    content = raw_segment(folder, like, entries)
    forged = folder.replace(like, named_segment(folder, like, content), content)
    assert forged < name
    return [Expected("segments_disagree", index=index)]


@ODD_LOG.add(is_whole=True)
def entry_of_an_unknown_kind(scene: Scene) -> Expected:
    """An entry is of a kind that is not known, and the whole chain is recomputed."""
    folder = scene.folder
    index = next(entry.index for entry in folder.log() if entry.kind == EntryKind.NOOP)
    entry = folder.log()[index - 1]
    folder.forge_log({index: replace(entry, payload=b"\x90")})
    return Expected("format_unknown", folder.segment_of(index), index=index)


@ODD_LOG.add(is_whole=True)
def append_entered_twice(scene: Scene) -> Expected:
    """A batch has an append twice, and the whole chain is recomputed."""
    folder = scene.folder
    key = stream_row("agents/chat")[1:]
    said = folder.find(lambda command: isinstance(command, Append) and command.key == key)
    index = said[len(said) // 2].index
    entry = folder.log()[index - 1]
    batch = decode_batch(entry.payload)
    payload = encode_batch(replace(batch, commands=[batch.commands[0], *batch.commands]))
    folder.forge_log({index: replace(entry, payload=payload)})
    return Expected("refused_wrongly", stream="agents/chat")


@ODD_LOG.add(is_whole=True)
def log_cut_with_its_pointers(scene: Scene) -> Expected:
    """All segments and pointers after an older state are deleted; later states are left."""
    folder = scene.folder
    cut = folder.index_of(-2)
    for name in [*folder.segments(), *folder.names("ends")]:
        if int(folder.local(name).split("/")[2][:16], 16) > cut:
            del folder.objects[name]
    return Expected("log_end_missing")


@ODD_LOG.add(is_whole=True)
def last_segment_deleted_with_all_but_packs(scene: Scene) -> Expected:
    """The log ends at an older state; only packs show that it went on."""
    folder = scene.folder
    cut = folder.index_of(-2)
    for name in [*folder.segments(), *folder.names("ends"), *folder.names("snapshots")]:
        if int(folder.local(name).split("/")[2][:16], 16) > cut:
            if "/snapshots/" in name:
                for piece in folder.pieces(name):
                    del folder.objects[piece]
            del folder.objects[name]
    return Expected("log_end_missing")


@ODD_LOG.add(is_whole=True)
def all_states_deleted(scene: Scene) -> Expected:
    """All states are deleted, and the packs are left."""
    folder = scene.folder
    for name in folder.manifests():
        for piece in folder.pieces(name):
            del folder.objects[piece]
        del folder.objects[name]
    return Expected("states_missing")


@ODD_LOG.add(is_whole=True)
def unknown_row(scene: Scene) -> list[Expected]:
    """The newest state has a row of a kind that is not known, and another fault."""
    folder = scene.folder

    def add(rows: Rows) -> None:
        rows[b"~"] = b""
        edit_row(rows, stream_row("agents/late"), Stream, closed=False)

    folder.forge_state(add)
    return [Expected("format_unknown"), Expected("closed_differs", stream="agents/late")]


@ODD_LOG.add(is_whole=True)
def field_added_to_a_row(scene: Scene) -> Expected:
    """A stream's row has a field more than is known."""
    folder = scene.folder
    row = stream_row("agents/late")

    def add(rows: Rows) -> None:
        rows[row] = msgspec.msgpack.encode([*msgspec.msgpack.decode(rows[row]), 1])

    folder.forge_state(add)
    return Expected("format_unknown", stream="agents/late")


def _an_append(folder: Folder) -> int:
    """An entry that appends, inside a segment."""
    said = folder.find(lambda command: isinstance(command, Append))
    return said[len(said) // 2].index


def _with_same_chain(folder: Folder, index: int) -> Entry:
    """An entry with one element more in its batch, and the same value of the chain."""
    places = {place.index: place for name in folder.segments()
              for _, place in read_entries(folder.objects[name])}  # fmt: skip
    entry = folder.log()[index - 1]
    batch = msgspec.msgpack.decode(entry.payload)
    begun = msgspec.msgpack.encode([*batch, b""])
    assert begun[: len(entry.payload)] != entry.payload
    begun = begun[:-2] + b"\xc4\x04"
    before = pack(">IIQQB", places[index - 1].chain, folder.group_id, index, entry.term, entry.kind)
    wanted = places[index].chain
    assert crc32c(entry.payload, crc32c(before)) == wanted
    return replace(entry, payload=begun + _suffix(crc32c(begun, crc32c(before)), wanted))


def _suffix(before: int, wanted: int) -> bytes:
    """Four bytes that lead a CRC-32C from one value to another: it is linear in them."""
    zero = crc32c(bytes(4), before)
    rows = [(crc32c((1 << bit).to_bytes(4), before) ^ zero, 1 << bit) for bit in range(32)]
    target, found = wanted ^ zero, 0
    for bit in reversed(range(32)):
        at = next(at for at, (image, _) in enumerate(rows) if image >> bit & 1)
        image, source = rows.pop(at)
        rows = [(one ^ image, of ^ source) if one >> bit & 1 else (one, of) for one, of in rows]
        if target >> bit & 1:
            target, found = target ^ image, found ^ source
    return found.to_bytes(4)


@ODD_LOG.add(is_whole=True)
def whole_log_deleted(scene: Scene) -> Expected:
    """All segments and pointers are deleted; several states are left."""
    folder = scene.folder
    for name in (*folder.segments(), *folder.names("ends")):
        del folder.objects[name]
    return Expected("log_end_missing")


@ODD_LOG.add(is_whole=True)
def segment_of_a_later_term(scene: Scene) -> Expected:
    """The last segment says that the entry before it had a later term, all checksums recomputed."""
    folder = scene.folder
    name = folder.segments()[-1]
    head = read_segment_head(folder.objects[name])
    writer = SegmentWriter(
        head.group_id, replace(head.previous, term=head.previous.term + 1), folder.cluster_id
    )
    for entry in folder.entries(name):
        writer.add(entry)
    made = writer.finish()
    return Expected("chain_broken", folder.replace(name, made.name, made.content))


@ODD_LOG.add(is_whole=True)
def name_of_impossible_numbers(scene: Scene) -> Expected:
    """A segment's copy has a name with a number to which no log counts."""
    folder = scene.folder
    name = folder.segments()[-1]
    last = folder.local(name).split("/")[2].split("-")[1]
    other = folder.local(name).replace(f"-{last}-", f"-{'f' * 16}-")
    return Expected("object_odd", folder.put(other, folder.objects[name]))
