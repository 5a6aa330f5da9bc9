"""HTTP/2 in which a request that is malformed ends alone.

The libraries end the whole connection, with all other requests on it, for a header of one request
that they cannot take. HTTP/2 permits that, but a proxy sends the requests of many users on one
connection. So here the faults of a request are errors of its stream (RFC 9113 section 8.1.1):
RST_STREAM where HTTP/2 calls it malformed, and otherwise the answer that the application gives to
an odd target or method. Only what breaks the connection itself ends it: frames, HPACK, flow
control, too many streams.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from time import time
from types import NoneType
from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
from h2.errors import ErrorCodes
from h2.exceptions import InvalidBodyLengthError, ProtocolError
from h2.utilities import HeaderValidationFlags, validate_headers
from hypercorn.config import Config
from hypercorn.events import Closed, Updated
from hypercorn.events import Event as ConnectionEvent
from hypercorn.protocol.events import Body, EndBody, Event, Request
from hypercorn.protocol.h2 import BUFFER_HIGH_WATER, BufferCompleteError, H2Protocol, StreamBuffer
from hypercorn.protocol.http_stream import HTTPStream
from hypercorn.utils import filter_pseudo_headers
from hyperframe.frame import DataFrame, Frame, HeadersFrame

Headers = Sequence[tuple[bytes, bytes]]


def is_malformed(headers: Headers, *, is_trailer: bool = False) -> bool:
    """Whether a request's header fields, or trailers, are what RFC 9113 calls malformed."""
    flags = HeaderValidationFlags(
        is_client=False, is_trailer=is_trailer, is_response_header=False, is_push_promise=False
    )
    try:
        for _ in validate_headers(headers, flags):
            pass
    except ProtocolError:
        return True
    return False


class TolerantConnection(h2.connection.H2Connection):
    """The state of a connection. A wrong Content-Length and trailers that do not end the request
    reset their stream only."""

    def __init__(self) -> None:
        # `Http2Protocol` validates headers, so that it can tell whose they are.
        super().__init__(
            h2.config.H2Configuration(
                client_side=False, header_encoding=None, validate_inbound_headers=False
            )
        )

    def _receive_frame(self, frame: Frame) -> list[h2.events.Event]:
        try:
            return super()._receive_frame(frame)
        except ProtocolError as error:
            # Other causes are HPACK's, whose state is lost for all that follows.
            of_stream = type(error) in (ProtocolError, InvalidBodyLengthError)
            of_stream = of_stream and type(error.__cause__) in (NoneType, ValueError)
            if not of_stream or not self._is_open(frame):
                raise
        self.reset_stream(frame.stream_id, ErrorCodes.PROTOCOL_ERROR)
        if isinstance(frame, DataFrame):
            self.acknowledge_received_data(frame.flow_controlled_length, frame.stream_id)
        return [
            h2.events.StreamReset(
                stream_id=frame.stream_id,
                error_code=ErrorCodes.PROTOCOL_ERROR,
                remote_reset=False,
            )
        ]

    def _is_open(self, frame: Frame) -> bool:
        """Whether the frame is of a request that can be reset."""
        stream = self.streams.get(frame.stream_id)
        return isinstance(frame, HeadersFrame | DataFrame) and stream is not None and stream.open


class Exchange(HTTPStream):
    """A request and its response. The target and the method are the application's to judge, byte
    for byte."""

    async def handle(self, event: Event) -> None:
        """Take an event of the request."""
        if self.closed or not isinstance(event, Request):
            await super().handle(event)
            return
        self.start_time = time()
        path, _, query = event.raw_path.partition(b"?")
        self.scope = {
            "type": "http",
            "http_version": event.http_version,
            "asgi": {"spec_version": "2.1", "version": "3.0"},
            "method": event.method,
            "scheme": self.scheme,
            "path": path.decode("latin-1"),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": event.headers,
            "client": self.client,
            "server": self.server,
            "state": event.state.copy(),  # type: ignore[typeddict-item]
            "extensions": {},
        }
        self.app_put = await self.task_group.spawn_app(
            self.app, self.config, self.scope, self.app_send
        )


class BoundedBuffer(StreamBuffer):
    """The part of a response that waits for the client: little more than the high-water mark.

    Hypercorn's own buffer resumes the response whenever it is asked for data, even if nothing was
    sent. With a client that grants no window, the whole response piled up there.
    """

    async def push(self, data: bytes) -> None:
        if self._complete:
            raise BufferCompleteError
        self.buffer += data
        await self._is_empty.clear()
        if len(self.buffer) >= BUFFER_HIGH_WATER:
            await self._paused.clear()
            await self._paused.wait()

    async def pop(self, max_length: int) -> bytes:
        data = bytes(self.buffer[:max_length])
        del self.buffer[:max_length]
        if len(self.buffer) < BUFFER_HIGH_WATER:
            await self._paused.set()
        if not self.buffer:
            await self._is_empty.set()
        return data


