"""How the data sources treat damage, and objects removed while they read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from streamd.objectstore.segments import SegmentWriter, read_entries, read_segment_head
from streamd_audit.errors import Damaged, StoreFailed
from streamd_audit.names import SegmentName, parse, split
from streamd_audit.sources import BadOption
from tests.spark.buckets import Clean
from tests.spark.reading import InProcess, access, copy_of

pytestmark = pytest.mark.long


@pytest.fixture(autouse=True)
def _session(spark: SparkSession) -> None:
    """Spark reads the schemas."""


Options = dict[str, str]
Damage = Callable[[str, bytes | None], Options]


@pytest.fixture
def changed(rich: Clean, tmp_path: Path) -> Damage:
    """Copies the rich bucket with one object changed, or left out."""
    return lambda name, content: copy_of(rich, tmp_path, {name: content})


def first_of(rich: Clean, ending: str) -> tuple[str, bytes]:
    """The first object of one kind with at least some size."""
    return next(
        (name, content)
        for name, content in sorted(rich.objects.items())
        if name.endswith(ending) and len(content) > 100
    )


def flipped(content: bytes, at: int) -> bytes:
    damaged = bytearray(content)
    damaged[at] ^= 1
    return bytes(damaged)


def problems(source: str, options: Options, **more: str) -> list[tuple[str, str]]:
    """Of all rows with a problem: the object, and the kind of damage."""
    rows = InProcess(source, None, {**options, **more}).rows()
    assert any(row["problem"] is None for row in rows) or len(rows) == 1
    return [
        (row["object"], row["problem"].partition(":")[0])
        for row in rows
        if row["problem"] is not None
    ]


@pytest.mark.parametrize(
    ("source", "ending", "at", "kind"),
    [
        ("streamd_log", ".segment", 20, "head_crc"),
        ("streamd_log", ".segment", -60, "body_crc"),
        ("streamd_segments", ".segment", 20, "head_crc"),
        ("streamd_segments", ".segment", -60, "body_crc"),
        ("streamd_packs", ".pack", 5, "head_crc"),
        ("streamd_packs", ".pack", -30, "footer_crc"),
        ("streamd_slices", ".pack", 5, "head_crc"),
        ("streamd_slices", ".pack", 60, "slice_crc"),
        ("streamd_slices", ".pack", -30, "footer_crc"),
        ("streamd_manifests", ".manifest", -5, "body_crc"),
        ("streamd_state", ".piece", -5, "body_crc"),
    ],
)
def test_a_flipped_bit_is_one_row_with_its_problem(
    source: str, ending: str, at: int, kind: str, rich: Clean, changed: Damage
) -> None:
    name, content = first_of(rich, ending)
    every = {"every": "true"} if source == "streamd_state" else {}
    assert problems(source, changed(name, flipped(content, at)), **every) == [(name, kind)]


def test_damage_fails_a_query_without_the_problem_column(rich: Clean, changed: Damage) -> None:
    name, content = first_of(rich, ".segment")
    options = changed(name, flipped(content, -60))
    found = InProcess("streamd_log", "index long, kind string", options)
    with pytest.raises(Damaged, match=rf"{name}.*CRC-32C"):
        found.rows()


def test_slices_are_found_without_a_footer(rich: Clean, changed: Damage) -> None:
    name, content = first_of(rich, ".pack")
    schema = "object string, slice int, stream_id long, offset long, crc long, payload binary, "
    schema += "records_digest binary, pack_sha256_ok boolean, problem string"
    clean = InProcess("streamd_slices", schema, access(rich.place)).rows()
    damaged = InProcess("streamd_slices", schema, changed(name, flipped(content, -30))).rows()
    assert [row for row in damaged if row["slice"] is not None] == [
        {**row, "pack_sha256_ok": row["object"] != name} for row in clean
    ]
    assert [row["problem"] for row in damaged if row["slice"] is None] != []


def test_a_missing_piece_is_a_row_with_its_problem(rich: Clean, changed: Damage) -> None:
    name, _ = first_of(rich, ".piece")
    assert problems("streamd_state", changed(name, None), every="true") == [(name, "missing")]


def merged(rich: Clean) -> tuple[dict[str, bytes | None], str]:
    """The two segments in the middle made into one by the server's own writer, and its name."""
    found = {
        name: content
        for name, content in sorted(rich.objects.items())
        if isinstance(parse(split(name)[1]), SegmentName)
    }
    middle = len(found) // 2
    some = list(found)[middle - 1 : middle + 1]
    head = read_segment_head(found[some[0]])
    writer = SegmentWriter(head.group_id, head.previous, rich.cluster_id)
    for name in some:
        for entry, _ in read_entries(found[name]):
            writer.add(entry)
    whole = writer.finish()
    name = f"{rich.cluster_id}/{whole.name}"
    return {**dict.fromkeys(some), name: whole.content}, name


