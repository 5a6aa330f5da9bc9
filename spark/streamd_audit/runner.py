"""Runs jobs in one Spark session, and turns what they find into a verdict and an exit status."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import reduce
from heapq import nsmallest
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Row

from streamd_audit.context import Context, Judged
from streamd_audit.failures import told_in_a_line
from streamd_audit.findings import FINDINGS_ARROW, Finding, findings_batch
from streamd_audit.options import CLEAN, FINDINGS, Options, parse, parser
from streamd_audit.session import spark_session
from streamd_audit.states import listed_states, states_of
from streamd_audit.verdict import MAX_FOLDED, Verdict, as_json, fold, rank, summary
from streamd_audit.watermark import Watermark, begins_after, write_watermark

Job = Callable[[Context], Judged]

_ROWS_AT_ONCE = 1000
_FETCHED_AT_ONCE = 10_000
_SHUFFLED_BYTES = 512 * 1024 * 1024
_MAX_TASKS = 4096
# The last one's verdict stands.
_ATTEMPTS = 3


def run(
    jobs: Mapping[str, Job],
    description: str,
    arguments: Sequence[str] | None = None,
    *,
    needs_out: bool = False,
) -> int:
    """Parse a command line, run the jobs, print the verdict; returns the exit status.

    Raises `NotRun`.
    """
    options = parse(parser(description, needs_out=needs_out), arguments)
    with told_in_a_line():
        return _run(jobs, options)


def _run(jobs: Mapping[str, Job], options: Options) -> int:
    spark = spark_session("audit", options.master)
    # Failures reach us as exceptions; Spark's own report of one is a hundred lines.
    spark.sparkContext.setLogLevel("OFF")
    for attempts_left in reversed(range(_ATTEMPTS)):
        context = Context(spark, options)
        context.since, mark = begins_after(options, context.cluster)
        context.notes["watermark"] = mark
        context.progress(f"auditing cluster {context.cluster} in {context.store.place}")
        _divide(context)
        try:
            verdict, facts = judge(context, jobs)
        finally:
            context.close()
        if verdict.is_clean or not attempts_left or not _was_overtaken(context):
            break
        context.progress("the cluster removed a state that was being read; reading again")
    about = {
        "store": options.store,
        "cluster": context.cluster,
        "since": None if context.since is None else context.since.index,
        "jobs": list(jobs),
    }
    if options.out is not None:
        document = as_json(verdict, about, facts)
        (options.out / "findings.json").write_text(json.dumps(document, indent=2) + "\n")
        judged = context.notes.get("judged")
        if verdict.is_clean and isinstance(judged, Watermark):
            write_watermark(options.out, judged)
    print(summary(verdict, about, facts))
    return CLEAN if verdict.is_clean else FINDINGS


def _was_overtaken(context: Context) -> bool:
    """Whether a state used for comparison was removed meanwhile, as a cluster does with old ones:
    the part of it that was not yet read then looks lost."""
    there = listed_states(context)
    return any(state.object not in there for state in states_of(context))


def _divide(context: Context) -> None:
    """Give shuffles as many partitions as the work is worth: rows for the audit are digests and
    heads, far less than the objects."""
    spark = context.spark
    tasks = max(spark.sparkContext.defaultParallelism, context.listing.size // _SHUFFLED_BYTES)
    spark.conf.set("spark.sql.shuffle.partitions", str(min(_MAX_TASKS, tasks)))


def judge(context: Context, jobs: Mapping[str, Job]) -> tuple[Verdict, dict[str, Any]]:
    """Run jobs; returns their findings as a verdict, and their facts. Writes ``findings.parquet``
    below ``--out``."""
    few: list[Finding] = []
    frames: list[DataFrame] = []
    facts_of = []
    for name, job in jobs.items():
        context.progress(name)
        judged = job(context)
        few += judged.few
        frames += judged.frames
        facts_of.append(judged.facts)
    total, found = 0, None
    if frames:
        found = context.keep(reduce(DataFrame.unionByName, frames))
        # All partitions at once; they are fetched one after the other.
        total = found.count()
    context.progress(f"{total + len(few):,} findings before they are folded")
    facts: dict[str, Any] = {}
    for tell in facts_of:
        facts.update(tell())
    rows: Iterator[Row] = iter(())
    if found is not None and total:
        # A few findings come in one piece: each partition fetched by itself is a job.
        fetched = found.coalesce(1) if total <= _FETCHED_AT_ONCE else found
        rows = fetched.toLocalIterator()
    every = chain(few, (Finding(**row.asDict()) for row in rows))
    return _folded(every, context.options.out), facts


def _folded(findings: Iterator[Finding], out: Path | None) -> Verdict:
    """The verdict on findings, which pass through the driver a few at a time."""
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
    total = 0

    def each(writer: pq.ParquetWriter | None) -> Iterator[Finding]:
        nonlocal total
        while some := list(islice(findings, _ROWS_AT_ONCE)):
            total += len(some)
            yield from _written(some, writer)

    def chosen(writer: pq.ParquetWriter | None) -> list[Finding]:
        return nsmallest(MAX_FOLDED, each(writer), key=rank)

    if out is None:
        worst = chosen(None)
    else:
        with pq.ParquetWriter(out / "findings.parquet", FINDINGS_ARROW) as writer:
            worst = chosen(writer)
    return fold(worst, more=total - len(worst))


def _written(some: list[Finding], writer: pq.ParquetWriter | None) -> list[Finding]:
    if writer is not None and some:
        writer.write_table(pa.Table.from_batches([findings_batch(some)]))
    return some
