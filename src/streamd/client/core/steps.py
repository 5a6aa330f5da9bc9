"""What a flow asks its driver to do."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias, TypeVar

import msgspec

from streamd.client.errors import NOT_OURS, refusal
from streamd.streams.content import UNDECODABLE

T = TypeVar("T")

# Bytes, or what makes the pieces of a body again for each try.
Body: TypeAlias = bytes | Callable[[], Iterator[bytes]]


class Request(NamedTuple):
    """A request, which may be sent several times and to several nodes."""

    method: str
    path: str
    params: Mapping[str, str] | None = None
    headers: Mapping[str, str] | None = None
    body: Body = b""


class Answer(NamedTuple):
    """An answer; `body` is empty while it is received in pieces."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_success(self) -> bool:
        """Whether its status is 2xx."""
        return 200 <= self.status < 300

    def json(self) -> dict[str, Any]:
        """The JSON object in the body. Raises `StreamdError` if it is anything else."""
        return self.decoded(dict[str, Any])

    def decoded(self, kind: type[T]) -> T:
        """The JSON in the body as a type of msgspec. Raises `StreamdError` if it is another."""
        try:
            return msgspec.json.decode(self.body, type=kind)
        except UNDECODABLE as error:
            raise refusal(self.status, "UNEXPECTED", f"{NOT_OURS}: {error}", {}) from None


class Send(NamedTuple):
    """Send a request to `url`, which has its path. The result is an `Answer`.

    The answer's body comes with it, unless `in_pieces` and the answer is a success: then each
    `Receive` returns a piece. `trusted` is whether credentials may be sent. The server may be
    silent for `timeout_s` at most, if that is less than what all requests have.
    """

    url: str
    request: Request
    trusted: bool = True
    in_pieces: bool = False
    timeout_s: float | None = None


class Receive(NamedTuple):
    """The next piece of the answer; empty at its end."""


class Discard(NamedTuple):
    """Receive no more of the answer."""


class Pause(NamedTuple):
    """Wait so many seconds."""

    seconds: float


class Call(NamedTuple):
    """Call a function that may block for a moment, such as a write to a file."""

    function: Callable[[], Any]


class Emit(NamedTuple):
    """A value for the caller's iteration."""

    value: Any


class Raise(NamedTuple):
    """An error for the caller's iteration, which goes on with what comes after it."""

    error: Exception


class Lost(Exception):
    """The connection failed. If not `sent`, the server cannot have seen the request; if `answered`,
    its answer had begun. If `by_caller`, the server did not fail: the caller left."""

    def __init__(
        self, message: str, *, sent: bool, answered: bool = False, by_caller: bool = False
    ) -> None:
        super().__init__(message)
        self.sent = sent
        self.answered = answered
        self.by_caller = by_caller


Step: TypeAlias = Send | Receive | Discard | Pause | Call | Emit | Raise
Flow: TypeAlias = Generator[Step, Any, T]

RECEIVE = Receive()
DISCARD = Discard()


class Done(NamedTuple):
    """A flow has ended, with this result."""

    value: Any


def resume(flow: Flow[Any], result: Any, failure: Lost | None) -> Step | Done:
    """Give a flow the outcome of its last step; its next step, or its end."""
    try:
        return flow.send(result) if failure is None else flow.throw(failure)
    except StopIteration as end:
        return Done(end.value)
