"""The result of the log for a scope, compared with the rows of a state.

Everything in a stream's row is compared, and all its producers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from msgspec.structs import astuple

from streamd_audit.replay import results
from streamd_audit.replay.model import Ending, LastRequest, Published, Stream
from streamd_audit.replay.scope import Scope
from streamd_audit.rows import Stream as StreamRow

Producers = dict[str, LastRequest]
_SnapshotTold = tuple[int, int, int, str, bytes, int | None]


class Difference(NamedTuple):
    """A fault by its name in `findings`; `entry` is the one to blame."""

    kind: str
    key: bytes
    stream_id: int | None
    offset: tuple[int, int] | None
    entry: int | None
    expected: str
    found: str


# Kinds by the refusal of an append that the state shows to have been accepted.
_TAKEN = {
    results.STREAM_CLOSED: "append_after_close",
    results.SEQ_GAP: "producer_gap",
    results.EPOCH_WITHOUT_RESTART: "producer_gap",
    results.EPOCH_STALE: "producer_repeated",
    results.DUPLICATE: "producer_repeated",
    results.SEQ_REGRESSION: "seq_back",
}


def differences(
    scope: Scope,
    rows: Mapping[bytes, StreamRow],
    producers: Mapping[int, Producers],
    keys: Iterable[bytes],
    of_links: Callable[[Stream, StreamRow], tuple[str, str] | None],
) -> Iterator[Difference]:
    """Where a state differs from the log's result in the streams of these keys, one difference per
    stream. `rows` and `producers` are the state's; producers by the ids of their streams.
    `of_links` compares the links to subscriptions."""
    keys = sorted(keys)
    for key in keys:
        stream, row = scope.streams.get(key), rows.get(key)
        if stream is not None and row is not None:
            _believe(scope, stream, row)
    for key in keys:
        stream, row = scope.streams.get(key), rows.get(key)
        if stream is None and row is not None:
            yield Difference(
                "stream_unknown", key, row.stream_id, None, None, "no stream", _tail(row)
            )
        elif stream is not None and row is None:
            expected = _tail(stream)
            yield Difference("stream_lost", key, stream.id, None, None, expected, "no stream")
        elif stream is not None and row is not None:
            found = _of_stream(stream, row, producers.get(row.stream_id, {}))
            told = None if found is not None else of_links(stream, row)
            if told is not None:
                at = row.records, row.size
                kind = "subscription_differs"
                found = Difference(kind, stream.key, row.stream_id, at, None, *told)
            if found is not None:
                yield found


def _believe(scope: Scope, stream: Stream, row: StreamRow) -> None:
    """Take ids that nothing has named yet from the state; counting them shows whether they are
    right."""
    if stream.id is None:
        scope.ids.believe(stream, row.stream_id)
    if stream.snapshot is not None and row.snapshot is not None and stream.snapshot.blob.id is None:
        scope.ids.believe(stream.snapshot.blob, row.snapshot.blob_id)


def _of_stream(stream: Stream, row: StreamRow, producers: Producers) -> Difference | None:
    def differs(kind: str, expected: object, found: object) -> Difference:
        at = row.records, row.size
        return Difference(kind, stream.key, row.stream_id, at, None, str(expected), str(found))

    if stream.id != row.stream_id:
        return differs("stream_unknown", f"stream id {stream.id}", f"stream id {row.stream_id}")
    if stream.deleted != row.deleted:
        names = {True: "deleted, kept for its forks", False: "there"}
        return differs("stream_lost", names[stream.deleted], names[row.deleted])
    extents, others = _extents(stream), [astuple(extent) for extent in row.extents]
    if extents != others:
        return differs("fork_moved", _forked(extents), _forked(others))
    if (stream.records, stream.size) != (row.records, row.size):
        return _of_tail(stream, row)
    if (stream.closed, stream.closed_by) != (row.closed, row.closed_by):
        return differs("closed_differs", _closed(stream), _closed(row))
    if stream.producers != producers:
        name = min(
            name
            for name in stream.producers.keys() | producers.keys()
            if stream.producers.get(name) != producers.get(name)
        )
        return differs(
            "producer_differs",
            _producer(name, stream.producers.get(name)),
            _producer(name, producers.get(name)),
        )
    if stream.counted != row.producers:
        told = f"{stream.counted} producers counted", f"{row.producers} producers counted"
        return differs("producer_differs", *told)
    if stream.last_seq != row.last_seq:
        return differs("seq_back", f"Stream-Seq {stream.last_seq}", f"Stream-Seq {row.last_seq}")
    if _snapshot(stream) != _snapshot(row):
        return differs("trim_lost", _told(_snapshot(stream)), _told(_snapshot(row)))
    if _expiry(stream) != _expiry(row):
        return differs("expiry_lost", _expiry(stream), _expiry(row))
    if _settings(stream) != _settings(row):
        return differs("settings_differ", _settings(stream), _settings(row))
    if stream.forks != row.forks:
        return differs("counts_differ", f"{stream.forks} forks", f"{row.forks} forks")
    if stream.kept_from != row.kept_from:
        return differs("counts_differ", _counted(stream), _counted(row))
    if (stream.cold, stream.hot_at_ms) != (row.cold, row.hot_at_ms):
        return differs("cold_differs", _cold(stream), _cold(row))
    return None


def _of_tail(stream: Stream, row: StreamRow) -> Difference:
    """A tail that differs; usually one append made the difference, or all from one on."""
    expected, found = _tail(stream), _tail(row)
    more = row.records - stream.records, row.size - stream.size
    kind, entry = "tail_differs", None
    told = _that_come_to(stream.refused, more)
    if told is not None:
        kind, entry = _TAKEN.get(told[1], "taken_wrongly"), told[0]
        expected += f": {told[1]}"
    else:
        told = _that_come_to(stream.taken, (-more[0], -more[1]))
        if told is not None:
            kind, entry = "refused_wrongly", told[0]
    offset = min((stream.records, stream.size), (row.records, row.size))
    return Difference(kind, stream.key, row.stream_id, offset, entry, expected, found)


def _that_come_to(appends: Iterable[Ending], what: tuple[int, int]) -> Ending | None:
    """The one append with so many records and bytes, or the first of those up to the end."""
    records = size = 0
    for one in reversed(list(appends)):
        records, size = records + one[2], size + one[3]
        if what in ((records, size), one[2:]):
            return one
    return None


def _tail(what: Stream | StreamRow) -> str:
    return f"{what.records} records, {what.size} bytes"


def _extents(stream: Stream) -> list[tuple[int | None, int, int]]:
    return [
        (home if isinstance(home, int) else home.id, record, byte)
        for home, record, byte in stream.extents
    ]


def _forked(extents: Iterable[tuple[int | None, int, int]]) -> str:
    ends = (f"{record:016d}_{byte:016d} of {home}" for home, record, byte in extents)
    return ", ".join(ends) or "no fork"


def _counted(what: Stream | StreamRow) -> str:
    return "not counted" if what.kept_from is None else f"counted from byte {what.kept_from}"


def _closed(what: Stream | StreamRow) -> str:
    if not what.closed:
        return "open"
    by = what.closed_by
    return "closed" if by is None else f"closed by {by.producer_id} {by.epoch}/{by.seq}"


def _producer(name: str, known: LastRequest | None) -> str:
    if known is None:
        return f"no producer {name}"
    return f"producer {name} at epoch {known[0]}, seq {known[1]}, tail {known[2]}_{known[3]}"


def _snapshot(what: Stream | StreamRow) -> _SnapshotTold | None:
    """The snapshot as a tuple."""
    known = what.snapshot
    if known is None:
        return None
    blob_id = known.blob.id if isinstance(known, Published) else known.blob_id
    return known.record, known.byte, known.size, known.content_type, known.digest, blob_id


def _told(snapshot: _SnapshotTold | None) -> str:
    if snapshot is None:
        return "no snapshot"
    record, byte, size, content_type, digest, blob_id = snapshot
    return f"{record}_{byte}: {size} bytes, {content_type}, {digest.hex()[:16]}, blob {blob_id}"


def _cold(what: Stream | StreamRow) -> str:
    record, byte = what.cold
    hot = "nothing hot" if what.hot_at_ms is None else f"hot since {what.hot_at_ms}"
    return f"in packs up to {record}_{byte}, {hot}"


def _expiry(what: Stream | StreamRow) -> str:
    told = "never" if what.expires_at_ms is None else f"at {what.expires_at_ms}"
    if what.ttl_ms is not None:
        told += f", or {what.ttl_ms} ms after an access"
    if what.sweep_at_ms is not None:
        told += f", checked at {what.sweep_at_ms}"
    return f"{told}; last access at {what.touched_ms}"


def _settings(what: Stream | StreamRow) -> str:
    fork = what.settings.fork
    return (
        f"{what.content_type}, made at {what.created_ms}, written at {what.last_write_ms}, "
        f"asked for as {what.settings.content_type}, {what.settings.ttl_ms}, "
        f"{what.settings.expires_at} ({what.settings.expires_at_ms}), {what.expires_at}"
        + (", fenced" if what.settings.write_fence else "")
        + ("" if fork is None else f", {fork.source!r} {fork.offset} + {fork.sub_offset}")
    )
