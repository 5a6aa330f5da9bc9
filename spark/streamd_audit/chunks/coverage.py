"""One stream's records, in their order: from the log, from packs, and from the states' own rows.

Rows come sorted by stream id and first record, so only a window of digests has to be kept: from the
earliest record of a slice that waits for the log to its last.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import NamedTuple

import msgspec

from streamd_audit.findings import Finding, finding
from streamd_audit.replay.run import Appended, decode_appended

# The kind of a row; rows of the same place come in this order.
STREAM, APPEND, SLICE, HOT, REMOVED = range(5)
_DIGEST_BYTES = 16
encode_counts = msgspec.msgpack.Encoder().encode
decode_counts = msgspec.msgpack.Decoder(list[int]).decode
_NONE_APPENDED = encode_counts(Appended())


class Row(NamedTuple):
    """The records in [`start_record`, `end_record`) of a stream id.

    They are in the states from number `since` to number `until`, or, with None, in the log only.
    STREAM comes first: a state must have the records from `start_byte` to `end_record`, and the log
    may lack those before `end_byte`, which existed before it; `start_record` is -1. So it is for
    REMOVED: the records before `end_record`, or with -1 all, await removal. A STREAM without a name
    is a blob, whose records are its parts. An APPEND
    stands for several, one after the other. A SLICE has its `object`. HOT rows are a state's own.
    `appends` is a
    `run.Appended` in MessagePack for an APPEND; for others it is how many records each append had,
    empty if one each. `digests` are 16 bytes per record, None if they cannot be read.
    """

    group: int
    stream_id: int
    what: int
    start_record: int
    start_byte: int
    end_record: int
    end_byte: int
    object: str | None
    since: int | None
    until: int | None
    appends: bytes | None
    digests: bytes | None
    name: str | None


COLUMNS = (
    "group", "stream_id", "what", "start_record", "start_byte", "end_record", "end_byte", "object",
    "since", "until", "appends", "digests", "name",
)  # fmt: skip
ROWS_DDL = (
    "`group` int, stream_id long, what int, start_record long, start_byte long, end_record long, "
    "end_byte long, object string, since int, until int, appends binary, "
    "digests binary, name string"
)


def judge_streams(
    rows: Iterable[Row], cluster: str, states: Mapping[int, Sequence[int]], *, has_log: bool
) -> Iterator[Finding]:
    """Judge whole streams; `rows` are sorted by group, stream id, first record, and kind. `states`
    are the entries of the states of each group.

    Without a log to compare with, the references are only compared with one another.
    """
    stream: _Stream | None = None
    for row in rows:
        if stream is None or (row.group, row.stream_id) != stream.key:
            if stream is not None:
                yield from stream.finish()
            key = row.group, row.stream_id
            stream = _Stream(key, cluster, states.get(row.group, ()), has_log)
        stream.take(row)
    if stream is not None:
        yield from stream.finish()


class _Known(NamedTuple):
    """What the states from number `since` to number `until` say about a stream."""

    since: int
    until: int
    first: int
    tail: int


@dataclass
class _Cover:
    """How far rows of the states from number `since` to number `until` reach, and where their last
    slice ends."""

    since: int
    until: int
    reached: int
    slices_end: int = 0


class _Stream:
    def __init__(
        self, key: tuple[int, int], cluster: str, states: Sequence[int], has_log: bool
    ) -> None:
        self.key = key
        self._cluster = cluster
        self._states = states
        self._has_log = has_log
        self._name: str | None = None
        self._before_log = 0
        self._known: list[_Known] = []
        self._covers: list[_Cover] = []
        self._removed: list[Row] = []
        # The log's digests from record `_first` on, and where each append in them begins.
        self._first = self._end = self._logged_from = 0
        self._digests = bytearray()
        self._starts: list[tuple[int, int, int]] = []
        self._has_appends = False
        self._waiting: list[Row] = []
        # Rows that may hold the same records as the next one, and which the log cannot judge.
        self._copies: list[Row] = []
        self._found: dict[str, tuple[Finding, int]] = {}

    def take(self, row: Row) -> None:
        if row.what == STREAM:
            assert row.since is not None
            assert row.until is not None
            self._name, self._before_log = row.name, row.end_byte
            self._known.append(_Known(row.since, row.until, row.start_byte, row.end_record))
            self._covers.append(_Cover(row.since, row.until, row.start_byte))
        elif row.what == APPEND:
            self._append(row)
        elif row.what == REMOVED:
            self._removed.append(row)
        else:
            self._cover(row)
            if row.digests is not None:
                self._compare_copies(row)
                self._waiting.append(row)

    def finish(self) -> Iterator[Finding]:
        """The findings, one of each kind; call it after the last row."""
        self._compare(None)
        for cover in self._covers:
            for known in self._known:
                if known.since <= cover.until and cover.since <= known.until:
                    self._reach_tail(cover, known)
        for known in self._known:
            self._keep_needed(known)
        for found, more in self._found.values():
            if more:
                found = finding_with(found, f"{found.found}, and in {more} more places")
            yield found

    # -- references -------------------------------------------------------------------------------

    def _cover(self, row: Row) -> None:
        if row.since is None or row.until is None:
            return
        for cover in self._cut(row.since, row.until):
            if row.start_record > cover.reached:
                self._gap(cover, row.start_record)
            if row.what == SLICE:
                if row.start_record < cover.slices_end:
                    self._add(
                        "slice_overlap",
                        row,
                        (row.start_record, row.start_byte),
                        f"a slice from record {cover.slices_end} on",
                        f"one from record {row.start_record} on",
                        self._states[cover.since],
                    )
                cover.slices_end = max(cover.slices_end, row.end_record)
            cover.reached = max(cover.reached, row.end_record)
        self._join()

    def _cut(self, since: int, until: int) -> list[_Cover]:
        """The covers of exactly these states."""
        covers: list[_Cover] = []
        inside: list[_Cover] = []
        for one in self._covers:
            low, high = max(one.since, since), min(one.until, until)
            if low > high:
                covers.append(one)
                continue
            if one.since < low:
                covers.append(replace(one, until=low - 1))
            middle = replace(one, since=low, until=high)
            covers.append(middle)
            inside.append(middle)
            if high < one.until:
                covers.append(replace(one, since=high + 1))
        self._covers = covers
        return inside

    def _join(self) -> None:
        """Join the covers of neighbouring states that reach as far."""
        covers: list[_Cover] = []
        for one in sorted(self._covers, key=lambda cover: cover.since):
            last = covers[-1] if covers else None
            if (
                last is not None
                and last.until == one.since - 1
                and (last.reached, last.slices_end) == (one.reached, one.slices_end)
            ):
                last.until = one.until
            else:
                covers.append(one)
        self._covers = covers

    def _reach_tail(self, cover: _Cover, known: _Known) -> None:
        """Whether the rows of states reach the tail that these know."""
        index = self._states[max(cover.since, known.since)]
        if cover.reached < known.tail:
            expected = f"records {cover.reached} to {known.tail} in a pack or in the state"
            self._add("slice_gap", None, cover.reached, expected, "nothing", index)
        elif cover.reached > known.tail:
            found = f"records up to {cover.reached}"
            expected = f"none after record {known.tail}"
            self._add("slice_not_in_log", None, known.tail, expected, found, index)

    def _keep_needed(self, known: _Known) -> None:
        """Whether nothing that states need awaits removal in them."""
        for row in self._removed:
            assert row.since is not None
            assert row.until is not None
            since, until = max(row.since, known.since), min(row.until, known.until)
            if since <= until and (row.end_record < 0 or row.end_record > known.first):
                gone = "all" if row.end_record < 0 else f"those before record {row.end_record}"
                expected = f"records from {known.first} on"
                found = f"{gone} await removal"
                self._add("removal_wrong", None, known.first, expected, found, self._states[since])

    def _gap(self, cover: _Cover, end: int) -> None:
        self._add(
            "slice_gap",
            None,
            cover.reached,
            f"records {cover.reached} to {end} in a pack or in the state",
            "nothing",
            self._states[cover.since],
        )
        cover.reached = end

    def _compare_copies(self, row: Row) -> None:
        """Compare records that are older than the log with what other states and packs have of
        them: such as those of a pack that was made of a state's own records."""
        until = self._before_log if self._has_log else row.end_record
        self._copies = [one for one in self._copies if one.end_record > row.start_record]
        for one in self._copies:
            first, end = row.start_record, min(one.end_record, row.end_record, until)
            mine, other = _digests(row, first, end), _digests(one, first, end)
            if mine != other:
                differ = next(i for i in range(end - first) if _at(mine, i) != _at(other, i))
                expected = f"record {first + differ} as {one.object or 'a state'} has it"
                self._add("copies_differ", row, first + differ, expected, "a record of other bytes")
        if row.start_record < until:
            self._copies.append(row)

    # -- against the log --------------------------------------------------------------------------

    def _append(self, row: Row) -> None:
        if not self._has_appends or row.start_record != self._end:
            if self._has_appends:
                self._compare(None)
            else:
                self._logged_from = row.start_record
            self._first = self._end = row.start_record
            self._digests.clear()
            self._starts.clear()
            self._has_appends = True
        elif len(self._digests) > 1 << 20:
            self._forget(row.start_record)
        appended = decode_appended(row.appends or _NONE_APPENDED)
        records = accumulate(appended.records, initial=row.start_record)
        at_bytes = accumulate(appended.sizes, initial=row.start_byte)
        self._starts += zip(records, at_bytes, appended.entries, strict=False)
        self._digests += row.digests or b""
        self._end = row.end_record
        if self._waiting:
            self._compare(self._end)

    def _forget(self, until: int) -> None:
        """Forget the records that no slice will ask for: later slices begin at `until` or after."""
        until = min([until, *(row.start_record for row in self._waiting)])
        at = bisect_right(self._starts, (until, -1, -1))
        if at and (at == len(self._starts) or self._starts[at][0] > until):
            at -= 1
        until = self._starts[at][0] if at < len(self._starts) else self._end
        del self._digests[: (until - self._first) * _DIGEST_BYTES]
        del self._starts[:at]
        self._first = until

    def _compare(self, reached: int | None) -> None:
        """Compare the slices that the log has reached; all of them if it goes no further."""
        left = []
        for row in self._waiting:
            if reached is not None and row.end_record > reached:
                left.append(row)
            else:
                self._compare_one(row)
        self._waiting = left

    def _compare_one(self, row: Row) -> None:
        digests = row.digests
        if not self._has_log or digests is None:
            return
        if self._name is None and not self._has_appends:
            return  # the parts of a blob, or a stream that has been deleted
        before_log = self._before_log if self._known else self._logged_from
        first = max(row.start_record, before_log)
        if first >= row.end_record:
            return
        if not self._has_appends or first < self._first or row.end_record > self._end:
            at = first if not self._has_appends or first < self._first else max(first, self._end)
            if row.what == SLICE or not self._has_appends or at > first:
                self._add("slice_not_in_log", row, at, "no such records", _told(row))
            return
        start = (first - self._first) * _DIGEST_BYTES
        end = (row.end_record - self._first) * _DIGEST_BYTES
        mine = digests[(first - row.start_record) * _DIGEST_BYTES :]
        if self._digests[start:end] != mine:
            self._differ(row, first, bytes(self._digests[start:end]), mine)
        elif row.what == SLICE and first == row.start_record:
            self._compare_appends(row)

    def _differ(self, row: Row, first: int, logged: bytes, mine: bytes) -> None:
        record = first
        while logged[:_DIGEST_BYTES] == mine[:_DIGEST_BYTES]:
            logged, mine, record = logged[_DIGEST_BYTES:], mine[_DIGEST_BYTES:], record + 1
        start, byte, index = self._starts[bisect_right(self._starts, (record, 1 << 63, 0)) - 1]
        self._add(
            "slice_contradicts_log" if row.what == SLICE else "bytes_differ",
            row,
            (record, byte) if record == start else record,
            f"record {record} as entry {index} appended it",
            "a record of other bytes",
            index,
        )

    def _compare_appends(self, row: Row) -> None:
        low = bisect_right(self._starts, (row.start_record, -1, -1))
        high = bisect_right(self._starts, (row.end_record, -1, -1))
        begins = [(record, byte) for record, byte, _ in self._starts[low:high]]
        record = row.start_record
        cut = []
        for count in _counts(row):
            cut.append(record)
            record += count
        if [at for at, _ in begins] != cut:
            self._add(
                "slice_cuts_append",
                row,
                (row.start_record, row.start_byte),
                f"{len(begins)} appends, as in the log",
                f"{len(cut)} appends",
            )
        elif begins[0][1] != row.start_byte:
            self._add(
                "slice_misplaced",
                row,
                begins[0],
                f"records from byte {begins[0][1]} on",
                f"from byte {row.start_byte} on",
            )

    def _add(
        self,
        kind: str,
        row: Row | None,
        offset: int | tuple[int, int],
        expected: str,
        found: str,
        index: int | None = None,
    ) -> None:
        known = self._found.get(kind)
        if known is not None:
            self._found[kind] = known[0], known[1] + 1
            return
        group, stream_id = self.key
        made = finding(
            kind,
            cluster=self._cluster,
            group=group,
            stream=self._name,
            stream_id=stream_id,
            offset=offset,
            index=index,
            object=None if row is None else row.object,
            expected=expected,
            found=found,
        )
        self._found[kind] = made, 0


def finding_with(found: Finding, text: str) -> Finding:
    """The same finding with another text for `found`."""
    return Finding(**{**vars(found), "found": text})


def _counts(row: Row) -> list[int]:
    """How many records each append brought to a slice."""
    counts = decode_counts(row.appends) if row.appends else []
    return counts or [1] * (row.end_record - row.start_record)


def _digests(row: Row, first: int, end: int) -> bytes:
    """The digests of some of a row's records; none if `end` is before `first`."""
    assert row.digests is not None
    begin = (first - row.start_record) * _DIGEST_BYTES
    return row.digests[begin : begin + max(end - first, 0) * _DIGEST_BYTES]


def _at(digests: bytes, number: int) -> bytes:
    return digests[number * _DIGEST_BYTES : (number + 1) * _DIGEST_BYTES]


def _told(row: Row) -> str:
    return f"records {row.start_record} to {row.end_record}"
