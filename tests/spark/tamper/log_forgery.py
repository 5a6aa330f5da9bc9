"""The archived log written again with other entries, whatever they hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec
import zstandard
from crc32c import crc32c
from msgspec.structs import astuple, replace

from streamd.objectstore import segments
from streamd.objectstore.ends import make_end, read_end
from streamd.objectstore.errors import ObjectCorrupt
from streamd.objectstore.names import SegmentName, digest_of
from streamd.objectstore.segments import read_segment_head, tree_of_segment
from streamd.objectstore.tree_frames import TreeRecorder
from streamd.raft.messages import Entry, EntryKind
from streamd.streams.codec import time_of_batch
from streamd.streams.model import LogPosition, LogTree
from streamd_audit.chain import link
from tests.spark.forging import Folder, Places, move_state


@dataclass
class Sealed:
    """A segment, and the places of its entries; the chain is right. `trees` are those over the log
    after entries, if it has any."""

    content: bytes
    places: list[LogPosition]
    trees: dict[int, LogTree]


def sealed(
    folder: Folder,
    previous: LogPosition,
    entries: Sequence[Entry],
    chains: Sequence[int] | None = None,
    tree: LogTree | None = None,
) -> Sealed:
    """A segment of these entries, with the `chains` given, by default those that lead to them, and
    with its part of the `tree` that is before them."""
    parts, places = [], []
    place = previous
    for number, entry in enumerate(entries):
        chain = link(place.chain, folder.group_id, place.index + 1, *_linked(entry))
        if chains is not None:
            chain = chains[number]
        place = LogPosition(place.index + 1, entry.term, chain, _time(entry, place.time_ms))
        places.append(place)
        parts += [segments._ENTRY.pack(entry.term, entry.kind, chain, len(entry.payload))]
        parts += [entry.payload]
    inside = b"".join(parts)
    body = zstandard.ZstdCompressor(level=3).compress(inside)
    frame, trees = _frame(tree, previous.index + 1, entries)
    body += frame + segments._cluster_frame(folder.cluster_id)
    first = places[0]
    head = segments._HEAD.pack(
        folder.group_id,
        *astuple(previous),
        first.term,
        first.time_ms,
        *astuple(places[-1]),
        len(inside),
        len(body),
        crc32c(body),
    )
    return Sealed(head + body, places, trees)


def _frame(
    tree: LogTree | None, begin: int, entries: Sequence[Entry]
) -> tuple[bytes, dict[int, LogTree]]:
    """The part of a tree that entries add, and the trees after each of them; none if it has no
    leaves for them."""
    if tree is None:
        return b"", {}
    trees = {}
    try:
        recorder = TreeRecorder(tree, begin)
        for index, entry in enumerate(entries, start=begin):
            recorder.add(replace(entry, index=index))
            trees[index] = recorder.tree
    except ObjectCorrupt:
        return b"", {}
    return recorder.frame(), trees


def name_of(folder: Folder, found: Sealed) -> str:
    """The name of a segment below the cluster's folder."""
    first, last = found.places[0].index, found.places[-1].index
    return str(SegmentName(folder.group_id, first, last, digest_of(found.content)))


def put_segment(folder: Folder, old: str, found: Sealed) -> str:
    return folder.replace(old, name_of(folder, found), found.content)


def previous_of(folder: Folder, segment: str) -> LogPosition:
    return read_segment_head(folder.objects[segment]).previous


def chains_of(folder: Folder, segment: str) -> list[int]:
    return [place.chain for _, place in segments.read_entries(folder.objects[segment])]


def tree_before(folder: Folder, segment: str) -> LogTree | None:
    """The tree over the log that a segment says was before it."""
    frame = tree_of_segment(folder.objects[segment])
    return None if frame is None else frame.tree


def forge_log(folder: Folder, changes: Mapping[int, Entry], restart: int = 0) -> None:
    """As `Folder.forge_log`, whose changes have to be batches, and with all heads left. The tree
    over the log begins again with entry `restart`, which has to be the first one of a segment."""
    places = Places(folder.group_id)
    places.at |= folder.named_places()
    for name in folder.segments():
        previous = places.at[previous_of(folder, name).index]
        entries = []
        place = previous
        for original in folder.entries(name):
            entry = changes.get(original.index) or places.repointed(original)
            entries.append(entry)
            chain = link(place.chain, folder.group_id, entry.index, *_linked(entry))
            place = LogPosition(entry.index, entry.term, chain, _time(entry, place.time_ms))
            places.at[entry.index] = place
        before = tree_before(folder, name)
        if previous.index + 1 == restart:
            before = LogTree(restart)
        elif before is not None:
            before = places.trees.get(previous.index, before)
        made = sealed(folder, previous, entries, tree=before)
        places.trees |= made.trees
        put_segment(folder, name, made)
    for name in folder.names("ends"):
        end = read_end(folder.objects[name])
        folder.replace(name, *make_end(replace(end, position=places.at[end.position.index])))
    for name in folder.names("snapshots"):
        folder._forge_state(name, lambda of, rows: move_state(of, rows, places))


def _linked(entry: Entry) -> tuple[int, int, bytes]:
    return entry.term, int(entry.kind), entry.payload


def _time(entry: Entry, before: int) -> int:
    if entry.kind != EntryKind.COMMANDS:
        return before
    try:
        return max(before, time_of_batch(entry.payload))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return before


def keeping_crc(payload: bytes, at: int, end: int) -> bytes | None:
    """The payload with a bit at byte `at` flipped and four bytes after it changed so that its
    CRC-32C stays; None if there are no four bytes before `end`."""
    if end - at < 5:
        return None
    size = len(payload)

    def effect(byte: int, bit: int) -> int:
        flip = bytearray(size)
        flip[byte] = 1 << bit
        return crc32c(bytes(flip)) ^ crc32c(bytes(size))

    wanted = effect(at, 0)
    basis: list[tuple[int, int]] = []
    for number in range(32):
        value, used = effect(at + 1 + number // 8, number % 8), 1 << number
        for known, parts in basis:
            if value ^ known < value:
                value, used = value ^ known, used ^ parts
        if value:
            basis.append((value, used))
            basis.sort(reverse=True)
    chosen = 0
    for known, parts in basis:
        if wanted ^ known < wanted:
            wanted, chosen = wanted ^ known, chosen ^ parts
    assert not wanted
    found = bytearray(payload)
    found[at] ^= 1
    for number in range(32):
        if chosen >> number & 1:
            found[at + 1 + number // 8] ^= 1 << number % 8
    assert crc32c(bytes(found)) == crc32c(payload)
    return bytes(found)
