"""Both decoders read the examples of docs/formats.md as the page describes them."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from pathlib import Path
from struct import pack
from typing import Any, get_args

import msgspec
import pytest

from streamd.objectstore.checkpoints import read_manifest, read_piece
from streamd.objectstore.ends import read_end
from streamd.objectstore.segments import SegmentWriter
from streamd.objectstore.tree_frames import leaf_of
from streamd.proofs.heads import Head
from streamd.proofs.leaves import divide
from streamd.proofs.published import checked, read_published
from streamd.proofs.tree import GrowingTree, root_of
from streamd.streams.etags import incarnation_base
from streamd.streams.model import LogPosition, LogTree
from streamd.tiering.fence import FenceNote
from streamd_audit import checkpoints, commands, ends, names, packs, rows, segments, subscriptions
from streamd_audit.framing import check_digest
from tests.support.packs import chunks_of
from tests.support.segments import entries_of

PAGE = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()
CLUSTER = "1f0c4a57-6b1e-4f6e-9d0a-3c2b1a000001"
NOW_MS = 1_700_000_000_000


def example(kind: str) -> bytes:
    """The bytes of one of the page's hex dumps."""
    (dump,) = re.findall(rf"```hex {kind}\n(.*?)```", PAGE, re.DOTALL)
    return bytes.fromhex("".join(line[6:] for line in dump.splitlines()))


def name_of(suffix: str) -> str:
    (found,) = set(re.findall(rf"`([a-z]+/\w{{8}}/[0-9a-f-]+\.{suffix})`", PAGE))
    assert isinstance(found, str)
    return found


def signed_head() -> bytes:
    (text,) = re.findall(r"```text\n(\{.*?)\n```", PAGE, re.DOTALL)
    assert isinstance(text, str)
    return text.replace("\n", "").encode()


def test_the_example_head_matches_the_page() -> None:
    name = name_of("head")
    assert names.parse(name) == names.HeadName(0, 4, name[-69:-5])
    check_digest(name, signed_head())
    found = checked(read_published(signed_head()))
    assert found.head == Head(
        CLUSTER, 0, 1, 4, root_of(map(leaf_of, entries_of(example("segment")))), NOW_MS + 5
    )
    assert str(found.first_key) == json.loads(signed_head())["keys"][0]["key"]


@pytest.mark.parametrize("kind", ["pack", "segment", "manifest", "end"])
def test_examples_have_the_names_that_the_page_gives_them(kind: str) -> None:
    name = name_of(kind)
    assert names.parse(name) is not None
    check_digest(name, example(kind))


def test_the_example_pack_matches_the_page() -> None:
    content = example("pack")
    head, (ref,) = packs.read_pack(content)
    assert (head.group, head.term, head.number) == (0, 2, 0)
    assert (ref.offset, ref.length, ref.crc) == (0x1E, 0x21, 0x90EB0A21)
    ((_, found),) = packs.check_pack(content)
    assert (found.stream_id, found.chunk.lengths, found.chunk.appends) == (1, [3, 4], [2])
    assert bytes(found.chunk.data) == b"one-two"
    ((_, chunk),) = chunks_of(content)
    assert chunk.data == b"one-two"


def test_the_example_segment_matches_the_page() -> None:
    content = example("segment")
    entries = list(segments.read_entries(content))
    assert [entry.chain for entry in entries] == [0xB2EB69A0, 0xDA02E841, 0xAAEE2615, 0xE1201B05]
    assert all(entry.is_linked for entry in entries)
    assert [entry.kind for entry in entries] == [2, 0, 1, 1]
    assert segments.read_cluster(content) == CLUSTER
    assert content[0x6A:0x6E] == b"\x28\xb5\x2f\xfd"
    assert content[0x109:0x10D] == b"\x5c\x2a\x4d\x18"
    assert commands.decode_configuration(entries[0].payload).members() == {1}
    created, appended = (commands.decode_batch(entry.payload) for entry in entries[2:])
    assert [commands.kind_of(one) for one in created.commands] == ["create"]
    (append,) = appended.commands
    assert isinstance(append, commands.Append)
    assert (append.key, bytes(append.data), append.lengths) == (b"b\0s", b"one-two", [3, 4])
    assert append.producer == commands.Producer("p", 0, 0)
    assert appended.packages == [commands.Package(1, 2, 0, 0, 1)]
    assert [entry.payload for entry in entries_of(content)] == [
        bytes(entry.payload) for entry in segments.read_entries(content)
    ]
    (*_, last) = segments.read_entries(content)
    assert bytes(last.payload) == example("batch")


