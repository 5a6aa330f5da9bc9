"""What a worker and the process that has the group say to each other.

Each message travels in a frame: its length in four bytes, then MessagePack. Both ends run the same
code, because one starts the other: these formats are no promise.

`number` is one that the worker gave: to a command, or to a request that it forwards. A command's
group is named, so that the groups may come to live in several processes.
"""

from __future__ import annotations

from msgspec import Struct, msgpack

from streamd.auth.certificates import Certificate
from streamd.config.settings import Config
from streamd.http.protocol.messages import Audience
from streamd.streams.commands import Command, Outcome
from streamd.workers.versions import Stamp

# -- to a worker ----------------------------------------------------------------------------------


class Start(Struct, array_like=True, tag=1, gc=False):
    """The first message: the worker's number from 1 on, its configuration, the group of its
    commands, and the descriptors that it inherits: listeners, and the page of versions."""

    worker: int
    config: Config
    group_id: int
    listeners: list[int]
    versions: int


class Drain(Struct, array_like=True, tag=2):
    """End as on SIGTERM; the group's process ends the live responses."""


class ReloadTls(Struct, array_like=True, tag=11):
    """Load the TLS files again."""


class Outcomes(Struct, array_like=True, tag=3, gc=False):
    """Outcomes of commands, by their numbers."""

    outcomes: list[tuple[int, Outcome]]


class Failures(Struct, array_like=True, tag=4, gc=False):
    """Commands without an outcome: number, why, and whether they may have taken effect."""

    failures: list[tuple[int, str, bool]]


class Answer(Struct, array_like=True, tag=5, gc=False):
    """A whole `Response`. With a `stamp` it stays the answer for as long as that holds."""

    number: int
    status: int
    head: bytes
    body: bytes
    close: bool = False
    audience: Audience = Audience.ANYONE
    stamp: Stamp | None = None


class Began(Struct, array_like=True, tag=6, gc=False):
    """A response whose body follows in pieces: a live one, or one of `length` bytes."""

    number: int
    status: int
    head: bytes
    length: int | None


class Piece(Struct, array_like=True, tag=7, gc=False):
    """The next bytes of each of these responses' bodies: one event goes to all its readers."""

    numbers: list[int]
    data: bytes


class Ended(Struct, array_like=True, tag=8, gc=False):
    """The end of a response; not `whole` if it breaks off."""

    number: int
    whole: bool


class MoreBody(Struct, array_like=True, tag=10, gc=False):
    """The handler waits for the next piece of a request's body."""

    number: int


# -- from a worker --------------------------------------------------------------------------------


class Ready(Struct, array_like=True, tag=32):
    """The worker listens."""


class Commands(Struct, array_like=True, tag=33, gc=False):
    """Commands for a group, with the sizes of their payloads, numbered from `first` on."""

    group_id: int
    first: int
    commands: list[tuple[Command, int]]


class Forward(Struct, array_like=True, tag=34, gc=False):
    """A request that the worker cannot answer. With `pieces` its body follows; `length` is then
    its size in bytes if that is known. `connection` is the worker's number of its connection, and
    `certificate` what that connection's client proved by TLS."""

    number: int
    method: str
    path: bytes
    query: bytes
    headers: dict[bytes, bytes]
    body: bytes
    scheme: bytes
    client: str
    pieces: bool = False
    length: int | None = None
    connection: int = 0
    certificate: Certificate | None = None


class Closed(Struct, array_like=True, tag=41, gc=False):
    """The connection of forwarded requests has ended."""

    connection: int


class BodyPiece(Struct, array_like=True, tag=35, gc=False):
    """The next piece of a request's body; the last is empty."""

    number: int
    data: bytes


class Sent(Struct, array_like=True, tag=36, gc=False):
    """The client has taken so many bytes more of a response's body."""

    number: int
    size: int


class Gone(Struct, array_like=True, tag=37, gc=False):
    """Nobody waits for the answer to a request any longer."""

    number: int


class AnswerNow(Struct, array_like=True, tag=39, gc=False):
    """Answer a request now that waits for a stream to change: the worker ends."""

    number: int


class Counted(Struct, array_like=True, tag=38, gc=False):
    """What the worker counted since its last report, as in `Metrics`, and its connections now.
    It also shows that the worker lives."""

    requests: list[tuple[str, str, int, int]]
    append_latency: tuple[list[int], float]
    bytes_in: int
    bytes_out: int
    outcomes_unknown: int
    connections: int


class TlsLoaded(Struct, array_like=True, tag=40):
    """The worker has loaded its TLS files again, or an error prevented it."""

    files: list[str]
    error: str | None


ToWorker = (
    Start | Drain | ReloadTls | Outcomes | Failures | Answer | Began | Piece | Ended | MoreBody
)
FromWorker = (
    Ready | Commands | Forward | Closed | BodyPiece | Sent | Gone | AnswerNow | Counted | TlsLoaded
)
Message = ToWorker | FromWorker

_ENCODER = msgpack.Encoder()
encode = _ENCODER.encode
decode_to_worker = msgpack.Decoder(ToWorker).decode
decode_from_worker = msgpack.Decoder(FromWorker).decode
