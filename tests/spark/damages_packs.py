"""Damaged packs: their bytes, their slices, and what refers to them."""

from __future__ import annotations

import msgspec
from crc32c import crc32c
from msgspec.structs import replace

from streamd.objectstore import packs
from streamd.objectstore.packs import PackWriter, read_pack
from streamd.streams import keys
from streamd.streams.chunks import Chunk
from streamd.streams.model import Pack, SliceRef, Stream
from tests.spark.damages import Catalogue, Expected, Scene
from tests.spark.forging import (
    Folder,
    Rows,
    Slice,
    count,
    edit_row,
    flipped,
    stream_row,
    with_bytes,
)

PACKS = Catalogue("Packs and their slices")
CHAT = "agents/chat"


def a_slice(folder: Folder) -> Slice:
    """The second of three slices of a stream, among others in its pack."""
    first, second, third = folder.slices(folder.stream(CHAT).stream_id)
    assert len({first.pack, second.pack, third.pack}) == 3
    return second


def record_at(chunk: Chunk, number: int) -> int:
    """Where, in a chunk's data, the middle of a record is."""
    place = number - chunk.start_record
    return sum(chunk.lengths[:place]) + chunk.lengths[place] // 2


def _of_stream(folder: Folder, found: Slice) -> int:
    """The number of a slice in its pack."""
    ids = [stream_id for stream_id, _ in folder.chunks(found.pack)]
    return ids.index(found.stream_id)


def with_changed_record(folder: Folder, found: Slice) -> tuple[list[tuple[int, Chunk]], int]:
    """All slices of a pack, with a bit flipped in the fourth record of one; and its number."""
    slices = folder.chunks(found.pack)
    number = _of_stream(folder, found)
    chunk = slices[number][1]
    record = chunk.start_record + 3
    changed = with_bytes(chunk, flipped(chunk.data, record_at(chunk, record)))
    slices[number] = (found.stream_id, changed)
    return slices, record


def _read_end(content: bytes) -> tuple[int, bytes]:
    """Where a pack's footer begins, and its footer."""
    size, _ = packs._END.unpack(content[-packs._END.size :])
    start = len(content) - packs._END.size - size
    return start, content[start : start + size]


@PACKS.add()
def byte_of_a_slice(scene: Scene) -> Expected:
    """A bit of a slice's data flips."""
    folder = scene.folder
    found = a_slice(folder)
    at = found.row.offset + found.row.length // 2
    folder.objects[found.pack] = flipped(folder.objects[found.pack], at)
    return Expected("slice_damaged", found.pack, CHAT, found.row.start_record)


@PACKS.add()
def byte_of_a_slice_recomputed(scene: Scene) -> Expected:
    """A record in a slice changes, and the checksums of slice and footer are recomputed."""
    folder = scene.folder
    found = a_slice(folder)
    slices, _ = with_changed_record(folder, found)
    folder.objects[found.pack] = folder.pack_of(found.pack, slices).content
    return Expected("slice_altered", found.pack, CHAT)


@PACKS.add(is_whole=True)
def slice_forged_everywhere(scene: Scene) -> Expected:
    """A record in a slice changes, and pack, name, log, chain and states are recomputed."""
    folder = scene.folder
    found = a_slice(folder)
    slices, record = with_changed_record(folder, found)
    forged = folder.forge_pack(found.pack, slices)
    return Expected("slice_contradicts_log", forged, CHAT, record)


@PACKS.add(is_whole=True)
def slice_groups_other_appends(scene: Scene) -> Expected:
    """A slice groups its records into other appends, and everything is recomputed."""
    folder = scene.folder
    found = a_slice(folder)
    slices = folder.chunks(found.pack)
    number = _of_stream(folder, found)
    chunk = slices[number][1]
    appends = [1] * (len(chunk.lengths) - 2) + [2]
    grouped = Chunk(chunk.start_record, chunk.start_byte, chunk.lengths, appends, chunk.data)
    slices[number] = (found.stream_id, grouped)
    forged = folder.forge_pack(found.pack, slices)
    return Expected("slice_cuts_append", forged, CHAT)


