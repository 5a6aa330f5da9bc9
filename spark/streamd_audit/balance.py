"""Rows of a state that must agree with one another, as sums.

Each row pays into accounts: what it says of a total or of another row (`told`), and what it
contributes to that (`due`). In a state whose rows agree both sides of every account are equal. The
rules are functions of one row, so they hold for any number of states at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from streamd_audit.errors import CONTRADICTION, Damaged
from streamd_audit.names import PackName, parse, split
from streamd_audit.packs import Chunk
from streamd_audit.rows import Blob, Bucket, ColdSlice, Header, Pack, Row, Stream

# What accounts are of: totals in the header; the bytes of a pack that slices refer to; what a
# bucket counts; the streams that have a blob as their snapshot, and its size; the rows that say
# when to look at a stream (`x`), and since when an owner has bytes outside of packs (`h`).
HOT, COLD, STREAMS, LIVE = "hot bytes", "cold bytes", "streams", "bytes alive"
KEPT, COUNTED = "bytes kept", "streams counted"
REFERENCES, BODY = "references", "bytes of a snapshot"
SWEEP, FLUSH = "checks for expiry", "owners of hot bytes"
# The kind of a finding where the sides of an account differ.
KIND_OF = {
    HOT: "counts_differ",
    COLD: "counts_differ",
    STREAMS: "counts_differ",
    LIVE: "counts_differ",
    KEPT: "bucket_differs",
    COUNTED: "bucket_differs",
    REFERENCES: "blob_differs",
    BODY: "blob_differs",
    SWEEP: "due_differs",
    FLUSH: "due_differs",
}
_LAST_MS = 2**64 - 1


class Share(NamedTuple):
    """What a row pays into the account `what` of a bucket, pack, blob or row (`about`)."""

    what: str
    about: bytes
    due: int
    told: int


def shares(row: Row) -> Iterator[Share]:
    """What a row pays into which accounts."""
    value = row.value
    match value:
        case Header():
            yield Share(HOT, b"", 0, value.hot_bytes)
            yield Share(COLD, b"", 0, value.cold_bytes)
            yield Share(STREAMS, b"", 0, value.streams)
        case Bucket():
            yield Share(KEPT, row.rest, 0, value.size)
            yield Share(COUNTED, row.rest, 0, value.counted)
        case Stream():
            yield from _of_stream(row.rest, value)
        case Blob():
            blob = _number(row.numbers[0])
            yield Share(REFERENCES, blob, 0, value.references)
            yield Share(BODY, blob, 0, value.size * value.references)
            yield from _hot(b"\0" + blob, value)
        case ColdSlice():
            yield Share(LIVE, _number(value.term) + _number(value.number), value.length, 0)
        case Pack():
            term, number = row.numbers
            yield Share(LIVE, _number(term) + _number(number), 0, value.live)
            yield Share(COLD, b"", value.live, 0)
    if row.kind == "expiry":
        yield Share(SWEEP, _number(row.numbers[0]) + row.rest, 0, 1)
    elif row.kind == "hot":
        yield Share(FLUSH, _number(row.numbers[0]) + row.rest, 0, 1)


def _of_stream(key: bytes, stream: Stream) -> Iterator[Share]:
    yield Share(STREAMS, b"", 1, 0)
    yield from _hot(key, stream)
    snapshot = stream.snapshot
    if snapshot is not None:
        yield Share(REFERENCES, _number(snapshot.blob_id), 1, 0)
        yield Share(BODY, _number(snapshot.blob_id), snapshot.size, 0)
    if stream.kept_from is not None:
        bucket = key.partition(b"\0")[0]
        kept = stream.size - stream.kept_from + (0 if snapshot is None else snapshot.size)
        yield Share(KEPT, bucket, kept, 0)
        yield Share(COUNTED, bucket, 1, 0)
    if stream.sweep_at_ms is not None:
        at_ms = min(max(0, stream.sweep_at_ms), _LAST_MS)
        yield Share(SWEEP, _number(at_ms) + key, 1, 0)


def _hot(owner: bytes, what: Stream | Blob) -> Iterator[Share]:
    """Bytes that are in no pack, and the row that has them flushed."""
    if what.hot_at_ms is not None:
        yield Share(HOT, b"", what.size - what.cold[1], 0)
        yield Share(FLUSH, _number(what.hot_at_ms) + owner, 1, 0)


def check_row(group: int, row: Row) -> None:
    """Raises `Damaged` for a row that no state has, or that contradicts its own key."""
    value = row.value
    if row.kind == "dropped":
        raise Damaged(CONTRADICTION, "a row that a node keeps for itself, and no state has")
    if isinstance(value, Stream) and not all(row.rest.partition(b"\0")):
        raise Damaged(CONTRADICTION, f"the key of a stream's row names {row.rest!r}")
    if isinstance(value, Chunk) and value.end_record != row.numbers[1]:
        told = f"the key of a chunk says {row.numbers[1]}, it ends with {value.end_record}"
        raise Damaged(CONTRADICTION, told)
    if isinstance(value, Blob):
        (parts, size), is_cold = value.cold, value.cold == (value.records, value.size)
        is_within = 0 <= parts <= value.records and 0 <= size <= value.size
        if is_cold != (value.hot_at_ms is None) or not is_within or (parts == 0) != (size == 0):
            told = f"{value.records} parts of {value.size} bytes, in packs up to {value.cold}"
            raise Damaged(CONTRADICTION, f"the row of blob {row.numbers[0]}: {told}")
    if isinstance(value, Pack):
        named = parse(split(value.name)[1])
        said = (group, *row.numbers)
        if not isinstance(named, PackName) or (named.group, named.term, named.number) != said:
            raise Damaged(CONTRADICTION, f"the row of pack {row.numbers} names {value.name}")
        if (value.live == 0) != (value.dead_index > 0) or (value.dead_ms > 0) > (
            value.dead_index > 0
        ):
            told = f"{value.live} bytes alive, dead since entry {value.dead_index}"
            raise Damaged(CONTRADICTION, f"the row of pack {row.numbers}: {told}")


def name_of(what: str, about: bytes) -> str:
    """An account, for people."""
    if what in (LIVE, REFERENCES, BODY):
        numbers = [int.from_bytes(about[at : at + 8]) for at in range(0, len(about), 8)]
        kind = "pack" if what == LIVE else "blob"
        return f"{kind} {'-'.join(map(str, numbers))}: "
    if what in (SWEEP, FLUSH):
        text = about[8:].decode(errors="replace").replace("\0", "/")
        return f"{text} at {int.from_bytes(about[:8])} ms: "
    return f"bucket {about.decode(errors='replace')}: " if about else ""


def _number(number: int) -> bytes:
    return (number & _LAST_MS).to_bytes(8)
