"""The audit without Spark: the same functions, with lists in place of DataFrames.

What runs on Spark's driver is called as it is, in a context that has no session; what runs in its
tasks is called with the rows of all tasks at once (`reading`, `stated`, `replaying`, `packed`).
Only the joins and sums in between are here. Objects, scopes and streams that were judged before,
with the same bytes, are not judged again, so that a thousand stores that differ in one thing each
take seconds.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path

from streamd_audit import (
    chunks_job,
    header_job,
    log_ends,
    log_job,
    log_segments,
    tree_claims,
    tree_job,
)
from streamd_audit.context import Context
from streamd_audit.findings import Finding, finding
from streamd_audit.listing import look_through
from streamd_audit.log_overlaps import Problem, disagreement
from streamd_audit.options import NotRun, Options
from streamd_audit.replay import access, headers, run, scan, stored, whole
from streamd_audit.replay.plan import Plan
from streamd_audit.replay.stated import KINDS
from streamd_audit.rows import first_header
from streamd_audit.states import State
from streamd_audit.store import Store
from streamd_audit.verdict import Verdict, fold
from streamd_audit.watermark import Since, Watermark
from tests.spark.tamper import stated
from tests.spark.tamper.packed import Packs
from tests.spark.tamper.reading import Memory, Reading, Row
from tests.spark.tamper.replaying import Outcome, Replayer, Scanned

_OF_SCOPES = frozenset(("stream", "producer", "upload", "bucket", "session", *KINDS))


class Twin:
    """Judges stores of one cluster, whole."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._replayer = Replayer()
        self._memory = Memory()

    def verdict(
        self, store: Store, mark: Watermark | None = None, kept: Sequence[Path] = ()
    ) -> Verdict:
        return fold(self.findings(store, mark, kept))

    def findings(
        self,
        store: Store,
        mark: Watermark | None = None,
        kept: Sequence[Path] = (),
        since: Since | None = None,
    ) -> list[Finding]:
        """All findings, before they are folded; `kept` are files with heads. Packs are judged
        whole, also with `since`."""
        # There is no session: nothing here may ask for one.
        options = Options("memory", cluster=self._cluster, expect=[*kept])
        context = Context(None, options, since)  # type: ignore[arg-type]
        context.__dict__["store"] = store
        context.__dict__["cluster"] = self._cluster
        context.__dict__["listing"] = look_through(store, self._cluster)
        context.notes["watermark"] = mark
        reads = Reading(store, self._cluster, self._memory)
        return list(_Audit(context, reads, self._memory, self._replayer).findings())


