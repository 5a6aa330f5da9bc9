"""Good histories: a linearizable stream, and clients that use it at the same time."""

from __future__ import annotations

from collections.abc import Callable

from tests.jepsen_like.history import CLOSED, NOT_FOUND, STALE_EPOCH, Kind, Operation, Stamp

STREAM = "bucket/stream"
NODES = ("n1", "n2", "n3")

_KINDS: tuple[Kind, ...] = (
    *("append",) * 5,
    *("read",) * 2,
    "deliver",
    "head",
)


def token(record: int, byte: int) -> str:
    return f"{record:016d}_{byte:016d}"


class SimulatedStream:
    """The server: each operation takes effect at one moment, between its two ends."""

    def __init__(self) -> None:
        self.ends = [0]
        self.pieces: list[str] = []
        self.is_closed = False
        self.is_deleted = False
        self._producers: dict[str, tuple[int, int, str]] = {}

    def token(self, record: int) -> str:
        return token(record, self.ends[record])

    @property
    def tail(self) -> str:
        return self.token(len(self.pieces))

    def content(self) -> str:
        return "".join(self.pieces)

    def take_effect(self, operation: Operation, limit: int) -> None:
        """Carry out an operation and fill in the answer; a range read returns at most `limit`
        records."""
        operation.outcome = "ok"
        if self.is_deleted and operation.kind != "create":
            operation.outcome, operation.refusal = "fail", NOT_FOUND
        elif operation.kind == "append":
            self._append(operation)
        elif operation.kind in ("read", "deliver"):
            first = int(operation.offset[:16])
            until = min(len(self.pieces), first + limit)
            operation.data = "".join(self.pieces[first:until])
            operation.next_offset = self.token(until)
            operation.up_to_date = until == len(self.pieces)
            operation.closed = operation.up_to_date and self.is_closed
        elif operation.kind == "delete":
            self.is_deleted = True
        else:
            self.is_closed |= operation.kind == "close"
            operation.next_offset = self.tail
            operation.closed = self.is_closed

    def _append(self, operation: Operation) -> None:
        stamp = operation.stamp
        if stamp is not None and self._is_settled(stamp, operation):
            return
        if self.is_closed:
            operation.outcome, operation.refusal = "fail", CLOSED
            return
        self.pieces.append(operation.payload)
        self.ends.append(self.ends[-1] + len(operation.payload))
        self.is_closed = operation.closes
        operation.next_offset = self.tail
        if stamp is not None:
            self._producers[stamp.producer] = (stamp.epoch, stamp.seq, self.tail)

    def _is_settled(self, stamp: Stamp, operation: Operation) -> bool:
        epoch, seq, end = self._producers.get(stamp.producer, (-1, -1, ""))
        if stamp.epoch < epoch:
            operation.outcome, operation.refusal = "fail", STALE_EPOCH
        elif stamp.epoch == epoch and stamp.seq <= seq:
            operation.duplicate = True
            operation.next_offset = end if stamp.seq == seq else self.tail
        elif stamp.seq != (seq + 1 if stamp.epoch == epoch else 0):
            operation.outcome, operation.refusal = "fail", "gap"
        else:
            return False
        return True


class _Client:
    def __init__(self, name: str) -> None:
        self.name = name
        self.lives = 0
        self.stamp: Stamp | None = None
        self.position = 0
        self.operation: Operation | None = None
        self.is_done = False
        self.to_retry: Operation | None = None


