"""What a connection does in a task of its own: everything that waits for its client, a disk or
other nodes.

A body that comes in pieces, a handler that waits, a full socket. The task goes on with the next
requests while these need one too, since a task costs more than most requests. Over TLS it stays to
the end.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence

import trio

from streamd.http.door.connection import Connection
from streamd.http.door.continuations import (
    Continuation,
    FinishRequest,
    Refuse,
    Respond,
    Resume,
    SendRemainder,
    Serve,
    ServeAll,
    SpeakHttp2,
)
from streamd.http.door.parking import wait
from streamd.http.door.states import State, WrongTransition
from streamd.http.protocol.connections import Buffer, ClientGone
from streamd.http.protocol.heads import Head
from streamd.http.protocol.messages import LiveResponse, Parked, Request, Response
from streamd.http.protocol.refusals import answer_to
from streamd.http.protocol.wire import CONTINUE, live_head
from streamd.http.sockets.incoming import Pace, WholeBody, WireBody, check_head
from streamd.http.sockets.outgoing import FULL, UNCOUNTED_BYTES, OutgoingFull
from streamd.http.sockets.transports import SocketTransport
from streamd.protocol.problems import ProblemError


class ConnectionTask:
    """Carries out a continuation for a connection, and those that follow it."""

    def __init__(self, connection: Connection, continuation: Continuation) -> None:
        self.connection = connection
        self._shared = connection.shared
        self._transport = connection.transport
        self._continuation: Continuation | None = continuation
        self._refusal: Response | None = None
        self._ends = False
        self._scope = trio.CancelScope()

    @property
    def buffer(self) -> bytearray:
        """What was received but not yet consumed."""
        return self.connection.buffer

    def go_on(self, continuation: Continuation) -> None:
        """Carry this out next."""
        self._continuation = continuation

    def give_back(self) -> None:
        """Let the reactor wait for the next request, for which this task waits; not over TLS."""
        if isinstance(self._transport, SocketTransport):
            self._scope.cancel()

    def end(self, refusal: Response | None = None) -> None:
        """End the connection, which waits for its client, with an answer if there is a refusal."""
        self._refusal = refusal
        self._ends = True
        self._scope.cancel()

    async def run(self) -> None:
        """Finish a request, and those after it while they need a task. Then the reactor goes on
        with the connection, or it ends."""
        connection, follows, goes_on = self.connection, False, False
        try:
            try:
                with self._scope:
                    while self._continuation is not None and (follows := await self._carry_out()):
                        if connection.state is State.PARKED:
                            break
                        await self._next()
            except ProblemError as error:
                self._refusal = answer_to(error)
            if self._refusal is not None:
                await self._refuse(self._refusal)
            elif follows and not self._ends:
                if connection.state is State.TASK_IDLE:
                    connection.take_back()
                goes_on = True
        except ClientGone:
            pass
        except WrongTransition as wrong:
            wrong.report()
        finally:
            connection.task = None
            if not goes_on:
                connection.host.forget(connection)
                with trio.CancelScope(shield=True):
                    await self._transport.close()
        if goes_on:
            connection.host.take_back(connection)

    async def _carry_out(self) -> bool:
        """Returns whether another request may follow. Raises `ProblemError`."""
        # In no frame that lives on: an idle connection must not hold its last request.
        continuation, self._continuation = self._continuation, None
        match continuation:
            case Serve():
                return await self._respond(
                    continuation.head, await self._handling(continuation.request)
                )
            case FinishRequest():
                return await self._finish_request(continuation.head)
            case Resume():
                return await self._resume(continuation.parked)
            case Respond():
                return await self._respond(continuation.head, continuation.response)
            case SendRemainder():
                await self._transport.send((continuation.data,))
                return self.connection.answered(continuation.keep_alive)
            case Refuse():
                return await self._refuse(continuation.refusal)
            case SpeakHttp2():
                return await self._speak_http2(continuation.ahead)
            case ServeAll():
                return await self._serve_all()
            case None:
                raise AssertionError("nothing is left to do")

    async def _next(self) -> None:
        """Wait for the next request. There is no continuation then if the reactor can go on."""
        transport = self._transport
        assert isinstance(transport, SocketTransport)
        if self.connection.buffer or self.connection.has_more:
            await trio.lowlevel.checkpoint()
        else:
            await transport.wait_readable()
        if self._scope.cancel_called:
            return  # A request taken now would be cancelled and lost.
        self.connection.take_back()
        self.connection.serve_alone()

    async def _serve_all(self) -> bool:
        """Answer requests, in order, until either side ends the connection."""
        while await self._serve_one():
            if self.connection.buffer:
                # A client that pipelines requests must not starve the others.
                await trio.lowlevel.checkpoint()
        return False

    async def _speak_http2(self, ahead: bytes) -> bool:
        assert self._shared.http2 is not None
        self.connection.enter(State.TASK_BUSY)
        stream = self._transport.stream(ahead + self.connection.buffer)
        await self._shared.http2.serve(stream, self.connection.count)
        return False

    async def _serve_one(self) -> bool:
        """Serve one request. Returns whether another may follow. Raises `ProblemError`."""
        while (raw := self.connection.take_head()) is None:
            if not await self._receive():
                return False
        if self.connection.is_http2(raw):
            return await self._speak_http2(raw)
        self.connection.enter(State.TASK_BUSY)
        return await self._finish_request(self._shared.heads.parse(raw))

    async def _finish_request(self, head: Head) -> bool:
        """Receive the rest of a request whose head was taken, and serve it. As `_serve_one`."""
        connection = self.connection
        if (body := connection.whole_body(head)) is not None:
            return await self._respond(head, await self._handling(connection.request(head, body)))
        request = connection.request(head, b"")
        if refused := await check_head(self._shared.application, request):
            return await self._refuse(refused)
        if connection.comes_in_pieces(head):
            return await self._serve_pieces(head, request)
        request.body = await self._receive_body(head, request)
        return await self._respond(head, await self._handling(request))

    async def _receive_body(self, head: Head, request: Request) -> bytes:
        connection = self.connection
        connection.body = WholeBody(
            self, head.fields, self._shared.config, connection.held, request.charge_body
        )
        connection.enter(State.TASK_BODY)
        connection.since = trio.current_time()
        try:
            return await connection.body.receive()
        except BaseException:
            if head.fields.content_length is not None:
                request.uncharge_body(len(connection.buffer))
            raise
        finally:
            connection.enter(State.TASK_BUSY)

    async def _resume(self, parked: Parked) -> bool:
        """Go on with a request that was parked. As `_serve_one`."""
        head = self.connection.head
        assert head is not None
        found = await self._shared.guard.wait(head.method, self._shared.application.go_on(parked))
        return await self._respond(head, found)

    async def _serve_pieces(self, head: Head, request: Request) -> bool:
        """Serve a request whose body the handler receives in pieces. As `_serve_one`."""
        body = request.incoming = WireBody(self, head.fields, Pace(self._shared.config))
        keep_alive = await self._respond(head, await self._handling(request), body)
        if not body.ended:
            self.connection.host.may_give_way(self.connection)
            await self._transport.linger()
        return keep_alive and body.ended

    async def _respond(
        self,
        head: Head,
        response: Response | LiveResponse | Parked | None,
        body: WireBody | None = None,
    ) -> bool:
        """Send a response, or what is left of one; None ends a live body. Returns whether another
        request may follow: none does a `body` of which the handler has left some."""
        has_ended = body is None or body.ended
        while response is not None and not isinstance(response, Response):
            if isinstance(response, LiveResponse):
                response = await self._shared.guard.wait(
                    head.method, self._begin_live(head, response)
                )
            elif has_ended and isinstance(self._transport, SocketTransport):
                self.connection.head = head
                self.connection.enter(State.PARKED)
                self.connection.host.parked.keep(self.connection, response)
                return True
            else:
                waiting = wait(self._shared.application, response, self.connection.channel)
                response = await self._shared.guard.wait(head.method, waiting)
        if response is None:
            await self.connection.channel.end()
            return self.connection.answered(head.fields.version == "1.1" and head.fields.keep_alive)
        if self.connection.channel.is_open:
            raise ClientGone  # As in `Connection._answer`.
        keep_alive = has_ended and self.connection.keeps_alive(head, response)
        try:
            await self._send(*self.connection.parts(response, head, keep_alive=keep_alive))
        except OutgoingFull:
            await self._send(*self.connection.parts(FULL, head, keep_alive=keep_alive))
        return self.connection.answered(keep_alive)

    def _handling(self, request: Request) -> Awaitable[Response | LiveResponse | Parked]:
        """What the application makes of a request, to be waited for."""
        handling = self._shared.application.handle(request)
        return self._shared.guard.wait(request.method, handling)

    async def _receive(self) -> bool:
        data = await self._transport.receive()
        self.connection.take_in(data)
        return bool(data)

    async def receive_more(self) -> bytes:
        """The next bytes of a body. Raises `ClientGone` at the end."""
        data = await self._transport.receive()
        if not data:
            raise ClientGone
        self.connection.take_in(data)
        return data

    async def send_continue(self) -> None:
        await self._transport.send((CONTINUE,))

    async def _refuse(self, refusal: Response) -> bool:
        """Send the error, then close so that the client can still read it."""
        self.connection.enter(State.TASK_BUSY)
        self.connection.held.release()
        self.connection.buffer.clear()
        await self._send(*self.connection.parts(refusal, None, keep_alive=False))
        self.connection.host.may_give_way(self.connection)
        await self._transport.linger()
        return False

    async def _send(self, parts: Sequence[Buffer], size: int) -> None:
        """Send a response whose body has that size in bytes. Raises `OutgoingFull`."""
        self._shared.metrics.bytes_out += len(parts[0]) + size
        if size <= UNCOUNTED_BYTES:
            await self._transport.send(parts)
            return
        with self._shared.outgoing.holding(parts[1:], size, self.connection.client):
            await self._transport.send(parts)

    async def _begin_live(self, head: Head, response: LiveResponse) -> Parked | None:
        """Begin a live response. Returns as `LiveResponse.run`."""
        is_1_1 = head.fields.version == "1.1"
        keep_alive = is_1_1 and head.fields.keep_alive and not self._shared.draining
        chunked = is_1_1 and response.length is None
        wire = live_head(
            response, self._shared.clock.tail_head, chunked=chunked, keep_alive=keep_alive
        )
        self.connection.channel.begin(wire, chunked=chunked)
        return await response.run(self.connection.channel)
