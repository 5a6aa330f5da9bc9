"""Damaged archives of the log: segments, entries, and pointers to the end."""

from __future__ import annotations

from typing import Any

import msgspec
from crc32c import crc32c
from msgspec.structs import replace

from streamd.objectstore import ends
from streamd.objectstore.names import NamedObject, SegmentName, digest_of
from streamd.objectstore.segments import HEAD_BYTES, SegmentWriter, read_segment_head
from streamd.raft.messages import Entry, EntryKind
from streamd.streams.codec import decode_batch, encode_batch
from streamd.streams.commands import Append
from tests.spark.damages import Catalogue, Expected, Scene
from tests.spark.damages_packs import CHAT
from tests.spark.forging import Folder, Said, flipped, named_segment, raw_segment, stream_row

LOG = Catalogue("The log")


def appends_to(folder: Folder, stream: str) -> list[Said]:
    key = stream_row(stream)[1:]
    return folder.find(lambda command: isinstance(command, Append) and command.key == key)


def an_append(folder: Folder) -> Said:
    """To a stream that is appended to again later, with its records in packs."""
    return appends_to(folder, CHAT)[35]


def _with_other_bytes(folder: Folder, said: Said) -> Entry:
    """An entry with a flipped bit in an append's bytes; its chain is not recomputed."""
    entry = folder.log()[said.index - 1]
    at = entry.payload.index(said.command.data) + len(said.command.data) // 2
    return replace(entry, payload=flipped(entry.payload, at))


def _forged_alone(folder: Folder) -> tuple[int, str, bytes]:
    """An entry forged in its segment: its index, the segment's name, and the new content, whose
    sizes and CRC-32C hold and whose chain does not."""
    said = an_append(folder)
    name = folder.segment_of(said.index)
    forged = _with_other_bytes(folder, said)
    entries = [forged if entry.index == forged.index else entry for entry in folder.entries(name)]
    return said.index, name, raw_segment(folder, name, entries)


def _in_order(folder: Folder, name: str, entries: list[Entry]) -> NamedObject:
    """A segment that continues from the same entry as another, with its chain recomputed."""
    head = read_segment_head(folder.objects[name])
    writer = SegmentWriter(head.group_id, head.previous, folder.cluster_id)
    for entry in entries:
        writer.add(entry)
    return writer.finish()


# -- segments ---------------------------------------------------------------------------------


