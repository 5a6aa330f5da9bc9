"""Carries out flows with `httpx.Client`."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from threading import Event, Lock
from types import TracebackType
from typing import Any, Generic, TypeVar

import httpx

from streamd.client.connecting import (
    MAX_ANSWER_BYTES,
    check_encoding,
    lost,
    misdirected,
    parsed,
    pieces,
    request_headers,
    timeout,
    too_large,
)
from streamd.client.core.steps import (
    Answer,
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

Credentials = Callable[[], Mapping[str, str]]


class Driver:
    """Carries out flows over one pool of connections. Several threads may use it."""

    def __init__(self, settings: Mapping[str, Any], credentials: Credentials) -> None:
        self._settings = settings
        self._client = httpx.Client(**settings)
        self._process = os.getpid()
        self.credentials = credentials

    @property
    def client(self) -> httpx.Client:
        """The connections of this process.

        A process that was forked gets its own: over a shared one, each receives the other's
        answers. It leaves the parent's pool alone, whose locks may be held for ever.
        """
        if self._process != os.getpid():
            self._client = httpx.Client(**self._settings)
            self._process = os.getpid()
        return self._client

    def run(self, flow: Flow[T]) -> T:
        """The result of a flow that emits nothing."""
        with Iteration[Any](self, flow) as iteration:
            end = iteration.advance()
        assert isinstance(end, Done), "it emits nothing"
        result: T = end.value
        return result

    def iterate(self, flow: Flow[Any]) -> Iteration[Any]:
        """What a flow emits."""
        return Iteration(self, flow)


class Iteration(Generic[T]):
    """What arrives, as it arrives. Closed at its end, by `close`, or as a context manager."""

    def __init__(self, driver: Driver, flow: Flow[Any]) -> None:
        self._driver = driver
        self._flow = flow
        self._advancing = Lock()
        self._closed = False
        self._pause: Event | None = None
        self._client: httpx.Client | None = None
        self._result: Any = None
        self._failure: Lost | None = None
        self._interrupted: Step | None = None
        self._response: httpx.Response | None = None
        self._pieces: Iterator[bytes] = iter(())

    def __iter__(self) -> Iteration[T]:
        return self

    def __next__(self) -> T:
        step = self.advance()
        if isinstance(step, Done):
            raise StopIteration
        value: T = step.value
        return value

    def __enter__(self) -> Iteration[T]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Receive no more, and end the connection.

        A wait in another thread or task ends then: a blocking long-poll with its answer, and all
        else at once.
        """
        self._closed = True
        if not self._advancing.acquire(blocking=False):
            self._wake()
            return
        try:
            self._end()
        finally:
            self._advancing.release()

    def _end(self) -> None:
        self._flow.close()
        self._discard()

    def _wake(self) -> None:
        pause, response = self._pause, self._response
        if pause is not None:
            pause.set()
        if response is not None:
            connection = response.extensions["network_stream"].get_extra_info("socket")
            with suppress(OSError):  # The other thread may have closed it.
                # Not that of TLS, which would change the object while the other thread reads.
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def advance(self) -> Emit | Done:
        """Carry out steps until the flow emits something or ends."""
        with self._advancing:
            return self._advance()

    def _advance(self) -> Emit | Done:
        while True:
            if self._closed:
                self._end()
                return Done(None)
            step = self._interrupted or resume(self._flow, self._result, self._failure)
            self._interrupted = self._result = self._failure = None
            if isinstance(step, Emit | Done):
                return step
            try:
                self._result = self._carry_out(step)
            except Lost as failure:
                self._failure = failure
            except BaseException:
                # An interrupted wait may be repeated. The step then begins again, except that an
                # answer that was being received is gone: the flow asks for the rest of it.
                if isinstance(step, Receive):
                    self._failure = Lost("the wait was interrupted", sent=True)
                else:
                    self._interrupted = step
                self._discard()
                raise

    def _carry_out(self, step: Step) -> Any:
        if isinstance(step, Send):
            return self._send(step)
        if isinstance(step, Receive):
            return self._receive()
        if isinstance(step, Call):
            return step.function()
        if isinstance(step, Pause):
            return self._wait(step.seconds)
        return self._discard()

    def _wait(self, seconds: float) -> None:
        self._pause = Event()
        if not self._closed:
            self._pause.wait(seconds)
        self._pause = None

    def _send(self, send: Send) -> Answer:
        self._discard()
        self._client = client = self._driver.client
        method, _, _, _, body = send.request
        headers = request_headers(send, self._driver.credentials())
        request = client.build_request(
            method,
            parsed(send.url),
            headers=headers,
            content=pieces(body),
            timeout=timeout(client.timeout, send),
        )
        try:
            self._response = response = client.send(request, stream=True)
            check_encoding(response)
            self._pieces = response.iter_bytes()
            whole = b"" if send.in_pieces and response.is_success else self._whole(response)
        except httpx.HTTPError as failure:
            answered = self._response is not None
            self._discard()
            raise lost(failure, answered=answered) from failure
        except UnicodeError as error:
            raise misdirected(error) from error
        return Answer(response.status_code, response.headers, whole)

    def _whole(self, response: httpx.Response) -> bytes:
        parts: list[bytes] = []
        size = 0
        for part in self._pieces:
            parts.append(part)
            size += len(part)
            if size > MAX_ANSWER_BYTES:
                raise too_large(response.status_code)
        self._discard()
        return b"".join(parts)

    def _receive(self) -> bytes:
        if self._client is not self._driver.client:
            self._discard()
            raise Lost("the process was forked", sent=True)
        try:
            for piece in self._pieces:
                if piece:
                    return piece
        except httpx.HTTPError as failure:
            self._discard()
            raise lost(failure) from failure
        self._discard()
        return b""

    def _discard(self) -> None:
        response, self._response = self._response, None
        self._pieces = iter(())
        # A response from before a fork is the parent's.
        if response is not None and self._client is self._driver.client:
            response.close()
