"""Client certificates: the names that TLS has verified, and the scopes that they are given.

Names are compared whole, each kind with its own kind only: a common name is never taken for a host,
and a star in a certificate matches nothing. Where the case of letters has no meaning (host names,
RFC 5280 section 7.2; the host of a mailbox, section 7.5) it is ignored, elsewhere not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from streamd.auth.identity import Identity
from streamd.auth.scopes import Scope, Scopes

NameKind = Literal["subject", "common_name", "dns", "uri", "email"]

_DNS = re.compile(r"[a-z0-9_-]+(\.[a-z0-9_-]+)*")
_MAILBOX = re.compile(r"[^@\s]+@[^@\s*]+")
_MAX_NAME_CHARACTERS = 1024


class Certificate(msgspec.Struct, frozen=True, array_like=True, cache_hash=True, gc=False):
    """What a verified certificate says of a client. `subject` is in the form of RFC 4514,
    `common_name` empty unless there is exactly one; `ends_ms` is in ms since the epoch.
    `fingerprint` begins the SHA-256 of the whole, in hexadecimal digits."""

    subject: str
    common_name: str
    dns: tuple[str, ...]
    uris: tuple[str, ...]
    emails: tuple[str, ...]
    ends_ms: int
    fingerprint: str

    @property
    def credential(self) -> str:
        """What `Identity.credential` shows: the certificate's fingerprint."""
        return f"certificate {self.fingerprint}"

    def names(self) -> Iterator[tuple[NameKind, str]]:
        """All names, in the form in which they are compared."""
        yield "subject", self.subject
        yield "common_name", self.common_name
        for name in self.dns:
            yield "dns", canonical("dns", name)
        for name in self.uris:
            yield "uri", name
        for name in self.emails:
            yield "email", canonical("email", name)


def canonical(kind: NameKind, name: str) -> str:
    """The form in which a name is compared."""
    if kind == "dns":
        return name.lower()
    if kind == "email":
        mailbox, at, host = name.rpartition("@")
        return mailbox + at + host.lower()
    return name


def name_fault(kind: NameKind, name: str) -> str | None:
    """Why no certificate can be listed under this name; None if one can."""
    if not 0 < len(name) <= _MAX_NAME_CHARACTERS or not name.isprintable():
        return f"it must consist of 1 to {_MAX_NAME_CHARACTERS} printable characters"
    if kind == "dns" and _DNS.fullmatch(name.lower()) is None:
        return "it is not a complete host name without a wildcard"
    if kind == "uri" and ":" not in name:
        return "it is not a URI, such as spiffe://example.net/worker"
    if kind == "email" and _MAILBOX.fullmatch(name) is None:
        return "it is not an e-mail address, such as ci@example.net"
    return None


class ListedCertificates:
    """The certificates that permit something, by any of their names."""

    def __init__(self, listed: Iterable[tuple[NameKind, str, Iterable[Scope]]]) -> None:
        """A name may be listed more than once: then it has the scopes of all its entries."""
        self._scopes: dict[tuple[NameKind, str], list[Scope]] = {}
        for kind, name, scopes in listed:
            self._scopes.setdefault((kind, canonical(kind, name)), []).extend(scopes)

    def identify(self, certificate: Certificate) -> Identity | None:
        """The identity of a client with this certificate: under the first of its names that is
        listed, and with the scopes of all of them. None if none is."""
        found = dict.fromkeys(name for name in certificate.names() if name in self._scopes)
        if not found:
            return None
        scopes = Scopes(scope for name in found for scope in self._scopes[name])
        name = next(iter(found))[1]
        credential, ends_ms = certificate.credential, certificate.ends_ms
        return Identity(f"cert:{name}", scopes, credential=credential, ends_ms=ends_ms)
