"""Certificates for servers of a test."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NamedTuple

import trustme


class Pki(NamedTuple):
    """A certificate for this machine, and the authority that signed it."""

    certificate: Path
    key: Path
    server: ssl.SSLContext
    client: ssl.SSLContext
    authority: trustme.CA


def make_pki(directory: Path) -> Pki:
    """Issue a certificate, its files in `directory`."""
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    certificate, key = directory / "cert.pem", directory / "key.pem"
    for place, pem in enumerate(issued.cert_chain_pems):
        pem.write_to_path(str(certificate), append=place > 0)
    issued.private_key_pem.write_to_path(str(key))
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    issued.configure_cert(server)
    server.set_alpn_protocols(["http/1.1"])
    client = ssl.create_default_context()
    authority.configure_trust(client)
    return Pki(certificate, key, server, client, authority)
