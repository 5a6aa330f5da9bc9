"""Bounds of the protocol that clients and the API's description need too."""

from __future__ import annotations

from typing import Annotated

import msgspec

MAX_SAFE_INTEGER = 2**53 - 1
MAX_TOKEN_BYTES = 256
MAX_TTL_S = 10**10
# A bucket and its stream on the bucketed surface, slash included (extensions section 1.1).
MAX_BUCKETED_BYTES = 122

# Fits into a key, and into the integers of any language.
Number = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
