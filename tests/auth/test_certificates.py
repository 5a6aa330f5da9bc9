"""Client certificates: which names are the same, and what a listed one permits."""

from __future__ import annotations

from typing import Any

import pytest

from streamd.auth.certificates import Certificate, ListedCertificates, NameKind, name_fault
from streamd.auth.scopes import parse_scope

NOBODY = Certificate("", "", (), (), (), 1_900_000_000_000, "f00d")


def certificate(**names: Any) -> Certificate:
    values = {field: getattr(NOBODY, field) for field in NOBODY.__struct_fields__}
    return Certificate(**{**values, **names})


def listed(*entries: tuple[NameKind, str, str]) -> ListedCertificates:
    return ListedCertificates((kind, name, [parse_scope(scope)]) for kind, name, scope in entries)


@pytest.mark.parametrize(
    ("kind", "name", "shown"),
    [
        ("subject", "CN=ci,O=Acme", {"subject": "CN=ci,O=Acme"}),
        ("common_name", "ci", {"common_name": "ci"}),
        ("dns", "CI.example.net", {"dns": ("a", "ci.EXAMPLE.net")}),
        ("uri", "spiffe://example.net/ci", {"uris": ("spiffe://example.net/ci",)}),
        ("email", "Ci@Example.net", {"emails": ("Ci@eXample.NET",)}),
    ],
)
def test_a_listed_name_permits_its_scopes_until_the_certificate_ends(
    kind: NameKind, name: str, shown: dict[str, Any]
) -> None:
    who = listed((kind, name, "read:a/*")).identify(certificate(**shown))
    assert who is not None
    assert who.scopes.permit("read", b"a\0b")
    assert not who.scopes.permit("append", b"a\0b")
    assert who.ends_ms == NOBODY.ends_ms
    assert who.credential == "certificate f00d"
    assert who.name.lower() == f"cert:{name}".lower()


@pytest.mark.parametrize(
    ("kind", "name", "shown"),
    [
        # Another spelling, where spelling matters.
        ("common_name", "ci", {"common_name": "CI"}),
        ("uri", "spiffe://example.net/ci", {"uris": ("spiffe://example.net/CI",)}),
        ("uri", "spiffe://example.net/ci", {"uris": ("spiffe://EXAMPLE.net/ci",)}),
        ("uri", "spiffe://example.net/ci", {"uris": ("spiffe://example.net/ci/",)}),
        ("email", "ci@example.net", {"emails": ("CI@example.net",)}),
        ("subject", "CN=ci,O=Acme", {"subject": "O=Acme,CN=ci"}),
        ("subject", "CN=ci", {"subject": "CN=ci,O=Acme"}),
        # Another kind of name.
        ("dns", "ci.example.net", {"common_name": "ci.example.net"}),
        ("common_name", "ci.example.net", {"dns": ("ci.example.net",)}),
        ("dns", "ci.example.net", {"uris": ("ci.example.net",)}),
        ("email", "ci@example.net", {"common_name": "ci@example.net"}),
        ("subject", "CN=ci", {"common_name": "ci"}),
        # Stars.
        ("dns", "ci.example.net", {"dns": ("*.example.net",)}),
        ("dns", "ci.example.net", {"dns": ("*",)}),
        ("common_name", "ci", {"common_name": "*"}),
        ("common_name", "ci", {"common_name": "c*"}),
        # What is longer, shorter, or has an end in it.
        ("dns", "ci.example.net", {"dns": ("ci.example.net.",)}),
        ("dns", "ci.example.net", {"dns": ("ci.example.net\0.evil.example",)}),
        ("common_name", "ci", {"common_name": "ci\0"}),
        ("common_name", "ci", {"common_name": " ci"}),
        ("common_name", "ci", {}),
    ],
)
def test_another_name_permits_nothing(kind: NameKind, name: str, shown: dict[str, Any]) -> None:
    assert listed((kind, name, "read:*")).identify(certificate(**shown)) is None


def test_a_certificate_with_several_listed_names_has_the_scopes_of_all() -> None:
    known = listed(
        ("uri", "spiffe://x/a", "read:a/*"),
        ("common_name", "ci", "append:a/*"),
        ("uri", "spiffe://x/a", "create:a/*"),
        ("uri", "spiffe://x/b", "delete:a/*"),
    )
    who = known.identify(certificate(common_name="ci", uris=("spiffe://x/a",)))
    assert who is not None
    assert who.name == "cert:ci"
    permitted = [verb for verb in ("read", "append", "create") if who.scopes.permit(verb, b"a\0b")]
    assert permitted == ["read", "append", "create"]
    assert not who.scopes.permit("delete", b"a\0b")


def test_without_names_a_certificate_is_nobody() -> None:
    assert listed(("common_name", "ci", "read:*")).identify(NOBODY) is None


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("dns", "*.example.net"),
        ("dns", "example.net."),
        ("dns", "a b"),
        ("dns", ""),
        ("uri", "worker"),
        ("email", "example.net"),
        ("email", "a@*"),
        ("common_name", ""),
        ("common_name", "a\n"),
        ("common_name", "a" * 1025),
        ("subject", ""),
    ],
)
def test_a_name_that_no_certificate_has_is_not_listed(kind: NameKind, name: str) -> None:
    assert name_fault(kind, name)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("dns", "CI.example.net"),
        ("uri", "spiffe://example.net/ci"),
        ("email", "Ci@example.net"),
        ("common_name", "Zoë's laptop"),
        ("subject", "CN=ci,O=Acme"),
    ],
)
def test_ordinary_names_are_listed(kind: NameKind, name: str) -> None:
    assert name_fault(kind, name) is None
