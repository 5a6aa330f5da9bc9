"""What a node knows of a stream besides its content: where its bytes are, its producers, and the
streams that it was forked from."""

from __future__ import annotations

import msgspec
from quart import Response, request

from streamd.http.admin.operator import Answer, Operator
from streamd.http.protocol.fields import parse_query
from streamd.http.protocol.routing import StreamRoute, resolve
from streamd.node.node import Node
from streamd.protocol.problems import Problem
from streamd.streams import keys
from streamd.streams.model import ProducerState, Stream

MAX_PRODUCERS = 100
_MAX_SOURCES = 100

_ENCODER = msgspec.json.Encoder()
_PRODUCER = msgspec.msgpack.Decoder(ProducerState)


class ProducerBody(msgspec.Struct):
    """A producer, and the last of its requests that took effect."""

    id: str
    epoch: int
    seq: int


class SourceBody(msgspec.Struct):
    """A stream of which the one below begins with the first `end_record` records. `name` is
    ``BUCKET/NAME``, null if it was deleted."""

    name: str | None
    end_record: int


class StreamInsideBody(msgspec.Struct):
    """The answer about a stream. Records and bytes are the stream's own, without those of its
    sources; times are in ms since the epoch. The nearest of its `sources` is the last one, and
    `forks` is how many streams were forked from it. `more_producers` says that there are others."""

    created_at_ms: int
    last_write_at_ms: int
    cold_records: int
    cold_bytes: int
    hot_bytes: int
    producers: list[ProducerBody]
    more_producers: bool
    sources: list[SourceBody]
    forks: int


async def show(operator: Operator) -> Answer:
    """A stream, by its path."""
    given = parse_query(request.query_string)
    route = resolve(given.get(b"stream_path", b""))
    if not isinstance(route, StreamRoute):
        raise Problem.INVALID_REQUEST.error("stream_path is not the path of a stream")
    node = operator.node
    await node.group.reads.catch_up()
    stream = await node.reads.stream(route.key)
    if stream is None or stream.deleted or stream.expired(node.group.now_ms()):
        raise Problem.STREAM_NOT_FOUND.error()
    response = Response(_ENCODER.encode(await _body(node, stream)), content_type="application/json")
    response.headers["Cache-Control"] = "no-store"
    return response, 200


async def _body(node: Node, stream: Stream) -> StreamInsideBody:
    own, kept = stream.fork_point, stream.kept_start
    cold = max(stream.cold_from, own)
    body = StreamInsideBody(
        stream.created_ms,
        stream.last_write_ms,
        max(0, cold.record - kept.record),
        max(0, cold.byte - kept.byte),
        stream.size - max(cold.byte, kept.byte),
        [],
        False,
        [],
        stream.forks,
    )
    stream_id = stream.stream_id
    body.sources = await _sources(node, stream)
    await node.group.reads.stored()
    producers = await node.run_blocking(_producers, node, stream_id)
    body.producers, body.more_producers = producers[:MAX_PRODUCERS], len(producers) > MAX_PRODUCERS
    return body


def _producers(node: Node, stream_id: int) -> list[ProducerBody]:
    """Those of a stream, at most one more than are shown. Blocks."""
    within = keys.id_range(keys.PRODUCER, stream_id)
    rows = node.stores.state.scan(*within, limit=MAX_PRODUCERS + 1)
    found = []
    for row, raw in rows:
        state = _PRODUCER.decode(raw)
        found.append(ProducerBody(keys.producer_in(row), state.epoch, state.seq))
    return found


async def _sources(node: Node, stream: Stream) -> list[SourceBody]:
    """What it was forked from, the nearest last. A source that was deleted ends the list: what it
    was forked from itself is no longer known."""
    ends = {extent.stream_id: extent.end_record for extent in stream.extents}
    found: list[SourceBody] = []
    fork = stream.settings.fork
    while fork is not None and len(found) < _MAX_SOURCES:
        source = await node.reads.stream(fork.source)
        if source is None or source.deleted or source.stream_id not in ends:
            found.append(SourceBody(None, 0))
            break
        name = fork.source.replace(b"\0", b"/", 1).decode()
        found.append(SourceBody(name, ends[source.stream_id]))
        fork = source.settings.fork
    return found[::-1]
