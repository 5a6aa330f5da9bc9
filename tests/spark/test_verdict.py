"""One fault is reported once, together with its consequences."""

from __future__ import annotations

from itertools import permutations

import pytest

from streamd_audit.findings import KINDS, Finding, finding
from streamd_audit.verdict import as_json, fold, summary

CLUSTER = "7d0c3a52-7c4f-4a44-9f0d-0123456789ab"
DIGEST = "0" * 64
PACK = f"{CLUSTER}/packs/00000000/0000000000000002-00000001-{DIGEST}.pack"
OTHER_PACK = PACK.replace("00000001-0", "00000002-0")
SEGMENT = f"{CLUSTER}/log/00000000/0000000000000010-000000000000001f-{DIGEST}.segment"
NEXT_SEGMENT = f"{CLUSTER}/log/00000000/{0x20:016x}-{0x2F:016x}-{DIGEST}.segment"
PIECE = f"{CLUSTER}/pieces/00000000/0000000000000020-0123456789abcdef-00000000-{DIGEST}.piece"
ABOUT = {"store": "s3://bucket/at", "cluster": CLUSTER}


def found(kind: str, **more: object) -> Finding:
    return finding(kind, cluster=CLUSTER, group=0, **more)  # type: ignore[arg-type]


CHAT = {"stream": "agents/chat", "stream_id": 7}
FOLLOW = {
    "a missing pack leaves nothing to say of its slices": [
        found("pack_missing", object=PACK),
        found("slice_damaged", object=PACK, **CHAT),
        found("pack_altered", object=PACK),
    ],
    "a damaged slice changes the pack's digest": [
        found("slice_damaged", object=PACK, **CHAT),
        found("pack_altered", object=PACK),
    ],
    "a segment that is damaged leaves a gap, and streams that are shorter": [
        found("segment_damaged", object=SEGMENT),
        found("log_gap", index=0x10),
        found("chain_broken", index=0x20),
        found("tail_differs", **CHAT),
        found("slice_not_in_log", object=PACK, **CHAT),
        found("manifest_off_log", index=0x30),
    ],
    "a forged entry moves its chain, and what its stream has": [
        found("chain_broken", index=0x15),
        found("slice_contradicts_log", object=PACK, index=0x15, **CHAT),
        found("end_off_log", index=0x40),
    ],
    "a forged append shows in its pack first": [
        found("slice_contradicts_log", object=PACK, index=0x15, **CHAT),
        found("manifest_off_log", index=0x30),
        found("tail_differs", **CHAT),
    ],
    "an append that should have been refused shifts what follows": [
        found("append_after_close", index=0x15, **CHAT),
        found("slice_contradicts_log", object=PACK, index=0x16, **CHAT),
        found("slice_not_in_log", object=OTHER_PACK, **CHAT),
    ],
    "a segment with a wrong CRC-32C has a wrong digest as well": [
        found("segment_damaged", object=SEGMENT),
        found("segment_altered", object=SEGMENT),
    ],
    "what only a state that cannot be read refers to is not an orphan": [
        found("piece_damaged", object=PIECE, index=0x20),
        finding("pack_orphan", cluster=CLUSTER, object=PACK),
    ],
    "a damaged piece takes the streams in it along": [
        found("piece_damaged", object=PIECE, index=0x20),
        found("stream_lost", **CHAT),
        found("counts_differ", index=0x20),
        found("slice_gap", **CHAT),
    ],
    "a lost segment leaves tokens and limits older than those of the state": [
        found("log_gap", index=0x10),
        found("token_differs", index=0x30, expected="token 0000000000000007: none"),
        found("limits_differ", index=0x30, expected="limits of bucket small: none"),
    ],
    "a slice that begins too early cuts an append": [
        found("slice_overlap", object=PACK, **CHAT),
        found("slice_cuts_append", object=PACK, **CHAT),
    ],
    "a bucket counts the stream that is lost": [
        found("stream_lost", **CHAT),
        found("bucket_differs", expected="bucket agents: 16 streams", found="15 streams"),
    ],
    "a stream that nobody made has no records in the log": [
        found("stream_unknown", **CHAT),
        found("slice_not_in_log", object=PACK, **CHAT),
    ],
}
STAND_ALONE = {
    "two packs": [found("pack_missing", object=PACK), found("pack_missing", object=OTHER_PACK)],
    "two slices of a pack": [
        found("slice_damaged", object=PACK, offset=(0, 0), **CHAT),
        found("slice_damaged", object=PACK, offset=(9, 99), **CHAT),
    ],
    "two streams": [
        found("tail_differs", **CHAT),
        found("closed_differs", stream="agents/done", stream_id=8),
    ],
    "a pack and the log": [found("pack_missing", object=PACK), found("log_gap", index=5)],
    "two segments in each other's place": [
        found("segment_misnamed", object=SEGMENT),
        found("segment_misnamed", object=NEXT_SEGMENT),
    ],
    "a lost stream and another bucket": [
        found("stream_lost", **CHAT),
        found("bucket_differs", expected="bucket tools: 2 streams", found="3 streams"),
    ],
    "a token, limits, and totals, which count neither": [
        found("token_differs", index=0x30, expected="token 0000000000000007: none"),
        found("limits_differ", index=0x30, expected="limits of bucket small: none"),
        found("counts_differ", index=0x30),
    ],
    "two gaps of the log": [found("log_gap", index=5), found("log_gap", index=500)],
    "two groups": [
        found("log_gap", index=5),
        finding("tail_differs", cluster=CLUSTER, group=1, stream="a/b", stream_id=1),
    ],
}