SCHEMA = "index long, position int, kind string, chain long, object string, problem string"


def without_objects(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    kept = [{key: value for key, value in row.items() if key != "object"} for row in rows]
    return sorted(kept, key=lambda row: (row["index"], row["position"]))


def test_entries_that_two_segments_hold_are_read_once(rich: Clean, tmp_path: Path) -> None:
    changes, name = merged(rich)
    options = copy_of(rich, tmp_path, {name: changes[name]})
    clean = InProcess("streamd_log", SCHEMA, access(rich.place)).rows()
    once = InProcess("streamd_log", SCHEMA, options).rows()
    assert without_objects(once) == without_objects(clean)
    every = InProcess("streamd_log", SCHEMA, {**options, "overlaps": "true"}).rows()
    twice = len([row for row in every if row["object"] == name])
    assert twice > 2
    assert len(every) == len(clean) + twice


def test_segments_that_are_merged_while_they_are_read_lose_no_entry(
    rich: Clean, tmp_path: Path
) -> None:
    changes, _ = merged(rich)
    clean = InProcess("streamd_log", SCHEMA, access(rich.place)).rows()
    planned = InProcess("streamd_log", SCHEMA, copy_of(rich, tmp_path, {}))
    copy_of(rich, tmp_path, changes)
    for name, content in changes.items():
        if content is None:
            (tmp_path / name).unlink()
    assert without_objects(planned.rows()) == without_objects(clean)


def test_objects_removed_after_the_listing_are_not_a_problem(rich: Clean, tmp_path: Path) -> None:
    options = copy_of(rich, tmp_path, {})
    gone = [first_of(rich, ending)[0] for ending in (".pack", ".manifest", ".segment")]
    planned = [
        InProcess(source, None, options)
        for source in ("streamd_packs", "streamd_slices", "streamd_manifests", "streamd_segments")
    ]
    for name in gone:
        (tmp_path / name).unlink()
    for source in planned:
        rows = source.rows()
        assert rows
        assert all(row["problem"] is None and row["object"] not in gone for row in rows)


def test_a_missing_bucket_is_an_error(rich: Clean) -> None:
    with pytest.raises(StoreFailed, match="the bucket does not exist"):
        InProcess("streamd_log", None, {**access(rich.place), "store": "s3://no-such-bucket/x"})


@pytest.mark.parametrize(
    ("options", "schema", "told"),
    [
        ({"sotre": "x"}, "index long", "streamd_log has no option 'sotre'"),
        ({"store": ""}, "index long", "the option 'store' is missing"),
        ({}, "indx long", "streamd_log has no column 'indx'"),
        ({}, "index int", "streamd_log: column index is bigint, not int"),
    ],
)
def test_an_unknown_option_or_column_is_reported_in_one_line(
    options: dict[str, str], schema: str, told: str, rich: Clean
) -> None:
    with pytest.raises(BadOption, match=told):
        InProcess("streamd_log", schema, {**access(rich.place), **options})


def test_several_clusters_are_named_when_none_is_chosen(
    rich: Clean, little: Clean, tmp_path: Path
) -> None:
    options = copy_of(rich, tmp_path, dict(little.objects))
    with pytest.raises(BadOption, match="choose one") as refused:
        InProcess("streamd_log", None, options)
    assert rich.cluster_id in str(refused.value)
    assert little.cluster_id in str(refused.value)
    options["cluster"] = little.cluster_id
    rows = InProcess("streamd_log", "cluster string", options).rows()
    assert {row["cluster"] for row in rows} == {little.cluster_id}
