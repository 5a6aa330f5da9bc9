"""Credentials, and what they permit. Nothing here waits, reads a clock or does I/O.

A *token* (`tokens`) is a secret that a client sends with each request; the state keeps its hash
only. A *scope* (`scopes`) is a permission, `verb:pattern`; what no scope permits is refused. An
*identity* (`identity`) is what a valid token stands for: a name, compiled scopes, an end. A *JWT*
(`jwt`) is a token that an identity provider has signed with one of its keys (`jwks`); its claims
fill *templates* of scopes (`templates`). A *signed URL* (`signed_urls`) permits what it names to
anyone who has it, within what the token permits whose key has signed it.

What is kept of tokens, and for how long they are valid, is the state machine's (`streams.tokens`);
which scope a request needs, and how it is refused, is decided in `http.access.authority`.

Invariants:

- A secret is in no value but the token that `mint` returns; everything else has its SHA-256, or the
  public key of a pair that is derived from it.
- A pattern is compared with the bytes of a stream's key, after all escapes of a path are decoded.
- A scope for streams never permits an operation on the server, unless it is ``admin:*``.

Read on: docs/auth.md.
"""