class _Audit:
    def __init__(
        self, context: Context, reads: Reading, memory: Memory, replayer: Replayer
    ) -> None:
        self._context = context
        self._reads = reads
        context.shared("manifests", reads.manifests)
        rows = reads.state_rows()
        context.shared("looked through", lambda: stated.looked_through(context, rows))
        self._spans = stated.spans_of(context, rows)
        context.shared("headers", lambda: stated.headers_in(context, self._spans))
        since = context.notes["scanned_after"] = whole.scanned_after(context)
        trees = tree_claims.tree_places(context)
        self._scanned = reads.scanned(whole.places_asked(context), since, trees)
        covered = reads.covered(context.listing.overlaps, trees)
        context.shared("account", lambda: _account([*self._scanned, *covered], trees))
        self._plans = self._planned()
        self._events = list(stated.events_of(context, self._spans, self._plans))
        self._log = self._replayed(replayer)
        self._packs = Packs(context, reads, memory, self._spans, rows)

    def findings(self) -> Iterator[Finding]:
        context = self._context
        yield from chunks_job._of_listing(context)
        yield from self._packs.findings(self._scanned, self._log)
        yield from log_segments.findings_of_segments(context, *self._overlapping())
        yield from log_job._of_order(context)
        yield from log_ends.findings_of_ends(context)
        yield from header_job.judged_headers(context, self._expected_headers())
        if self._log is not None:
            if not self._log.settled:
                yield log_job._unsettled(context)
            yield from self._of_states(self._log)
        yield from self._of_trees()

    def _of_trees(self) -> Iterator[Finding]:
        """As `tree_job.tree_job`."""
        context = self._context
        kept, claims, wrong = tree_claims.claims_of(context)
        yield from wrong
        trees = whole.account_of(context).trees
        for place, told in trees:
            if told is not None:
                yield tree_job._differs(context, place, told)
        yield from tree_job.judged_claims(context, kept, claims, [one for one, _ in trees])[0]

    def _overlapping(self) -> tuple[list[Finding], list[Problem]]:
        """As `log_overlaps.overlapping`."""
        overlaps = self._context.listing.overlaps
        digests: dict[tuple[int, int], set[bytes]] = defaultdict(set)
        objects: dict[tuple[int, int], set[str]] = defaultdict(set)
        problems: list[Problem] = []
        for group, index, name, digest, problem in self._reads.digests(overlaps):
            if problem is not None:
                problems.append((group, index, name, problem))
            if digest is not None:
                digests[group, index].add(digest)
                objects[group, index].add(name)
        first: dict[tuple[int, str], int] = {}
        for group, index in sorted(digests, reverse=True):
            if len(digests[group, index]) > 1:
                first[group, sorted(objects[group, index])[1]] = index
        cluster = self._context.cluster
        found = [disagreement(cluster, *at, index) for at, index in first.items()]
        return found, problems

    def _expected_headers(self) -> dict[State, headers.Expected]:
        log = self._log
        if log is None:
            return {}
        made: Counter[tuple[int, int]] = Counter()
        for group, index, _ in log.numbers:
            states = self._plans[group].states
            made[group, bisect_left(states, index)] += 1
        of_headers: dict[int, list[Row]] = defaultdict(list)
        for row in map(Scanned._make, self._scanned):
            plan = self._plans.get(row.group)
            if plan is None or row.what != scan.HEADER or row.place in log.refused:
                continue
            if row.index > (plan.before or 0):
                assert row.body is not None
                of_headers[row.group].append((*row.place[1:], scan.decode_header(row.body)))
        seen = {}
        for group, told in of_headers.items():
            plan = self._plans[group]
            followed = headers.follow(sorted(told, key=itemgetter(0, 1)), plan.places, plan.header)
            seen.update({(group, number): one for number, one in enumerate(followed)})
        return header_job.expected_headers(self._context, made, seen, log.histories)

    def _planned(self) -> dict[int, Plan]:
        context = self._context
        plans = whole.plans_of(context)
        for group, span in {span.group: span for span in whole.spans_of(context)}.items():
            of_group = [one for one in stored.readable_states(context) if one.group == group]
            try:
                since = None if context.since is None else context.since.of(group)
                before, after = whole.chosen_states(of_group, span, since)
            except NotRun:
                continue
            header, limits = first_header(group), []
            if before is not None:
                header = stored.headers_of(context).get(before, header)
                limits = list(stated.limits_of(context, self._spans, before))
            settings = whole.account_of(context).settings
            versions = whole.versions_of(context, after)
            plans[group] = whole.plan_of(
                group, before, after, header, tuple(limits), settings, versions
            )
        return plans

    def _replayed(self, replayer: Replayer) -> Outcome | None:
        if not self._plans:
            return None
        latest = {span.group: span for span in whole.spans_of(self._context)}
        begin = {
            group: latest[group].first if plan.before is None else plan.before + 1
            for group, plan in self._plans.items()
        }
        rows = [
            row
            for row in map(Scanned._make, self._scanned)
            if row.what < scan.WRONG
            and row.group in begin
            and begin[row.group] <= row.index <= latest[row.group].last
        ]
        state = [event for event in self._events if event.kind in _OF_SCOPES]
        return replayer.replay(rows, state, self._plans)

    def _of_states(self, log: Outcome) -> Iterator[Finding]:
        cluster = self._context.cluster
        rows = (
            (group, *_names(key), stream_id, *rest)
            for _, group, key, stream_id, *rest in log.tables[run.DIFFERENCES]
        )
        objects: dict[int, list[str]] = defaultdict(list)
        for state in whole.compared_states(self._context):
            objects[state.group].append(state.object)
        yield from log_job.difference_findings(rows, objects, cluster)
        for group, index, expected, found in log.sessions:
            at = {"cluster": cluster, "group": group, "index": index}
            yield finding("session_differs", **at, expected=expected, found=found)
        for group, index, bucket, expected, found in log.buckets:
            yield finding(
                "bucket_differs",
                cluster=cluster,
                group=group,
                index=index,
                expected=f"bucket {bucket}: {expected}",
                found=found,
            )
        yield from self._of_access(log)

    def _of_access(self, log: Outcome) -> Iterator[Finding]:
        rows: list[Row] = [
            (*row.place, run.COMMAND, row.two, None, row.body)
            for row in log.access
            if row.group in self._plans
        ]
        rows += (
            (*event[:4], None, event.key, event.value)
            for event in self._events
            if event.kind in ("token", "limits")
        )
        rows.sort(key=itemgetter(0, 1, 2))
        for group, some in groupby(rows, key=itemgetter(0)):
            places = self._plans[group].places
            for index, one in access.of_group((row[1:] for row in some), places):
                yield finding(
                    one.kind,
                    cluster=self._context.cluster,
                    group=group,
                    index=index,
                    expected=one.expected,
                    found=one.found,
                )


def _account(scanned: Sequence[Row], trees: set[int]) -> whole.Account:
    few = [Scanned._make(row) for row in scanned if row[0] >= scan.WRONG]
    few.sort(
        key=lambda row: ([-1 if each is None else each for each in _order(row)], row[11] or "")
    )
    rows = ((*_order(row), *row[10:]) for row in few)
    return whole.account_in(whole.few_of(rows, trees))


def _order(row: Scanned) -> tuple[int | None, ...]:
    """What rows told of the log as a whole are sorted by; they begin with it."""
    return row.what, row.group, row.one, row.index, row.two


def _names(key: bytes) -> tuple[str, str]:
    bucket, _, name = key.decode(errors="replace").partition("\0")
    return bucket, name
