"""What is left to do for a connection, once it must wait: each is carried out by its task."""

from __future__ import annotations

from msgspec import Struct

from streamd.http.protocol.heads import Head
from streamd.http.protocol.messages import LiveResponse, Parked, Request, Response


class Refuse(Struct):
    """Send the refusal, and end the connection."""

    refusal: Response


class SpeakHttp2(Struct):
    """Serve HTTP/2 to the end; `ahead` has been read from the connection already."""

    ahead: bytes = b""


class ServeAll(Struct):
    """Serve all requests in the task, to the end."""


class FinishRequest(Struct):
    """Receive the rest of a request whose head was taken, and serve it."""

    head: Head


class Serve(Struct):
    """Serve a request that has come whole."""

    head: Head
    request: Request


class Resume(Struct):
    """Go on with the request that was parked."""

    parked: Parked


class Respond(Struct):
    """Send a response."""

    head: Head
    response: Response | LiveResponse


class SendRemainder(Struct):
    """Send what the socket did not take of an answer."""

    data: bytes
    keep_alive: bool


Continuation = (
    Refuse | SpeakHttp2 | ServeAll | FinishRequest | Serve | Resume | Respond | SendRemainder
)