@PACKS.add()
def slices_swapped(scene: Scene) -> Expected:
    """Two neighbouring slices of a pack change places, footer included."""
    folder = scene.folder
    found = a_slice(folder)
    slices = folder.chunks(found.pack)
    number = _of_stream(folder, found)
    slices[number : number + 2] = reversed(slices[number : number + 2])
    folder.objects[found.pack] = folder.pack_of(found.pack, slices).content
    return Expected("slices_swapped", found.pack)


@PACKS.add()
def slice_at_another_place(scene: Scene) -> Expected:
    """A slice with the right bytes claims to begin a record later, its checksums recomputed."""
    folder = scene.folder
    found = a_slice(folder)
    slices = folder.chunks(found.pack)
    number = _of_stream(folder, found)
    chunk = slices[number][1]
    moved = Chunk(
        chunk.start_record + 1,
        chunk.start_byte + chunk.lengths[0],
        chunk.lengths,
        chunk.appends,
        chunk.data,
    )
    slices[number] = (found.stream_id, moved)
    folder.objects[found.pack] = folder.pack_of(found.pack, slices).content
    return Expected("slice_misplaced", found.pack, CHAT)


@PACKS.add(is_whole=True)
def slice_no_state_knows(scene: Scene) -> Expected:
    """The newest state has lost a slice, its totals recomputed."""
    folder = scene.folder
    found = a_slice(folder)

    def lose(rows: Rows) -> None:
        del rows[keys.slice_key(found.stream_id, found.end_record)]
        pack_key = keys.pack_key(found.row.term, found.row.number)
        live = msgspec.msgpack.decode(rows[pack_key], type=Pack).live
        edit_row(rows, pack_key, Pack, live=live - found.row.length)
        count(rows, cold_bytes=-found.row.length)

    folder.forge_state(lose)
    return Expected("slice_gap", stream=CHAT, record=found.row.start_record)


@PACKS.add(is_whole=True)
def slices_that_overlap(scene: Scene) -> Expected:
    """A slice begins a record too early, with the right bytes, and everything is recomputed."""
    folder = scene.folder
    found = a_slice(folder)
    before = folder.slices(found.stream_id)[0]
    [last] = [
        chunk.cut(chunk.end_record - 1, chunk.end_record)
        for stream_id, chunk in folder.chunks(before.pack)
        if stream_id == found.stream_id
    ]
    slices = folder.chunks(found.pack)
    number = _of_stream(folder, found)
    slices[number] = (found.stream_id, last.merged(slices[number][1]))
    forged = folder.forge_pack(found.pack, slices)
    return Expected("slice_overlap", forged, CHAT, last.start_record)


@PACKS.add(is_whole=True)
def slice_with_a_record_too_many(scene: Scene) -> Expected:
    """A slice has a record that nobody appended, and everything except the tail is recomputed."""
    folder = scene.folder
    stream = "agents/done"
    [found] = folder.slices(folder.stream(stream).stream_id)
    slices = folder.chunks(found.pack)
    number = _of_stream(folder, found)
    chunk = slices[number][1]
    more = b"the end of the end\n"
    longer = chunk.merged(Chunk(chunk.end_record, chunk.end_byte, [len(more)], [], more))
    slices[number] = (found.stream_id, longer)
    end = (longer.end_record, longer.end_byte)

    def move_row(rows: Rows) -> None:
        row = rows.pop(keys.slice_key(found.stream_id, found.end_record), None)
        if row is not None:
            rows[keys.slice_key(found.stream_id, longer.end_record)] = row
            edit_row(rows, stream_row(stream), Stream, cold=end)

    folder.forge_states(move_row)
    forged = folder.forge_pack(found.pack, slices)
    return Expected("slice_not_in_log", forged, stream)


