"""Limits of buckets and of identities in the state: set and cleared by the log alone.

So all replicas know the same limits. Rates are enforced by each node, quotas by the machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Literal, NamedTuple, get_args

import msgspec

from streamd.streams import keys
from streamd.streams.tables import KeyValue

MAX_ROWS = 10_000
MAX_NAME_CHARACTERS = 256
# The largest integer of any JSON reader.
MAX_LIMIT = 2**53 - 1
# The name of the row for all that have none of their own.
DEFAULT = "*"
_ROWS_AT_ONCE = 1000

_ENCODER = msgspec.msgpack.Encoder()

Amount = Annotated[int, msgspec.Meta(ge=0, le=MAX_LIMIT)] | None
Rate = Annotated[int, msgspec.Meta(ge=1, le=MAX_LIMIT)] | None

Kind = Literal["bucket", "identity"]
KINDS: tuple[Kind, ...] = get_args(Kind)


class About(NamedTuple):
    """What a limit is, for people. Sizes are in bytes. A quota is for one `kind` only."""

    text: str
    is_size: bool = False
    kind: Kind | None = None


ABOUT = {
    "max_bytes": About("Bytes that all streams of a bucket may store.", True, "bucket"),
    "max_streams": About("Number of streams that a bucket may have.", False, "bucket"),
    "max_stream_bytes": About("Bytes that each stream of a bucket may store.", True, "bucket"),
    "max_subscriptions": About(
        "Number of subscriptions that an identity may have made.", False, "identity"
    ),
    "requests_per_s": About("Requests a second to each node."),
    "bytes_in_per_s": About("Bytes of bodies a second to each node.", True),
    "bytes_out_per_s": About("Bytes of answers a second from each node.", True),
    "live_readers": About("Concurrent live readers at each node."),
    "connections": About("Concurrent connections to each node."),
}
QUOTAS: dict[Kind, tuple[str, ...]] = {
    kind: tuple(name for name, about in ABOUT.items() if about.kind == kind) for kind in KINDS
}


class LimitFields(msgspec.Struct, frozen=True):
    """The limits of one bucket or identity (`ABOUT`); None is without a limit."""

    requests_per_s: Rate = None
    bytes_in_per_s: Rate = None
    bytes_out_per_s: Rate = None
    live_readers: Amount = None
    connections: Amount = None
    max_bytes: Amount = None
    max_streams: Amount = None
    max_stream_bytes: Amount = None
    max_subscriptions: Amount = None


class Limits(LimitFields, frozen=True, array_like=True, gc=False):
    """`LimitFields` as the log and the state have them: by position, so new ones come last."""

    def has_quota(self, kind: Kind) -> bool:
        """Whether there is a quota among them that is for that kind."""
        return any(getattr(self, name) is not None for name in QUOTAS[kind])


_DECODER = msgspec.msgpack.Decoder(Limits)


class LimitsTable:
    """All limits, always in memory: each request asks for some.

    A row is all that applies to its bucket or identity; only those without one have the row named
    `DEFAULT`. `version` is another object after each change. `quotas` are the rows of buckets by
    their names in UTF-8, and empty if none of them has a quota.
    """

    def __init__(self, store: KeyValue) -> None:
        """Blocks for a read."""
        self.version = object()
        self._rows: dict[Kind, dict[str, Limits]] = {"bucket": {}, "identity": {}}
        for kind, name, row in _stored(store):
            self._rows[kind][name] = row
        self._dirty: set[tuple[Kind, str]] = set()
        self.quotas = self._find_quotas()
        # How many commands each quota has refused here, by the result.
        self.refusals: dict[str, int] = {}

    def _find_quotas(self) -> dict[bytes, Limits]:
        rows = self._rows["bucket"]
        if not any(row.has_quota("bucket") for row in rows.values()):
            return {}
        return {name.encode(): row for name, row in rows.items()}

    def __len__(self) -> int:
        return sum(map(len, self._rows.values()))

    def of_bucket(self, name: str) -> Limits | None:
        """The limits that apply to a bucket."""
        rows = self._rows["bucket"]
        return rows.get(name) or rows.get(DEFAULT)

    def of_identity(self, name: str) -> Limits | None:
        """The limits that apply to an identity, by its name."""
        rows = self._rows["identity"]
        return rows.get(name) or rows.get(DEFAULT)

    def get(self, kind: Kind, name: str) -> Limits | None:
        """The row of that name, if there is one."""
        return self._rows[kind].get(name)

    def rows(self, kind: Kind) -> Mapping[str, Limits]:
        """The rows of a kind by their names."""
        return self._rows[kind]

    def put(self, kind: Kind, name: str, row: Limits | None) -> None:
        """Set a row, or with None remove one that exists."""
        if row is None:
            del self._rows[kind][name]
        else:
            self._rows[kind][name] = row
        self._dirty.add((kind, name))
        self.version = object()
        self.quotas = self._find_quotas()

    def begin_flush(self) -> Iterator[tuple[bytes, bytes | None]]:
        """The rows to store, as of now."""
        dirty, self._dirty = self._dirty, set()
        for kind, name in dirty:
            row = self._rows[kind].get(name)
            raw = None if row is None else _ENCODER.encode(row)
            yield keys.limits_key(kind, name), raw


def _stored(store: KeyValue) -> Iterator[tuple[Kind, str, Limits]]:
    start, stop = keys.LIMITS, keys.end_of(keys.LIMITS)
    while rows := store.scan(start, stop, limit=_ROWS_AT_ONCE):
        for row, raw in rows:
            kind: Kind = "bucket" if row[1:2] == b"b" else "identity"
            yield kind, row[2:].decode(), _DECODER.decode(raw)
        start = rows[-1][0] + b"\0"
