"""Client certificates as they come out of a handshake, and as the configuration lists them."""

from __future__ import annotations

from pathlib import Path

import pytest
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.x509.oid import NameOID

from streamd.auth.certificates import Certificate
from streamd.config.auth import CertificateConfig
from streamd.config.settings import ConfigError
from streamd.http.credentials.client_certificates import (
    MAX_NAMES,
    listed_certificates,
    parse_certificate,
)
from tests.support.client_certificates import issue

AUTHORITY = trustme.CA()


def parsed(tmp_path: Path, *names: x509.GeneralName, **settings: object) -> Certificate | None:
    return parse_certificate(issue(AUTHORITY, tmp_path, *names, **settings).der)  # type: ignore[arg-type]


def test_all_kinds_of_names_are_found(tmp_path: Path) -> None:
    issued = issue(
        AUTHORITY,
        tmp_path,
        x509.DNSName("ci.example.net"),
        x509.DNSName("*.example.net"),
        x509.UniformResourceIdentifier("spiffe://example.net/ci"),
        x509.RFC822Name("ci@example.net"),
        x509.DirectoryName(x509.Name([])),
        subject="CN=ci,OU=Build+UID=7,O=Acme\\, Inc.",
    )
    assert parse_certificate(issued.der) == Certificate(
        "CN=ci,OU=Build+UID=7,O=Acme\\, Inc.",
        "ci",
        ("ci.example.net", "*.example.net"),
        ("spiffe://example.net/ci",),
        ("ci@example.net",),
        int(issued.certificate.not_valid_after_utc.timestamp() * 1000),
        issued.certificate.fingerprint(hashes.SHA256()).hex()[:16],
    )


@pytest.mark.parametrize("common_names", [(), ("ci", "root"), ("ci", "ci")])
def test_of_several_common_names_none_is_the_clients(
    tmp_path: Path, common_names: tuple[str, ...]
) -> None:
    found = parsed(tmp_path, x509.DNSName("x"), common_names=common_names)
    assert found is not None
    assert found.common_name == ""


@pytest.mark.parametrize("value", ["a,O=Acme", "a+UID=1", 'a"', "a\\", "#61", " a ", "a;b", "a=b"])
def test_no_value_can_pass_for_two_attributes(tmp_path: Path, value: str) -> None:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, value)])
    found = parsed(tmp_path, subject=name)
    assert found is not None
    assert x509.Name.from_rfc4514_string(found.subject) == name


def test_a_certificate_with_very_many_names_is_nobodys(tmp_path: Path) -> None:
    names = [x509.DNSName(f"h{number}") for number in range(MAX_NAMES)]
    assert parsed(tmp_path, *names[:-3], subject="CN=ci") is not None
    assert parsed(tmp_path, *names, subject="CN=ci") is None
    assert parsed(tmp_path, x509.UniformResourceIdentifier("x:" + "a" * 9000)) is None


@pytest.mark.parametrize("der", [b"", b"0", b"\x30\x82\xff\xff", b"x" * 1000])
def test_what_is_not_a_certificate_is_nobodys(der: bytes) -> None:
    assert parse_certificate(der) is None


@pytest.mark.parametrize("spelling", ["CN=ci,O=Acme\\, Inc.", "2.5.4.3=ci,O=Acme\\2C Inc."])
def test_a_subject_may_be_spelled_in_any_way_of_rfc_4514(tmp_path: Path, spelling: str) -> None:
    entry = CertificateConfig(subject=spelling, scopes=["read:*"])
    found = parsed(tmp_path, subject="CN=ci,O=Acme\\, Inc.")
    assert found is not None
    assert listed_certificates([entry]).identify(found)
    other = parsed(tmp_path, subject="CN=ci,O=Acme")
    assert other is not None
    assert listed_certificates([entry]).identify(other) is None


def test_a_subject_may_have_the_names_that_openssl_prints(tmp_path: Path) -> None:
    text = "emailAddress=ci@example.net,serialNumber=7,CN=ci"
    entry = CertificateConfig(subject=text, scopes=["read:*"])
    name = x509.Name(
        [
            x509.NameAttribute(NameOID.COMMON_NAME, "ci"),
            x509.NameAttribute(NameOID.SERIAL_NUMBER, "7"),
            x509.NameAttribute(NameOID.EMAIL_ADDRESS, "ci@example.net"),
        ]
    )
    found = parsed(tmp_path, subject=name)
    assert found is not None
    assert listed_certificates([entry]).identify(found)


@pytest.mark.parametrize("subject", ["ci", "/CN=ci/O=Acme", "CN=ci,", "XX=ci"])
def test_a_subject_that_is_not_one_prevents_the_start(subject: str) -> None:
    with pytest.raises(ConfigError, match=r"auth\.certificates: subject"):
        listed_certificates([CertificateConfig(subject=subject, scopes=["read:*"])])
