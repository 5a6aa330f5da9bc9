"""A client's connection, as a handler sees it: the way back, the body that comes, the accounts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from streamd.auth.certificates import Certificate
from streamd.auth.rates import Account

Buffer = bytes | memoryview


class Channel(Protocol):
    """The way back to one client, for a response that stays open.

    By `try_send` the hub serves a thousand readers without waking a task for each; a reader's own
    task takes over when its socket would block.
    """

    def try_send(self, data: bytes) -> bool:
        """Write as much of `data` as the socket takes now, without waiting.

        Returns whether all of it was written. If not, the channel holds the rest (one piece at
        most), and the reader's own task must `flush` before anything more is sent. A broken
        connection also gives False, and `flush` then raises.
        """
        ...

    def piece(self, data: bytes) -> tuple[int, bytes] | None:
        """A socket, and what to write to it for `data`: the caller does that now, together with
        those of others, and lets the channel `keep` what the socket does not take.

        None if only `try_send` can.
        """
        ...

    def keep(self, rest: bytes) -> None:
        """Keep the rest of a `piece`, as `try_send` does."""
        ...

    async def flush(self) -> None:
        """Write what `try_send` left over. Raises `ClientGone`."""
        ...

    async def send(self, data: Buffer) -> None:
        """Write all of `data`, after anything left over.

        Raises `ClientGone` on a broken connection, or one that took nothing for
        `write_timeout_ms`.
        """
        ...

    async def wait_disconnected(self) -> None:
        """Return once the client has disconnected. May be cancelled and called again."""
        ...


class IncomingBody(Protocol):
    """A request's body that the handler receives piece by piece.

    `length` is its size in bytes by Content-Length, or None.
    """

    @property
    def length(self) -> int | None: ...

    async def receive(self) -> bytes:
        """The next piece, of about 64 KiB at most; empty at the end and from then on.

        Raises `ClientGone`, and `ProblemError` for a body that is malformed or arrives too slowly:
        after that nothing more can be received.
        """
        ...


class ClientGone(Exception):
    """The client closed its connection, or was too slow."""


class ConnectionCount:
    """A connection, as connections are counted: for the accounts of its last request.

    `certificate` is what its client proved by TLS, if anything; no header can say so. `on_behalf`
    says of what the accounts depend; `on_close`, if it is set, is called when the connection ends,
    and `begun` when its first request has come, if that is not seen otherwise (HTTP/2).
    """

    __slots__ = ("_is_closed", "accounts", "begun", "certificate", "on_behalf", "on_close")

    def __init__(self, certificate: Certificate | None = None) -> None:
        self.certificate = certificate
        self.accounts: Sequence[Account] = ()
        self.on_behalf: tuple[object, ...] | None = None
        self.on_close: Callable[[ConnectionCount], None] | None = None
        self.begun: Callable[[], object] | None = None
        self._is_closed = False

    def count_for(self, accounts: Sequence[Account]) -> None:
        """Count the connection for these accounts only; for none if it has ended."""
        self.on_behalf = None
        if not self._is_closed:
            for account in self.accounts:
                account.connections -= 1
            for account in accounts:
                account.connections += 1
        self.accounts = accounts

    def close(self) -> None:
        """The connection ends. A request of a worker's client may be handled after that."""
        self.count_for(())
        self._is_closed = True
        self.begun = None  # It holds the connection, which holds this.
        if self.on_close is not None:
            self.on_close(self)
