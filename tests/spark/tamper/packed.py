"""Packs, and everything that rows say of them and of records, judged by the audit's twin."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from operator import itemgetter
from typing import Any

from streamd_audit.chunks import claims, coverage, reading, refs
from streamd_audit.context import Context
from streamd_audit.findings import Finding, finding
from streamd_audit.frames import columns_of
from streamd_audit.log_ends import last_entries
from streamd_audit.replay import run, scan, stored, whole
from tests.spark.tamper.reading import Memory, Reading, Row, Said
from tests.spark.tamper.replaying import Outcome
from tests.spark.tamper.stated import Span

_NO_REF: Said = dict.fromkeys(columns_of(refs.REF_DDL))


class Packs:
    """Judges the packs of a store, and the records that states have."""

    def __init__(
        self,
        context: Context,
        reads: Reading,
        memory: Memory,
        spans: Sequence[Span],
        rows: Sequence[Said],
    ) -> None:
        self._context = context
        self._reads = reads
        self._memory = memory
        self._indexes = stored.state_indexes(context)
        self._claims = self._claimed(spans, rows)

    def findings(self, scanned: Sequence[Row], log: Outcome | None) -> Iterator[Finding]:
        """Everything of `chunks_job` but the listing; `scanned` are rows of the log."""
        passed = self._read_packs(scanned)
        names: dict[Row, str] = {}
        for row in self._claims:
            if row["said"] == "stream":
                stream = row["group"], row["stream_id"]
                names[stream] = max(names.get(stream, ""), row["name"])
        for row in passed:
            if row["what"] == reading.FINDING:
                one: Finding = row["made"]
                name = names.get((one.group, one.stream_id))
                yield one if one.stream is not None else replace(one, stream=name)
        yield from self._totals()
        yield from self._damaged()
        yield from self._against_log(passed, log)
        orphans = self._orphans(passed)
        for name, size in orphans.items():
            cluster = self._context.cluster
            yield finding("pack_orphan", cluster=cluster, object=name, found=f"{size} bytes")
        if log is not None:
            yield from self._beyond_log(orphans, log)

    def _claimed(self, spans: Sequence[Span], rows: Sequence[Said]) -> list[Said]:
        """Rows of `claims.CLAIMS_DDL`."""
        found: list[Said] = []
        for span in spans:
            at: Said = {"group": span.group, "since": span.since, "until": span.until}
            row = span.group, span.key, span.value, span.object
            said = self._memory.once(("claims", row), lambda row=row: [*claims.claims_of(*row)])
            found += ({**at, **one} for one in said)
        for problem in rows:
            if problem["problem"] is not None:
                found.append(
                    {
                        "said": "damaged", "group": problem["group"], "since": None,
                        "until": problem["index"], "object": problem["object"],
                        "name": problem["problem"],
                    }
                )  # fmt: skip
        return found

    def _read_packs(self, scanned: Sequence[Row]) -> list[Said]:
        """Rows of packs, of the slices in them, and findings, as `reading.read_packs` has them."""
        rows: list[Said] = [row for row in self._claims if row["said"] in (refs.PACK, refs.SLICE)]
        rows += (
            refs.of_log(row[1], *row[8:12])
            for row in scanned
            if row[0] == scan.PACK and row[2] > self._indexes.get(row[1], [-1])[-1]
        )
        rows = [{**_NO_REF, **row} for row in rows]
        place = itemgetter("group", "term", "number")
        rows.sort(key=lambda row: (place(row), row["said"], _first(row["offset"])))
        reader = reading._Reader(self._context.store, self._context.cluster, self._indexes)
        known = tuple(map(tuple, self._indexes.values()))
        found: list[Said] = []
        for _, some in groupby(rows, key=place):
            for pack, slices in refs.packs_of(some, {}):
                content = None if pack is None else self._reads.content(pack["name"])

                def read(pack: Said | None = pack, slices: list[Said] = slices) -> list[Said]:
                    return _decoded(reader.read(pack, slices))

                key = "pack", content, known, _frozen(pack), *map(_frozen, slices)
                found += self._memory.once(key, read)
        return found

    def _totals(self) -> Iterator[Finding]:
        """Each account at the first state in which its sides differ."""
        changes: dict[Row, Counter[tuple[int, str]]] = defaultdict(Counter)
        for row in self._claims:
            if row["said"] == claims.SHARE:
                account = changes[row["group"], row["name"], row["digest"]]
                for side in ("size", "live"):
                    account[row["since"], side] += row[side]
                    account[row["until"] + 1, side] -= row[side]
        odd = []
        for key, account in changes.items():
            due = told = 0
            for number in sorted({number for number, _ in account}):
                due, told = due + account[number, "size"], told + account[number, "live"]
                if due != told:
                    odd.append((*key, number, due, told))
                    break
        yield from claims.odd_totals(odd, self._indexes, self._context.cluster)

    def _damaged(self) -> Iterator[Finding]:
        """Objects and rows that cannot be read."""
        told: dict[Row, list[tuple[str, bytes | None]]] = defaultdict(list)
        for row in self._claims:
            if row["said"] == "damaged":
                damage = row["name"].partition(":")[0]
                at = row["group"], row["since"], row["until"], row["object"], damage
                told[at].append((row["name"], row.get("digest")))
        for (group, since, until, name, damage), texts in told.items():
            row = {
                "group": group, "since": since, "until": until, "object": name, "damage": damage,
                "found": min(text for text, _ in texts), "times": len(texts),
                "key": min((key for _, key in texts if key is not None), default=None),
            }  # fmt: skip
            yield claims._damaged(self._context.cluster, row, self._indexes)

    def _against_log(self, passed: Sequence[Said], log: Outcome | None) -> Iterator[Finding]:
        before = self._records_before()
        rows: list[Said] = []
        for row in self._claims:
            if row["said"] in ("stream", "blob"):
                stream = row["group"], row["stream_id"]
                rows.append({
                    **row, "what": coverage.STREAM, "start_record": -1,
                    "start_byte": row["start_record"], "end_byte": before.get(stream, 0),
                })  # fmt: skip
            elif row["said"] == "hot":
                rows.append({**row, "what": coverage.HOT})
            elif row["said"] == "removed":
                rows.append({**row, "what": coverage.REMOVED, "start_record": -1})
        rows += (row for row in passed if row["what"] == coverage.SLICE)
        rows += _appends(log)
        streams: dict[Row, list[coverage.Row]] = defaultdict(list)
        for row in rows:
            one = coverage.Row._make(row.get(name) for name in coverage.COLUMNS)
            streams[one.group, one.stream_id].append(one)
        for key in sorted(streams):
            of = tuple(sorted(streams[key], key=lambda row: (row.start_record, row.what)))
            yield from self._judged(of, log is not None)

    def _judged(self, rows: tuple[coverage.Row, ...], has_log: bool) -> list[Finding]:
        """The findings of one stream."""

        def judge() -> list[Finding]:
            cluster = self._context.cluster
            return list(coverage.judge_streams(rows, cluster, self._indexes, has_log=has_log))

        states = tuple(self._indexes.get(rows[0].group, ()))
        return self._memory.once(("stream", rows, states, has_log), judge)

    def _records_before(self) -> Mapping[Row, int]:
        """How many records streams had in the states that the replay began with."""
        numbers = whole.numbers_before(self._context)
        return {
            (row["group"], row["stream_id"]): row["end_record"]
            for row in self._claims
            if row["said"] in ("stream", "blob")
            and row["group"] in numbers
            and row["since"] <= numbers[row["group"]] <= row["until"]
        }

    def _orphans(self, passed: Sequence[Said]) -> dict[str, int]:
        """The sizes of packs that nothing refers to."""
        known = {row["name"] for row in self._claims if row["said"] == "pack"}
        known |= {row["object"] for row in passed if row["what"] == reading.PACK}
        packs = self._reads.packs()
        return {row["object"]: row["size"] for row in packs if row["object"] not in known}

    def _beyond_log(self, orphans: Iterable[str], log: Outcome) -> Iterator[Finding]:
        """Packs of which nothing knows, with records that the log has not reached."""
        tails: dict[tuple[int, int], int] = {}
        for _, group, _, stream_id, index, position, _, _, records, *_ in log.tables[run.STREAMS]:
            number = log.numbers.get((group, index, position), stream_id)
            assert number is not None
            tails[group, number] = max(records, tails.get((group, number), 0))
        beyond: dict[int, list[Row]] = defaultdict(list)
        for name in orphans:
            for group, _, stream_id, end in reading.ends_in_pack(self._context.store, name):
                tail = tails.get((group, stream_id))
                is_new = stream_id >= log.next_numbers.get(group, 0)
                if is_new or (tail is not None and end > tail):
                    beyond[group].append((name, stream_id, end))
        last = last_entries(self._context)
        for group, some in beyond.items():
            name, stream_id, end = min(some, key=itemgetter(0))
            yield finding(
                "log_end_missing",
                cluster=self._context.cluster,
                group=group,
                object=name,
                index=last[group] + 1 if group in last else None,
                expected="packs with records that the log appended",
                found=f"stream id {stream_id} before record {end}",
            )


def _appends(log: Outcome | None) -> Iterator[Said]:
    """What the log appended, as rows of `coverage.ROWS_DDL`."""
    for row in [] if log is None else log.tables[run.APPENDS]:
        _, group, _, stream_id, index, position, record, byte, records, size, *rest = row
        assert log is not None
        number = log.numbers.get((group, index, position), stream_id)
        if number is not None:
            yield {
                "what": coverage.APPEND, "group": group, "stream_id": number,
                "start_record": record, "start_byte": byte, "end_record": record + records,
                "end_byte": byte + size, "digests": rest[0], "appends": rest[1],
            }  # fmt: skip


def _decoded(rows: list[Said]) -> list[Said]:
    """Rows of packs, with findings decoded."""
    return [
        {**row, "made": Finding(**json.loads(row["found"]))} if "found" in row else row
        for row in rows
    ]


def _frozen(row: Said | None) -> Any:
    if row is None:
        return None
    values = (tuple(each) if isinstance(each, list) else each for each in row.values())
    return *row, *values


def _first(number: int | None) -> int:
    """Null comes first, as in Spark."""
    return -1 if number is None else number
