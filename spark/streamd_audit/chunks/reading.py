"""Reading packs, each once and whole, by the tasks that judge them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import groupby
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from streamd_audit.arrow import map_in_arrow
from streamd_audit.chunks.coverage import ROWS_DDL, SLICE, encode_counts
from streamd_audit.chunks.pack import judge_pack
from streamd_audit.context import Context
from streamd_audit.errors import Damaged, ObjectMissing
from streamd_audit.findings import FINDINGS_DDL, Finding, finding
from streamd_audit.frames import arrow_schema
from streamd_audit.names import PackName, parse, split
from streamd_audit.packs import SliceRef, read_pack
from streamd_audit.store import Store, open_store

_TASK_BYTES = 64 * 1024 * 1024
_MAX_TASKS = 4096

# Of findings, which are JSON in `found`, `what` is -1.
PASSED_DDL = f"{ROWS_DDL}, found string"
_PASSED = arrow_schema(PASSED_DDL)
_FINDING = -1

Ref = dict[str, Any]


def read_packs(context: Context, refs: DataFrame, count: int, size: int) -> DataFrame:
    """Rows of slices for `coverage.judge_streams`, and findings; `refs` name `count` packs of
    together `size` bytes."""
    tasks = max(1, min(_MAX_TASKS, count, 4 + size // _TASK_BYTES))
    rows = refs.repartition(tasks, "object").sortWithinPartitions("object", "what", "offset")
    place, access, cluster = context.options.store, context.options.of_sources(), context.cluster

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reader = _Reader(open_store(place, access), cluster)
        for _, pack in groupby(_rows_of(batches), key=lambda row: row["object"]):
            yield pa.RecordBatch.from_pylist(reader.read(list(pack)), schema=_PASSED)

    return map_in_arrow(rows, read, PASSED_DDL)


def findings_in(passed: DataFrame) -> DataFrame:
    parsed = F.from_json("found", FINDINGS_DDL).alias("finding")
    return passed.where(f"what = {_FINDING}").select(parsed).select("finding.*")


def _rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[Ref]:
    for batch in batches:
        yield from batch.to_pylist()


class _Reader:
    def __init__(self, store: Store, cluster: str) -> None:
        self._store = store
        self._cluster = cluster

    def read(self, rows: list[Ref]) -> list[dict[str, Any]]:
        """The rows of one pack: itself first, then the slices in it that are referred to."""
        pack, slices = rows[0], [row for row in rows if row["what"]]
        name = pack["object"]
        if name is None:
            return [_finding(self._without_pack(row)) for row in slices]
        named = parse(split(name)[1])
        at = {
            "cluster": self._cluster,
            "group": pack["group"],
            "object": name,
            "index": pack["state"],
        }
        if not isinstance(named, PackName):
            made = finding("pack_missing", **at, expected="a pack", found="a name that none has")
            return [_finding(made), *_unread(slices)]
        try:
            content = self._store.read(name)
        except ObjectMissing:
            made = finding("pack_missing", **at, expected=f"{pack['size']} bytes", found="nothing")
            return [_finding(made), *_unread(slices)]
        except Damaged as damaged:
            made = finding("object_unreadable", **at, found=damaged.detail)
            return [_finding(made), *_unread(slices)]
        if pack["state"] is None:
            slices = self._of_footer(pack, content)
        refs = [_ref(row) for row in slices]
        streams = {row["stream_id"]: row["name"] for row in slices if row["name"]}
        judged = judge_pack(name, named, content, pack["size"], refs, self._cluster, streams)
        return [
            *map(_finding, judged.findings),
            *(
                {
                    **_row(row),
                    "digests": held.digests,
                    "appends": encode_counts(list(held.appends)),
                }
                for row, held in zip(slices, judged.held, strict=True)
            ),
        ]

    def _of_footer(self, pack: Ref, content: bytes) -> list[Ref]:
        """A pack's own account of its slices, which no state has yet."""
        try:
            _, refs = read_pack(content)
        except Damaged:
            return []
        return [
            {
                "group": pack["group"],
                "object": pack["object"],
                "is_newest": False,
                "name": None,
                **{field: getattr(ref, field) for field in SliceRef.__struct_fields__},
            }
            for ref in refs
        ]

    def _without_pack(self, row: Ref) -> Finding:
        return finding(
            "pack_missing",
            cluster=self._cluster,
            group=row["group"],
            stream=row["name"],
            stream_id=row["stream_id"],
            offset=(row["start_record"], row["start_byte"]),
            index=row["state"],
            expected="a pack that the state knows",
            found="a slice of a pack that it does not know",
        )


def _finding(made: Finding) -> dict[str, Any]:
    return {"what": _FINDING, "found": json.dumps(asdict(made))}


def _ref(row: Ref) -> SliceRef:
    return SliceRef(*(row[field] for field in SliceRef.__struct_fields__))


def _unread(slices: list[Ref]) -> list[dict[str, Any]]:
    """Slices of which nothing but the references is known."""
    return [{**_row(row), "digests": None, "appends": None} for row in slices]


def _row(row: Ref) -> dict[str, Any]:
    names = (
        "group", "stream_id", "start_record", "start_byte", "end_record", "end_byte", "object",
        "is_newest", "name",
    )  # fmt: skip
    return {"what": SLICE, **{name: row[name] for name in names}}
