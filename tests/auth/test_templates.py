"""Templates of scopes: a value names one place, and cannot be a pattern or another path."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamd.auth.scopes import ScopeError, Scopes, parse_scope
from streamd.auth.templates import filled, parse_template


@pytest.mark.parametrize(
    ("template", "claims", "scope"),
    [
        ("read:users/{sub}/*", {"sub": "ada"}, "read:users/ada/*"),
        ("read:users/u-{sub}", {"sub": "auth0|7"}, "read:users/u-auth0|7"),
        ("list:{tenant}/", {"tenant": "acme"}, "list:acme/"),
        ("read:{tenant}/{sub}/*", {"tenant": "acme", "sub": "Zoë"}, "read:acme/Zoë/*"),
        ("operate:metrics", {}, "operate:metrics"),
    ],
)
def test_claims_fill_a_template(template: str, claims: dict[str, object], scope: str) -> None:
    assert filled([parse_template(template)], claims) == [parse_scope(scope)]


def test_a_template_without_its_claim_permits_nothing() -> None:
    assert filled([parse_template("read:{tenant}/*")], {"sub": "ada", "tenant": None}) == []


@pytest.mark.parametrize(
    "value",
    ["*", "a*", "a/b", "/", "", ".", "..", "a\\b", "a\nb", "a\0b", "\x7f", "\ud800", 7, True,
     ["a"], {"a": 1}, "a" * 2000],
)  # fmt: skip
def test_a_value_that_could_be_more_than_a_name_is_refused(value: object) -> None:
    for template in ("read:users/{v}/*", "read:users/{v}", "read:{v}/*"):
        with pytest.raises(ScopeError):
            filled([parse_template(template)], {"v": value})


@pytest.mark.parametrize(
    "text",
    [
        # A star or a text after a value would let one value begin like another.
        "read:users/{sub}*",
        "read:users/{sub}x",
        "read:users/{sub}{sub}",
        "read:users/{a}-{b}",
        "read:users/{",
        "read:users/}",
        "read:users/{}",
        "read:users/{a b}",
        "read:users/{{sub}}",
        "{verb}:users/*",
        "read:{bucket}",
        "read:/{sub}",
        "write:users/{sub}",
        "{sub}",
    ],
)
def test_a_template_that_is_not_safe_for_every_value_is_refused(text: str) -> None:
    with pytest.raises(ScopeError):
        parse_template(text)


@given(st.text(), st.text())
def test_no_value_reaches_what_is_another_values(mine: str, other: str) -> None:
    template = parse_template("read:users/{sub}/*")
    try:
        scopes = Scopes(filled([template], {"sub": mine}))
        target = b"users\0" + other.encode() + b"/inbox"
    except (ScopeError, UnicodeEncodeError):
        return
    is_own = other == mine or other.startswith(mine + "/")
    assert scopes.permit("read", target) == is_own
    assert not scopes.permit("read", b"users\0")
