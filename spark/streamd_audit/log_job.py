"""``audit_log``: whether the archived log is one log, and whether it shows commands to have been
taken and refused as they had to be.

The chain proves that no entry was changed by itself. Where the whole chain was made again, only
what the commands come to can tell, compared with a state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, replace
from functools import reduce
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as f

from streamd_audit import ends, log_order
from streamd_audit.arrow import map_in_arrow
from streamd_audit.commands import Archived, decode_command
from streamd_audit.context import Context, Judged
from streamd_audit.errors import Damaged, ObjectMissing
from streamd_audit.findings import (
    FINDINGS_DDL,
    INFO,
    Finding,
    damage_kind,
    finding,
    findings_batch,
    stream_name,
)
from streamd_audit.framing import check_digest
from streamd_audit.names import EndName, parse, split
from streamd_audit.replay.whole import Span, log_of, plans_of, replayed, spans_of, told_of
from streamd_audit.runner import run
from streamd_audit.segments import check_cluster
from streamd_audit.sources.log import LogSource
from streamd_audit.sources.segments import SegmentsSource
from streamd_audit.states import states_of
from streamd_audit.watermark import Watermark

# What differs from a state because a command was judged otherwise than it had to be.
JUDGED = (
    "append_after_close", "producer_gap", "producer_repeated", "seq_back", "taken_wrongly",
    "refused_wrongly",
)  # fmt: skip
_SEGMENTS_DDL = (
    "`group` int, object string, first_index long, last_index long, previous_index long, "
    "previous_chain long, last_chain long, problem string"
)
# Of places that something is said of: manifests and pointers to the end.
_MOST_PLACES = 10_000
# Segments that are read once more, one by one, to tell what is wrong with them.
_MOST_AGAIN = 100
# Of damages of one object, the one that says most.
_WORST_FIRST = (
    "unreadable", "unknown_version", "too_short", "too_long", "wrong_magic", "head_crc", "body_crc",
    "other_cluster", "misnamed", "contradiction", "bad_zstd", "too_large", "chain", "bad_msgpack",
    "name_digest",
)  # fmt: skip


def log_job(context: Context) -> Judged:
    """Every segment and entry there is, and the commands from the state on that the log joins."""
    made = [
        *_of_segments(context),
        *_of_order(context),
        *_of_places(context),
    ]
    found = replayed(context)
    frames = [context.spark.createDataFrame([], FINDINGS_DDL)]
    if made:
        # Those that one broken log has; what is wrong with each of many streams stays in frames.
        frames.append(_frame(context, made))
    if found is not None:
        frames.append(differences_of(context, JUDGED))
        if not found.settled:
            frames.append(_frame(context, [_unsettled(context)]))
    _note_judged(context)

    def facts() -> Mapping[str, Any]:
        spans = spans_of(context)
        entries = sum(span.last + 1 - span.first for span in spans)
        told = ", ".join(f"{span.first:,} to {span.last:,}" for span in spans[:3])
        if len(spans) > 3:
            told += ", …"
        return {"log": f"{entries:,} entries ({told})", "entry_count": entries}

    return Judged(reduce(DataFrame.unionByName, frames), facts)


def main(arguments: Sequence[str] | None = None) -> int:
    return run({"audit_log": log_job}, "Audit the archived log.", arguments)


def differences_of(context: Context, kinds: Sequence[str], *, others: bool = False) -> DataFrame:
    """Where a state differs from the log in streams: findings of these kinds, or of all others."""
    found = replayed(context)
    assert found is not None
    cluster = context.cluster
    after = {group: plan.after for group, plan in plans_of(context).items()}
    chosen = f.col("kind").isin(*kinds)

    def findings(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        names = "group", "bucket", "stream", "stream_id", "index", "kind", "detail"
        for batch in batches:
            rows = zip(*(batch.column(name).to_pylist() for name in names), strict=True)
            made = []
            for group, bucket, stream, stream_id, index, kind, detail in rows:
                offset, expected, told = msgspec.msgpack.decode(detail)
                made.append(
                    finding(
                        kind,
                        cluster=cluster,
                        group=group,
                        stream=stream_name(bucket, stream),
                        stream_id=stream_id,
                        offset=None if offset is None else (offset[0], offset[1]),
                        index=after.get(group) if index is None else index,
                        expected=expected,
                        found=told,
                    )
                )
            yield findings_batch(made)

    return map_in_arrow(
        found.differences.where(~chosen if others else chosen), findings, FINDINGS_DDL
    )


def _frame(context: Context, made: Sequence[Finding]) -> DataFrame:
    return context.spark.createDataFrame([astuple(one) for one in made], FINDINGS_DDL)


# -- segments ---------------------------------------------------------------------------------


def _of_segments(context: Context) -> list[Finding]:
    """Damaged segments and entries, and segments that contradict one another."""
    cluster = context.cluster
    damaged = (
        log_of(context)
        .where("problem is not null")
        .select("group", "index", "object", "problem")
        .limit(_MOST_PLACES)
        .collect()
    )
    heads = context.source(SegmentsSource, _SEGMENTS_DDL)
    found = list(_told_by_problems(cluster, damaged))
    ordered = heads.repartition(1).sortWithinPartitions("group", "first_index", "last_index")
    rows = map_in_arrow(ordered, _joints, _JOINTS_DDL).limit(_MOST_PLACES).collect()
    named = {one.object for one in found}
    overlaps: list[Row] = []
    for row in rows:
        if row["kind"] == "overlap":
            overlaps.append(row)
        elif row["object"] not in named:
            found.append(
                finding(
                    "chain_broken",
                    cluster=cluster,
                    group=row["group"],
                    index=row["index"],
                    object=row["object"],
                    expected=row["expected"],
                    found=row["found"],
                )
            )
    if overlaps:
        # What others cover is not read with the log.
        covered = (
            _damage_of_whole(context, row["group"], row["object"]) for row in overlaps[:_MOST_AGAIN]
        )
        found += [one for one in covered if one is not None]
        found += _disagreements(context, overlaps)
    return _looked_at_again(context, found)


def _looked_at_again(context: Context, found: Sequence[Finding]) -> list[Finding]:
    """Where entries of a segment differ: what is wrong with the whole of it, if anything is.

    A changed byte with its CRC made good breaks the chain as a forged entry does, and only the
    digest in the name tells them apart.
    """
    again: dict[str, Finding | None] = {}
    told = []
    for one in found:
        name = one.object
        if one.kind not in ("chain_broken", "segments_disagree") or name is None:
            told.append(one)
            continue
        if name not in again and len(again) < _MOST_AGAIN:
            again[name] = _damage_of_whole(context, one.group, name)
            told.append(again[name] or one)
        elif again.get(name) is None:
            told.append(one)
    return told


def _damage_of_whole(context: Context, group: int | None, name: str) -> Finding | None:
    try:
        content = context.store.read(name)
        check_cluster(content, context.cluster)
        check_digest(name, content)
    except ObjectMissing:
        return None  # merged since
    except Damaged as damaged:
        return finding(
            damage_kind("segment", damaged.kind),
            cluster=context.cluster,
            group=group,
            object=name,
            found=damaged.detail,
        )
    return None


def _told_by_problems(cluster: str, rows: Sequence[Row]) -> Iterator[Finding]:
    """One finding for each damaged object, and for each entry that is damaged in a whole one."""
    by_object: dict[str, list[Row]] = {}
    for row in rows:
        by_object.setdefault(row["object"], []).append(row)
    for name, told in by_object.items():
        whole = [row for row in told if row["problem"].partition(": ")[0] not in _OF_ENTRIES]
        for row in sorted(whole, key=_rank)[:1] or told:
            damage, _, detail = row["problem"].partition(": ")
            kind = _KINDS.get(damage) or damage_kind("segment", damage)
            yield finding(
                kind,
                cluster=cluster,
                group=row["group"],
                index=row["index"],
                object=name,
                found=detail,
            )


# Of an entry in a segment that may be whole.
_OF_ENTRIES = frozenset(("chain", "bad_msgpack"))
_KINDS = {"bad_msgpack": "entry_damaged", "contradiction": "index_gap"}


def _rank(row: Row) -> int:
    damage = row["problem"].partition(": ")[0]
    return _WORST_FIRST.index(damage) if damage in _WORST_FIRST else len(_WORST_FIRST)


_JOINTS_DDL = (
    "kind string, `group` int, index long, last long, object string, expected string, found string"
)


def _joints(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Segments, in order, that do not go on from the chain before them; and entries that a second
    segment has."""
    names = ("group", "object", "first_index", "last_index", "previous_chain", "last_chain")
    before: tuple[int, int, int | None] | None = None
    rows: list[tuple[Any, ...]] = []
    for batch in batches:
        for group, name, first, last, previous, chain in zip(
            *(batch.column(name).to_pylist() for name in names), strict=True
        ):
            if before is not None and before[0] == group and first <= before[1] + 1:
                if first <= before[1]:
                    end = min(last, before[1])
                    rows.append(("overlap", group, first, end, name, None, None))
                elif None not in (previous, before[2]) and previous != before[2]:
                    expected, found = f"after chain {before[2]:08x}", f"after {previous:08x}"
                    rows.append(("broken", group, first, None, name, expected, found))
                if last <= before[1]:
                    continue
            before = group, last, chain
    if rows:
        yield pa.RecordBatch.from_arrays(
            [
                pa.array(column, kind)
                for column, kind in zip(zip(*rows, strict=True), _JOINT_TYPES, strict=True)
            ],
            names=["kind", "group", "index", "last", "object", "expected", "found"],
        )


