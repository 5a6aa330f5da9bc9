"""Carries out flows with `httpx.AsyncClient`, on asyncio or Trio."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any, Generic, TypeVar

import anyio
import anyio.to_thread
import httpx

from streamd.client.connecting import (
    MAX_ANSWER_BYTES,
    check_encoding,
    lost,
    misdirected,
    parsed,
    pieces,
    request_headers,
    too_large,
)
from streamd.client.core.steps import (
    Answer,
    Body,
    Call,
    Done,
    Emit,
    Flow,
    Lost,
    Pause,
    Receive,
    Send,
    Step,
    resume,
)

T = TypeVar("T")

Credentials = Callable[[], Awaitable[Mapping[str, str]]]


class AsyncDriver:
    """Carries out flows over one pool of connections. Several tasks may use it."""

    def __init__(self, settings: Mapping[str, Any], credentials: Credentials) -> None:
        self._settings = settings
        self._client = httpx.AsyncClient(**settings)
        self._process = os.getpid()
        self.credentials = credentials

    @property
    def client(self) -> httpx.AsyncClient:
        """The connections of this process, as of the blocking driver."""
        if self._process != os.getpid():
            self._client = httpx.AsyncClient(**self._settings)
            self._process = os.getpid()
        return self._client

    async def run(self, flow: Flow[T]) -> T:
        """The result of a flow that emits nothing."""
        async with AsyncIteration[Any](self, flow) as iteration:
            end = await iteration.advance()
        assert isinstance(end, Done), "it emits nothing"
        result: T = end.value
        return result

    def iterate(self, flow: Flow[Any]) -> AsyncIteration[Any]:
        """What a flow emits."""
        return AsyncIteration(self, flow)


class AsyncIteration(Generic[T]):
    """What arrives, as it arrives. Closed at its end, by `close`, or as a context manager."""

    def __init__(self, driver: AsyncDriver, flow: Flow[Any]) -> None:
        self._driver = driver
        self._flow = flow
        self._closed = False
        self._waiting: anyio.CancelScope | None = None
        self._result: Any = None
        self._failure: Lost | None = None
        self._interrupted: Step | None = None
        self._response: httpx.Response | None = None
        self._pieces = _pieces(b"")

    def __aiter__(self) -> AsyncIteration[T]:
        return self

    async def __anext__(self) -> T:
        step = await self.advance()
        if isinstance(step, Done):
            raise StopAsyncIteration
        value: T = step.value
        return value

    async def __aenter__(self) -> AsyncIteration[T]:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Receive no more, and end the connection.

        A wait in another thread or task ends then: a blocking long-poll with its answer, and all
        else at once.
        """
        self._closed = True
        if self._waiting is not None:
            self._waiting.cancel()
        else:
            await self._end()

    async def _end(self) -> None:
        self._flow.close()
        await self._discard()

    async def advance(self) -> Emit | Done:
        """Carry out steps until the flow emits something or ends."""
        if self._waiting is not None:
            raise RuntimeError("another task waits for what comes next")
        if not self._closed:
            with anyio.CancelScope() as self._waiting:
                try:
                    return await self._advance()
                finally:
                    self._waiting = None
        await self._end()
        return Done(None)

    async def _advance(self) -> Emit | Done:
        while True:
            step = self._interrupted or resume(self._flow, self._result, self._failure)
            self._interrupted = self._result = self._failure = None
            if isinstance(step, Emit | Done):
                return step
            try:
                self._result = await self._carry_out(step)
            except Lost as failure:
                self._failure = failure
            except BaseException:
                # An interrupted wait may be repeated. The step then begins again, except that an
                # answer that was being received is gone: the flow asks for the rest of it.
                if isinstance(step, Receive):
                    self._failure = Lost("the wait was interrupted", sent=True)
                else:
                    self._interrupted = step
                await self._discard()
                raise

    async def _carry_out(self, step: Step) -> Any:
        if isinstance(step, Send):
            return await self._send(step)
        if isinstance(step, Receive):
            return await self._receive()
        if isinstance(step, Call):
            return await anyio.to_thread.run_sync(step.function)
        if isinstance(step, Pause):
            return await anyio.sleep(step.seconds)
        return await self._discard()

    async def _send(self, send: Send) -> Answer:
        await self._discard()
        client, (method, _, _, _, body) = self._driver.client, send.request
        headers = request_headers(send, await self._driver.credentials())
        request = client.build_request(
            method, parsed(send.url), headers=headers, content=_pieces(body)
        )
        try:
            self._response = response = await client.send(request, stream=True)
            check_encoding(response)
            self._pieces = response.aiter_bytes()
            whole = b"" if send.in_pieces and response.is_success else await self._whole(response)
        except httpx.HTTPError as failure:
            answered = self._response is not None
            await self._discard()
            raise lost(failure, answered=answered) from failure
        except UnicodeError as error:
            raise misdirected(error) from error
        return Answer(response.status_code, response.headers, whole)

    async def _whole(self, response: httpx.Response) -> bytes:
        parts: list[bytes] = []
        size = 0
        async for part in self._pieces:
            parts.append(part)
            size += len(part)
            if size > MAX_ANSWER_BYTES:
                raise too_large(response.status_code)
        await self._discard()
        return b"".join(parts)

    async def _receive(self) -> bytes:
        try:
            async for piece in self._pieces:
                if piece:
                    return piece
        except httpx.HTTPError as failure:
            await self._discard()
            raise lost(failure) from failure
        await self._discard()
        return b""

    async def _discard(self) -> None:
        response, self._response = self._response, None
        self._pieces = _pieces(b"")
        if response is not None:
            await response.aclose()


async def _pieces(body: Body) -> AsyncIterator[bytes]:
    for piece in pieces(body):
        yield piece
