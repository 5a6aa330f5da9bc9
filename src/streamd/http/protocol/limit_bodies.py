"""Bodies of the administration of limits, as JSON."""

from __future__ import annotations

import msgspec
from msgspec.structs import astuple

from streamd.streams.limits import Amount, Limits, Rate


class LimitsBody(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The limits of a bucket or an identity. What is left out is without a limit."""

    requests_per_s: Rate = None
    bytes_in_per_s: Rate = None
    bytes_out_per_s: Rate = None
    live_readers: Amount = None
    connections: Amount = None
    max_bytes: Amount = None
    max_streams: Amount = None
    max_stream_bytes: Amount = None

    @classmethod
    def of(cls, limits: Limits) -> LimitsBody:
        return cls(*astuple(limits))


class AllLimitsBody(msgspec.Struct):
    """All limits, by the names of buckets and identities. Those of `*` are for all others."""

    buckets: dict[str, LimitsBody]
    identities: dict[str, LimitsBody]
