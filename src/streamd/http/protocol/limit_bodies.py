"""Bodies of the administration of limits, as JSON."""

from __future__ import annotations

import msgspec

from streamd.streams.limits import LimitFields, Limits


class LimitsBody(LimitFields, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """The limits of a bucket or an identity. What is left out is without a limit."""

    @classmethod
    def of(cls, limits: Limits) -> LimitsBody:
        return msgspec.convert(limits, cls, from_attributes=True)

    def limits(self) -> Limits:
        return msgspec.convert(self, Limits, from_attributes=True)


class AllLimitsBody(msgspec.Struct):
    """All limits, by the names of buckets and identities. Those of `*` are for all others."""

    buckets: dict[str, LimitsBody]
    identities: dict[str, LimitsBody]
