"""What the handlers work with: one node's services, bound together once."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from streamd.config import ServerConfig
from streamd.group import Group
from streamd.http.live import Hub
from streamd.http.messages import Response, error_response
from streamd.http.routing import StreamRoute
from streamd.metrics import Metrics
from streamd.reads import Reads
from streamd.streams.model import Stream


class Service:
    """A node as the handlers see it. `clock_ms` is wall time in ms since the epoch."""

    __slots__ = ("clock_ms", "group", "hub", "metrics", "random", "reads", "server")

    def __init__(
        self,
        group: Group,
        reads: Reads,
        hub: Hub,
        server: ServerConfig,
        metrics: Metrics,
        clock_ms: Callable[[], int],
        random: Random,
    ) -> None:
        self.group = group
        self.reads = reads
        self.hub = hub
        self.server = server
        self.metrics = metrics
        self.clock_ms = clock_ms
        self.random = random

    async def find(self, route: StreamRoute) -> Stream | Response:
        """The live stream at `route` as of now, linearizable, or the answer that it is not."""
        if not self.group.may_read():
            await self.group.read_barrier()
        stream = await self.reads.stream(route.key)
        if stream is None:
            return NOT_FOUND
        if stream.deleted:
            return GONE
        if stream.ttl_ms is not None or stream.expires_at_ms is not None:
            touched_ms = self.group.touched_ms(route.key, stream.stream_id)
            if stream.expired(self.group.now_ms(), touched_ms):
                return NOT_FOUND
        return stream

    def touch(self, route: StreamRoute, stream: Stream) -> None:
        """Renew the sliding window of a stream that is read."""
        if stream.ttl_ms is not None:
            self.group.touch(route.key, stream.stream_id)


NOT_FOUND = error_response(404, "STREAM_NOT_FOUND", "there is no such stream")
GONE = error_response(410, "STREAM_GONE", "the stream was deleted; forks of it still exist")
TOO_MANY_READERS = error_response(
    503, "TOO_MANY_READERS", "too many live readers; try again later", b"Retry-After: 1\r\n"
)