_JOINT_TYPES = (
    pa.string(), pa.int32(), pa.int64(), pa.int64(), pa.string(), pa.string(), pa.string()
)  # fmt: skip


def _disagreements(context: Context, overlaps: Sequence[Row]) -> list[Finding]:
    """The first entry of which each overlapping segment has another than the log that was read."""
    inside = reduce(
        lambda one, other: one | other,
        (
            (f.col("group") == row["group"]) & f.col("index").between(row["index"], row["last"])
            for row in overlaps[:100]
        ),
    )
    columns = (
        "`group` int, index long, term long, chain long, object string, position int, "
        "problem string"
    )
    every = context.source(LogSource, columns, overlaps="true").where(
        inside & (f.col("position") == 0)
    )
    mine = log_of(context).where(inside & (f.col("position") == 0))
    mine = mine.select(
        "group", "index", f.col("term").alias("my_term"), f.col("chain").alias("my_chain")
    )
    other = every.join(mine, ["group", "index"]).where("term != my_term or chain != my_chain")
    rows = other.groupBy("group", "object").agg(f.min("index").alias("index")).collect()
    return [
        finding(
            "segments_disagree",
            cluster=context.cluster,
            group=row["group"],
            index=row["index"],
            object=row["object"],
            expected="the entry that other segments have",
            found="another one",
        )
        for row in rows
    ]


