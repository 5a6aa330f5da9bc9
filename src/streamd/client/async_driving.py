"""Carries out flows with `httpx.AsyncClient`, on asyncio or Trio."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from typing import Any, Generic, TypeAlias, TypeVar

import anyio
import anyio.to_thread
import httpx

from streamd.client.background import Background, Loop
from streamd.client.closing import AsyncClosing
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
from streamd.client.core.operations import authorization
from streamd.client.core.steps import (
    Answer,
    Body,
    Call,
    Done,
    Emit,
    Flow,
    Lost,
    Pause,
    Raise,
    Receive,
    Send,
    Step,
    resume,
)

T = TypeVar("T")

Token: TypeAlias = str | Callable[[], str | Awaitable[str]]
Headers: TypeAlias = (
    Mapping[str, str] | Callable[[], Mapping[str, str] | Awaitable[Mapping[str, str]]]
)


class AsyncDriver:
    """Carries out flows over one pool of connections. Several tasks may use it."""

    def __init__(
        self, settings: Mapping[str, Any], headers: Headers | None, token: Token | None
    ) -> None:
        self._settings = settings
        self._client = httpx.AsyncClient(**settings)
        self._process = os.getpid()
        self._headers = headers
        self._token = token

    @property
    def client(self) -> httpx.AsyncClient:
        """The connections of this process, as of the blocking driver."""
        if self._process != os.getpid():
            self._client = httpx.AsyncClient(**self._settings)
            self._process = os.getpid()
        return self._client

    async def credentials(self) -> dict[str, str]:
        """The caller's headers, and that of the token."""
        headers, token = self._headers, self._token
        found = dict(await _given(headers()) if callable(headers) else headers or {})
        if token is not None:
            found |= authorization(await _given(token()) if callable(token) else token)
        return found

    def lock(self) -> anyio.Lock:
        """A lock for tasks."""
        return anyio.Lock()

    async def run(self, flow: Flow[T]) -> T:
        """The result of a flow that emits nothing. A call that is cancelled ends its request."""
        exchange = _Exchange(self)
        result: Any = None
        failure: Lost | None = None
        try:
            while not isinstance(step := resume(flow, result, failure), Done):
                result = failure = None
                try:
                    result = await exchange.carry_out(step)
                except Lost as lost:
                    failure = lost
        finally:
            flow.close()
            await exchange.discard()
        found: T = step.value
        return found

    def iterate(self, flow: Flow[Any]) -> AsyncIteration[Any]:
        """What a flow emits."""
        return AsyncIteration(self, flow)


class AsyncIteration(AsyncClosing, Generic[T]):
    """What arrives, as it arrives. Closed at its end, by `close`, or as a context manager.

    A wait for the next may be interrupted at any moment, and repeated.
    """

    def __init__(self, driver: AsyncDriver, flow: Flow[Any]) -> None:
        self._flow = flow
        self._exchange = _Exchange(driver)
        self._loop: Loop | None = None
        self._closed = False
        self._waiting: anyio.CancelScope | None = None
        # The step that is to be carried out, until its outcome is known; and who does it.
        self._step: Step | None = None
        self._work: Background[Any] | None = None
        self._pause_until: float | None = None
        self._result: Any = None
        self._failure: Lost | None = None

    def __aiter__(self) -> AsyncIteration[T]:
        return self

    async def __anext__(self) -> T:
        step = await self.advance()
        if isinstance(step, Done):
            raise StopAsyncIteration
        if isinstance(step, Raise):
            raise step.error
        value: T = step.value
        return value

    def __del__(self) -> None:
        # Cancelled, and forgotten without `close`: the connection would stay with the client.
        exchange, work = self._exchange, self._work
        if self._loop is not None and (work is not None or exchange.is_open):
            self._loop.begin(lambda: _abandon(exchange, work))

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
        work, self._work = self._work, None
        await _abandon(self._exchange, work)

    async def advance(self) -> Emit | Raise | Done:
        """Carry out steps until the flow has something for the caller, or ends."""
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

    async def _advance(self) -> Emit | Raise | Done:
        while True:
            if self._step is None:
                step = resume(self._flow, self._result, self._failure)
                self._result = self._failure = None
                if isinstance(step, Emit | Raise | Done):
                    return step
                self._step = step
            try:
                self._result = await self._outcome(self._step)
            except Lost as failure:
                self._failure = failure
            self._step = None

    async def _outcome(self, step: Step) -> Any:
        """Wait for what a step comes to. A wait that is repeated goes on with the same step."""
        if isinstance(step, Pause):
            if self._pause_until is None:
                self._pause_until = anyio.current_time() + step.seconds
            await anyio.sleep_until(self._pause_until)
            self._pause_until = None
            return None
        if self._work is None:
            self._loop = self._loop or Loop()
            self._work = Background(partial(self._exchange.carry_out, step))
        work = self._work
        await work.wait()
        self._work = None
        return work.result()


async def _abandon(exchange: _Exchange, work: Background[Any] | None) -> None:
    if work is not None:
        await work.cancel()
    await exchange.discard()


class _Exchange:
    """The request of one flow, and the answer that is being received."""

    def __init__(self, driver: AsyncDriver) -> None:
        self._driver = driver
        self._response: httpx.Response | None = None
        self._pieces = _pieces(b"")

    @property
    def is_open(self) -> bool:
        """Whether there is an answer that has not ended."""
        return self._response is not None

    async def carry_out(self, step: Step) -> Any:
        """The outcome of a step. Raises `Lost`, and what is not worth another try."""
        try:
            if isinstance(step, Send):
                return await self._send(step)
            if isinstance(step, Receive):
                return await self._receive()
            if isinstance(step, Call):
                return await anyio.to_thread.run_sync(step.function)
            if isinstance(step, Pause):
                return await anyio.sleep(step.seconds)
            return await self.discard()
        except BaseException:
            await self.discard()
            raise

    async def _send(self, send: Send) -> Answer:
        await self.discard()
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
            raise lost(failure, answered=self._response is not None) from failure
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
        await self.discard()
        return b"".join(parts)

    async def _receive(self) -> bytes:
        try:
            async for piece in self._pieces:
                if piece:
                    return piece
        except httpx.HTTPError as failure:
            raise lost(failure) from failure
        await self.discard()
        return b""

    async def discard(self) -> None:
        """Receive no more of the answer."""
        response, self._response = self._response, None
        self._pieces = _pieces(b"")
        if response is not None:
            await response.aclose()


async def _given(value: T | Awaitable[T]) -> T:
    """The value of a function, which may be asynchronous."""
    return await value if isinstance(value, Awaitable) else value


async def _pieces(body: Body) -> AsyncIterator[bytes]:
    for piece in pieces(body):
        yield piece