class Simulation:
    """Clients and one stream; `choose(n)` decides the next step by a number below n."""

    def __init__(self, choose: Callable[[int], int], clients: int = 4) -> None:
        self.choose = choose
        self.stream = SimulatedStream()
        self.history: list[Operation] = []
        self.now_ns = 0
        self._clients = [_Client(f"c{number}") for number in range(clients)]
        self._abandoned: list[Operation] = []
        self._payloads = 0
        self._epochs = 0
        self.do("creator", "create")

    def do(self, client: str, kind: Kind, **fields: object) -> Operation:
        """Carry out one operation with no other at the same time."""
        operation = self.begin(client, kind, **fields)
        self.stream.take_effect(operation, 1 << 30)
        return self.end(operation)

    def pause(self) -> int:
        """Let time pass without operations. Returns a time in it at which something may be put."""
        self.now_ns += 100
        return self.now_ns - 90

    def begin(self, client: str, kind: Kind, **fields: object) -> Operation:
        self.now_ns += 1
        operation = Operation(client, kind, self.now_ns, 0, "unknown", STREAM)
        for name, value in fields.items():
            setattr(operation, name, value)
        return operation

    def end(self, operation: Operation) -> Operation:
        self.now_ns += 1
        operation.returned_ns = self.now_ns
        self.history.append(operation)
        return operation

    def payload(self) -> str:
        self._payloads += 1
        return f"<{self._payloads}>"

    def step(self, may_close: bool = True) -> None:
        """One client takes a step: it begins, takes effect, is answered or times out."""
        client = self._clients[self.choose(len(self._clients))]
        operation = client.operation
        if operation is None:
            self._begin(client, may_close)
        elif client.is_done:
            self._answer(client, operation)
        elif self.choose(10) == 9:
            self._abandoned.append(self._abandon(client, operation))
        else:
            self._take_effect(client, operation)
        if self._abandoned and self.choose(8) == 7:
            late = self._abandoned.pop()
            self.stream.take_effect(late, 1)

    def finish(self) -> list[Operation]:
        """Answer the operations under way, and read the log from every node."""
        for client in self._clients:
            if client.operation is not None and client.is_done:
                self._answer(client, client.operation)
            elif client.operation is not None:
                self._abandon(client, client.operation)
        stream = self.stream
        for node in () if stream.is_deleted else NODES:
            final = self.begin(f"final-{node}", "final_read", node=node, up_to_date=True)
            final.outcome, final.data, final.closed = "ok", stream.content(), stream.is_closed
            final.next_offset = stream.tail
            self.end(final)
        return self.history

    def _begin(self, client: _Client, may_close: bool) -> None:
        name = f"{client.name}.{client.lives}"
        if client.to_retry is not None:
            before, client.to_retry = client.to_retry, None
            fields = {"payload": before.payload, "stamp": before.stamp, "closes": before.closes}
            client.operation = self.begin(name, "append", **fields)
            return
        kind = _KINDS[self.choose(len(_KINDS))]
        if may_close and self.choose(40) == 39:
            kind = "delete" if self.choose(4) == 3 else "close"
        client.operation = self.begin(name, kind)
        if kind == "append":
            client.operation.payload = self.payload()
            client.operation.closes = may_close and self.choose(60) == 59
            client.operation.stamp = self._next_stamp(client)
        elif kind in ("read", "deliver"):
            record = client.position if kind == "deliver" else self.choose(client.position + 1)
            client.operation.offset = self.stream.token(record)

    def _next_stamp(self, client: _Client) -> Stamp | None:
        """Every other client is a producer; it may take another's name, in a later epoch."""
        if int(client.name[1:]) % 2:
            return None
        if client.stamp is None or self.choose(12) == 11:
            self._epochs += 1
            client.stamp = Stamp("p", self._epochs, 0)
        else:
            stamp = client.stamp
            client.stamp = Stamp(stamp.producer, stamp.epoch, stamp.seq + 1)
        return client.stamp

    def _take_effect(self, client: _Client, operation: Operation) -> None:
        self.stream.take_effect(operation, 1 + self.choose(4))
        client.is_done = True
        if operation.kind in ("read", "deliver") and operation.outcome == "ok":
            client.position = int(operation.next_offset[:16])

    def _answer(self, client: _Client, operation: Operation) -> None:
        client.operation, client.is_done = None, False
        if self.choose(12) == 11:
            self._abandon(client, operation)
            return
        self.end(operation)
        if operation.outcome == "fail" and operation.stamp is not None:
            client.stamp = None

    def _abandon(self, client: _Client, operation: Operation) -> Operation:
        """The client times out; its request may still be on its way, and is returned."""
        client.operation, client.is_done = None, False
        client.lives += 1
        told = self.begin(operation.client, operation.kind)
        told.invoked_ns = operation.invoked_ns
        for name in ("payload", "stamp", "closes", "offset"):
            setattr(told, name, getattr(operation, name))
        self.end(told)
        if operation.stamp is not None:
            client.to_retry = operation
        return operation
