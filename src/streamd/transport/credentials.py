"""How nodes prove to each other who they are: by their certificates' names, or a shared secret.

Certificates prove it before the first frame. With a secret both sides prove that they know it, over
everything that the handshake has sent so far. The dialler goes first: it chose whom to dial, and a
stranger who dials this node gets nothing to guess the secret by.

```
 dialler                                acceptor
   ├── HELLO, with a nonce ───────────────▶ │
   │ ◀──────────────── CHALLENGE, a nonce ──┤
   ├── PROOF as dialler ──────────────────▶ │
   │ ◀─────── WELCOME, PROOF as acceptor ───┤
```

0.1.0 answered HELLO with WELCOME and the acceptor's PROOF (`ACCEPTOR`), then
got the dialler's (`DIALLER`). A node answers them so where it must (`sessions`).

A proof is HMAC-SHA-256 over its side's name and both introductions as they were sent. So it holds
only for these nonces, ids, addresses and this cluster's name, and one side's proof is never the
other's. What follows is bound to the connection, not to the secret: an attacker who can write into
other hosts' TCP connections can write into this one, and only TLS prevents that.
"""

from __future__ import annotations

import hmac
import secrets
from struct import pack
from typing import NamedTuple

import trio

from streamd.transport.errors import Refusal, RefusalCode
from streamd.transport.hello import Hello

NONCE_BYTES = 32
MIN_SECRET_BYTES = 32
ACCEPTOR, DIALLER = b"streamd peer acceptor", b"streamd peer dialler"
# Of the order in which the dialler goes first; the challenge precedes the WELCOME that is proved.
FIRST, SECOND = b"streamd peer dialler, first", b"streamd peer acceptor, second"
DEFAULT_TLS_NAME = "node-{id}.{cluster}.streamd"


class Credentials(NamedTuple):
    """How this node proves its identity, and what it demands of its peers.

    `secret` is shared by all nodes; `tls_name` is a node's name in its certificate, in which
    ``{id}`` and ``{cluster}`` stand for the node's id and the cluster's name. With `optional` a
    peer that proves nothing is accepted as well; one that proves the wrong thing never is.
    """

    secret: bytes | None = None
    tls_name: str | None = None
    optional: bool = False

    @property
    def proves(self) -> bool:
        """Whether every accepted peer has proved who it is."""
        return not self.optional and (self.secret is not None or self.tls_name is not None)

    def nonce(self) -> bytes:
        """A nonce for a handshake; empty if there is no secret to prove."""
        return b"" if self.secret is None else secrets.token_bytes(NONCE_BYTES)

    def asks_proof(self, peer: Hello) -> bool:
        """Whether to exchange proofs with a peer. Raises `Refusal` for one that must give a proof
        and cannot."""
        if self.secret is None or (self.optional and not peer.nonce):
            return False
        if len(peer.nonce) != NONCE_BYTES:
            raise Refusal(
                RefusalCode.NOT_PROVED,
                f"node {peer.node_id} does not know the cluster's secret; give it the same "
                "cluster.secret_file",
            )
        return True

    def proof(self, side: bytes, hello: bytes, welcome: bytes) -> bytes:
        """The proof that `side` knows the secret; the other arguments are frames as they were
        sent."""
        assert self.secret is not None
        said = pack(">II", len(side), len(hello)) + side + hello + welcome
        return hmac.digest(self.secret, said, "sha256")

    def check_proof(
        self, peer: Hello, given: bytes, side: bytes, hello: bytes, welcome: bytes
    ) -> None:
        """Raises `Refusal`."""
        if not hmac.compare_digest(given, self.proof(side, hello, welcome)):
            raise Refusal(
                RefusalCode.NOT_PROVED,
                f"node {peer.node_id} has another secret; give it the same cluster.secret_file",
            )

    def check_certificate(self, stream: trio.abc.Stream, peer: Hello) -> None:
        """Raises `Refusal` for a peer whose certificate is for another node."""
        if self.tls_name is None or self.optional or not isinstance(stream, trio.SSLStream):
            return
        wanted = expected_name(self.tls_name, peer.node_id, peer.cluster_name)
        names = names_in(stream.getpeercert())
        if wanted not in names:
            shown = ", ".join(sorted(names)) or "nothing"
            raise Refusal(
                RefusalCode.NOT_PROVED,
                f"node {peer.node_id} must show a certificate for {wanted}, not for {shown}; "
                "issue one with that name, or correct cluster.tls_name",
            )


def expected_name(template: str, node_id: int, cluster_name: str) -> str:
    """The name that a node's certificate must have, in lower case."""
    return template.replace("{id}", str(node_id)).replace("{cluster}", cluster_name).lower()


def names_in(certificate: object) -> set[str]:
    """The DNS names, URIs and common names that a verified certificate is for, in lower case."""
    if not isinstance(certificate, dict):
        return set()
    names = [value for kind, value in certificate.get("subjectAltName", ()) if kind in _NAMES]
    for part in certificate.get("subject", ()):
        names += [value for kind, value in part if kind == "commonName"]
    return {name.lower() for name in names}


_NAMES = ("DNS", "URI")
