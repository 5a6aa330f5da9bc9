"""Paths as the audit trail shows them: in a limited length, without secrets, and at little cost."""

from __future__ import annotations

import time

import pytest

from streamd.auth import tokens
from streamd.http.access.auditor import MAX_SHOWN, PRINTABLE, SECRETS, shown

SECRET = "abcd" * 8
TOKEN = f"sd_0000000000000001_{SECRET}"
JWT = f"eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhIn0.{SECRET}"
SIGNATURE = f"1-1700000000-GET-x.{SECRET}{SECRET}{SECRET[:22]}"


@pytest.mark.parametrize("secret", [TOKEN, JWT, SIGNATURE])
@pytest.mark.parametrize("cut", [0, 1, 20, 100])
def test_a_secret_that_the_limit_cuts_is_not_shown(secret: str, cut: int) -> None:
    path = "/auth/".ljust(MAX_SHOWN - len(secret) + cut, "/") + secret
    found = shown(path.encode() + b"/more" * 1000, PRINTABLE)
    assert SECRET[:10] not in found
    assert found.endswith("…")
    assert len(found) <= MAX_SHOWN + 1


@pytest.mark.parametrize("before", ["", "/", "a.b.", "x_", "a.", "eyJ."])
def test_a_secret_is_hidden_wherever_it_is(before: str) -> None:
    assert tokens.parse_token(TOKEN.encode()) is not None
    for secret in (TOKEN, JWT, SIGNATURE):
        assert SECRET not in shown(f"/{before}{secret}".encode(), PRINTABLE)


def test_no_path_takes_long_to_show() -> None:
    """A path ten times as long takes hardly more than ten times as long: what is refused costs its
    sender nothing."""

    def cost_s(path: bytes) -> float:
        began = time.process_time()
        SECRETS.sub("", path.decode())
        return time.process_time() - began

    for part in (b"eyJ", b"eyJa.", b"a.", b".", b"sd_", b"eyJ.a"):
        short, long = (min(cost_s(part * times) for _ in range(5)) for times in (5_000, 50_000))
        assert long < 40 * short, part
