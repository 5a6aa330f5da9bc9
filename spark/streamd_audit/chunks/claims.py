"""What states say about packs, slices and streams, as rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from streamd_audit.arrow import map_in_arrow
from streamd_audit.chunks.coverage import encode_counts
from streamd_audit.chunks.pack import record_digests
from streamd_audit.context import Context
from streamd_audit.errors import Damaged
from streamd_audit.findings import (
    FINDINGS_DDL,
    Finding,
    damage_kind,
    finding,
    findings_batch,
    stream_name,
)
from streamd_audit.frames import arrow_schema, findings_frame
from streamd_audit.replay.whole import state_rows
from streamd_audit.rows import Row, read_row
from streamd_audit.states import State

CLAIMS_DDL = (
    "said string, `group` int, state long, is_newest boolean, stream_id long, start_record long, "
    "start_byte long, end_record long, end_byte long, term long, number long, offset long, "
    "length long, crc long, digest binary, name string, size long, live long, object string, "
    "digests binary, appends binary"
)
_CLAIMS_ARROW = arrow_schema(CLAIMS_DDL)
_OF_EVERY_STATE = ("slice", "pack")


def claimed_rows(context: Context, newest: Mapping[int, State]) -> DataFrame:
    """Slices and packs of every state; streams and their own records of the newest. Rows that
    cannot be read have ``damaged`` in `said` and the reason in `name`."""
    is_newest = F.lit(False)
    for state in newest.values():
        is_newest = is_newest | F.col("object").startswith(state.pieces(context.cluster))
    rows = (
        state_rows(context)
        .withColumn("is_newest", is_newest)
        .where(
            F.col("kind").isin(*_OF_EVERY_STATE) | F.col("is_newest") | F.col("problem").isNotNull()
        )
    )
    return map_in_arrow(rows, _decode_rows, CLAIMS_DDL).persist(StorageLevel.DISK_ONLY)


def _decode_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    names = ("group", "index", "is_newest", "object", "key", "value", "problem")
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in names)
        found = []
        for group, state, is_newest, piece, key, value, problem in zip(*columns, strict=True):
            at = {"group": group, "state": state, "is_newest": is_newest}
            if problem is not None:
                found.append({**at, "said": "damaged", "object": piece, "name": problem})
                continue
            try:
                said = _said(read_row(key, value))
            except Damaged as damaged:
                said = {"said": "damaged", "object": piece, "name": f"bad_row: {damaged.detail}"}
            if said is not None:
                found.append({**at, **said})
        yield pa.RecordBatch.from_pylist(found, schema=_CLAIMS_ARROW)


def _said(row: Row) -> dict[str, Any] | None:
    value: Any = row.value
    if row.kind == "slice":
        return {
            "said": "slice",
            "stream_id": row.numbers[0],
            "end_record": row.numbers[1],
            **{name: getattr(value, name) for name in (
                "start_record", "start_byte", "end_byte", "term", "number", "offset", "length",
                "crc", "digest",
            )},
        }  # fmt: skip
    if row.kind == "pack":
        term, number = row.numbers
        return {
            "said": "pack", "term": term, "number": number, "name": value.name,
            "size": value.size, "live": value.live,
        }  # fmt: skip
    if row.kind == "stream":
        first = value.extents[-1].end_record if value.extents else 0
        first = max(first, value.earliest[0])
        hot = 0 if value.hot_at_ms is None else value.size - value.cold[1]
        return {
            "said": "stream", "stream_id": value.stream_id, "start_record": first,
            "end_record": value.records, "name": stream_name(*row.rest.split(b"\0", 1)),
            "size": hot,
        }  # fmt: skip
    if row.kind == "chunk":
        return {
            "said": "hot", "stream_id": row.numbers[0], "start_record": value.start_record,
            "start_byte": value.start_byte, "end_record": value.end_record,
            "end_byte": value.end_byte, "digests": record_digests(value.lengths, value.data),
            "appends": encode_counts(value.appends),
        }  # fmt: skip
    if row.kind == "blob":
        return {
            "said": "blob", "stream_id": row.numbers[0],
            "size": 0 if value.hot_at_ms is None else value.size - value.cold[1],
        }  # fmt: skip
    if row.kind == "header":
        return {"said": "header", "size": value.hot_bytes, "live": value.cold_bytes,
                "number": value.streams}  # fmt: skip
    return None


def totals(context: Context, rows: DataFrame, newest: Mapping[int, State]) -> DataFrame:
    """Totals in the newest state that differ from the sums of what they count."""
    cluster = context.cluster
    mine = rows.where("is_newest")
    is_slice = F.col("said") == "slice"
    of_packs = (
        mine.where(F.col("said").isin("pack", "slice"))
        .groupBy("group", "term", "number")
        .agg(
            F.sum(F.when(is_slice, F.col("length"))).alias("sum"),
            F.max("name").alias("name"),
            F.max("live").alias("live"),
        )
        .where("live != coalesce(sum, 0)")
        .select(
            "group",
            F.col("name").alias("object"),
            F.format_string("%d bytes alive", F.coalesce("sum", F.lit(0))).alias("expected"),
            F.format_string("%d bytes alive", "live").alias("found"),
        )
    )
    sums = mine.groupBy("group").agg(
        F.sum(F.when(F.col("said").isin("stream", "blob"), F.col("size"))).alias("hot"),
        F.sum(F.when(F.col("said") == "pack", F.col("live"))).alias("cold"),
        F.sum(F.when(F.col("said") == "stream", 1)).alias("streams"),
        F.max(F.when(F.col("said") == "header", F.col("size"))).alias("hot_told"),
        F.max(F.when(F.col("said") == "header", F.col("live"))).alias("cold_told"),
        F.max(F.when(F.col("said") == "header", F.col("number"))).alias("streams_told"),
    )
    told = "%d hot bytes, %d cold bytes, %d streams"
    of_header = (
        sums.na.fill(0)
        .where("hot != hot_told or cold != cold_told or streams != streams_told")
        .select(
            "group",
            F.lit(None).cast("string").alias("object"),
            F.format_string(told, "hot", "cold", "streams").alias("expected"),
            F.format_string(told, "hot_told", "cold_told", "streams_told").alias("found"),
        )
    )
    indexes = F.create_map(
        *[F.lit(each) for group, state in newest.items() for each in (group, state.index)]
    ) if newest else F.create_map(F.lit(0), F.lit(0))  # fmt: skip
    return findings_frame(
        of_packs.unionByName(of_header).withColumn("index", indexes[F.col("group")]),
        "counts_differ",
        cluster,
    )


def damaged_rows(context: Context, rows: DataFrame) -> DataFrame:
    """Findings about pieces and rows that cannot be read; for rows, one per piece."""
    cluster = context.cluster
    damaged = rows.where("said = 'damaged'").withColumn("damage", F.substring_index("name", ":", 1))
    told = damaged.groupBy("group", F.col("state").alias("index"), "object", "damage").agg(
        F.min("name").alias("found"), F.count("*").alias("times")
    )

    def kinds(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield findings_batch(_damaged(cluster, row) for row in batch.to_pylist())

    return map_in_arrow(told, kinds, FINDINGS_DDL)


def _damaged(cluster: str, row: dict[str, Any]) -> Finding:
    detail = row["found"].partition(": ")[2]
    what = "row" if row["damage"] == "bad_row" else "piece"
    if what == "piece" and "/pieces/" not in row["object"]:
        what = "manifest"
    more = f", and {row['times'] - 1} more" if row["times"] > 1 else ""
    return finding(
        damage_kind(what, row["damage"]),
        cluster=cluster,
        group=row["group"],
        index=row["index"],
        object=row["object"],
        found=detail + more,
    )