def test_the_example_tree_matches_the_page() -> None:
    written = entries_of(example("segment"))
    previous = LogPosition(3, 2, 0xAAEE2615, NOW_MS)
    leaves = [leaf_of(entry) for entry in written]
    grown = GrowingTree()
    for leaf in leaves[:3]:
        grown.add(leaf)
    writer = SegmentWriter(0, previous, CLUSTER, LogTree(1, tuple(grown.nodes)))
    writer.add(written[3])
    content = writer.finish().content
    assert content[-len(example("tree")) - 45 : -45] == example("tree")
    assert segments.read_tree(content) == segments.Tree(1, 4, grown.nodes, b"")
    assert segments.read_cluster(content) == CLUSTER
    assert segments.check_segment(content) == 1
    assert segments.read_tree(example("segment")) is None
    assert f"`{root_of(leaves).hex()}`" in PAGE
    entry = written[3]
    (command,) = divide(entry.payload).commands
    parts = msgspec.msgpack.decode(entry.payload, type=list[msgspec.Raw])
    begin = entry.payload.index(command)
    prefix, suffix = entry.payload[:begin], entry.payload[begin + len(command) :]
    assert suffix == bytes(parts[2])
    root = sha256(b"\0" + command).digest()
    head = pack(">QQBI", entry.index, entry.term, entry.kind, len(prefix))
    leaf = head + prefix + pack(">I", 1) + root + suffix
    assert sha256(b"\0" + leaf).digest() == leaves[3]


def test_the_example_state_matches_the_page() -> None:
    manifest = checkpoints.read_manifest(example("manifest"))
    assert (manifest.of.cluster, manifest.of.index, manifest.of.chain) == (CLUSTER, 4, 0xE1201B05)
    check_digest(manifest.piece_name(0), example("piece"))
    found = checkpoints.read_piece(example("piece"))
    assert found == example("rows")
    assert read_piece(read_manifest(example("manifest")), 0, example("piece")) == found
    header, bucket = (rows.read_row(*row) for row in rows.split_rows([found]))
    assert isinstance(header.value, rows.Header)
    assert (header.value.applied_index, header.value.log_ms) == (4, NOW_MS + 5)
    assert isinstance(bucket.value, rows.Bucket)
    assert (bucket.rest, bucket.value.streams) == (b"b", 1)


def test_the_example_pointer_and_fence_match_the_page() -> None:
    end = ends.read_end(example("end"))
    assert end == ends.ArchiveEnd(CLUSTER, 0, segments.Place(4, 2, 0xE1201B05, NOW_MS + 5))
    assert read_end(example("end")).position.index == 4
    (text,) = re.findall(r"```json\n(.*?)\n```", PAGE, re.DOTALL)
    assert msgspec.to_builtins(msgspec.json.decode(text, type=FenceNote)) == json.loads(text)


def test_every_kind_of_command_and_of_row_is_on_the_page() -> None:
    kinds = {kind.__struct_config__.tag for kind in get_args(commands.Command)}
    assert kinds == set(re.findall(r"^\| `([a-z-]{2,})` \|", PAGE, re.MULTILINE))
    letters = set(rows.KINDS) - {"o"}  # a node's own: no Raft snapshot and no checkpoint has it
    assert letters == set(re.findall(r"^\| `(.)` \|", PAGE, re.MULTILINE))


# -- the tables ----------------------------------------------------------------------------------

ZSTD = b"\x28\xb5\x2f\xfd"


def tables() -> list[list[list[str]]]:
    """The cells of the page's tables, without their heads."""
    found = re.findall(r"(?:^\|.*\|\n)+", PAGE, re.MULTILINE)
    return [
        [[cell.strip() for cell in row.strip("|").split(" | ")] for row in one.splitlines()[2:]]
        for one in found
    ]


