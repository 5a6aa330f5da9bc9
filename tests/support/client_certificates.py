"""Certificates for clients of a test, good ones and others."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


class Issued(NamedTuple):
    """A certificate and its key, in one file."""

    certificate: x509.Certificate
    file: Path

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.DER)

    def client(self, server_authority: trustme.CA) -> ssl.SSLContext:
        """What a client needs that shows this certificate and trusts that authority."""
        context = ssl.create_default_context()
        server_authority.configure_trust(context)
        context.load_cert_chain(self.file)
        return context


def issue(
    authority: trustme.CA,
    directory: Path,
    *names: x509.GeneralName,
    subject: str | x509.Name = "",
    common_names: Sequence[str] = (),
    life_s: float = 3600,
    usage: x509.ObjectIdentifier = ExtendedKeyUsageOID.CLIENT_AUTH,
) -> Issued:
    """A certificate for clients, signed by the authority. `subject` is in the form of RFC 4514."""
    named = x509.Name.from_rfc4514_string(subject) if isinstance(subject, str) else subject
    more = [
        x509.RelativeDistinguishedName([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        for name in common_names
    ]
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    issuer = x509.load_pem_x509_certificate(authority.cert_pem.bytes())
    signing = serialization.load_pem_private_key(authority.private_key_pem.bytes(), None)
    assert isinstance(signing, ec.EllipticCurvePrivateKey)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([*named.rdns, *more]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(seconds=life_s))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False
        )
        .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=not named)
    certificate = builder.sign(signing, hashes.SHA256())
    file = directory / f"client-{certificate.serial_number}.pem"
    file.write_bytes(
        certificate.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return Issued(certificate, file)
