"""``audit_log``: whether the archived log is one log, and whether its commands were accepted and
refused as they had to be.

The chain proves that no single entry was changed. If the whole chain was recomputed, only the
result of the commands can tell, compared with a state.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from streamd_audit.arrow import map_in_arrow
from streamd_audit.context import Context, Judged
from streamd_audit.findings import (
    FINDINGS_DDL,
    INFO,
    Finding,
    finding,
    findings_batch,
    stream_name,
)
from streamd_audit.frames import rows_in
from streamd_audit.log_ends import findings_of_ends
from streamd_audit.log_overlaps import overlapping
from streamd_audit.log_segments import findings_of_segments
from streamd_audit.replay import scan
from streamd_audit.replay.run import DIFFERENCES
from streamd_audit.replay.whole import Span, account_of, compared_states, replayed, spans_of
from streamd_audit.runner import run
from streamd_audit.states import states_of
from streamd_audit.watermark import Mark, Watermark

# Differences from a state because a command was judged differently than it had to be.
JUDGED = (
    "append_after_close", "producer_gap", "producer_repeated", "seq_back", "taken_wrongly",
    "refused_wrongly",
)  # fmt: skip


def log_job(context: Context) -> Judged:
    """Every segment and entry, and the commands from the state on that the log continues."""
    made = [
        *findings_of_segments(context, *overlapping(context)),
        *_of_order(context),
        *findings_of_ends(context),
    ]
    found = replayed(context)
    if found is not None and not found.settled:
        made.append(_unsettled(context))
    _note_judged(context)

    def facts() -> Mapping[str, Any]:
        spans = spans_of(context)
        entries = sum(span.last + 1 - span.first for span in spans)
        told = ", ".join(f"{span.first:,} to {span.last:,}" for span in spans[:3])
        if len(spans) > 3:
            told += ", …"
        return {"log": f"{entries:,} entries ({told})", "entry_count": entries}

    return Judged(made, differences_of(context, JUDGED), facts)


def main(arguments: Sequence[str] | None = None) -> int:
    return run({"audit_log": log_job}, "Audit the archived log.", arguments)


def differences_of(
    context: Context, kinds: Sequence[str], *, others: bool = False
) -> Sequence[DataFrame]:
    """Where a state differs from the log in streams: findings of these kinds, or of all others."""
    found = replayed(context)
    if found is None or not found.counts.get(DIFFERENCES):
        return []
    cluster = context.cluster
    chosen = f.col("kind").isin(*kinds)
    objects: dict[int, list[str]] = {}
    for state in compared_states(context):
        objects.setdefault(state.group, []).append(state.object)

    def findings(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        names = "group", "bucket", "stream", "stream_id", "index", "state", "kind", "detail"
        yield findings_batch(difference_findings(rows_in(batches, *names), objects, cluster))

    differences = found.differences.where(~chosen if others else chosen)
    return [map_in_arrow(differences, findings, FINDINGS_DDL)]


def difference_findings(
    rows: Iterable[tuple[Any, ...]], objects: Mapping[int, Sequence[str]], cluster: str
) -> Iterator[Finding]:
    """Findings of differences: group, bucket, stream, stream_id, index, state, kind, detail;
    `objects` are the manifests of each group's states."""
    for group, bucket, stream, stream_id, index, state, kind, detail in rows:
        offset, expected, told = msgspec.msgpack.decode(detail)
        yield finding(
            kind,
            cluster=cluster,
            group=group,
            stream=stream_name(bucket, stream) if bucket else None,
            stream_id=stream_id,
            offset=None if offset is None else (offset[0], offset[1]),
            index=index,
            object=objects[group][state],
            expected=expected,
            found=told,
        )


# -- entries ---------------------------------------------------------------------------------


def _of_order(context: Context) -> list[Finding]:
    found = [
        finding(
            told.kind,
            cluster=context.cluster,
            group=told.group,
            index=told.first,
            object=told.object,
            expected=told.expected,
            found=told.found,
        )
        for told in account_of(context).order
    ]
    return [*found, *_gaps(context)]


def _gaps(context: Context) -> list[Finding]:
    """Entries that are in no segment: after the oldest state all have to be in one."""
    found = []
    last: Span | None = None
    states = states_of(context)
    for span in spans_of(context):
        if last is None or last.group != span.group:
            last = span
            reached = [
                s.index for s in states if s.group == span.group and s.index >= span.first - 1
            ]
            since = 0 if context.since is None else context.since.of(span.group)
            is_joined = span.first == 1 or reached or since
            if not is_joined:
                found.append(_gap(context, span.group, 1, span.first - 1))
            continue
        gap = _gap(context, span.group, last.last + 1, span.first - 1)
        if _continued_from_state(context, span):
            # A leader without the entries continued after a state, and said so.
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


def _continued_from_state(context: Context, span: Span) -> bool:
    """Whether the cluster agreed that its archive continues with a gap before these entries."""
    return any(
        group == span.group and index >= span.first and what == scan.BEGAN_ANEW
        for group, index, what, *_ in account_of(context).settings
    )


def _unsettled(context: Context) -> Finding:
    return finding(
        "not_audited",
        cluster=context.cluster,
        expected="ids of streams that commands and the log agree on",
        found="commands that name others than the log gives",
    )


def _note_judged(context: Context) -> None:
    """Note how far the log was judged, so that the next audit can continue from there."""
    former = context.notes.get("watermark")
    marks = {mark.group: mark for mark in former.marks} if isinstance(former, Watermark) else {}
    for one in account_of(context).runs:
        mark = Mark(one.group, one.last, one.last_term, one.last_chain)
        if mark.index >= marks.get(one.group, mark).index:
            marks[one.group] = mark
    if marks:
        context.notes["judged"] = Watermark.of(context.cluster, marks)