@pytest.mark.parametrize("findings", FOLLOW.values(), ids=FOLLOW.keys())
def test_consequences_of_a_fault_are_counted_with_it(findings: list[Finding]) -> None:
    for order in list(permutations(findings))[:24]:
        [fault] = fold(order).faults
        assert fault.finding == findings[0]
        assert fault.followers.total() == len(findings) - 1


@pytest.mark.parametrize("findings", STAND_ALONE.values(), ids=STAND_ALONE.keys())
def test_independent_faults_are_separate(findings: list[Finding]) -> None:
    assert {fault.finding for fault in fold(findings).faults} == set(findings)


def test_a_fault_that_two_jobs_found_is_reported_once() -> None:
    [fault] = fold([found("log_gap", index=5), found("log_gap", index=5)]).faults
    assert not fault.followers


def test_listed_objects_leave_a_store_clean() -> None:
    verdict = fold([found("pack_orphan", object=PACK)])
    assert verdict.is_clean
    assert [one.kind for one in verdict.listed] == ["pack_orphan"]
    assert "CLEAN" in summary(verdict, ABOUT, {})
    assert "1 pack_orphan" in summary(verdict, ABOUT, {})


def test_a_store_that_was_not_fully_checked_is_not_clean() -> None:
    verdict = fold([], more=3)
    assert not verdict.is_clean
    assert "3 FINDINGS" in summary(verdict, ABOUT, {})


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_can_be_reported(kind: str) -> None:
    made = found(kind, object=PACK, index=3, expected="one", found="another", **CHAT)
    verdict = fold([made])
    text = summary(verdict, ABOUT, {"log": "3 entries", "entries": 3})
    assert kind in text
    document = as_json(verdict, ABOUT, {})
    assert len(document["findings"]) + len(document["listed"]) == 1


def test_the_summary_fits_a_screen() -> None:
    """At most a screen for any number of findings: the worst first, grouped by what they have in
    common."""
    packs = [
        found("pack_missing", object=PACK.replace("00000001-0", f"{number:08x}-0"))
        for number in range(400)
    ]
    text = summary(fold([*packs, found("stamp_back", index=9)]), ABOUT, {"log": "9 entries"})
    lines = text.splitlines()
    assert len(lines) <= 24
    assert lines[0].startswith("401 FINDINGS")
    assert text.index("pack_missing ×400") < text.index("stamp_back")
    assert "deleted together" in text