def table(*firsts: str) -> dict[str, str]:
    """The table that has these first cells: from the first cells to the last ones."""
    (found,) = [
        rows
        for rows in ({row[0].strip("`"): row[-1] for row in one} for one in tables())
        if set(firsts) <= set(rows)
    ]
    return found


def width(*words: str) -> int:
    """The size in bytes of the fields in the table whose last cells have these words."""
    (rows,) = [one for one in tables() if all(any(w in row[-1] for row in one) for w in words)]
    return sum(sum(map(int, row[0].split(", "))) for row in rows if row[0][0].isdigit())


def test_heads_are_as_long_as_the_tables_say() -> None:
    magic_and_version = 6
    frame_at = example("segment").index(ZSTD)
    assert magic_and_version + width("*before* the first", "CRC-32C of the head") == frame_at
    assert width("`SDSP`", "CRC-32C of the head") == example("piece").index(ZSTD)
    assert width("stream id, or blob id", "a chunk") == packs.SLICE_HEAD_BYTES
    assert f"CRC: {packs.HEAD_BYTES} in all" in PAGE
    assert f"CRC: {packs.END_BYTES} in all" in PAGE


def fields_in(cell: str) -> tuple[int, int]:
    """How many fields a cell names, and how many of them have a default."""
    within = re.match(r"\((.*)\)(?::|$)", cell)
    bare = re.sub(r" \([^()]*\)|;.*", "", within[1] if within else cell)
    return len(bare.split(", ")), bare.count(" =")


def fields_of(shape: Any) -> tuple[int, int]:
    return len(shape.__struct_fields__), len(shape.__struct_defaults__)


@pytest.mark.parametrize(
    "shape", get_args(commands.Command), ids=lambda shape: shape.__struct_config__.tag
)
def test_commands_have_the_fields_that_the_page_gives_them(shape: Any) -> None:
    cell = table("create", "append")[shape.__struct_config__.tag]
    assert fields_in(cell) == fields_of(shape)


PARTS = {
    "settings": commands.Settings,
    "fork": commands.Fork,
    "producer": commands.Producer,
    "condition": commands.Condition,
    "finding": commands.Verified,
    "limits": commands.Limits,
    "moved slice": commands.MovedSlice,
    "log position": commands.Place,
    "fence": subscriptions.FenceStamp,
    "subscription config": subscriptions.Config,
    "wake stamp": subscriptions.WakeStamp,
    "ack": subscriptions.Ack,
    "subscription key": subscriptions.Key,
    "wake": subscriptions.Wake,
    "link": subscriptions.Link,
    "mark": subscriptions.Mark,
    "seal": subscriptions.Seal,
}
ROWS = {
    "b": rows.Bucket,
    "p": rows.ProducerState,
    "r": rows.Blob,
    "u": rows.Upload,
    "k": rows.Pack,
    "n": rows.Session,
    "a": rows.Token,
    "l": commands.Limits,
    "f": subscriptions.EndedClaims,
    "j": subscriptions.Key,
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_have_the_fields_that_the_page_gives_them(name: str) -> None:
    assert fields_in(table("settings", "fork")[name]) == fields_of(PARTS[name])


@pytest.mark.parametrize("letter", ROWS)
def test_rows_have_the_fields_that_the_page_gives_them(letter: str) -> None:
    assert fields_in(table("!", "b")[letter]) == fields_of(ROWS[letter])


LISTED = {
    "header": rows.Header,
    "stream": rows.Stream,
    "subscription": subscriptions.Subscription,
    "cold slice": rows.ColdSlice,
}


@pytest.mark.parametrize("name", LISTED)
def test_larger_rows_have_the_fields_that_the_page_gives_them(name: str) -> None:
    (item,) = re.findall(rf"^- \*{name}\*: (.*?)(?:\. |: )", PAGE, re.MULTILINE | re.DOTALL)
    bare = re.sub(r" \([^()]*\)", "", " ".join(item.split())).replace(" and ", ", ")
    assert len(bare.split(", ")) == fields_of(LISTED[name])[0], bare


@pytest.mark.parametrize("group_id", [0, 1, 2**32 - 1])
def test_the_state_of_each_group_begins_with_the_same_base_for_both(group_id: int) -> None:
    assert rows.first_header(group_id).incarnation_base == incarnation_base(group_id)