@LOG.add()
def byte_of_a_segment(scene: Scene) -> Expected:
    """A bit of a segment's body flips."""
    folder = scene.folder
    name = folder.segment_of(an_append(folder).index)
    content = folder.objects[name]
    folder.objects[name] = flipped(content, (HEAD_BYTES + len(content)) // 2)
    return Expected("segment_damaged", name)


@LOG.add()
def byte_of_a_segments_head(scene: Scene) -> Expected:
    """A bit of a segment's head flips."""
    folder = scene.folder
    name = folder.segment_of(an_append(folder).index)
    folder.objects[name] = flipped(folder.objects[name], 40)
    return Expected("segment_damaged", name)


@LOG.add()
def byte_of_a_segment_recomputed(scene: Scene) -> Expected:
    """A byte in a segment's body changes, and its CRC-32C is recomputed."""
    folder = scene.folder
    _, name, content = _forged_alone(folder)
    folder.objects[name] = content
    return Expected("segment_altered", name)


@LOG.add()
def segment_truncated(scene: Scene) -> Expected:
    """The last third of a segment is missing."""
    folder = scene.folder
    name = folder.segment_of(an_append(folder).index)
    folder.objects[name] = folder.objects[name][: len(folder.objects[name]) * 2 // 3]
    return Expected("segment_truncated", name)


@LOG.add(is_whole=True)
def segment_dropped(scene: Scene) -> Expected:
    """A segment in the middle of the log is deleted."""
    folder = scene.folder
    name = folder.segment_of(an_append(folder).index)
    first = read_segment_head(folder.objects.pop(name)).first_index
    return Expected("log_gap", index=first)


@LOG.add(is_whole=True)
def last_segment_dropped(scene: Scene) -> Expected:
    """The last segment is deleted."""
    folder = scene.folder
    del folder.objects[folder.segments()[-1]]
    return Expected("log_end_missing")


@LOG.add(is_whole=True)
def segment_duplicated(scene: Scene) -> Expected:
    """A copy of a segment has the name of other entries."""
    folder = scene.folder
    name = folder.segment_of(an_append(folder).index)
    parsed = SegmentName.parse(folder.local(name))
    assert parsed is not None
    content = folder.objects[name]
    other = SegmentName(
        folder.group_id, parsed.first_index + 5, parsed.last_index + 5, digest_of(content)
    )
    return Expected("segment_misnamed", folder.put(str(other), content))


@LOG.add(is_whole=True)
def segments_reordered(scene: Scene) -> list[Expected]:
    """Two segments change places, and their names have the right digests."""
    folder = scene.folder
    name = folder.segment_of(an_append(folder).index)
    other = folder.segments()[folder.segments().index(name) + 1]
    one, two = folder.objects[name], folder.objects[other]
    moved = [
        folder.replace(name, named_segment(folder, name, two), two),
        folder.replace(other, named_segment(folder, other, one), one),
    ]
    return [Expected("segment_misnamed", full) for full in moved]


@LOG.add(is_whole=True)
def segment_of_another_cluster(scene: Scene) -> Expected:
    """A whole segment of another cluster is among the segments."""
    name = scene.foreign.segments()[1]
    local, content = scene.foreign.local(name), scene.foreign.objects[name]
    return Expected("segment_foreign", scene.folder.put(local, content))


@LOG.add(is_whole=True)
def segments_that_disagree(scene: Scene) -> Expected:
    """A second segment holds another entry of an index, with a chain that holds."""
    folder = scene.folder
    said = an_append(folder)
    name = folder.segment_of(said.index)
    forged = _with_other_bytes(folder, said)
    entries = [entry for entry in folder.entries(name) if entry.index < said.index]
    made = _in_order(folder, name, [*entries, forged])
    folder.put(made.name, made.content)
    return Expected("segments_disagree", index=said.index)


# -- entries ----------------------------------------------------------------------------------


@LOG.add()
def entry_forged(scene: Scene) -> Expected:
    """An entry changes; the segment's checksums and its name are recomputed, the chain is not."""
    folder = scene.folder
    index, name, content = _forged_alone(folder)
    folder.replace(name, named_segment(folder, name, content), content)
    return Expected("chain_broken", index=index)


@LOG.add(is_whole=True)
def entry_forged_with_its_segment(scene: Scene) -> Expected:
    """An entry changes, and the chain is recomputed to the end of its segment, not after it."""
    folder = scene.folder
    said = an_append(folder)
    name = folder.segment_of(said.index)
    forged = _with_other_bytes(folder, said)
    entries = [forged if entry.index == forged.index else entry for entry in folder.entries(name)]
    made = _in_order(folder, name, entries)
    folder.replace(name, made.name, made.content)
    return Expected("chain_broken", index=entries[-1].index + 1)


@LOG.add(is_whole=True)
def chain_recomputed_against_packs(scene: Scene) -> Expected:
    """An append's bytes change, and the whole chain is recomputed: only the packs can tell."""
    folder = scene.folder
    said = an_append(folder)
    record = _record_of(folder, said)
    folder.forge_log({said.index: _with_other_bytes(folder, said)})
    return Expected("slice_contradicts_log", stream=CHAT, record=record)


@LOG.add(is_whole=True)
def chain_recomputed_against_the_state(scene: Scene) -> Expected:
    """An append that is in no pack yet changes, and the whole chain is recomputed: only the state
    can tell."""
    folder = scene.folder
    said = appends_to(folder, "agents/late")[2]
    folder.forge_log({said.index: _with_other_bytes(folder, said)})
    return Expected("bytes_differ", stream="agents/late", record=3)


def _record_of(folder: Folder, said: Said) -> int:
    """The number of the single record of an append to the chat."""
    records = 0
    for append in appends_to(folder, CHAT):
        if append.index == said.index:
            break
        records += len(append.command.lengths)
    return records


@LOG.add()
def entries_too_few(scene: Scene) -> Expected:
    """A segment has an entry less than its head says, all checksums recomputed."""
    folder = scene.folder
    name = folder.segment_of(an_append(folder).index)
    content = raw_segment(folder, name, folder.entries(name)[:-1])
    full = folder.replace(name, named_segment(folder, name, content), content)
    return Expected("segment_truncated", full)


@LOG.add(is_whole=True)
def undecodable_entry(scene: Scene) -> Expected:
    """An entry's commands are garbage, and the whole chain is recomputed."""
    folder = scene.folder
    said = an_append(folder)
    entry = folder.log()[said.index - 1]
    batch = decode_batch(entry.payload)
    garbage = msgspec.msgpack.encode([batch.now_ms, [["append", 7, 7]]])
    folder.forge_log({said.index: replace(entry, payload=garbage)})
    return Expected("entry_damaged", index=said.index)


@LOG.add(is_whole=True)
def wrong_term(scene: Scene) -> Expected:
    """An entry is of an earlier term than the one before it; the whole chain is recomputed."""
    folder = scene.folder
    said = an_append(folder)
    entry = folder.log()[said.index - 1]
    folder.forge_log({said.index: replace(entry, term=entry.term - 1)})
    return Expected("term_wrong", index=said.index)


@LOG.add(is_whole=True)
def two_leaders_in_a_term(scene: Scene) -> Expected:
    """A leader's first entry comes a second time in its term; the whole chain is recomputed."""
    folder = scene.folder
    said = next(
        one
        for one in folder.find(lambda c: isinstance(c, Append) and c.seq == "a003")
        if one.index != appends_to(folder, "agents/ticks")[3].index
    )
    entry = folder.log()[said.index - 1]
    folder.forge_log({said.index: Entry(entry.index, entry.term, EntryKind.NOOP, b"")})
    return Expected("leaders_disagree", index=said.index)


@LOG.add(is_whole=True)
def stamp_goes_back(scene: Scene) -> Expected:
    """An entry's stamp is earlier than that of the one before; the whole chain is recomputed."""
    folder = scene.folder
    said = an_append(folder)
    entry = folder.log()[said.index - 1]
    batch = decode_batch(entry.payload)
    payload = encode_batch(replace(batch, now_ms=batch.now_ms - 60_000))
    folder.forge_log({said.index: replace(entry, payload=payload)})
    return Expected("stamp_back", index=said.index)


# -- commands ---------------------------------------------------------------------------------


def _exchange(folder: Folder, one: int, other: int) -> None:
    """Let two entries have each other's commands, and recompute the whole chain."""
    log = folder.log()
    batches = {index: decode_batch(log[index - 1].payload) for index in (one, other)}
    folder.forge_log(
        {
            index: replace(
                log[index - 1],
                payload=encode_batch(replace(batches[index], commands=batches[instead].commands)),
            )
            for index, instead in ((one, other), (other, one))
        }
    )


def _forge(folder: Folder, said: Said, **fields: Any) -> None:
    folder.forge_command(said.index, said.position, replace(said.command, **fields))


@LOG.add(is_whole=True)
def append_after_a_close(scene: Scene) -> Expected:
    """A close comes before the append that it came after; the whole chain is recomputed."""
    folder = scene.folder
    *_, last, close = appends_to(folder, "agents/late")
    assert close.command.close
    assert close.index == last.index + 1
    _exchange(folder, last.index, close.index)
    return Expected("append_after_close", stream="agents/late", index=close.index)


def _produced(folder: Folder, sequence: int) -> Said:
    [said] = [
        said
        for said in appends_to(folder, "agents/orders")
        if (stamp := said.command.producer) and (stamp.producer_id, stamp.seq) == ("van", sequence)
    ]
    return said


@LOG.add(is_whole=True)
def producers_gap(scene: Scene) -> Expected:
    """A producer's append has a later number, so that one is missing; the chain is recomputed."""
    folder = scene.folder
    said = _produced(folder, 2)
    _forge(folder, said, producer=replace(said.command.producer, seq=3))
    return Expected("producer_gap", stream="agents/orders", index=said.index)


@LOG.add(is_whole=True)
def producers_repetition(scene: Scene) -> Expected:
    """A producer's append has the number of the one before; the whole chain is recomputed."""
    folder = scene.folder
    said = _produced(folder, 2)
    _forge(folder, said, producer=replace(said.command.producer, seq=1))
    return Expected("producer_repeated", stream="agents/orders", index=said.index)


@LOG.add(is_whole=True)
def stream_seq_goes_back(scene: Scene) -> Expected:
    """An append that took effect has a lower Stream-Seq; the whole chain is recomputed."""
    folder = scene.folder
    said = next(s for s in appends_to(folder, "agents/ticks") if s.command.seq == "a005")
    _forge(folder, said, seq="a001")
    return Expected("seq_back", stream="agents/ticks", index=said.index)


@LOG.add(is_whole=True)
def taken_though_of_another_type(scene: Scene) -> Expected:
    """An append that took effect has another content type; the whole chain is recomputed."""
    folder = scene.folder
    said = appends_to(folder, "agents/late")[2]
    _forge(folder, said, content_type="image/png")
    return Expected("taken_wrongly", stream="agents/late", index=said.index)


@LOG.add(is_whole=True)
def refused_though_right(scene: Scene) -> Expected:
    """An append that was refused has the right content type; the whole chain is recomputed."""
    folder = scene.folder
    said = next(s for s in appends_to(folder, "agents/ticks") if "json" in s.command.content_type)
    _forge(folder, said, content_type="text/plain")
    return Expected("refused_wrongly", stream="agents/ticks", index=said.index)


# -- pointers to the end ----------------------------------------------------------------------


@LOG.add()
def byte_of_an_end(scene: Scene) -> Expected:
    """A bit of a pointer to the archive's end flips."""
    folder = scene.folder
    name = folder.names("ends")[-1]
    folder.objects[name] = flipped(folder.objects[name], len(folder.objects[name]) // 2)
    return Expected("end_damaged", name)


@LOG.add()
def end_of_another_time(scene: Scene) -> Expected:
    """An older pointer to the archive's end is copied over the newest."""
    folder = scene.folder
    *_, older, newest = folder.names("ends")
    folder.objects[newest] = folder.objects[older]
    return Expected("end_altered", newest)


@LOG.add(is_whole=True)
def end_of_another_log(scene: Scene) -> Expected:
    """The newest pointer names another chain, its name and checksums recomputed."""
    folder = scene.folder
    name = folder.names("ends")[-1]
    end = ends.read_end(folder.objects[name])
    position = replace(end.position, chain=end.position.chain ^ 1)
    made = ends.make_end(replace(end, position=position))
    folder.replace(name, made.name, made.content)
    return Expected("end_off_log", index=end.position.index)


@LOG.add()
def later_format(scene: Scene) -> Expected:
    """A pointer to the end is of a later format version than is known."""
    folder = scene.folder
    name = folder.names("ends")[0]
    content = bytearray(folder.objects[name])
    content[4:6] = (9).to_bytes(2)
    size = ends._END.head.size
    content[size - 4 : size] = crc32c(content[: size - 4]).to_bytes(4)
    local = folder.local(name)
    renamed = local.replace(local.rpartition("-")[2], f"{digest_of(content)}.end")
    return Expected("format_unknown", folder.replace(name, renamed, bytes(content)))
