"""Each check of the doctor, on facts that are well and on facts that are not."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from streamd.commands.doctor.command import status_of
from streamd.commands.doctor.findings import ClockOffset, Examined, Level, fail, ok, warn
from streamd.commands.doctor.gathering import offset_of
from streamd.commands.doctor.secrecy import is_for
from streamd.commands.doctor.table import CHECKS, examine
from streamd.hosts.inspection.facts import EndingToken, PortFacts, StoreFacts
from tests.doctor.examples import (
    CERTIFICATE,
    DAY_MS,
    DISK,
    LIMITS,
    MIB,
    NOW_MS,
    PRIVATE,
    SCRUB,
    SETTINGS,
    SYNC,
    WELL,
    member,
    node,
    peer,
    with_archive,
    with_cold,
    with_machine,
    with_node,
    with_status,
    without_node,
)

OK, WARN, FAIL = Level.OK, Level.WARN, Level.FAIL

# A configuration before a start, with which all is well.
ALONE = Examined({1: node(1)}, NOW_MS)

CASES: list[tuple[str, Level, str, Examined]] = [
    ("configuration", FAIL, "server.data_dir", ALONE._replace(faults=["server.data_dir: no"])),
    ("configuration", WARN, "insecure", ALONE._replace(warnings=["cluster.insecure: anyone"])),
    ("node.answer", FAIL, "no answer within 10 s", without_node(2)),
    ("node.answer", WARN, "its release", without_node(2)._replace(silent={}, too_old=[2])),
    ("quorum.now", OK, "3 of 3", without_node(2)._replace(silent={}, too_old=[2])),
    ("node.membership", FAIL, "removed", with_status(advice="node 1 has been removed")),
    ("node.membership", FAIL, "lacks tokens", with_status(members=[member(2, lacks="tokens")])),
    ("node.release", WARN, "node 2 0.3.0", with_node(version="0.3.0")),
    ("node.clock", WARN, "+900.0 ms ± 3.0 ms", WELL._replace(clocks={2: ClockOffset(900, 3)})),
    ("node.clock", FAIL, "-90000.0", WELL._replace(clocks={2: ClockOffset(-90_000, 3)})),
    ("node.clock", WARN, "take too long", WELL._replace(clocks={2: ClockOffset(0, 900)})),
    # The error may explain this offset.
    ("node.clock", OK, "+501.0", WELL._replace(clocks={2: ClockOffset(501, 20)})),
    ("quorum.now", WARN, "2 of 3 voters answer, and 2 are enough", without_node(2)),
    ("quorum.now", FAIL, "1 of 3 voters", without_node(2, 3)),
    ("quorum.now", FAIL, "no leader", with_status(leader_id=None)),
    ("quorum.loss", OK, "leaves 2 of 3 voters: writes continue; losing another stops", WELL),
    ("quorum.loss", WARN, "leaves 1 of 3 voters: nothing could be written", without_node(3)),
    ("quorum.loss", WARN, "leaves 1 of 2 voters: nothing could", with_status(voters=[1, 2])),
    ("quorum.loss", OK, "the only voter", with_status(voters=[1])),
    ("quorum.lag", WARN, "1001 entries", with_status(members=[member(2, behind_entries=1001)])),
    ("port.own", FAIL, "in use", with_node(ports=[PortFacts("server.listen", "a:1", "in use")])),
    ("port.own", WARN, "refused", with_node(ports=[PortFacts("cluster.routes", "a:1", "refused")])),
    (
        "port.peers",
        FAIL,
        "cannot connect to node 3 at 10.0.0.3:4438 (refused), is connected from there",
        with_node(peers=[replace(peer(3), dials=False, last_error="refused")]),
    ),
    (
        "port.peers",
        FAIL,
        "connects to node 3 at 10.0.0.3:4438, gets no connection from there",
        with_node(peers=[replace(peer(3), is_dialled=False)]),
    ),
    (
        "port.clients",
        WARN,
        "no route",
        with_node(peers=[replace(peer(3), clients_error="no route")]),
    ),
    ("disk.room", FAIL, "refuses writes", with_machine(disk=replace(DISK, free_bytes=MIB))),
    ("disk.room", WARN, "below 256.0 MiB", with_machine(disk=replace(DISK, free_bytes=300 * MIB))),
    ("disk.room", FAIL, "no such", with_machine(disk=replace(DISK, error="no such directory"))),
    ("disk.kind", FAIL, "tmpfs", with_machine(disk=replace(DISK, kind="tmpfs"))),
    ("disk.kind", WARN, "overlay", with_machine(disk=replace(DISK, kind="overlay"))),
    ("disk.kind", WARN, "nfs4", with_machine(disk=replace(DISK, kind="nfs4"))),
    ("disk.kind", WARN, "fuse.sshfs", with_machine(disk=replace(DISK, kind="fuse.sshfs"))),
    ("disk.kind", WARN, "does not say", with_machine(disk=replace(DISK, kind=""))),
    ("disk.sync", WARN, "at most 200 ms", with_node(syncs=[replace(SYNC, p99_s=0.2)])),
    ("disk.sync", FAIL, "at most 2 s", with_node(syncs=[replace(SYNC, p99_s=2.0)])),
    ("disk.sync", FAIL, "more than 5 s", with_node(syncs=[replace(SYNC, p99_s=None)])),
    ("disk.sync", OK, "nothing was written", with_node(syncs=[replace(SYNC, count=0, p99_s=None)])),
    ("limit.files", WARN, "LimitNOFILE", with_machine(limits=replace(LIMITS, max_open_files=1024))),
    ("limit.files", OK, "any number", with_machine(limits=replace(LIMITS, max_open_files=None))),
    (
        "limit.files",
        WARN,
        "server.max_connections (20000)",
        with_machine(settings=replace(SETTINGS, max_connections=20_000)),
    ),
    ("limit.maps", WARN, "is 1024", with_machine(limits=replace(LIMITS, max_maps=1024))),
    (
        "limit.memory",
        WARN,
        "64.0 MiB",
        with_machine(limits=replace(LIMITS, swapped_bytes=64 * MIB)),
    ),
    ("limit.memory", WARN, "overcommit", with_machine(limits=replace(LIMITS, overcommit=2))),
    (
        "secret.certificate",
        WARN,
        "ends in 10 days",
        with_machine(certificates=[replace(CERTIFICATE, ends_ms=NOW_MS + 10 * DAY_MS)]),
    ),
    (
        "secret.certificate",
        FAIL,
        "ended 2 days ago",
        with_machine(certificates=[replace(CERTIFICATE, ends_ms=NOW_MS - 2 * DAY_MS)]),
    ),
    (
        "secret.certificate",
        FAIL,
        "valid only in 2 days",
        with_machine(certificates=[replace(CERTIFICATE, begins_ms=NOW_MS + 2 * DAY_MS)]),
    ),
    (
        "secret.certificate",
        FAIL,
        "is for one.example.net, 10.0.0.1, and others look for two.example.net",
        with_machine(certificates=[replace(CERTIFICATE, wanted=["two.example.net"])]),
    ),
    (
        "secret.certificate",
        FAIL,
        "cannot be read",
        with_machine(certificates=[replace(CERTIFICATE, error="no such file")]),
    ),
    (
        "secret.mode",
        WARN,
        "chmod go= /tls/key.pem",
        with_machine(private_files=[replace(PRIVATE, is_open=True)]),
    ),
    (
        "secret.mode",
        FAIL,
        "no such file",
        with_machine(private_files=[replace(PRIVATE, error="no such file")]),
    ),
    (
        "secret.token",
        WARN,
        "token 17d3a90c5b1e2f84 ends in 3 days",
        WELL._replace(
            nodes={
                1: replace(
                    node(1), ending_tokens=[EndingToken("17d3a90c5b1e2f84", NOW_MS + 3 * DAY_MS)]
                )
            }
        ),
    ),
    (
        "secret.token",
        WARN,
        "has ended",
        WELL._replace(
            nodes={1: replace(node(1), ending_tokens=[EndingToken("17d3a90c5b1e2f84", NOW_MS)])}
        ),
    ),
    ("store.access", FAIL, "denied", with_node(store=StoreFacts("s3://bucket", "denied"))),
    ("store.hot", WARN, "600.0 MiB", with_cold(hot_bytes=600 * MIB)),
    ("store.hot", FAIL, "appends are refused", with_cold(backpressure="refused: too much")),
    ("store.work", WARN, "flush: no bucket", with_cold(tasks={"flush": {"error": "no bucket"}})),
    ("store.work", FAIL, "not permitted", WELL._replace(cold=None, cold_error="not permitted")),
    ("archive.lag", WARN, "5 entries, 4 min", with_archive(lag_entries=5, lag_ms=240_000)),
    ("archive.lag", FAIL, "5 entries, 2 h", with_archive(lag_entries=5, lag_ms=7_200_000)),
    ("archive.lag", OK, "0 entries", with_archive(lag_ms=7_200_000)),
    ("archive.alarm", FAIL, "entries 3 to 9 are missing", with_archive(gaps=[[3, 9]])),
    (
        "archive.alarm",
        FAIL,
        "x.manifest is damaged",
        with_archive(damaged_snapshots=["x.manifest"]),
    ),
    ("archive.alarm", FAIL, "entry 70", with_archive(log_cut_unarchived_index=70)),
    ("archive.alarm", FAIL, "was set back", with_archive(set_back="the archive was set back")),
    ("archive.alarm", FAIL, "cluster abc was restored", with_archive(fenced_by="abc")),
    (
        "archive.restore",
        WARN,
        "no checkpoint",
        with_archive(last_snapshot={"index": None, "time_ms": None}),
    ),
    (
        "archive.restore",
        WARN,
        "as of entry 800, 3 h",
        with_archive(last_snapshot={"index": 800, "time_ms": NOW_MS - 3 * 3_600_000}),
    ),
    ("archive.restore", FAIL, "2 objects", with_cold(scrub={**SCRUB, "missing_objects": 2})),
    ("archive.restore", WARN, "not all", with_cold(scrub={**SCRUB, "last_pass_time_ms": None})),
    (
        "archive.restore",
        WARN,
        "verified 30 days ago",
        with_cold(scrub={**SCRUB, "last_pass_time_ms": NOW_MS - 30 * DAY_MS}),
    ),
]


@pytest.mark.parametrize(("check", "level", "text", "examined"), CASES)
def test_a_check_judges_facts(check: str, level: Level, text: str, examined: Examined) -> None:
    found = [f"{one.found}; {one.cure}" for one in CHECKS[check](examined) if one.level is level]
    assert any(text in line for line in found), list(CHECKS[check](examined))


@pytest.mark.parametrize("check", CHECKS)
def test_a_check_finds_nothing_where_all_is_well(check: str) -> None:
    for examined in (WELL, ALONE):
        assert [one for one in CHECKS[check](examined) if one.level is not OK] == []


def test_each_check_has_a_case_in_which_it_finds_something() -> None:
    assert {check for check, level, *_ in CASES if level is not OK} == set(CHECKS)


def test_what_is_bad_about_one_node_is_found_at_that_node_only() -> None:
    examined = with_machine(disk=replace(DISK, kind="tmpfs"))
    assert {one.node for _, one in examine(examined) if one.level is FAIL} == {2}


def test_each_warning_and_failure_of_a_node_can_be_read_alone() -> None:
    """No line is empty, and each is one line: scripts read them."""
    for *_, examined in CASES:
        for _, finding in examine(examined):
            assert finding.found
            assert "\n" not in f"{finding.found}{finding.cure}"


def test_the_status_is_that_of_the_worst_finding() -> None:
    assert status_of([("a", ok("x"))]) == 0
    assert status_of([("a", warn("x")), ("b", ok("x"))]) == 1
    assert status_of([("a", fail("x")), ("b", warn("x"))]) == 2


def test_names_of_checks_are_in_the_manual_and_no_others() -> None:
    manual = (Path(__file__).parents[2] / "man" / "streamd.1").read_text().replace("\\-", "-")
    listed = manual.partition(".SH CHECKS")[2].partition("\n.SH ")[0]
    assert set(re.findall(r"^\.B ([a-z.]+)$", listed, re.MULTILINE)) == set(CHECKS)


def test_findings_can_be_written_as_json() -> None:
    assert json.loads(json.dumps([one._asdict() for _, one in examine(WELL)]))


@pytest.mark.parametrize(
    ("names", "wanted", "is_it"),
    [
        (["a.example.net"], "A.example.net.", True),
        (["a.example.net"], "b.example.net", False),
        (["*.example.net"], "b.example.net", True),
        (["*.example.net"], "c.b.example.net", False),
        (["*.example.net"], "example.net", False),
        (["10.0.0.1"], "10.0.0.1", True),
        (["::1"], "0:0:0:0:0:0:0:1", True),
        (["*.0.0.1"], "10.0.0.1", False),
        (["spiffe://example.com/streamd/1"], "spiffe://example.com/streamd/1", True),
        ([], "a.example.net", False),
    ],
)
def test_a_certificate_is_for_the_names_in_it(names: list[str], wanted: str, is_it: bool) -> None:
    assert is_for(names, wanted) == is_it


@pytest.mark.parametrize(
    ("ahead_ms", "there_ms", "works_ms", "back_ms"),
    [(0, 3, 0, 3), (1000, 5, 2000, 1), (-70_000, 0, 10, 40), (12, 200, 4000, 0)],
)
def test_the_true_offset_of_a_clock_is_within_the_error(
    ahead_ms: int, there_ms: int, works_ms: int, back_ms: int
) -> None:
    received_ms = NOW_MS + there_ms + ahead_ms
    facts = replace(node(2), received_ms=received_ms, answered_ms=received_ms + works_ms)
    offset = offset_of(NOW_MS, NOW_MS + there_ms + works_ms + back_ms, facts)
    assert abs(offset.offset_ms - ahead_ms) <= offset.error_ms
    assert offset.error_ms <= (there_ms + back_ms) / 2 + 1
