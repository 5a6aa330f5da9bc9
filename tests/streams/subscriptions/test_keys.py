"""Keys of subscriptions: how they rest, follow each other and are opened."""

from __future__ import annotations

from random import Random

import pytest
from msgspec.structs import replace

from streamd.streams.subscriptions.signing_keys import (
    KEPT_MS,
    MAX_SUBSCRIPTION_KEYS,
    NONCE_BYTES,
    SECRET_BYTES,
    SealedKeyError,
    SubscriptionKey,
    TooManySubscriptionKeys,
    new_key,
    opened,
    with_key,
)

SEALING = b"a secret of the nodes" * 2


def made(number: int = 1, sealing_secret: bytes | None = None) -> SubscriptionKey:
    random = Random(number).randbytes(SECRET_BYTES + NONCE_BYTES)
    return new_key(number, random, sealing_secret=sealing_secret)


def test_a_sealed_key_opens_to_what_one_in_the_clear_is() -> None:
    clear, sealed = made(), made(sealing_secret=SEALING)
    assert opened(sealed, SEALING) == opened(clear, None) == opened(clear, SEALING)
    assert clear.secret not in sealed.secret
    assert clear.secret[:32] not in sealed.secret
    assert sealed.public_key == clear.public_key


def test_a_sealed_key_is_opened_by_no_other_secret() -> None:
    sealed = made(sealing_secret=SEALING)
    with pytest.raises(SealedKeyError, match="no secret"):
        opened(sealed, None)
    with pytest.raises(SealedKeyError, match="another secret"):
        opened(sealed, SEALING + b"!")


def test_a_sealed_secret_belongs_to_its_own_key() -> None:
    one, other = made(1, SEALING), made(2, SEALING)
    for forged in (
        replace(one, secret=other.secret),
        replace(one, number=2),
        replace(one, secret=one.secret[:-1] + bytes((one.secret[-1] ^ 1,))),
    ):
        with pytest.raises(SealedKeyError):
            opened(forged, SEALING)


@pytest.mark.parametrize("secret", [None, SEALING])
def test_neither_a_key_nor_what_opens_from_it_prints_its_secret(secret: bytes | None) -> None:
    key = made(sealing_secret=secret)
    text = repr(key) + repr(opened(key, secret))
    for hidden in (key.secret, opened(key, secret).private_key, opened(key, secret).mac_key):
        assert repr(hidden)[2:-1] not in text
        assert hidden.hex() not in text


def test_only_the_next_number_is_added_with_the_log_time() -> None:
    first = with_key((), made(1), 5)
    assert first == (replace(made(1), added_ms=5),)
    assert with_key((), made(2), 5) is None
    assert with_key(first, made(1), 6) is None
    assert with_key(first, made(3), 6) is None
    second = with_key(first, made(2), 6)
    assert second is not None
    assert [key.number for key in second] == [1, 2]


@pytest.mark.parametrize(
    "wrong",
    [
        replace(made(), public_key=b"short"),
        replace(made(), secret=b"short"),
        replace(made(), is_sealed=True),
        replace(made(1, SEALING), is_sealed=False),
    ],
)
def test_a_key_of_another_size_is_not_added(wrong: SubscriptionKey) -> None:
    assert with_key((), wrong, 1) is None


def test_the_key_before_the_last_stays_and_older_ones_for_a_day() -> None:
    known: tuple[SubscriptionKey, ...] = ()
    for number, at_ms in enumerate((0, 1, 2, KEPT_MS + 1, 3 * KEPT_MS), start=1):
        added = with_key(known, made(number), at_ms)
        assert added is not None
        known = added
        if number == 4:
            # The first one was replaced a day ago, the second one a little less.
            assert [key.number for key in known] == [2, 3, 4]
    assert [key.number for key in known] == [4, 5]


def test_a_key_that_revokes_leaves_none_of_the_others() -> None:
    known: tuple[SubscriptionKey, ...] = ()
    for number in range(1, MAX_SUBSCRIPTION_KEYS + 1):
        known = with_key(known, made(number), number) or ()
    assert len(known) == MAX_SUBSCRIPTION_KEYS
    last = made(MAX_SUBSCRIPTION_KEYS + 1)
    assert with_key(known, last, 100, revokes=True) == (replace(last, added_ms=100),)
    assert with_key(known, made(1), 100, revokes=True) is None, "another number revokes nothing"
    assert with_key((last,), made(last.number + 1), 101) is not None


def test_rotations_that_publish_too_many_keys_are_refused() -> None:
    known: tuple[SubscriptionKey, ...] = ()
    for number in range(1, MAX_SUBSCRIPTION_KEYS + 1):
        added = with_key(known, made(number), number)
        assert added is not None
        known = added
    assert len(known) == MAX_SUBSCRIPTION_KEYS
    with pytest.raises(TooManySubscriptionKeys):
        with_key(known, made(MAX_SUBSCRIPTION_KEYS + 1), KEPT_MS)
    assert with_key(known, made(MAX_SUBSCRIPTION_KEYS + 1), KEPT_MS + 2) is not None
