"""What the audit says of tokens and limits that differ from the log's."""

from __future__ import annotations

from hashlib import sha256

import pytest
from msgspec.structs import replace

from streamd_audit.commands import (
    CreateToken,
    Limits,
    RecordOperation,
    RenewIncarnations,
    RevokeToken,
    RotateToken,
    SetLimits,
)
from streamd_audit.operations import Arguments, Operation, Step, StepRecord
from streamd_audit.replay.access import Access, AccessRow, Difference, differences
from streamd_audit.rows import Token

pytestmark = pytest.mark.long

CI, OPS = b"a" + bytes(7) + b"\7", b"a" + bytes(7) + b"\x08"
DIGEST, OTHER = sha256(b"one").digest(), sha256(b"other").digest()
SMALL = b"lbsmall"


def replayed() -> Access:
    access = Access()
    assert access.apply(CreateToken(7, "ci", DIGEST, ["read:a/*"], 1000), 50) == "created"
    assert access.apply(CreateToken(8, "ops", OTHER, ["operate:*"]), 50) == "created"
    assert access.apply(RevokeToken(8), 60) == "deleted"
    assert access.apply(SetLimits("bucket", "small", Limits(max_bytes=60)), 70) == "done"
    return access


ROWS: dict[bytes, AccessRow] = {
    CI: Token("ci", DIGEST, ["read:a/*"], 50, 1050),
    SMALL: Limits(max_bytes=60),
}


def test_the_rows_that_the_log_leads_to_are_no_difference() -> None:
    assert list(differences(replayed(), ROWS)) == []


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (
            {OPS: Token("ops", OTHER, ["operate:*"], 50)},
            Difference(
                "token_differs",
                "token 0000000000000008: none",
                f"name ops, digest {OTHER.hex()[:16]}…, scopes operate:*, created_ms 50, "
                "former_until_ms 0",
            ),
        ),
        (
            {CI: Token("ci", OTHER, ["read:*", "append:*"], 50, None)},
            Difference(
                "token_differs",
                f"token 0000000000000007: digest {DIGEST.hex()[:16]}…, scopes read:a/*, "
                "expires_ms 1050",
                f"digest {OTHER.hex()[:16]}…, scopes read:* append:*, expires_ms none",
            ),
        ),
        (
            {SMALL: Limits(max_bytes=0)},
            Difference("limits_differ", "limits of bucket small: max_bytes 60", "max_bytes 0"),
        ),
        (
            {b"li*": Limits()},
            Difference("limits_differ", "limits of identity *: none", "no limit"),
        ),
    ],
    ids=["a revoked token", "a token that permits more", "a smaller quota", "limits of nobody"],
)
def test_a_difference_names_the_fields_that_differ(
    rows: dict[bytes, Token | Limits], expected: Difference
) -> None:
    assert list(differences(replayed(), {**ROWS, **rows})) == [expected]


def test_a_missing_row_is_a_difference() -> None:
    [found] = differences(replayed(), {CI: ROWS[CI]})
    assert (found.kind, found.found) == ("limits_differ", "none")
    [found] = differences(replayed(), {SMALL: ROWS[SMALL]})
    assert (found.kind, found.found) == ("token_differs", "none")


def test_no_digest_is_shown_in_full() -> None:
    access = replayed()
    assert access.apply(RotateToken(7, OTHER, 10, public_key=DIGEST), 60) == "done"
    for rows in ({}, {CI: Token("ci", DIGEST, ["read:a/*"], 50, 1050, OTHER, 1, OTHER, DIGEST)}):
        for found in differences(access, rows):
            for digest in (DIGEST, OTHER):
                assert digest.hex()[:17] not in found.expected + found.found


def test_the_replay_continues_from_the_rows_of_a_state() -> None:
    access = Access()
    for key, row in ROWS.items():
        access.begin(key, row)
    assert list(differences(access, ROWS)) == []
    assert access.apply(CreateToken(9, "ci", OTHER, []), 1049) == "token-exists"
    assert access.apply(CreateToken(9, "ci", OTHER, []), 1050) == "created"


def test_there_are_at_most_ten_thousand_tokens_and_expired_ones_give_way() -> None:
    access = Access()
    for number in range(10_000):
        ttl_ms = 100 if number == 5 else None
        assert access.apply(CreateToken(number, f"t{number}", DIGEST, [], ttl_ms), 0) == "created"
    assert access.apply(CreateToken(10_000, "more", DIGEST, []), 99) == "too-many-tokens"
    assert access.apply(CreateToken(10_000, "more", DIGEST, []), 100) == "created"
    assert access.apply(CreateToken(10_001, "most", DIGEST, []), 100) == "too-many-tokens"


# -- operations ------------------------------------------------------------------------------------

FIRST = Operation(1, 1, "drain", Arguments(2), "ops", 9, (StepRecord(Step("stop", 2)),))
ENDED = replace(FIRST, version=2, state="done")
ROW = b"w" + bytes(7) + b"\1"


def operated(*records: Operation, last: str = "done") -> Access:
    """All records but the `last` one, whose outcome that is, are taken."""
    access = Access()
    outcomes = [access.apply(RecordOperation(record), 50) for record in records]
    assert outcomes == ["done"] * (len(records) - 1) + [last]
    return access


@pytest.mark.parametrize(
    ("refused", "outcome"),
    [
        (replace(FIRST, operation_id=2), "operation-in-progress"),
        (replace(FIRST, version=3), "stale"),
        (replace(FIRST, version=2, why="x" * 501), "invalid"),
        (replace(FIRST, version=2, steps=()), "invalid"),
        (replace(FIRST, version=2, current=2), "invalid"),
        (replace(FIRST, version=2, arguments=Arguments(2, ("a",) * 17)), "invalid"),
        (replace(FIRST, version=2, arguments=Arguments(2, window_ms=600_001)), "invalid"),
        (
            replace(FIRST, version=2, steps=(StepRecord(Step("stop"), note="x" * 500),) * 64),
            "invalid",
        ),
    ],
)
def test_a_record_that_does_not_fit_or_follow_is_left_out(refused: Operation, outcome: str) -> None:
    assert list(differences(operated(FIRST, refused, last=outcome), {ROW: FIRST})) == []


def test_a_record_follows_the_version_before_it() -> None:
    assert list(differences(operated(FIRST, ENDED), {ROW: ENDED})) == []
    other = replace(FIRST, operation_id=2)
    both = {ROW: ENDED, ROW[:-1] + b"\2": other}
    operated(FIRST, ENDED, replace(ENDED, version=3), last="stale")
    assert list(differences(operated(FIRST, ENDED, other), both)) == []
    [found] = differences(operated(FIRST, ENDED), {ROW: FIRST})
    assert found == Difference(
        "operation_differs", "operation 1: version 2, state done", "version 1, state running"
    )


def test_a_cluster_that_was_recovered_abandons_the_operation() -> None:
    access = operated(FIRST)
    for _ in range(2):
        access.apply(RenewIncarnations(7), 60)
        [found] = access.rows().values()
        assert isinstance(found, Operation)
        assert (found.version, found.state, found.ended_at_ms) == (2, "failed", 60)


def test_the_latest_hundred_operations_are_kept() -> None:
    access = Access()
    access.begin(ROW, ENDED)
    for number in range(2, 103):
        access.apply(RecordOperation(replace(FIRST, operation_id=number)), 0)
        access.apply(RecordOperation(replace(ENDED, operation_id=number)), 0)
    assert [int.from_bytes(key[1:]) for key in access.rows()] == list(range(3, 103))
