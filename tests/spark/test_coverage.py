"""One stream's records from the log, from packs and from a state: together without gap or overlap,
and the same."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from itertools import pairwise
from random import Random

import pytest

from streamd_audit.chunks.coverage import (
    APPEND,
    HOT,
    REMOVED,
    SLICE,
    STREAM,
    Row,
    encode_counts,
    judge_streams,
)
from streamd_audit.findings import Finding
from streamd_audit.replay.run import Appended
from tests.support.long import first_quick

CLUSTER = "7d0c3a52-7c4f-4a44-9f0d-0123456789ab"
RECORD_BYTES = 10


def digest(record: int, life: str = "") -> bytes:
    return sha256(f"{life}{record}".encode()).digest()[:16]


def digests(first: int, end: int, **changed: bytes) -> bytes:
    return b"".join(changed.get(f"r{record}", digest(record)) for record in range(first, end))


def appended(first: int, end: int, size: int = RECORD_BYTES) -> bytes:
    """Records of one append, by the entry that the first one names."""
    return encode_counts(Appended([100 + first], [end - first], [(end - first) * size]))


def row(what: int, first: int, end: int, **more: object) -> Row:
    fields: dict[str, object] = {
        "group": 0,
        "stream_id": 7,
        "what": what,
        "start_record": first,
        "start_byte": first * RECORD_BYTES,
        "end_record": end,
        "end_byte": end * RECORD_BYTES,
        "object": f"pack {first}" if what == SLICE else None,
        "since": None if what == APPEND else 1,
        "until": None if what == APPEND else 1,
        "appends": appended(first, end) if what == APPEND else None,
        "digests": None if what == STREAM else digests(first, end),
        "name": "agents/chat",
        **more,
    }
    return Row(**fields)  # type: ignore[arg-type]


def stream(tail: int, first: int = 0, before_log: int = 0) -> Row:
    return row(STREAM, -1, tail, start_byte=first, end_byte=before_log)


def appends(end: int, first: int = 0) -> list[Row]:
    return [row(APPEND, record, record + 1) for record in range(first, end)]


def judged(rows: Sequence[Row], *, has_log: bool = True) -> list[Finding]:
    ordered = sorted(rows, key=lambda r: (r.group, r.stream_id, r.start_record, r.what))
    return list(judge_streams(ordered, CLUSTER, {0: [200, 400]}, has_log=has_log))


def kinds(rows: Sequence[Row], *, has_log: bool = True) -> list[str]:
    return [found.kind for found in judged(rows, has_log=has_log)]


WHOLE = [stream(10), *appends(12), row(SLICE, 0, 4), row(SLICE, 4, 7), row(HOT, 7, 10)]


def test_slices_and_a_states_own_records_cover_a_stream() -> None:
    assert kinds(WHOLE) == []


def test_a_missing_slice_leaves_a_gap() -> None:
    [found] = judged([one for one in WHOLE if one.object != "pack 4"])
    assert (found.kind, found.offset, found.stream) == ("slice_gap", "4", "agents/chat")


def test_missing_records_at_the_tail_are_a_gap() -> None:
    [found] = judged([one for one in WHOLE if one.what != HOT])
    assert (found.kind, found.offset) == ("slice_gap", "7")


def test_two_slices_of_the_same_records_overlap() -> None:
    assert kinds([*WHOLE, row(SLICE, 3, 5)]) == ["slice_overlap"]


def test_a_states_own_records_may_be_in_slices_as_well() -> None:
    assert kinds([*WHOLE, row(HOT, 5, 7)]) == []


def test_trimmed_records_may_be_absent() -> None:
    assert kinds([stream(10, first=5), *appends(10), row(SLICE, 4, 7), row(HOT, 7, 10)]) == []


def test_slices_of_older_states_do_not_overlap_with_the_newest() -> None:
    assert kinds([*WHOLE, row(SLICE, 0, 7, since=0, until=0)]) == []


def test_the_records_of_every_state_are_covered() -> None:
    """The older state has fewer records, in other slices."""
    older = row(STREAM, -1, 7, start_byte=0, end_byte=0, since=0, until=0)
    slices = [row(SLICE, 0, 4, since=0), row(SLICE, 4, 7, since=0)]
    rows = [older, stream(10), *appends(12), *slices, row(HOT, 7, 10)]
    assert kinds(rows) == []
    [found] = judged([*rows[:-2], row(SLICE, 4, 7), rows[-1]])
    assert (found.kind, found.offset, found.index) == ("slice_gap", "4", 200)
    [found] = judged([*rows[:-1], row(HOT, 7, 10, since=0)])
    assert (found.kind, found.offset, found.index) == ("slice_not_in_log", "7", 200)
    [found] = judged([*rows, row(SLICE, 2, 4, since=0, until=0)])
    assert (found.kind, found.index) == ("slice_overlap", 200)


@pytest.mark.parametrize("is_newest", [True, False])
def test_a_record_with_other_bytes_is_named_by_its_entry(is_newest: bool) -> None:
    since = 1 if is_newest else None
    forged = digests(4, 7, r5=b"x" * 16)
    rows = [one for one in WHOLE if one.object != "pack 4"]
    if not is_newest:
        rows.append(row(SLICE, 4, 7))
    [found] = judged([*rows, row(SLICE, 4, 7, digests=forged, since=since, until=since)])
    assert (found.kind, found.object, found.index) == ("slice_contradicts_log", "pack 4", 105)
    assert found.offset == f"{5:016d}_{50:016d}"


def test_a_record_with_other_bytes_in_the_state_differs() -> None:
    rows = [one for one in WHOLE if one.what != HOT]
    [found] = judged([*rows, row(HOT, 7, 10, digests=digests(7, 10, r9=b"x" * 16))])
    assert (found.kind, found.offset) == ("bytes_differ", f"{9:016d}_{90:016d}")


def test_an_unreadable_slice_is_not_also_a_gap() -> None:
    rows = [one for one in WHOLE if one.object != "pack 4"]
    assert kinds([*rows, row(SLICE, 4, 7, digests=None)]) == []


def test_records_that_the_log_never_appended_are_found() -> None:
    [found] = judged([stream(12), *appends(10), row(SLICE, 0, 8), row(SLICE, 8, 12)])
    assert (found.kind, found.offset) == ("slice_not_in_log", "10")


def test_records_older_than_the_archive_are_not_missed_in_it() -> None:
    """Retention has removed the log before record 6; slices begin earlier."""
    rows = [stream(10, before_log=6), *appends(10, first=6), row(SLICE, 0, 4), row(SLICE, 4, 10)]
    assert kinds(rows) == []
    rows[-1] = row(SLICE, 4, 10, digests=digests(4, 10, r8=b"x" * 16))
    assert kinds(rows) == ["slice_contradicts_log"]


def test_records_older_than_the_archive_are_the_same_in_states_and_packs() -> None:
    """A state had them itself before they were in a pack."""
    rows = [stream(10, before_log=6), *appends(10, first=6), row(HOT, 2, 6, since=0, until=0)]
    whole, cut = row(SLICE, 0, 10), [row(SLICE, 0, 4), row(SLICE, 4, 10)]
    assert kinds([*rows, whole]) == kinds([*rows, *cut]) == []
    cut[1] = row(SLICE, 4, 10, digests=digests(4, 10, r5=b"x" * 16))
    [found] = judged([*rows, *cut])
    assert (found.kind, found.object, found.offset) == ("copies_differ", "pack 4", "5")


def test_a_deleted_streams_slices_are_compared_as_far_as_the_log_goes() -> None:
    assert kinds([*appends(10), row(SLICE, 0, 10, since=0, until=0)]) == []
    forged = digests(0, 10, r3=b"x" * 16)
    assert kinds([*appends(10), row(SLICE, 0, 10, digests=forged)]) == ["slice_contradicts_log"]


def test_the_parts_of_a_blob_are_not_a_stream() -> None:
    assert kinds([row(SLICE, 0, 3, stream_id=9, name=None)]) == []


def test_the_parts_of_a_blob_are_all_there() -> None:
    blob = stream(5)._replace(name=None)
    part = row(HOT, 3, 5, digests=None)
    assert kinds([blob, row(SLICE, 0, 3), part]) == []
    assert kinds([blob, row(SLICE, 0, 3)]) == ["slice_gap"]
    assert kinds([blob, row(SLICE, 0, 3), part, row(HOT, 5, 6, digests=None)]) == [
        "slice_not_in_log"
    ]


@pytest.mark.parametrize(
    ("end", "found"), [(-1, ["removal_wrong"]), (5, []), (6, ["removal_wrong"])]
)
def test_what_a_stream_needs_does_not_await_removal(end: int, found: list[str]) -> None:
    trimmed = [stream(10, first=5), *appends(10), row(SLICE, 4, 7), row(HOT, 7, 10)]
    assert kinds([*trimmed, row(REMOVED, -1, end)]) == found
    assert kinds([*trimmed, row(REMOVED, -1, end, since=0, until=0)]) == []


def test_a_stream_that_is_gone_may_await_removal() -> None:
    assert kinds([*appends(10), row(HOT, 0, 10), row(REMOVED, -1, -1)]) == []


def test_records_grouped_into_other_appends_are_found() -> None:
    logged = [row(APPEND, 0, 3), row(APPEND, 3, 4)]
    same, other = encode_counts([3, 1]), encode_counts([1, 3])
    assert kinds([stream(4), *logged, row(SLICE, 0, 4, appends=same)]) == []
    assert kinds([stream(4), *logged, row(SLICE, 0, 4, appends=other)]) == ["slice_cuts_append"]
    assert kinds([stream(4), *logged, row(SLICE, 0, 4)]) == ["slice_cuts_append"]


def test_a_slice_at_another_byte_is_misplaced() -> None:
    assert kinds([stream(4), *appends(4), row(SLICE, 0, 4, start_byte=5)]) == ["slice_misplaced"]


def test_without_a_log_only_references_are_judged() -> None:
    rows = [one for one in WHOLE if one.what != APPEND]
    assert kinds(rows, has_log=False) == []
    assert kinds(rows[:-1], has_log=False) == ["slice_gap"]


def test_each_stream_is_judged_by_itself() -> None:
    other = [one._replace(stream_id=8, name="agents/other") for one in WHOLE]
    assert kinds([*WHOLE, *other]) == []
    assert kinds([*WHOLE, *[one for one in other if one.what != HOT]]) == ["slice_gap"]


@pytest.mark.parametrize("seed", first_quick(range(8)))
def test_long_streams_in_slices_of_any_size_are_whole_until_one_record_changes(seed: int) -> None:
    """More digests than the window keeps; slices of older states overlap those of the newest."""
    random = Random(seed)
    total = 150_000
    rows = [stream(total)]
    at = 0
    while at < total:
        end = min(total, at + random.choice((1, 30, 500, 9000)))
        rows.append(row(APPEND, at, end))
        at = end
    borders = [one.start_record for one in rows if one.what == APPEND] + [total]
    for state in (1, 0):
        cuts = sorted({0, total, *random.sample(borders, 40)})
        for first, end in pairwise(cuts):
            inside = [one for one in borders if first <= one < end]
            counts = [b - a for a, b in zip(inside, [*inside[1:], end], strict=True)]
            grouped = encode_counts(counts)
            rows.append(row(SLICE, first, end, appends=grouped, since=state, until=state))
    assert kinds(rows) == []
    changed = random.randrange(len(rows) - 20, len(rows))
    victim = rows[changed]
    record = random.randrange(victim.start_record, victim.end_record)
    assert victim.digests is not None
    at = (record - victim.start_record) * 16
    spoiled = victim.digests[:at] + b"x" * 16 + victim.digests[at + 16 :]
    rows[changed] = victim._replace(digests=spoiled)
    [found] = judged(rows)
    assert found.kind == "slice_contradicts_log"
    assert found.offset is not None
    assert int(found.offset.partition("_")[0]) == record
