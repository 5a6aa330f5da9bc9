"""Client certificates as they come out of a TLS handshake, and as the configuration lists them."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

from cryptography import x509
from cryptography.x509.oid import NameOID

from streamd.auth.certificates import Certificate, ListedCertificates
from streamd.auth.scopes import parse_scopes
from streamd.config.auth import CertificateConfig
from streamd.config.settings import ConfigError

# Limits for all names of a certificate together: workers send them with each request.
MAX_NAMES = 100
MAX_NAMES_CHARACTERS = 8 * 1024
_FINGERPRINT_DIGITS = 16
# Names that OpenSSL prints and RFC 4514 lacks.
_OPENSSL_NAMES = {"emailAddress": NameOID.EMAIL_ADDRESS, "serialNumber": NameOID.SERIAL_NUMBER}


def parse_certificate(der: bytes) -> Certificate | None:
    """What a certificate in DER says that OpenSSL has verified; None if it is not well-formed, or
    has too many names."""
    try:
        parsed = x509.load_der_x509_certificate(der)
        subject = parsed.subject.rfc4514_string()
        common_names = parsed.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        alternative = _alternative_names(parsed)
        ends_ms = int(parsed.not_valid_after_utc.timestamp() * 1000)
    except Exception:  # Whatever its authority has signed must not end the node.
        return None
    # An empty one could be listed nowhere; of several none is the client's.
    common_name = str(common_names[0].value) if len(common_names) == 1 else ""
    of_kind = alternative.get_values_for_type
    found = Certificate(
        subject,
        common_name,
        tuple(of_kind(x509.DNSName)),
        tuple(of_kind(x509.UniformResourceIdentifier)),
        tuple(of_kind(x509.RFC822Name)),
        ends_ms,
        sha256(der).hexdigest()[:_FINGERPRINT_DIGITS],
    )
    sizes = [len(name) for _, name in found.names()]
    is_small = len(sizes) <= MAX_NAMES and sum(sizes) <= MAX_NAMES_CHARACTERS
    return found if is_small else None


def _alternative_names(parsed: x509.Certificate) -> x509.SubjectAlternativeName:
    try:
        extension = parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return x509.SubjectAlternativeName([])
    return extension.value


def listed_certificates(entries: Iterable[CertificateConfig]) -> ListedCertificates:
    """The certificates in the configuration. Raises `ConfigError`."""
    return ListedCertificates(
        (kind, _subject(name) if kind == "subject" else name, parse_scopes(entry.scopes))
        for entry in entries
        for kind, name in entry.names()
    )


def _subject(text: str) -> str:
    """A distinguished name in the spelling that `parse_certificate` gives it."""
    try:
        return x509.Name.from_rfc4514_string(text, _OPENSSL_NAMES).rfc4514_string()
    except ValueError:
        raise ConfigError(
            f"auth.certificates: subject {text!r} is not a distinguished name of RFC 4514, as "
            "`openssl x509 -noout -subject -nameopt RFC2253` prints it"
        ) from None
