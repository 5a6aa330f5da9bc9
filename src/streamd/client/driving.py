"""Carries out flows with `httpx.Client`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, Generic, TypeVar

import httpx

from streamd.client.connecting import (
    MAX_ANSWER_BYTES,
    lost,
    parsed,
    pieces,
    request_headers,
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
        self.client = httpx.Client(**settings)
        self.credentials = credentials

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
        """Receive no more, and end the connection."""
        self._flow.close()
        self._discard()

    def advance(self) -> Emit | Done:
        """Carry out steps until the flow emits something or ends."""
        while True:
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
            return time.sleep(step.seconds)
        return self._discard()

    def _send(self, send: Send) -> Answer:
        self._discard()
        client, (method, _, _, _, body) = self._driver.client, send.request
        headers = request_headers(send, self._driver.credentials())
        request = client.build_request(
            method, parsed(send.url), headers=headers, content=pieces(body)
        )
        try:
            self._response = response = client.send(request, stream=True)
            self._pieces = response.iter_bytes()
            whole = b"" if send.in_pieces and response.is_success else self._whole(response)
        except httpx.HTTPError as failure:
            self._discard()
            raise lost(failure) from failure
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
        if response is not None:
            response.close()
