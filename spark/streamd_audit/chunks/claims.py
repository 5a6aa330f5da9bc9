"""What states say about packs, slices and streams, as rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from streamd_audit import balance
from streamd_audit.arrow import map_in_arrow
from streamd_audit.chunks.coverage import encode_counts
from streamd_audit.chunks.pack import record_digests
from streamd_audit.context import Context
from streamd_audit.errors import BAD_ROW, CONTRADICTION, UNKNOWN_FIELD, Damaged
from streamd_audit.findings import (
    FINDINGS_DDL,
    Finding,
    damage_kind,
    finding,
    findings_batch,
    stream_name,
)
from streamd_audit.frames import arrow_schema, rows_in
from streamd_audit.framing import Buffer
from streamd_audit.replay.stored import state_indexes, state_rows, state_spans
from streamd_audit.rows import Row, check_row_known, read_row

# What a row of the states from number `since` to number `until` says; `object` is a piece with it.
CLAIMS_DDL = (
    "said string, `group` int, since int, until int, stream_id long, start_record long, "
    "start_byte long, end_record long, end_byte long, term long, number long, offset long, "
    "length long, crc long, digest binary, name string, size long, live long, object string, "
    "digests binary, appends binary"
)
_CLAIMS_ARROW = arrow_schema(CLAIMS_DDL)
# An account of `balance`: `name` of `digest`, due `size`, told `live`.
SHARE = "share"
_LARGEST = 2**63 - 1


def claimed_rows(context: Context) -> DataFrame:
    """What the rows of all states say. Rows that cannot be read have ``damaged`` in `said` and the
    reason in `name`, and so do objects, without a `since`."""
    problems = (
        state_rows(context)
        .where("problem is not null")
        .select(
            "group",
            F.lit(None).cast("binary").alias("key"),
            F.lit(None).cast("binary").alias("value"),
            "object",
            F.lit(None).cast("int").alias("since"),
            F.col("index").cast("int").alias("until"),
            "problem",
        )
    )
    rows = state_spans(context).select("group", "key", "value", "object", "since", "until")
    rows = rows.withColumn("problem", F.lit(None).cast("string")).unionByName(problems)
    return context.keep(map_in_arrow(rows, _decode_rows, CLAIMS_DDL))


def _decode_rows(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    names = ("group", "since", "until", "object", "key", "value", "problem")
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in names)
        found: list[dict[str, Any]] = []
        for group, since, until, piece, key, value, problem in zip(*columns, strict=True):
            at = {"group": group, "since": since, "until": until}
            if problem is not None:
                found.append({**at, "said": "damaged", "object": piece, "name": problem})
                continue
            found += ({**at, **said} for said in claims_of(group, key, value, piece))
        yield pa.RecordBatch.from_pylist(found, schema=_CLAIMS_ARROW)


def claims_of(group: int, key: bytes, value: Buffer, piece: str) -> Iterator[dict[str, Any]]:
    """What a row says, as columns of `CLAIMS_DDL`."""
    try:
        row = read_row(key, value)
        balance.check_row(group, row)
    except Damaged as damaged:
        yield _not_read(damaged, piece, key)
        return
    try:
        check_row_known(row, value)
    except Damaged as damaged:
        yield _not_read(damaged, piece, key)
    said = [*_said(row, value)]
    numbers = (each for one in said for each in one.values() if isinstance(each, int))
    if any(each > _LARGEST for each in numbers):
        told = f"a row of a {row.kind} has a number beyond 63 bits"
        yield _not_read(Damaged(CONTRADICTION, told), piece, key)
        return
    yield from said


def _not_read(damaged: Damaged, piece: str, key: bytes) -> dict[str, Any]:
    what = UNKNOWN_FIELD if damaged.kind == UNKNOWN_FIELD else BAD_ROW
    told = f"{what}: {damaged.detail}"
    return {"said": "damaged", "object": piece, "name": told, "digest": key}


def _said(row: Row, raw: Buffer) -> Iterator[dict[str, Any]]:
    for what, about, due, told in balance.shares(row):
        yield {"said": SHARE, "name": what, "digest": about, "size": due, "live": told}
    value: Any = row.value
    if row.kind == "slice":
        yield {
            "said": "slice",
            "stream_id": row.numbers[0],
            "end_record": row.numbers[1],
            **{name: getattr(value, name) for name in (
                "start_record", "start_byte", "end_byte", "term", "number", "offset", "length",
                "crc", "digest",
            )},
        }  # fmt: skip
    elif row.kind == "pack":
        term, number = row.numbers
        yield {
            "said": "pack", "term": term, "number": number, "name": value.name,
            "size": value.size, "live": value.live,
        }  # fmt: skip
    elif row.kind == "stream":
        first = value.extents[-1].end_record if value.extents else 0
        first = max(first, value.earliest[0])
        yield {
            "said": "stream", "stream_id": value.stream_id, "start_record": first,
            "end_record": value.records, "name": stream_name(*row.rest.split(b"\0", 1)),
        }  # fmt: skip
    elif row.kind == "chunk":
        yield {
            "said": "hot", "stream_id": row.numbers[0], "start_record": value.start_record,
            "start_byte": value.start_byte, "end_record": value.end_record,
            "end_byte": value.end_byte, "digests": record_digests(value.lengths, value.data),
            "appends": encode_counts(value.appends),
        }  # fmt: skip
    elif row.kind in ("blob", "upload"):
        parts = value.records if row.kind == "blob" else value.parts
        yield {"said": "blob", "stream_id": row.numbers[0], "start_record": 0, "end_record": parts}
    elif row.kind == "part":
        # A part of a body is a record of its blob.
        blob_id, number = row.numbers
        yield {
            "said": "hot", "stream_id": blob_id, "start_record": number, "start_byte": 0,
            "end_record": number + 1, "end_byte": 0, "appends": encode_counts([]),
            "digests": record_digests([len(raw)], memoryview(raw)),
        }  # fmt: skip
    elif row.kind in ("garbage", "trim"):
        end = row.numbers[1] if row.kind == "trim" else -1
        yield {"said": "removed", "stream_id": row.numbers[0], "end_record": end}


def totals(context: Context, rows: DataFrame) -> DataFrame:
    """Totals in states that differ from the sums of what they count, and other rows that must agree
    in a state: each account at the first state in which its sides differ."""
    cluster, indexes = context.cluster, state_indexes(context)
    mine = rows.where(F.col("said") == SHARE)
    account = ["group", "name", "digest"]
    begun = mine.select(*account, F.col("since").alias("number"), "size", "live")
    ended = mine.select(
        *account, (F.col("until") + 1).alias("number"), (-F.col("size")).alias("size"),
        (-F.col("live")).alias("live"),
    )  # fmt: skip
    sizes = F.sum("size").alias("size"), F.sum("live").alias("live")
    changes = begun.unionByName(ended).groupBy(*account, "number").agg(*sizes)
    until_now = Window.partitionBy(*account).orderBy("number")
    sums = changes.select(
        *account, "number", F.sum("size").over(until_now).alias("size"),
        F.sum("live").over(until_now).alias("live"),
    )  # fmt: skip
    first = F.min_by(F.struct("number", "size", "live"), "number").alias("first")
    odd = sums.where("size != live").groupBy(*account).agg(first).select(*account, "first.*")

    def findings(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        names = "group", "name", "digest", "number", "size", "live"
        yield findings_batch(odd_totals(rows_in(batches, *names), indexes, cluster))

    return map_in_arrow(odd, findings, FINDINGS_DDL)


def odd_totals(
    rows: Iterable[tuple[Any, ...]], indexes: Mapping[int, Sequence[int]], cluster: str
) -> Iterator[Finding]:
    """Findings of accounts: group, what, about, the number of a state, due, told."""
    for group, what, about, number, due, told in rows:
        yield finding(
            balance.KIND_OF[what],
            cluster=cluster,
            group=group,
            index=indexes[group][number],
            expected=f"{balance.name_of(what, about)}{due} {what}",
            found=f"{told} {what}",
        )


def damaged_rows(context: Context, rows: DataFrame) -> DataFrame:
    """Findings about pieces and rows that cannot be read; for rows, one per piece."""
    cluster = context.cluster
    indexes = state_indexes(context)
    damaged = rows.where("said = 'damaged'").withColumn("damage", F.substring_index("name", ":", 1))
    told = damaged.groupBy("group", "since", "until", "object", "damage").agg(
        F.min("name").alias("found"), F.count("*").alias("times"), F.min("digest").alias("key")
    )

    def kinds(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield findings_batch(_damaged(cluster, row, indexes) for row in batch.to_pylist())

    return map_in_arrow(told, kinds, FINDINGS_DDL)


def _damaged(cluster: str, row: dict[str, Any], indexes: Mapping[int, Sequence[int]]) -> Finding:
    is_object = row["since"] is None
    detail = row["found"].partition(": ")[2]
    what = "row" if row["damage"] in (BAD_ROW, UNKNOWN_FIELD) and not is_object else "piece"
    if what == "piece" and "/pieces/" not in row["object"]:
        what = "manifest"
    more = f", and {row['times'] - 1} more" if row["times"] > 1 else ""
    return finding(
        damage_kind(what, row["damage"]),
        cluster=cluster,
        group=row["group"],
        index=row["until"] if is_object else indexes[row["group"]][row["since"]],
        stream=_stream_in(row["key"]) if row["times"] == 1 else None,
        object=row["object"],
        found=detail + more,
    )


def _stream_in(key: bytes | None) -> str | None:
    """The stream whose row it is, by the row's key."""
    bucket, nul, name = (key or b"").partition(b"\0")
    return stream_name(bucket[1:], name) if nul and bucket[:1] == b"s" else None
