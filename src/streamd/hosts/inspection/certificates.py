"""The certificates that a configuration names: for which names, and until when."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from streamd.config.settings import Config, split_address
from streamd.hosts.inspection.facts import CertificateFacts
from streamd.process.addresses import is_loopback
from streamd.transport.credentials import expected_name


class _CertificateFile(NamedTuple):
    key: str
    path: str
    wanted: list[str]
    is_own: bool = True


def certificates(config: Config) -> list[CertificateFacts]:
    """What the files say. Blocks."""
    return [_read(file) for file in _files(config)]


def _files(config: Config) -> Iterator[_CertificateFile]:
    server, cluster = config.server, config.cluster
    if server.tls_cert is not None:
        wanted = _host("server.advertise", server.advertise or server.listen)
        admin = config.admin_server
        if admin is not None and admin.tls_cert is not None:
            wanted += _host("admin.listen", admin.listen)
        yield _CertificateFile("server.tls_cert", server.tls_cert, list(dict.fromkeys(wanted)))
    if server.tls_client_ca is not None:
        yield _CertificateFile("server.tls_client_ca", server.tls_client_ca, [], is_own=False)
    if cluster.tls_cert is not None and cluster.name is not None:
        name = expected_name(cluster.tls_name, server.node_id, cluster.name)
        wanted = _host("cluster.advertise", cluster.address)
        yield _CertificateFile("cluster.tls_cert", cluster.tls_cert, [*wanted, name])
    if cluster.tls_ca is not None:
        yield _CertificateFile("cluster.tls_ca", cluster.tls_ca, [], is_own=False)


def _host(key: str, address: str) -> list[str]:
    """The host by which others reach an address; none for one that only this machine reaches, or
    that stands for all of its addresses."""
    host, _ = split_address(key, address)
    try:
        is_any = ip_address(host).is_unspecified
    except ValueError:
        is_any = False
    return [] if is_any or is_loopback(host) else [host]


def _read(file: _CertificateFile) -> CertificateFacts:
    # Imported here, because it takes long: a node imports it when it is asked for the first time.
    from cryptography import x509

    try:
        found = x509.load_pem_x509_certificates(Path(file.path).read_bytes())
    except (OSError, ValueError) as error:
        return CertificateFacts(file.key, file.path, wanted=file.wanted, error=str(error))
    # A node's own comes first, and after it those of the authorities between.
    first = found[0] if file.is_own else min(found, key=lambda one: one.not_valid_after_utc)
    return CertificateFacts(
        file.key,
        file.path,
        _names(first),
        file.wanted,
        int(first.not_valid_before_utc.timestamp() * 1000),
        int(first.not_valid_after_utc.timestamp() * 1000),
    )


def _names(certificate: object) -> list[str]:
    from cryptography import x509

    assert isinstance(certificate, x509.Certificate)
    kind = x509.SubjectAlternativeName
    try:
        names = certificate.extensions.get_extension_for_class(kind).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError):
        return []
    return [
        *names.get_values_for_type(x509.DNSName),
        *map(str, names.get_values_for_type(x509.IPAddress)),
        *names.get_values_for_type(x509.UniformResourceIdentifier),
    ]
