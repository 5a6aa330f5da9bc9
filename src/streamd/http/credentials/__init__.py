"""Credentials that come from outside the process: files, TLS handshakes, identity providers.

`tls_files` reloads certificates when their files change, `client_certificates` reads names from a
TLS handshake and from the configuration, and `identity_provider` keeps the keys that verify JWTs.
`streamd.auth` decides what a credential permits; it is pure, so its input and output is here.

Invariants:

- The last good certificate or set of keys serves until a newer one was read whole.
- A file or answer that cannot be used is logged, and never ends the node.

Read on in docs/auth.md.
"""
