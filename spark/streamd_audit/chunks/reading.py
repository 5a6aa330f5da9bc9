"""Reads packs, each once and whole, in the tasks that judge them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from operator import itemgetter
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from streamd_audit.arrow import map_in_arrow
from streamd_audit.chunks.coverage import ROWS_DDL, SLICE, encode_counts
from streamd_audit.chunks.pack import judge_pack
from streamd_audit.chunks.refs import packs_of
from streamd_audit.context import Context
from streamd_audit.errors import Damaged, ObjectMissing
from streamd_audit.findings import FINDINGS_DDL, Finding, finding
from streamd_audit.frames import arrow_schema
from streamd_audit.names import PackName, parse, split
from streamd_audit.packs import SliceRef, read_pack, read_refs
from streamd_audit.replay.stored import state_indexes
from streamd_audit.store import Store, open_store

_TASK_BYTES = 128 * 1024 * 1024
_MAX_TASKS = 4096

# Rows of findings, as JSON in `found`, and of packs, with the number of `slices` that were read,
# unless an earlier audit has judged them (`is_judged`).
FINDING, PACK = -1, -2
PASSED_DDL = f"{ROWS_DDL}, size long, state long, is_judged boolean, slices long, found string"
_PASSED = arrow_schema(PASSED_DDL)

Ref = dict[str, Any]


def read_packs(context: Context, refs: DataFrame, judged: Mapping[int, int]) -> DataFrame:
    """Rows of slices for `coverage.judge_streams`, and findings, and packs; `refs` are rows of
    `refs.REF_DDL`, `judged` the numbers of states that were judged before, by group."""
    listing = context.listing
    packs = listing.objects["packs"], 4 + listing.sizes["packs"] // _TASK_BYTES
    tasks = max(1, min(_MAX_TASKS, *packs))
    place = ["group", "term", "number"]
    rows = refs.repartition(tasks, *place).sortWithinPartitions(*place, "said", "offset")
    url, access, cluster = context.options.store, context.options.of_sources(), context.cluster
    indexes = state_indexes(context)

    def read(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        reader = _Reader(open_store(url, access), cluster, indexes)
        each = (row for batch in batches for row in batch.to_pylist())
        for _, some in groupby(each, key=itemgetter(*place)):
            for pack, slices in packs_of(some, judged):
                yield pa.RecordBatch.from_pylist(reader.read(pack, slices), schema=_PASSED)

    return map_in_arrow(rows, read, PASSED_DDL)


def findings_in(passed: DataFrame, rows: DataFrame) -> DataFrame:
    """The findings among the rows; rows of `claims.CLAIMS_DDL` name the streams."""
    parsed = F.from_json("found", FINDINGS_DDL).alias("finding")
    found = passed.where(f"what = {FINDING}").select(parsed).select("finding.*")
    streams = rows.where("said = 'stream'").groupBy("group", "stream_id")
    names = streams.agg(F.max("name").alias("name"))
    named = found.join(names, ["group", "stream_id"], "left")
    return named.withColumn("stream", F.coalesce("stream", "name")).select(*found.columns)


def ends_in_pack(store: Store, name: str) -> Iterator[tuple[int, str, int, int]]:
    """Where the slices of a pack end, by its footer: group, object, stream id, record; nothing for
    one that cannot be read."""
    named = parse(split(name)[1])
    if not isinstance(named, PackName):
        return
    try:
        size = store.size(name)
        refs = read_refs(lambda at, length: store.read(name, at, length), size)
    except (Damaged, ObjectMissing):
        return
    for ref in refs:
        yield named.group, name, ref.stream_id, ref.end_record


class _Reader:
    def __init__(self, store: Store, cluster: str, indexes: Mapping[int, Sequence[int]]) -> None:
        """`indexes` are the entries of the states of each group."""
        self._indexes = indexes
        self._store = store
        self._cluster = cluster

    def read(self, pack: Ref | None, slices: list[Ref]) -> list[dict[str, Any]]:
        """The rows of one pack, and of the slices in it that are referred to."""
        if pack is None:
            return [_finding(self._without_pack(row)) for row in slices]
        name = pack["name"]
        judged = self._judged(pack, slices)
        told = {
            "what": PACK, "group": pack["group"], "object": name, "size": pack["size"],
            "state": self._index(pack), "is_judged": pack["is_judged"],
            "slices": len(slices) if pack["state"] is not None else len(judged),
        }  # fmt: skip
        return [told, *judged]

    def _judged(self, pack: Ref, slices: list[Ref]) -> list[dict[str, Any]]:
        name = pack["name"]
        if pack["is_judged"]:
            return _unread(pack, slices)
        named = parse(split(name)[1])
        at = {
            "cluster": self._cluster,
            "group": pack["group"],
            "object": name,
            "index": self._index(pack),
        }
        if not isinstance(named, PackName):
            made = finding("pack_missing", **at, expected="a pack", found="a name that none has")
            return [_finding(made), *_unread(pack, slices)]
        try:
            content = self._store.read(name)
        except ObjectMissing:
            made = finding("pack_missing", **at, expected=f"{pack['size']} bytes", found="nothing")
            return [_finding(made), *_unread(pack, slices)]
        except Damaged as damaged:
            made = finding("object_unreadable", **at, found=damaged.detail)
            return [_finding(made), *_unread(pack, slices)]
        if pack["state"] is None:
            slices = self._of_footer(pack, content)
        refs = [_ref(row) for row in slices]
        judged = judge_pack(name, named, content, pack["size"], refs, self._cluster)
        return [
            *map(_finding, judged.findings),
            *(
                one | {"digests": held.digests, "appends": encode_counts(list(held.appends))}
                for row, held in zip(slices, judged.held, strict=True)
                for one in _rows(pack, row)
            ),
        ]

    def _index(self, ref: Ref) -> int | None:
        """The entry of the newest state that has it."""
        return None if ref["state"] is None else self._indexes[ref["group"]][ref["state"]]

    def _of_footer(self, pack: Ref, content: bytes) -> list[Ref]:
        """A pack's own list of its slices, which no state has yet."""
        try:
            _, refs = read_pack(content)
        except Damaged:
            return []
        return [
            {
                "spans": [(None, None)],
                **{field: getattr(ref, field) for field in SliceRef.__struct_fields__},
            }
            for ref in refs
        ]

    def _without_pack(self, row: Ref) -> Finding:
        return finding(
            "pack_missing",
            cluster=self._cluster,
            group=row["group"],
            stream_id=row["stream_id"],
            offset=(row["start_record"], row["start_byte"]),
            index=self._index(row),
            expected="a pack that the state knows",
            found="a slice of a pack that it does not know",
        )


def _finding(made: Finding) -> dict[str, Any]:
    return {"what": FINDING, "found": json.dumps(asdict(made))}


def _ref(row: Ref) -> SliceRef:
    return SliceRef(*(row[field] for field in SliceRef.__struct_fields__))


def _unread(pack: Ref, slices: list[Ref]) -> list[dict[str, Any]]:
    """Slices of which only the references are known."""
    return [one for row in slices for one in _rows(pack, row)]


def _rows(pack: Ref, row: Ref) -> Iterator[dict[str, Any]]:
    """A slice, in each span of states that have it."""
    names = "stream_id", "start_record", "start_byte", "end_record", "end_byte"
    about = {"what": SLICE, "group": pack["group"], "object": pack["name"]}
    for since, until in row["spans"]:
        yield about | {name: row[name] for name in names} | {"since": since, "until": until}
