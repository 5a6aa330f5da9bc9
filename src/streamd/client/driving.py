"""Carries out flows with `httpx.Client`."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from threading import Event, Lock, Thread
from typing import Any, Generic, TypeAlias, TypeVar

import httpx

from streamd.client.closing import Closing
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
from streamd.client.core.operations import authorization
from streamd.client.core.steps import (
    Answer,
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
from streamd.client.limits import time_left_s, too_late

T = TypeVar("T")

Token: TypeAlias = str | Callable[[], str]
Headers: TypeAlias = Mapping[str, str] | Callable[[], Mapping[str, str]]


class Driver:
    """Carries out flows over one pool of connections. Several threads may use it."""

    def __init__(
        self, settings: Mapping[str, Any], headers: Headers | None, token: Token | None
    ) -> None:
        self._settings = settings
        self._client = httpx.Client(**settings)
        self._process = os.getpid()
        self._headers = headers
        self._token = token

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

    def credentials(self) -> dict[str, str]:
        """The caller's headers, and that of the token."""
        headers, token = self._headers, self._token
        found = dict(headers() if callable(headers) else headers or {})
        if token is not None:
            found |= authorization(token() if callable(token) else token)
        return found

    def lock(self) -> Lock:
        """A lock for threads."""
        return Lock()

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


class Iteration(Closing, Generic[T]):
    """What arrives, as it arrives. Closed at its end, by `close`, or as a context manager.

    A wait for the next may be interrupted at any moment, and repeated.
    """

    def __init__(self, driver: Driver, flow: Flow[Any]) -> None:
        self._flow = flow
        self._exchange = _Exchange(driver)
        self._advancing = Lock()
        self._closed = False
        self._pause: Event | None = None
        # The step that is to be carried out, until its outcome is known; and the thread that does
        # it, if its caller may leave.
        self._step: Step | None = None
        self._work: _Work | None = None
        self._pause_until: float | None = None
        self._result: Any = None
        self._failure: Lost | None = None
        self._deciding = False

    def __iter__(self) -> Iteration[T]:
        return self

    def __next__(self) -> T:
        step = self.advance()
        if isinstance(step, Done):
            raise StopIteration
        if isinstance(step, Raise):
            raise step.error
        value: T = step.value
        return value

    def __del__(self) -> None:
        if self._work is not None:
            self._work.abandon()

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
        work, self._work = self._work, None
        if work is None:
            self._exchange.discard()
        else:
            work.abandon()

    def _wake(self) -> None:
        if (pause := self._pause) is not None:
            pause.set()
        self._exchange.shut()

    def advance(self) -> Emit | Raise | Done:
        """Carry out steps until the flow has something for the caller, or ends."""
        with self._advancing:
            return self._advance()

    def _advance(self) -> Emit | Raise | Done:
        while True:
            if self._closed:
                self._end()
                return Done(None)
            if self._step is None:
                step = self._decide()
                if isinstance(step, Emit | Raise | Done):
                    return step
                self._step = step
            try:
                self._result = self._outcome(self._step)
            except Lost as failure:
                self._failure = failure
            except Exception:
                raise
            except BaseException:
                # A signal. The step begins again, but a piece that it had received may be gone.
                if self._work is None and isinstance(self._step, Receive):
                    self._exchange.break_off()
                raise
            self._step = None

    def _decide(self) -> Step | Done:
        """The next step. A signal that comes while the flow decides ends the flow: it must not
        pass for the end of the stream."""
        if self._deciding:
            raise RuntimeError("a signal interrupted this iteration at work: begin another one")
        self._deciding = True
        try:
            step = resume(self._flow, self._result, self._failure)
        except Exception:
            self._deciding = False
            raise
        self._result = self._failure = None
        self._deciding = False
        return step

    def _outcome(self, step: Step) -> Any:
        """Wait for what a step comes to. A wait that is repeated goes on with the same step."""
        left_s = time_left_s()
        if isinstance(step, Pause):
            return self._wait(step.seconds, left_s)
        if self._work is None and left_s is None:
            return self._exchange.carry_out(step)
        if self._work is None or not self._work.is_ours:
            self._work = _Work(self._exchange, step)
        work = self._work
        if not work.over.wait(left_s):
            raise too_late()
        self._work = None
        return work.result()

    def _wait(self, seconds: float, left_s: float | None) -> None:
        if self._pause_until is None:
            self._pause_until = time.monotonic() + seconds
        pause_s = max(self._pause_until - time.monotonic(), 0.0)
        self._pause = Event()
        if not self._closed:
            self._pause.wait(pause_s if left_s is None else min(pause_s, left_s))
        self._pause = None
        if not self._closed:
            time_left_s()
        self._pause_until = None


