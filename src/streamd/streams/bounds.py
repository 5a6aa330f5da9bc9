"""Bounds of the protocol that clients and the API's description need too."""

MAX_SAFE_INTEGER = 2**53 - 1
MAX_TOKEN_BYTES = 256
MAX_TTL_S = 10**10
