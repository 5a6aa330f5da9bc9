"""The hash tree over the log, its signed heads, and proofs that an entry is in it.

The archive's checksums find accidents. They do not find a forger, who computes them again. So the
archived entries are also the leaves of a Merkle tree (`tree`, `leaves`), and nodes sign its root
(`heads`, `published`). Anyone who has kept a signed head can tell whether the log still has all
that it had then, and can be shown that one record is in it (`record_proofs`).
"""