class Http2Protocol(H2Protocol):
    """A connection of HTTP/2. `charge` is called for each request that is reset for a fault, and
    raises when there are too many: what costs the client nothing must have a limit."""

    def __init__(self, config: Config, charge: Callable[[], None], *others: Any) -> None:
        app, *rest = others
        super().__init__(app, config, *rest)
        self._charge = charge
        codes = h2.settings.SettingCodes
        self.connection = TolerantConnection()
        self.connection.DEFAULT_MAX_INBOUND_FRAME_SIZE = config.h2_max_inbound_frame_size
        # No CONNECT protocol: there are no WebSockets here.
        self.connection.local_settings = h2.settings.Settings(
            client=False,
            initial_values={
                codes.MAX_CONCURRENT_STREAMS: config.h2_max_concurrent_streams,
                codes.MAX_HEADER_LIST_SIZE: config.h2_max_header_list_size,
            },
        )

    async def handle(self, event: ConnectionEvent) -> None:
        """Take bytes, or the end of the connection."""
        await super().handle(event)
        if isinstance(event, Closed):
            # Nothing is sent any more: a response that waits for room would wait for ever.
            for buffer in tuple(self.stream_buffers.values()):
                await buffer.close()

    async def _close_stream(self, stream_id: int) -> None:
        await super()._close_stream(stream_id)
        if (buffer := self.stream_buffers.get(stream_id)) is not None:
            await buffer.close()

    async def _handle_events(self, events: list[h2.events.Event]) -> None:
        for event in events:
            await self._handle_one(event)
        await self._flush()

    async def _handle_one(self, event: h2.events.Event) -> None:
        if isinstance(event, h2.events.RequestReceived):
            await self._begin(event)
        elif isinstance(event, h2.events.DataReceived):
            # Its stream may have been answered, or reset, while this was under way.
            if (stream := self.streams.get(event.stream_id)) is not None:
                await stream.handle(Body(stream_id=event.stream_id, data=event.data))
            size = event.flow_controlled_length
            self.connection.acknowledge_received_data(size, event.stream_id)
        elif isinstance(event, h2.events.TrailersReceived):
            if is_malformed(event.headers, is_trailer=True):
                await self._reset(event.stream_id)
        elif isinstance(event, h2.events.StreamEnded):
            if (stream := self.streams.get(event.stream_id)) is not None:
                await stream.handle(EndBody(stream_id=event.stream_id))
        elif isinstance(event, h2.events.StreamReset) and not event.remote_reset:
            self._charge()
            await super()._handle_events([event])
        elif not isinstance(event, h2.events.PriorityUpdated):  # Deprecated, and costly.
            await super()._handle_events([event])

    async def _begin(self, request: h2.events.RequestReceived) -> None:
        """Begin a request, or reset its stream if it is malformed."""
        if self.context.terminated.is_set():
            await super()._handle_events([request])
        elif is_malformed(request.headers):
            await self._reset(request.stream_id)
        else:
            await self._create_stream(request)
            await self.send(Updated(idle=False))

    async def _reset(self, stream_id: int) -> None:
        self._charge()
        with suppress(ProtocolError):  # It may be closed already.
            self.connection.reset_stream(stream_id, ErrorCodes.PROTOCOL_ERROR)
        await self._close_stream(stream_id)
        await self._window_updated(stream_id)

    async def _create_stream(self, request: h2.events.RequestReceived) -> None:
        stream_id = request.stream_id
        # Without a path it is a CONNECT, which the application refuses like any other.
        pseudo = dict(request.headers[:8])
        exchange = self.streams[stream_id] = Exchange(
            self.app,
            self.config,
            self.context,
            self.task_group,
            self.ssl,
            self.client,
            self.server,
            self.stream_send,
            stream_id,
        )
        self.stream_buffers[stream_id] = BoundedBuffer(self.context.event_class)
        self.priority.insert_stream(stream_id)
        self.priority.block(stream_id)
        await exchange.handle(
            Request(
                stream_id=stream_id,
                headers=filter_pseudo_headers(list(request.headers)),
                http_version="2",
                method=pseudo[b":method"].decode("latin-1"),
                raw_path=pseudo.get(b":path", b""),
                state=self.connection_state,
            )
        )
        self.keep_alive_requests += 1
        await self.context.mark_request()