@PACKS.add()
def byte_of_a_footer(scene: Scene) -> Expected:
    """A bit of a pack's footer flips."""
    folder = scene.folder
    name = a_slice(folder).pack
    start, footer = _read_end(folder.objects[name])
    folder.objects[name] = flipped(folder.objects[name], start + len(footer) // 2)
    return Expected("pack_footer_damaged", name)


@PACKS.add()
def footer_recomputed(scene: Scene) -> Expected:
    """A pack's footer gives a slice another digest, and the footer's checksum is recomputed."""
    folder = scene.folder
    found = a_slice(folder)
    content = folder.objects[found.pack]
    start, footer = _read_end(content)
    refs = msgspec.msgpack.decode(footer, type=list[SliceRef])
    number = _of_stream(folder, found)
    refs[number] = replace(refs[number], digest=flipped(refs[number].digest, 0))
    forged = msgspec.msgpack.encode(refs)
    folder.objects[found.pack] = (
        content[:start] + forged + packs._END.pack(len(forged), crc32c(forged))
    )
    return Expected("pack_altered", found.pack)


@PACKS.add()
def byte_of_a_packs_head(scene: Scene) -> Expected:
    """A bit of a pack's head flips."""
    folder = scene.folder
    name = a_slice(folder).pack
    folder.objects[name] = flipped(folder.objects[name], 8)
    return Expected("pack_damaged", name)


@PACKS.add()
def pack_truncated(scene: Scene) -> Expected:
    """The last third of a pack is missing."""
    folder = scene.folder
    name = a_slice(folder).pack
    folder.objects[name] = folder.objects[name][: len(folder.objects[name]) * 2 // 3]
    return Expected("pack_truncated", name)


@PACKS.add()
def pack_grown(scene: Scene) -> Expected:
    """Something is appended to a pack."""
    folder = scene.folder
    name = a_slice(folder).pack
    folder.objects[name] += b"and more"
    return Expected("pack_truncated", name)


@PACKS.add()
def pack_of_another_cluster(scene: Scene) -> Expected:
    """A whole pack of another cluster has the name of a pack."""
    folder = scene.folder
    name = a_slice(folder).pack
    folder.objects[name] = scene.foreign.objects[scene.foreign.packs()[0]]
    return Expected("pack_replaced", name)


@PACKS.add()
def pack_of_another_number(scene: Scene) -> Expected:
    """A whole pack of the same cluster has the name of another."""
    folder = scene.folder
    name = a_slice(folder).pack
    folder.objects[name] = folder.objects[folder.packs()[0]]
    assert folder.packs()[0] != name
    return Expected("pack_replaced", name)


@PACKS.add(is_whole=True)
def pack_deleted(scene: Scene) -> Expected:
    """A pack is deleted."""
    name = a_slice(scene.folder).pack
    del scene.folder.objects[name]
    return Expected("pack_missing", name)


@PACKS.add(is_whole=True)
def pack_nobody_refers_to(scene: Scene) -> Expected:
    """A pack of an earlier term that no state refers to is there; it is harmless."""
    folder = scene.folder
    writer = PackWriter(folder.group_id, 1, 7)
    for stream_id, chunk in folder.chunks(folder.packs()[0])[:2]:
        writer.add(stream_id, chunk)
    made = writer.finish()
    assert read_pack(made.content).term == 1
    return Expected("pack_orphan", folder.put(made.name, made.content))


@PACKS.add(is_whole=True)
def part_of_a_body_forged_everywhere(scene: Scene) -> Expected:
    """A part of a snapshot's body changes, and pack, name, log, chain and states are recomputed."""
    folder = scene.folder
    snapshot = folder.stream("agents/story").snapshot
    assert snapshot is not None
    found = folder.slices(snapshot.blob_id)[0]
    slices = folder.chunks(found.pack)
    number = _of_stream(folder, found)
    chunk = slices[number][1]
    slices[number] = (found.stream_id, with_bytes(chunk, flipped(chunk.data, chunk.size // 2)))
    return Expected("slice_contradicts_log", folder.forge_pack(found.pack, slices))


@PACKS.add()
def footer_that_lies(scene: Scene) -> Expected:
    """A pack's footer names another stream for a slice, and name, log, chain and states are
    recomputed."""
    folder = scene.folder
    found = a_slice(folder)
    slices = folder.chunks(found.pack)
    content = folder.objects[found.pack]
    start, footer = _read_end(content)
    refs = msgspec.msgpack.decode(footer)
    refs[_of_stream(folder, found)][0] += 1000
    lying = msgspec.msgpack.encode(refs)
    end = packs._END.pack(len(lying), crc32c(lying))
    forged = folder.forge_pack(found.pack, slices, content[:start] + lying + end)
    return Expected("pack_footer_damaged", forged)