# -- entries ---------------------------------------------------------------------------------


def _of_order(context: Context) -> list[Finding]:
    cluster = context.cluster
    found = [
        finding(
            row["kind"],
            cluster=cluster,
            group=row["group"],
            index=row["first"],
            object=row["object"],
            expected=row["expected"],
            found=row["found"],
        )
        for row in told_of(context)
        if row["what"] == log_order.WRONG
    ]
    return [*found, *_gaps(context)]


def _gaps(context: Context) -> list[Finding]:
    """Entries that are in no segment: after the oldest state all have to be."""
    found = []
    last: Span | None = None
    states = states_of(context)
    for span in spans_of(context):
        if last is None or last.group != span.group:
            last = span
            reached = [
                s.index for s in states if s.group == span.group and s.index >= span.first - 1
            ]
            is_joined = span.first == 1 or reached or context.since is not None
            if not is_joined:
                found.append(_gap(context, span.group, 1, span.first - 1))
            continue
        gap = _gap(context, span.group, last.last + 1, span.first - 1)
        if _began_anew(context, span):
            # A leader without the entries went on behind a state, and said so.
            gap = replace(gap, severity=INFO)
        found.append(gap)
        last = span
    return found


def _gap(context: Context, group: int, first: int, last: int) -> Finding:
    return finding(
        "log_gap",
        cluster=context.cluster,
        group=group,
        index=first,
        expected=f"entries {first} to {last}",
        found="none of them",
    )


