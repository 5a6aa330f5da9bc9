"""The audit's findings about one pack, by its bytes and the references of the newest state."""

from __future__ import annotations

from dataclasses import replace

import pytest

from streamd_audit.chunks.pack import judge_pack
from streamd_audit.findings import Finding
from streamd_audit.names import PackName, parse, split
from streamd_audit.packs import SliceRef
from streamd_audit.rows import ColdSlice, Pack, Stream, read_row
from tests.spark.damages import Scene
from tests.spark.damages_packs import PACKS, a_slice
from tests.spark.forging import Folder

# The kinds that a pack by itself reveals.
BY_ITSELF = (
    "byte_of_a_slice", "byte_of_a_slice_recomputed", "slices_swapped", "slice_at_another_place",
    "byte_of_a_footer", "footer_recomputed", "byte_of_a_packs_head", "pack_truncated", "pack_grown",
    "pack_of_another_cluster", "pack_of_another_number",
)  # fmt: skip


def references(folder: Folder, pack: str) -> tuple[int, list[SliceRef], dict[int, str]]:
    """A pack in the newest state: its size, its slices, and their streams."""
    rows = [read_row(key, value) for key, value in folder.state().items()]
    [(place, size)] = [
        (row.numbers, row.value.size)
        for row in rows
        if isinstance(row.value, Pack) and row.value.name == pack
    ]
    refs = [
        SliceRef(
            row.numbers[0], found.start_record, found.start_byte, row.numbers[1], found.end_byte,
            found.offset, found.length, found.crc, found.digest,
        )
        for row in rows
        if isinstance(found := row.value, ColdSlice) and (found.term, found.number) == place
    ]  # fmt: skip
    streams = {
        row.value.stream_id: row.rest.decode().replace("\0", "/")
        for row in rows
        if isinstance(row.value, Stream)
    }
    return size, refs, streams


def judged(
    folder: Folder, pack: str, said: tuple[int, list[SliceRef], dict[int, str]]
) -> list[Finding]:
    size, refs, streams = said
    assert refs
    named = parse(split(pack)[1])
    assert isinstance(named, PackName)
    content = folder.objects[pack]
    found = judge_pack(pack, named, content, size, refs, folder.cluster_id).findings
    # The audit names streams by their ids afterwards, and so do the damages.
    return [replace(one, stream=streams.get(one.stream_id or 0)) for one in found]


def test_whole_packs_are_clean(scene: Scene) -> None:
    folder = scene.folder
    pack = a_slice(folder).pack
    assert judged(folder, pack, references(folder, pack)) == []


@pytest.mark.parametrize("name", BY_ITSELF)
def test_a_damaged_pack_is_reported_by_its_kind(scene: Scene, name: str) -> None:
    folder = scene.folder
    said = {pack: references(folder, pack) for pack in folder.packs()}
    [damage] = [damage for damage in PACKS.damages if damage.name == name]
    [expected] = damage.on(scene)
    assert expected.object is not None
    [found] = judged(folder, expected.object, said[expected.object])
    assert (found.kind, found.object) == (expected.kind, expected.object)
    assert expected.stream in (None, found.stream)
    if expected.record is not None:
        assert found.offset is not None
        assert int(found.offset.partition("_")[0]) == expected.record
