"""Tokens in the state: made, rotated, revoked and ended by the log."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.streams import keys, tokens
from streamd.streams.checks import fault
from streamd.streams.commands import Command, Outcome, Result
from streamd.streams.token_commands import CreateToken, RevokeToken, RotateToken
from streamd.streams.tokens import Token
from tests.streams.driver import Driver
from tests.streams.memory_store import MemoryStore

DAY_MS = 86_400_000
DIGEST = sha256(b"one").digest()
OTHER = sha256(b"other").digest()


def create(token_id: int = 7, name: str = "ci", ttl_ms: int | None = None) -> CreateToken:
    return CreateToken(token_id, name, DIGEST, ["append:agents/run-*"], ttl_ms)


def result(driver: Driver, command: Command) -> Result:
    outcome = driver.do(command)
    assert outcome == Outcome(outcome.result)
    return outcome.result


def test_a_token_is_made_as_asked_for() -> None:
    driver = Driver()
    assert result(driver, create(ttl_ms=DAY_MS)) is Result.CREATED
    now_ms = driver.now_ms
    expected = Token("ci", DIGEST, ("append:agents/run-*",), now_ms, now_ms + DAY_MS)
    assert driver.state.tokens.get(7) == expected
    assert driver.state.tokens.id_of("ci") == 7


@pytest.mark.parametrize("other", [create(8, "ci"), create(7, "other")])
def test_a_token_has_an_id_and_a_name_of_its_own(other: CreateToken) -> None:
    driver = Driver()
    driver.do(create())
    assert result(driver, other) is Result.TOKEN_EXISTS
    assert len(driver.state.tokens) == 1


def test_a_name_is_free_again_after_its_token_has_expired() -> None:
    driver = Driver()
    driver.do(create(ttl_ms=1000))
    driver.now_ms += 999
    assert result(driver, create(8)) is Result.TOKEN_EXISTS
    driver.now_ms += 1
    assert result(driver, create(8)) is Result.CREATED
    assert driver.state.tokens.get(7) is None


def test_a_revoked_token_is_gone() -> None:
    driver = Driver()
    driver.do(create())
    assert result(driver, RevokeToken(7)) is Result.DELETED
    assert driver.state.tokens.get(7) is None
    assert driver.state.tokens.id_of("ci") is None
    assert result(driver, RevokeToken(7)) is Result.TOKEN_NOT_FOUND
    assert result(driver, RotateToken(7, OTHER)) is Result.TOKEN_NOT_FOUND


def test_both_secrets_are_valid_for_a_while_after_a_rotation() -> None:
    driver = Driver()
    driver.do(create())
    assert result(driver, RotateToken(7, OTHER, overlap_ms=1000)) is Result.DONE
    token = driver.state.tokens.get(7)
    assert token is not None
    assert token.ends_ms(OTHER) is None
    assert token.ends_ms(DIGEST) == driver.now_ms + 1000
    assert token.ends_ms(bytes(32)) == 0


KEY, OTHER_KEY = bytes(range(32)), bytes(range(1, 33))


def test_a_rotation_keeps_the_public_key_of_the_former_secret_for_the_overlap() -> None:
    driver = Driver()
    driver.do(CreateToken(7, "ci", DIGEST, ["read:*"], DAY_MS, KEY))
    expires_ms = driver.now_ms + DAY_MS
    token = driver.state.tokens.get(7)
    assert token is not None
    assert (token.key_ends_ms(KEY), token.key_ends_ms(OTHER_KEY)) == (expires_ms, 0)
    driver.do(RotateToken(7, OTHER, 1000, None, OTHER_KEY))
    token = driver.state.tokens.get(7)
    assert token is not None
    assert token.key_ends_ms(OTHER_KEY) == expires_ms
    assert token.key_ends_ms(KEY) == driver.now_ms + 1000
    driver.do(RotateToken(7, bytes(32), DAY_MS))
    token = driver.state.tokens.get(7)
    assert token is not None
    assert token.key_ends_ms(KEY) == 0


def test_a_token_without_a_public_key_accepts_no_empty_one() -> None:
    assert Token("ci", DIGEST, (), 0).key_ends_ms(b"") == 0
    assert Token("ci", OTHER, (), 0, None, DIGEST, 1000).key_ends_ms(b"") == 0


def test_a_row_that_was_stored_before_tokens_could_sign_opens() -> None:
    rows = {keys.TOKEN + keys.number(7): msgspec.msgpack.encode(["ci", DIGEST, ["read:*"], 5])}
    assert tokens.Tokens(MemoryStore(rows)).get(7) == Token("ci", DIGEST, ("read:*",), 5)


def test_a_former_secret_does_not_outlive_its_token() -> None:
    token = Token("ci", OTHER, (), 0, 500, DIGEST, 1000)
    assert token.ends_ms(DIGEST) == 500


def test_a_secret_before_the_former_one_is_invalid() -> None:
    driver = Driver()
    driver.do(create())
    driver.do(RotateToken(7, OTHER, overlap_ms=DAY_MS))
    driver.do(RotateToken(7, bytes(32), overlap_ms=DAY_MS))
    token = driver.state.tokens.get(7)
    assert token is not None
    assert token.ends_ms(DIGEST) == 0
    assert token.ends_ms(OTHER) == driver.now_ms + DAY_MS


def test_a_token_without_a_former_secret_accepts_no_empty_digest() -> None:
    """Digests have 32 bytes; the row of an unrotated token has none in their place."""
    token = Token("ci", DIGEST, (), 0)
    assert token.ends_ms(bytes(32)) == 0


def test_a_rotation_may_move_the_end() -> None:
    driver = Driver()
    driver.do(create(ttl_ms=1000))
    driver.do(RotateToken(7, OTHER, 0, DAY_MS))
    token = driver.state.tokens.get(7)
    assert token is not None
    assert token.expires_ms == driver.now_ms + DAY_MS


def test_a_rotation_with_the_same_secret_changes_nothing() -> None:
    driver = Driver()
    driver.do(create())
    before = driver.state.tokens.get(7)
    assert result(driver, RotateToken(7, DIGEST, DAY_MS)) is Result.DONE
    assert driver.state.tokens.get(7) == before


def test_an_expired_token_cannot_be_rotated_back_to_life() -> None:
    driver = Driver()
    driver.do(create(ttl_ms=1000))
    driver.now_ms += 1000
    assert result(driver, RotateToken(7, OTHER, 0, DAY_MS)) is Result.TOKEN_NOT_FOUND


def test_there_is_room_for_a_limited_number_of_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "MAX_TOKENS", 3)
    driver = Driver()
    driver.do(create(1, "a", ttl_ms=1000))
    driver.do(create(2, "b"))
    driver.do(create(3, "c"))
    assert result(driver, create(4, "d")) is Result.TOO_MANY_TOKENS
    driver.now_ms += 1000
    assert result(driver, create(4, "d")) is Result.CREATED
    assert driver.state.tokens.get(1) is None


def test_the_version_changes_with_every_change_and_only_then() -> None:
    driver = Driver()
    versions = [driver.state.tokens.version]
    for command in (create(), RotateToken(7, OTHER), RevokeToken(7)):
        driver.do(command)
        assert driver.state.tokens.version not in versions
        versions.append(driver.state.tokens.version)
    driver.do(RevokeToken(7))
    assert driver.state.tokens.version is versions[-1]


def test_an_unknown_id_is_not_looked_up_in_the_store() -> None:
    driver = Driver()
    before = driver.store.gets
    assert driver.state.tokens.get(99) is None
    assert driver.store.gets == before


def test_more_tokens_than_one_read_returns_are_loaded() -> None:
    driver = Driver()
    rows = {
        keys.TOKEN + keys.number(number): msgspec.msgpack.encode(Token(f"t{number}", b"", (), 0))
        for number in range(2500)
    }
    driver.store.write(rows.items())
    driver.reopen()
    assert len(driver.state.tokens) == 2500
    assert driver.state.tokens.id_of("t2499") == 2499


STEPS: st.SearchStrategy[list[Any]] = st.lists(
    st.one_of(
        st.builds(
            CreateToken,
            st.integers(0, 3),
            st.sampled_from("abc"),
            st.sampled_from([DIGEST, OTHER]),
            st.just(["read:*"]),
            st.none() | st.integers(1, 50),
        ),
        st.builds(RotateToken, st.integers(0, 3), st.sampled_from([DIGEST, OTHER])),
        st.builds(RevokeToken, st.integers(0, 3)),
        st.sampled_from(["store", "reopen"]),
        st.integers(1, 40),
    ),
    max_size=30,
)


@given(STEPS)
def test_a_state_that_was_stored_and_loaded_continues_alike(steps: list[Any]) -> None:
    """Against a machine whose state never leaves memory."""
    stored, held = Driver(), Driver()
    for step in steps:
        if isinstance(step, int):
            stored.now_ms += step
            held.now_ms += step
        elif step == "store":
            stored.flush()
        elif step == "reopen":
            stored.flush()
            stored.reopen()
        else:
            assert stored.do(step) == held.do(step)
    stored.flush()
    stored.reopen()
    assert dict(stored.state.tokens.items()) == dict(held.state.tokens.items())


@pytest.mark.parametrize(
    ("command", "field"),
    [
        (CreateToken(-1, "ci", DIGEST, ["read:*"]), "token_id"),
        (CreateToken(2**63, "ci", DIGEST, ["read:*"]), "token_id"),
        (CreateToken(1, "", DIGEST, ["read:*"]), "name"),
        (CreateToken(1, "0" * 16, DIGEST, ["read:*"]), "name"),
        (CreateToken(1, "ci", b"", ["read:*"]), "digest"),
        (CreateToken(1, "ci", DIGEST, []), "scopes"),
        (CreateToken(1, "ci", DIGEST, ["read"]), "scopes"),
        (CreateToken(1, "ci", DIGEST, ["read:*"] * 101), "scopes"),
        (CreateToken(1, "ci", DIGEST, ["read:*"], 0), "ttl_ms"),
        (RotateToken(1, b"", 0), "digest"),
        (RotateToken(1, DIGEST, 2**62), "overlap_ms"),
        (RotateToken(1, DIGEST, 0, 2**62), "ttl_ms"),
        (CreateToken(1, "ci", DIGEST, ["read:*"], None, b"short"), "public_key"),
        (RotateToken(1, DIGEST, 0, None, bytes(33)), "public_key"),
        (CreateToken(1, "ci", DIGEST, ["read:*"], None, bytes(32)), None),
        (RevokeToken(2**63), "token_id"),
        (CreateToken(1, "ci", DIGEST, ["read:*"], DAY_MS), None),
        (RotateToken(1, DIGEST, 0, None), None),
        (RevokeToken(0), None),
    ],
)
def test_commands_that_no_client_can_ask_for_have_a_fault(
    command: Command, field: str | None
) -> None:
    assert fault(command) == field