class _Work:
    """A step that a thread of its own carries out: its caller may leave, and return."""

    def __init__(self, exchange: _Exchange, step: Step) -> None:
        self._exchange = exchange
        self._process = os.getpid()
        self._lock = Lock()
        self._is_abandoned = False
        self._result: Any = None
        self._failure: BaseException | None = None
        self.over = Event()
        Thread(target=self._run, args=(step,), name="streamd-client", daemon=True).start()

    @property
    def is_ours(self) -> bool:
        """Whether its thread is one of this process: a fork has none of its parent's."""
        return self._process == os.getpid()

    def _run(self, step: Step) -> None:
        try:
            self._result = self._exchange.carry_out(step)
        except BaseException as failure:
            self._failure = failure
        with self._lock:
            self.over.set()
            if self._is_abandoned:
                self._exchange.discard()

    def result(self) -> Any:
        """What the step came to, once it is over. Raises `Lost` and others."""
        if self._failure is not None:
            raise self._failure
        return self._result

    def abandon(self) -> None:
        """End the connection, now or when the step ends: nobody needs it."""
        if not self.is_ours:
            return
        with self._lock:
            self._is_abandoned = True
            if self.over.is_set():
                self._exchange.discard()
            else:
                self._exchange.shut()


class _Exchange:
    """The request of one flow, and the answer that is being received."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._client: httpx.Client | None = None
        self._response: httpx.Response | None = None
        self._pieces: Iterator[bytes] = iter(())
        self._interrupted = False

    def carry_out(self, step: Step) -> Any:
        """The outcome of a step. Raises `Lost`, and what is not worth another try."""
        try:
            if isinstance(step, Send):
                return self._send(step)
            if isinstance(step, Receive):
                return self._receive()
            if isinstance(step, Call):
                return step.function()
            return self.discard()
        except BaseException:
            self.discard()
            raise

    def break_off(self) -> None:
        """Lose the answer that was being received: the flow asks for the rest of it."""
        self.discard()
        self._interrupted = True

    def shut(self) -> None:
        """End the connection while another thread receives."""
        if (response := self._response) is not None:
            connection = response.extensions["network_stream"].get_extra_info("socket")
            with suppress(OSError):  # The other thread may have closed it.
                # Not that of TLS, which would change the object while the other thread reads.
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def _send(self, send: Send) -> Answer:
        self.discard()
        self._interrupted = False
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
            raise lost(failure, answered=self._response is not None) from failure
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
        self.discard()
        return b"".join(parts)

    def _receive(self) -> bytes:
        if self._interrupted or self._client is not self._driver.client:
            # The answer is gone, by a signal or because it is the parent's of this process.
            raise Lost("the wait was interrupted", sent=True, by_caller=True)
        try:
            for piece in self._pieces:
                if piece:
                    return piece
        except httpx.HTTPError as failure:
            raise lost(failure) from failure
        self.discard()
        return b""

    def discard(self) -> None:
        """Receive no more of the answer."""
        response, self._response = self._response, None
        self._pieces = iter(())
        # A response from before a fork is the parent's.
        if response is not None and self._client is self._driver.client:
            response.close()
