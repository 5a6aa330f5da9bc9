"""A live cluster that answers otherwise than its archive: damages to a stopped node's own state."""

from __future__ import annotations

import msgspec

from streamd.streams import keys
from streamd.streams.chunks import Chunk
from streamd.streams.model import Stream
from tests.spark.damages import Catalogue, Expected
from tests.spark.forging import Rows, edit_row, flipped, stream_row, with_bytes

LIVE = Catalogue("A live cluster")
LATE = "agents/late"


def _late(rows: Rows) -> Stream:
    return msgspec.msgpack.decode(rows[stream_row(LATE)], type=Stream)


def _last_chunk(rows: Rows) -> tuple[bytes, Chunk]:
    start, stop = keys.id_range(keys.CHUNK, _late(rows).stream_id)
    key = max(key for key in rows if start <= key < stop)
    return key, msgspec.msgpack.decode(rows[key], type=Chunk)


@LIVE.add()
def live_other_bytes(rows: Rows) -> Expected:
    """A node serves a record with another byte."""
    key, chunk = _last_chunk(rows)
    at = chunk.size - chunk.lengths[-1] // 2
    rows[key] = msgspec.msgpack.encode(with_bytes(chunk, flipped(chunk.data, at)))
    return Expected("live_differs", stream=LATE, record=chunk.end_record - 1)


@LIVE.add()
def live_lost_stream(rows: Rows) -> Expected:
    """A node does not know a stream."""
    del rows[stream_row(LATE)]
    return Expected("live_lost", stream=LATE)


@LIVE.add()
def live_shorter(rows: Rows) -> Expected:
    """A node has lost a stream's last record."""
    key, chunk = _last_chunk(rows)
    shorter = chunk.cut(chunk.start_record, chunk.end_record - 1)
    stream_id = _late(rows).stream_id
    del rows[key]
    rows[keys.chunk_key(stream_id, shorter.end_record)] = msgspec.msgpack.encode(shorter)
    row = stream_row(LATE)
    edit_row(rows, row, Stream, records=shorter.end_record, size=shorter.end_byte)
    return Expected("live_tail_differs", stream=LATE)


@LIVE.add()
def live_open(rows: Rows) -> Expected:
    """A node serves a closed stream as open."""
    edit_row(rows, stream_row(LATE), Stream, closed=False)
    return Expected("live_state_differs", stream=LATE)
