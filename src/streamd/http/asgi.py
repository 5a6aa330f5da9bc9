"""The application as ASGI, for servers that speak what the front door does not (HTTP/2)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import trio

from streamd.config import ServerConfig
from streamd.http.asgi_bridge import Message
from streamd.http.messages import (
    COMMON_HEAD,
    Application,
    Buffer,
    ClientGone,
    LiveResponse,
    Request,
    Response,
)
from streamd.http.wire import Refused, body_parts, check_path, single_headers

Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class AsgiApplication:
    """Serves an `Application` to an ASGI server."""

    def __init__(self, application: Application, config: ServerConfig) -> None:
        self._application = application
        self._config = config

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
        elif scope["type"] == "http":
            channel = AsgiChannel(receive, send, self._config.write_timeout_ms / 1000)
            try:
                await self._serve(scope, channel)
            except ClientGone:
                return

    async def _serve(self, scope: Message, channel: AsgiChannel) -> None:
        response: Response | LiveResponse
        try:
            path = check_path(scope["raw_path"])
            headers = single_headers(scope["headers"])
            if b":authority" not in headers and b"host" not in headers:
                headers[b"host"] = b"%b:%d" % (scope["server"][0].encode(), scope["server"][1])
            body = await channel.read_body(self._config.max_body_bytes)
            request = Request(
                scope["method"],
                path,
                scope["query_string"],
                headers,
                body,
                channel,
                scope["scheme"].encode(),
            )
            response = await self._application.handle(request)
        except Refused as refused:
            response = refused.response
        await channel.start(response.status, response.head)
        if isinstance(response, LiveResponse):
            await response.run(channel)
            await channel.finish()
            return
        parts, _ = body_parts(response.body if scope["method"] != "HEAD" else b"")
        for part in parts:
            await channel.send(part)
        await channel.finish()


class AsgiChannel:
    """One exchange. The server below buffers what it is sent, so nothing is sent unawaited."""

    def __init__(self, receive: Receive, send: Send, write_timeout_s: float) -> None:
        self._receive = receive
        self._send = send
        self._write_timeout_s = write_timeout_s
        self._left = b""
        self._gone = False

    async def read_body(self, limit: int) -> bytes:
        """The request's body. Raises `Refused` when it is too large, `ClientGone`."""
        body = bytearray()
        while True:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientGone
            body += message.get("body", b"")
            if len(body) > limit:
                raise Refused(413, "BODY_TOO_LARGE", f"a body may have {limit} bytes")
            if not message.get("more_body", False):
                return bytes(body)

    async def start(self, status: int, head: bytes) -> None:
        lines = (head + COMMON_HEAD).split(b"\r\n")
        headers = [(name.lower(), value) for name, _, value in _pairs(lines)]
        await self._pass({"type": "http.response.start", "status": status, "headers": headers})

    async def finish(self) -> None:
        await self.flush()
        await self._pass({"type": "http.response.body", "body": b"", "more_body": False})

    def try_send(self, data: bytes) -> bool:
        self._left += data
        return False

    async def flush(self) -> None:
        if self._left:
            left, self._left = self._left, b""
            await self._pass({"type": "http.response.body", "body": left, "more_body": True})

    async def send(self, data: Buffer) -> None:
        await self.flush()
        await self._pass({"type": "http.response.body", "body": bytes(data), "more_body": True})

    async def wait_disconnected(self) -> None:
        while not self._gone:
            message = await self._receive()
            self._gone = message["type"] == "http.disconnect"

    async def _pass(self, message: dict[str, Any]) -> None:
        with trio.move_on_after(self._write_timeout_s):
            await self._send(message)
            return
        raise ClientGone


def _pairs(lines: list[bytes]) -> list[tuple[bytes, bytes, bytes]]:
    return [line.partition(b": ") for line in lines if line]


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": message["type"] + ".complete"})
        if message["type"] == "lifespan.shutdown":
            return
