"""The replay of a whole log in Spark: the log is never in one place.

Only counts and kinds of commands are collected. One task finds which streams are joined by forks;
it holds sixteen bytes for each fork.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import NamedTuple

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

from streamd_audit.arrow import map_in_arrow
from streamd_audit.commands import members_in
from streamd_audit.replay import batches, run, scan, sessions, stated, ties
from streamd_audit.replay.plan import Plan
from streamd_audit.replay.quotas import History
from streamd_audit.replay.ties import edges_of, node_of, of_subscriptions

# An intact log is done after two rounds; a damaged one might never be.
MAX_ROUNDS = 8

_PLACE = ["group", "index", "position"]
_OF_NO_TABLE = -1
_NODES_DDL = "node long, `group` int, index long, position int, op int, body binary"
_SCOPES_DDL = "scope long, `group` int, index long, position int, op int, body binary"
_SCOPES = ["scope", *_PLACE, "op", "body"]


@dataclass
class Replayed:
    """The log's result.

    - `appends`: group, bucket, stream, stream_id, start_record, start_byte, records, bytes,
      digests, detail: appends that took effect one after the other, where the records of the first
      one begin, and a `run.Appended` of each of them in MessagePack.
    - `outcomes`: group, index, position, result: of all other commands about streams and buckets.
    - `streams`: group, bucket, stream, stream_id, from_record, from_byte, records, bytes, hash,
      detail: as the log leaves them; `hash` is SHA-256 over the digests of the records from
      `from_record` on, and `detail` a `run.StreamDetail` in MessagePack.
    - `differences`: group, bucket, stream, stream_id, index, state, kind, detail: where a state, by
      its number in the plan, says otherwise; `detail` has offset, expected, found in MessagePack.
    - `buckets`: group, index, bucket, expected, found: where states say otherwise of buckets.
    - `access`: group, index, position, log_ms, body: commands about tokens, limits and
      operations.
    - `sessions`: group, index, expected, found: where states say otherwise of nodes' sessions; None
      if there are none.
    - `made`: group, index: an entry for each thing that took an id.
    - `refused`: group, index, position, result: commands whose package did not take effect; None
      if there are none.
    - `next_numbers`: the id that the next thing made would have, by group.
    - `histories`: the limits of each group as of each of its commands.
    - `settled`: whether everything that commands say about ids came out right.
    - `counts`: how many rows the tables of `run` have, by their numbers.
    """

    appends: DataFrame
    outcomes: DataFrame
    streams: DataFrame
    differences: DataFrame
    buckets: DataFrame
    access: DataFrame
    made: DataFrame
    refused: DataFrame | None
    sessions: DataFrame | None
    histories: Mapping[int, History]
    next_numbers: dict[int, int]
    settled: bool
    counts: Mapping[int, int]


class _Counted(NamedTuple):
    """The rows of each table; the id that the next thing made would have, by group; and whether any
    row shows that a scope was replayed with wrong ids or buckets."""

    counts: Mapping[int, int]
    following: dict[int, int]
    is_odd: bool


def replay(
    scanned: DataFrame, states: DataFrame | None, plans: dict[int, Plan], there: Iterable[int]
) -> Replayed:
    """Replay the groups of a log (`scan.SCANNED_DDL`, better persisted, each entry once); `there`
    are the kinds of rows in it, with `scan.OPENED_SESSION` if states have sessions.

    `states` are rows of the states that the plans name (`spans.EVENTS_DDL`); those of chunks, parts
    and slices may be left out.
    """
    return _Replay(scanned, states, plans, frozenset(there)).run()


def _kept(frame: DataFrame) -> DataFrame:
    """The frame on disk, without the plan that made it: plans over rounds would outgrow the
    driver."""
    return frame.localCheckpoint(True, StorageLevel.DISK_ONLY)


class _Replay:
    def __init__(
        self,
        scanned: DataFrame,
        states: DataFrame | None,
        plans: dict[int, Plan],
        there: frozenset[int],
    ) -> None:
        self._scanned = scanned
        self._plans = plans
        self._first = {group: plan.header.next_stream_id for group, plan in plans.items()}
        self._there = there
        self._refused: DataFrame | None = None
        self._sessions: DataFrame | None = None
        self._histories: dict[int, History] = {}
        self._states = None if states is None else _of_states(states)

    def run(self) -> Replayed:
        if self._there & {scan.PACKAGE, scan.OPENED_SESSION}:
            told = _kept(self._judged_packages())
            if not told.isEmpty():
                refused = told.where("position is not null")
                self._refused = refused.select(*_PLACE, "result")
                self._sessions = told.where("position is null")
        self._histories = self._find_histories()
        rows = self._rows()
        out = _kept(self._model(rows))
        for round_ in range(1, MAX_ROUNDS + 1):
            numbers = self._numbers(out).persist(StorageLevel.DISK_ONLY)
            told = self._buckets(out).persist(StorageLevel.DISK_ONLY)
            found = self._counted(out, numbers, told)
            settled = not found.is_odd or self._wrong(out, numbers, told).isEmpty()
            if settled or round_ == MAX_ROUNDS:
                break
            out = self._again(rows, out, numbers, told)
        return self._result(out, numbers, told, found, settled)

    def _said(self, *what: int) -> DataFrame:
        """What the log says about something, except in commands that did not take effect."""
        found = self._scanned.where(f.col("what").isin(*what))
        if self._refused is None:
            return found
        return found.join(self._refused, _PLACE, "left_anti")

    def _find_histories(self) -> dict[int, History]:
        """The limits of each group, as commands set them one after the other."""
        changes = defaultdict(list)
        if scan.LIMITS in self._there:
            found = self._said(scan.LIMITS).select(*_PLACE, "body").orderBy(*_PLACE)
            for row in found.collect():
                place = row["index"], row["position"]
                changes[row["group"]].append((place, scan.decode_limits(row["body"])))
        return {
            group: History(
                plan.header.counts,
                {(kind, name): row for kind, name, row in plan.limits},
                changes[group],
            )
            for group, plan in self._plans.items()
        }

    # -- packages -------------------------------------------------------------------------------

    def _judged_packages(self) -> DataFrame:
        """Places of commands whose package did not take effect, and why; and where states differ
        in nodes' sessions."""
        packages = map_in_arrow(
            self._said(scan.PACKAGE).select(*_PLACE, "body"),
            batches.of_packages,
            batches.SESSION_EVENTS,
        )
        columns = packages.columns
        events = packages.unionByName(
            self._said(scan.OPENED_SESSION).select(
                "group", "index", "position", f.col("one").alias("node_id"),
                f.lit(sessions.OPENED).alias("event"), f.col("two").alias("one"),
                f.col("three").alias("two"), f.lit(None).cast("long").alias("three"),
                f.lit(None).cast("long").alias("four"), f.lit(None).cast("binary").alias("body"),
            )
        )  # fmt: skip
        if self._states is not None:
            none = f.lit(None).cast("long")
            known = self._states.where(f.col("kind") == "session").select(
                "group", f.col("number").alias("node_id"), "index", "position",
                (f.col("op") + sessions.STATE).alias("event"), none.alias("one"),
                none.alias("two"), none.alias("three"), none.alias("four"), "body",
            )  # fmt: skip
            events = events.unionByName(known)
        ordered = events.select(*columns).repartition("group", "node_id")
        ordered = ordered.sortWithinPartitions("group", "node_id", "index", "position", "event")
        members = {
            group: tuple((index, members_in(payload)) for index, payload in plan.configurations)
            for group, plan in self._plans.items()
        }
        places = {group: plan.places for group, plan in self._plans.items()}
        return map_in_arrow(ordered, batches.judge_packages(members, places), batches.JUDGED)

    # -- rows of scopes -------------------------------------------------------------------------

    def _rows(self) -> DataFrame:
        """The model's input, by scope."""
        frames = [self._commands(scan.BUNDLE, node_of("bucket", "stream"))]
        edges = [edges_of(self._said(scan.FORK))] if scan.FORK in self._there else []
        uploads = None
        if scan.PUBLISHED in self._there:
            tied, uploads = self._upload_owners()
            edges.append(tied)
            # Its rows name the upload where those of others name a stream.
            of_uploads = self._commands(scan.BUNDLE_OF_UPLOAD, f.col("one"))
            of_uploads = of_uploads.withColumnRenamed("node", "upload_id")
            of_uploads = of_uploads.join(uploads, ["group", "upload_id"])
            frames.append(of_uploads.select(*frames[0].columns))
        if self._states is not None:
            frames.append(self._state_rows(uploads).select(*frames[0].columns))
            if edges or any(plan.before is not None for plan in self._plans.values()):
                edges.append(edges_of(self._states.where(f.col("other_bucket").isNotNull())))
        edges += ties.of_limited_buckets(self._scanned, self._states, self._histories)
        patterns = self._said(scan.PATTERN) if scan.PATTERN in self._there else None
        edges += ties.of_patterns(self._scanned, patterns, self._states)
        rows = reduce(DataFrame.unionByName, frames)
        joined = self._components(edges)
        if joined is not None:
            rows = rows.join(joined, "node", "left").withColumn("node", f.coalesce("root", "node"))
        rows = rows.withColumnRenamed("node", "scope")
        nothing = f.lit(None)
        return rows.select(
            "*",
            nothing.cast("long").alias("number"),
            nothing.cast("boolean").alias("no_bucket"),
        )

    def _commands(self, what: int, node: Column) -> DataFrame:
        """Bundles of commands that took effect, or were refused by what they are about."""
        found = self._scanned.where(f.col("what") == what).select(
            node.alias("node"), *_PLACE, f.lit(run.COMMAND).alias("op"), "body"
        )
        if self._refused is None:
            return found
        cut = map_in_arrow(found, batches.singles(_NODES_DDL), _NODES_DDL)
        return cut.join(self._refused, _PLACE, "left_anti").select(*found.columns)

    def _upload_owners(self) -> tuple[DataFrame, DataFrame]:
        """Streams that published the same upload, which are judged together; and the node of one
        of them, by the upload."""
        found = self._said(scan.PUBLISHED).select(
            "group", f.col("one").alias("upload_id"), node_of("bucket", "stream").alias("node")
        )
        least = found.groupBy("group", "upload_id").agg(f.min("node").alias("least"))
        tied = found.join(least, ["group", "upload_id"]).select(
            f.col("node").alias("one"), f.col("least").alias("other")
        )
        return tied, least.withColumnRenamed("least", "node")

    def _state_rows(self, uploads: DataFrame | None) -> DataFrame:
        """Rows of states, by their scopes."""
        states = self._states
        assert states is not None
        streams = states.where(f.col("kind") == "stream").withColumn(
            "node", node_of("bucket", "stream")
        )
        columns = streams.columns
        # No two streams ever have one id.
        owners = streams.select("group", f.col("number"), "node").distinct()
        producers = states.where(f.col("kind") == "producer")
        found = streams.unionByName(producers.join(owners, ["group", "number"]).select(*columns))
        if uploads is not None:
            begun = states.where((f.col("kind") == "upload") & (f.col("op") == run.BEFORE))
            begun = begun.join(
                uploads.withColumnRenamed("upload_id", "number"), ["group", "number"]
            )
            found = found.unionByName(begun.select(*columns))
        kinds = f.col("kind").isin(*stated.KINDS)
        others = states.where(kinds).withColumn("node", of_subscriptions())
        found = found.unionByName(others.select(*columns))
        known = [each for pair in run.STATE_POSITIONS.items() for each in map(f.lit, pair)]
        is_first = f.col("op") == run.BEFORE
        first = f.create_map(*known)[f.col("kind")]
        position = f.when(is_first, first).otherwise(f.col("position"))
        return found.select("node", "group", "index", position.alias("position"), "op", "body")

    def _components(self, edges: list[DataFrame]) -> DataFrame | None:
        if not edges:
            return None
        pairs = reduce(DataFrame.unionByName, edges).where("one != other").distinct().coalesce(1)
        roots = map_in_arrow(pairs, batches.join_components, batches.ROOTS)
        roots = _kept(roots.where("node != root"))
        return None if roots.isEmpty() else roots

    # -- the model --------------------------------------------------------------------------------

    def _model(self, rows: DataFrame) -> DataFrame:
        ordered = rows.repartition("scope").sortWithinPartitions("scope", *_PLACE)
        ordered = ordered.select(*run.COLUMNS)
        return map_in_arrow(
            ordered, batches.run_scopes(self._plans, self._histories), run.OUTPUT_DDL
        )

    def _numbers(self, out: DataFrame) -> DataFrame:
        """The ids of everything made, by their places."""
        made = out.where(f.col("table") == run.MADE).select(
            "group", "born_index", "born_position", "scope", f.col("stream_id").alias("guess")
        )
        ordered = made.repartition(1).sortWithinPartitions("group", "born_index", "born_position")
        return map_in_arrow(ordered, batches.number(self._first), batches.NUMBERS)

    def _buckets(self, out: DataFrame) -> DataFrame:
        """The outcomes of commands on buckets, and where states differ."""
        events = out.where(f.col("table") == run.EVENTS).select(
            *_PLACE, f.col("key").alias("bucket"), f.col("records").alias("event"),
            f.col("bytes").alias("log_ms"), f.lit(None).cast("long").alias("streams"),
            f.lit(None).cast("long").alias("hidden"),
        )  # fmt: skip
        columns = events.columns
        of_buckets = self._said(scan.OF_BUCKET).select(
            *_PLACE, f.col("body").alias("bucket"), f.col("one").alias("event"),
            f.col("two").alias("log_ms"),
            f.lit(None).cast("long").alias("streams"), f.lit(None).cast("long").alias("hidden"),
        )  # fmt: skip
        events = events.unionByName(of_buckets)
        if self._states is not None:
            known = self._states.where(f.col("kind") == "bucket").select(
                "group", "index", "position", f.col("body").alias("bucket"),
                f.col("op").cast("long").alias("event"), f.col("number").alias("log_ms"),
                "streams", "hidden",
            )  # fmt: skip
            events = events.unionByName(known)
        ordered = events.select(*columns).repartition("group", "bucket")
        ordered = ordered.sortWithinPartitions("group", "bucket", "index", "position", "event")
        places = {group: plan.places for group, plan in self._plans.items()}
        return map_in_arrow(ordered, batches.judge_buckets(places), batches.BUCKETS)

    def _counted(self, out: DataFrame, numbers: DataFrame, told: DataFrame) -> _Counted:
        none, neither = f.lit(None).cast("long"), f.lit(_OF_NO_TABLE)
        is_absent = f.col("result") == "absent"
        met_none = (f.col("table") == run.OUTCOMES) & (f.col("text") == "bucket-not-found")
        guessed = f.col("guess") != f.col("number")
        rows = (
            numbers.select("group", neither.alias("table"), "number", guessed.alias("is_odd"))
            .unionAll(told.select("group", neither, none, is_absent))
            .unionAll(out.select("group", "table", none, met_none))
            .groupBy("group", "table")
            .agg(
                f.count("*").alias("count"),
                f.max("number").alias("last"),
                f.max("is_odd").alias("is_odd"),
            )
            .collect()
        )
        counts: Counter[int] = Counter()
        for row in rows:
            counts[row["table"]] += row["count"]
        last = {row["group"]: row["last"] + 1 for row in rows if row["last"] is not None}
        return _Counted(counts, self._first | last, any(row["is_odd"] for row in rows))

    def _wrong(self, out: DataFrame, numbers: DataFrame, told: DataFrame) -> DataFrame:
        """Scopes that were replayed with wrong ids or buckets."""
        guessed = numbers.where("guess != number").select("scope")
        absent = told.where("result = 'absent'").select(*_PLACE, f.lit(True).alias("is_absent"))
        outcomes = out.where(f.col("table") == run.OUTCOMES).select("scope", *_PLACE, "text")
        asked = outcomes.where("text = 'bucket-not-found'").join(absent, _PLACE, "left_anti")
        met = absent.join(outcomes.where("text != 'bucket-not-found'"), _PLACE)
        return guessed.unionAll(asked.select("scope")).unionAll(met.select("scope")).distinct()

    def _again(
        self, rows: DataFrame, out: DataFrame, numbers: DataFrame, told: DataFrame
    ) -> DataFrame:
        """Replay those scopes with the ids and buckets found."""
        wrong = _kept(self._wrong(out, numbers, told))
        chosen = rows.join(wrong, "scope", "left_semi").select(*_SCOPES)
        of_states = chosen.where(f.col("op") != run.COMMAND)
        commands = chosen.where(f.col("op") == run.COMMAND)
        commands = map_in_arrow(commands, batches.singles(_SCOPES_DDL), _SCOPES_DDL)
        places = commands.select(*_PLACE, f.lit(0).alias("is_made"))
        made = numbers.select(
            "group", f.col("born_index").alias("index"), f.col("born_position").alias("position"),
            f.lit(1).alias("is_made"),
        )  # fmt: skip
        ordered = places.distinct().unionByName(made).repartition(1)
        ordered = ordered.sortWithinPartitions(*_PLACE, "is_made")
        would_be = map_in_arrow(ordered, batches.would_be(self._first), batches.WOULD_BE)
        absent = told.where("result = 'absent'").select(*_PLACE, f.lit(True).alias("no_bucket"))
        known = of_states.unionByName(commands).join(would_be, _PLACE, "left")
        known = known.join(absent.distinct(), _PLACE, "left")
        others = out.join(wrong, "scope", "left_anti").select(*out.columns)
        return _kept(others.unionByName(self._model(known)))

    # -- results ----------------------------------------------------------------------------------

    def _result(
        self,
        out: DataFrame,
        numbers: DataFrame,
        told: DataFrame,
        found: _Counted,
        settled: bool,
    ) -> Replayed:
        ids = numbers.select("group", "born_index", "born_position", "number")
        named = _named(out.where(f.col("table").isin(run.APPENDS, run.STREAMS)))
        named = named.join(ids, ["group", "born_index", "born_position"], "left")
        named = named.withColumn("stream_id", f.coalesce("number", "stream_id"))
        appends = named.where(f.col("table") == run.APPENDS).select(
            "group", "bucket", "stream", "stream_id", "start_record", "start_byte", "records",
            "bytes", "digests", "detail",
        )  # fmt: skip
        streams = named.where(f.col("table") == run.STREAMS).select(
            "group", "bucket", "stream", "stream_id", f.col("start_record").alias("from_record"),
            f.col("start_byte").alias("from_byte"), "records", "bytes",
            f.col("digests").alias("hash"), "detail",
        )  # fmt: skip
        differences = _named(out.where(f.col("table") == run.DIFFERENCES)).select(
            "group", "bucket", "stream", "stream_id", "index", f.col("position").alias("state"),
            f.col("text").alias("kind"), "detail",
        )  # fmt: skip
        outcomes = out.where(f.col("table") == run.OUTCOMES)
        outcomes = outcomes.select(*_PLACE, f.col("text").alias("result"))
        of_buckets = told.where("position is not null and result != 'absent'")
        outcomes = outcomes.unionByName(of_buckets.select(*_PLACE, "result"))
        if self._refused is not None:
            outcomes = outcomes.unionByName(self._refused.select(*_PLACE, "result"))
        of_states = told.where("position is null").select(
            "group", "index", f.col("bucket").cast("string").alias("bucket"), "expected", "found"
        )
        made = numbers.select("group", f.col("born_index").alias("index"))
        access = self._said(scan.LIMITS, scan.TOKEN)
        access = access.select(*_PLACE, f.col("two").alias("log_ms"), "body")
        return Replayed(
            appends, outcomes, streams, differences, of_states, access, made, self._refused,
            self._sessions, self._histories,
            found.following, settled, found.counts,
        )  # fmt: skip


def _of_states(states: DataFrame) -> DataFrame:
    """Rows of the states to begin with and to compare with."""
    kinds = "stream", "producer", "upload", "bucket", "session", *stated.KINDS
    rows = states.where(f.col("kind").isin(*kinds))
    chosen = rows.select("group", "index", "position", "op", "key", "value")
    return _kept(map_in_arrow(chosen, batches.of_states, batches.STATE_ROWS))


def _named(out: DataFrame) -> DataFrame:
    """The frame with bucket and name in place of the key."""
    key = f.col("key").cast("string")
    out = out.withColumn("bucket", f.substring_index(key, "\0", 1))
    return out.withColumn("stream", f.substring(key, f.length("bucket") + 2, f.length(key)))