def _began_anew(context: Context, span: Span) -> bool:
    """Whether the cluster agreed that its archive goes on with a gap before these entries."""
    rows = (
        log_of(context)
        .where((f.col("kind") == "archived") & (f.col("group") == span.group))
        .where(f.col("index") >= span.first)
        .orderBy("index")
        .select("head")
        .limit(100)
        .collect()
    )
    for row in rows:
        command = decode_command(row["head"])
        if isinstance(command, Archived) and command.anew:
            return True
    return False


# -- what others say of the log ---------------------------------------------------------------


def _of_places(context: Context) -> list[Finding]:
    """Manifests and pointers to the archive's end that name another entry than the log has."""
    found: list[Finding] = []
    said: list[tuple[str, int, int, int, int, str]] = [
        ("manifest_off_log", state.group, state.index, state.term, state.chain, state.object)
        for state in states_of(context)[-_MOST_PLACES:]
    ]
    mark = context.notes.get("watermark")
    if isinstance(mark, Watermark):
        said.append(("history_changed", 0, mark.index, mark.term, mark.chain, ""))
    newest: dict[int, tuple[int, str]] = {}
    # Listed before the log was: a cluster at work puts later ones, with segments to match.
    for name in context.listing.ends:
        parsed = parse(split(name)[1])
        assert isinstance(parsed, EndName)
        try:
            damaged = _end_damage(context, name, parsed)
        except ObjectMissing:
            continue  # the newest few are kept
        if damaged is not None:
            found.append(damaged)
            continue
        said.append(("end_off_log", parsed.group, parsed.index, parsed.term, parsed.chain, name))
        newest[parsed.group] = max(newest.get(parsed.group, (0, "")), (parsed.index, name))
    indexes = sorted({one[2] for one in said})
    rows = (
        log_of(context)
        .where(f.col("index").isin(*indexes) & (f.col("position") == 0))
        .select("group", "index", "term", "chain")
        .collect()
        if indexes
        else []
    )
    there = {(row["group"], row["index"]): (row["term"], row["chain"]) for row in rows}
    for kind, group, index, term, chain, name in said:
        known = there.get((group, index))
        if known is not None and known != (term, chain):
            found.append(
                finding(
                    kind,
                    cluster=context.cluster,
                    group=group,
                    index=index,
                    object=name or None,
                    expected=f"term {known[0]}, chain {known[1]:08x}",
                    found=f"term {term}, chain {chain:08x}",
                )
            )
    for group, (index, name) in newest.items():
        last = max((span.last for span in spans_of(context) if span.group == group), default=0)
        if last < index:
            found.append(
                finding(
                    "log_end_missing",
                    cluster=context.cluster,
                    group=group,
                    index=last + 1,
                    object=name,
                    expected=f"entries up to {index}",
                    found=f"the last one is {last}",
                )
            )
    return found


def _end_damage(context: Context, name: str, parsed: EndName) -> Finding | None:
    content = context.store.read(name)
    try:
        end = ends.read_end(content)
        ends.check_name(parsed, end)
        check_digest(name, content)
        if end.cluster != context.cluster:
            raise Damaged("other_cluster", f"the pointer is of cluster {end.cluster}")
    except Damaged as damaged:
        return finding(
            damage_kind("end", damaged.kind),
            cluster=context.cluster,
            group=parsed.group,
            index=parsed.index,
            object=name,
            found=damaged.detail,
        )
    return None


def _unsettled(context: Context) -> Finding:
    return finding(
        "not_audited",
        cluster=context.cluster,
        expected="ids of streams that commands and the log agree on",
        found="commands that name others than the log gives",
    )


def _note_judged(context: Context) -> None:
    """How far the log was judged, for the next audit to go on from."""
    spans = [span for span in spans_of(context) if span.group == 0]
    if not spans:
        return
    last = log_of(context).where((f.col("index") == spans[-1].last) & (f.col("position") == 0))
    row = last.where(f.col("group") == 0).select("term", "chain").first()
    if row is not None:
        context.notes["judged"] = Watermark(
            context.cluster, spans[-1].last, row["term"], row["chain"]
        )
