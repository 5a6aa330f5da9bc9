"""``replay_state``: whether the states, and with ``--url`` a live cluster, are the result of the
commands in the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from streamd_audit.compared import facts_of_comparing
from streamd_audit.context import Context, Judged
from streamd_audit.frames import findings_frame
from streamd_audit.header_job import findings_of_headers
from streamd_audit.live import live_findings
from streamd_audit.log_job import JUDGED, differences_of
from streamd_audit.replay import access
from streamd_audit.replay.distribute import Replayed
from streamd_audit.replay.run import STREAMS
from streamd_audit.replay.stored import events
from streamd_audit.replay.whole import plans_of, replayed
from streamd_audit.runner import run


def state_job(context: Context) -> Judged:
    """Everything in all states that the log reaches, and with which it does not begin."""
    found = replayed(context)
    frames = [*differences_of(context, JUDGED, others=True)]
    if found is not None:
        frames.append(_of_buckets(context, found))
        if found.sessions is not None:
            rows = found.sessions.select("group", "index", "expected", "found")
            frames.append(findings_frame(rows, "session_differs", context.cluster))
        frames += _of_access(context, found)
        if context.options.url is not None:
            frames.append(live_findings(context, found))

    def facts() -> Mapping[str, Any]:
        told = facts_of_comparing(context, found)
        if found is None:
            return {"replay": "there is no log", **told}
        streams = found.counts.get(STREAMS, 0)
        began = {plan.before for plan in plans_of(context).values()}
        since = ", ".join(
            "from entry 1 on" if index is None else f"after the state as of entry {index:,}"
            for index in sorted(began, key=lambda index: index or 0)
        )
        return {"replay": f"{streams:,} streams, {since}", "stream_count": streams, **told}

    return Judged(findings_of_headers(context, found), frames, facts)


def main(arguments: Sequence[str] | None = None) -> int:
    return run({"replay_state": state_job}, "Replay the archive.", arguments)


def _of_buckets(context: Context, found: Replayed) -> DataFrame:
    """Buckets in which states differ from the log's result."""
    bucket = f.concat(f.lit("bucket "), "bucket", f.lit(": "), "expected").alias("expected")
    rows = found.buckets.select("group", "index", bucket, "found")
    return findings_frame(rows, "bucket_differs", context.cluster)


def _of_access(context: Context, found: Replayed) -> Sequence[DataFrame]:
    """Tokens and limits in which states differ from the log's result."""
    plans = plans_of(context)
    rows = events(context, plans)
    if rows is None:
        return []
    return [access.findings_of(found.access, rows, plans, context.cluster)]
