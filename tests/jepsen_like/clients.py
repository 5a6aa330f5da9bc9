"""Clients of a cluster under test: they write, read and follow, and record the answers.

Each client is a thread. A *pinned* client stays with its node whatever happens to it; a *roaming*
one goes to the next node after a failure.
"""

from __future__ import annotations

import http.client
import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from tests.jepsen_like import history
from tests.jepsen_like.history import Pending, Recorder, Stamp

TEXT = {"Content-Type": "text/plain"}
# Shorter than a node waits for a leader: clients time out, and their writes continue without them.
PATIENCE_S = 3.0
# Short enough that a paused node finds reads that were sent meanwhile.
_READ_PATIENCE_S = 1.0
_SSE_PATIENCE_S = 1.5
_PAUSE_S = 0.05
_EPOCH_APPENDS = 40


class NotSent(Exception):
    """No connection: the request reached no node."""


class NoAnswer(Exception):
    """The connection broke or timed out: the outcome is unknown."""


class Reply(NamedTuple):
    """A whole answer."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def code(self) -> str:
        """The stable code of an error; empty for anything else."""
        return self.error("code")

    def error(self, field: str) -> str:
        try:
            return str(json.loads(self.body)["error"][field])
        except (ValueError, KeyError, TypeError):
            return ""

    @property
    def next_offset(self) -> str:
        return self.headers.get("Stream-Next-Offset", "")

    def says(self, header: str) -> bool:
        return self.headers.get(header) == "true"


class Connection:
    """One keep-alive connection to one node, made when it is needed."""

    def __init__(self, port: int, timeout_s: float = PATIENCE_S) -> None:
        self._http = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)

    def ask(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> Reply:
        """Raises NotSent, NoAnswer."""
        response = self.open(method, path, headers, body)
        try:
            return Reply(response.status, response.headers, response.read())
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise NoAnswer(repr(error)) from error

    def open(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> http.client.HTTPResponse:
        """An answer whose body is still to come. Raises NotSent, NoAnswer."""
        if self._http.sock is None:
            try:
                self._http.connect()
                assert self._http.sock is not None
                self._http.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError as error:
                self.close()
                raise NotSent(repr(error)) from error
        try:
            self._http.request(method, path, body, dict(headers))
            return self._http.getresponse()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise NoAnswer(repr(error)) from error

    def close(self) -> None:
        self._http.close()


class SharedByClients:
    """What all clients of a run share."""

    def __init__(self, ports: dict[int, int], recorder: Recorder) -> None:
        self.ports = ports
        # The nodes that roaming clients may use.
        self.open_to_all = set(ports)
        self.recorder = recorder
        self.no_more_writes = threading.Event()
        self.stopping = threading.Event()
        self.think_s = 0.01
        self.streams: list[str] = []
        # Answers that no node may ever give.
        self.problems: list[str] = []
        self.counts: Counter[str] = Counter()


class Client(threading.Thread):
    """A thread with a name in the history, and a node it talks to."""

    only_reads = False
    patience_s = PATIENCE_S

    def __init__(self, shared: SharedByClients, label: str, node_id: int, pinned: bool) -> None:
        super().__init__(daemon=True, name=label)
        self.label = label
        self.shared = shared
        self.stopping = shared.stopping if self.only_reads else shared.no_more_writes
        self.node_id = node_id
        self.pinned = pinned
        self.random = random.Random(label)
        self.last_success_ns = 0
        self._lives = 0
        self._connection: Connection | None = None

    # -- for the subclasses -------------------------------------------------------------------

    def step(self) -> None:
        """Carry out one operation, or a few. Raises nothing that a node can cause."""
        raise NotImplementedError

    def run(self) -> None:
        while not self.stopping.wait(self.shared.think_s):
            try:
                self.step()
            except Exception as error:
                self.shared.problems.append(f"{self.label}: {error!r}")
                raise
        self.drop_connection()

    @property
    def client(self) -> str:
        """The name in the history; another one after each write of unknown outcome."""
        return f"{self.label}/{self._lives}"

    @property
    def node(self) -> str:
        return f"n{self.node_id}"

    def invoke(self, kind: history.Kind, stream: str, **details: object) -> Pending:
        recorder = self.shared.recorder
        return recorder.invoke(self.client, kind, stream, node=self.node, **details)  # type: ignore[arg-type]

    def ask(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> Reply:
        """Raises NotSent, NoAnswer."""
        if self._connection is None:
            self._connection = Connection(self.shared.ports[self.node_id], self.patience_s)
        return self._connection.ask(method, path, headers, body)

    def write(
        self,
        pending: Pending,
        method: str,
        stream: str,
        headers: Mapping[str, str],
        body: bytes | None = None,
    ) -> Reply | None:
        """The answer to a write; None once its absence is recorded."""
        try:
            reply = self.ask(method, path_of(stream), headers, body)
        except NotSent:
            pending.fail("not sent")
            self.move_on()
            return None
        except NoAnswer as error:
            pending.unknown(str(error))
            self._lives += 1
            self.move_on()
            return None
        if reply.status == 503 and reply.code == "OUTCOME_UNKNOWN":
            pending.unknown(f"{reply.code}: {reply.error('message')}")
            self._lives += 1
        elif reply.status == 503:
            pending.fail(reply.code)
        else:
            return reply
        self.shared.counts[reply.code] += 1
        self.move_on()
        return None

    def succeeded(self, pending: Pending) -> None:
        self.last_success_ns = max(self.last_success_ns, pending.operation.invoked_ns)

    def move_on(self) -> None:
        """Try the next node, or after a pause the same one."""
        self.drop_connection()
        if not self.pinned:
            others = sorted(self.shared.open_to_all - {self.node_id})
            later = [one for one in others if one > self.node_id]
            self.node_id = (later or others or [self.node_id])[0]
        self.stopping.wait(_PAUSE_S)

    def drop_connection(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def unexpected(self, pending: Pending, reply: Reply) -> None:
        operation = pending.operation
        said = f"{reply.status} {reply.code} {reply.body[:200]!r}"
        self.shared.problems.append(f"{self.client} {operation.kind} at {self.node}: {said}")
        pending.unknown(said)
        self._lives += 1


def path_of(stream: str) -> str:
    return f"/v1/stream/{stream}"


class Appender(Client):
    """Appends without a stamp, and does not retry unknown outcomes."""

    def __init__(self, shared: SharedByClients, label: str, node_id: int, pinned: bool) -> None:
        super().__init__(shared, label, node_id, pinned)
        self._sent = 0

    def step(self) -> None:
        stream = self.random.choice(self.shared.streams)
        payload = b"<%s.%d>" % (self.label.encode(), self._sent)
        self._sent += 1
        pending = self.invoke("append", stream, payload=payload)
        reply = self.write(pending, "POST", stream, TEXT, payload)
        if reply is None:
            return
        if reply.status == 204:
            pending.ok(next_offset=reply.next_offset)
            self.succeeded(pending)
        else:
            self.unexpected(pending, reply)


class Producer(Client):
    """An idempotent producer: retries through any node until its append is acknowledged.

    Now and then it begins a new epoch, and its former self, unaware of that, tries to append once
    more.
    """

    def __init__(self, shared: SharedByClients, label: str, node_id: int, stream: str) -> None:
        super().__init__(shared, label, node_id, pinned=False)
        self._stream = stream
        self._stamp = Stamp(label, 0, 0)
        self._sent = 0

    def step(self) -> None:
        stamp = self._stamp
        if not self._append_until_known(stamp, self._next_payload()):
            return
        if stamp.seq == 0 and stamp.epoch:
            self._append_as_former_self(Stamp(stamp.producer, stamp.epoch - 1, _EPOCH_APPENDS))
        begins_epoch = stamp.seq + 1 == _EPOCH_APPENDS
        self._stamp = (
            Stamp(stamp.producer, stamp.epoch + 1, 0)
            if begins_epoch
            else Stamp(stamp.producer, stamp.epoch, stamp.seq + 1)
        )

    def _next_payload(self) -> bytes:
        self._sent += 1
        return b"<%s.%d>" % (self.label.encode(), self._sent)

    def _append_until_known(self, stamp: Stamp, payload: bytes) -> bool:
        """False when the run ended first."""
        while not self.stopping.is_set():
            pending, reply = self._append(stamp, payload)
            if reply is None:
                self.shared.counts["retries"] += 1
            elif reply.status in (200, 204):
                is_duplicate = reply.status == 204
                pending.ok(next_offset=reply.next_offset, duplicate=is_duplicate)
                self.shared.counts["duplicates recognised"] += is_duplicate
                self.succeeded(pending)
                return True
            else:
                self.unexpected(pending, reply)
        return False

    def _append_as_former_self(self, stamp: Stamp) -> None:
        pending, reply = self._append(stamp, self._next_payload())
        if reply is None:
            return
        if reply.status == 403 and reply.code == "STALE_EPOCH":
            pending.fail(history.STALE_EPOCH)
            self.shared.counts["fenced"] += 1
        else:
            self.unexpected(pending, reply)

    def _append(self, stamp: Stamp, payload: bytes) -> tuple[Pending, Reply | None]:
        headers = {
            **TEXT,
            "Producer-Id": stamp.producer,
            "Producer-Epoch": str(stamp.epoch),
            "Producer-Seq": str(stamp.seq),
        }
        pending = self.invoke("append", self._stream, payload=payload, stamp=stamp)
        return pending, self.write(pending, "POST", self._stream, headers, payload)


class ShortLived(Client):
    """Creates streams, writes to them a little, closes them, and deletes some."""

    def __init__(self, shared: SharedByClients, label: str, node_id: int) -> None:
        super().__init__(shared, label, node_id, pinned=False)
        self.streams: list[str] = []

    def step(self) -> None:
        self.stopping.wait(0.2)
        number = len(self.streams)
        stream = f"jepsen/{self.label}-{number}"
        self.streams.append(stream)
        if not self._do("create", stream, "PUT", (200, 201)):
            return
        for part in ("a", "b"):
            payload = b"<%s.%d%s>" % (self.label.encode(), number, part.encode())
            self._do("append", stream, "POST", (204,), payload)
        if self._do("close", stream, "POST", (204,), closes=True):
            self.shared.counts["closed"] += 1
            if number % 3 == 0:
                self._do("delete", stream, "DELETE", (204,))

    def _do(
        self,
        kind: history.Kind,
        stream: str,
        method: str,
        expected: tuple[int, ...],
        payload: bytes = b"",
        *,
        closes: bool = False,
    ) -> bool:
        pending = self.invoke(kind, stream, payload=payload, closes=closes)
        headers = {**TEXT, "Stream-Closed": "true"} if closes else TEXT
        reply = self.write(pending, method, stream, headers, payload or None)
        if reply is None:
            return False
        if reply.status not in expected:
            self.unexpected(pending, reply)
            return False
        pending.ok(
            next_offset=reply.next_offset,
            closed=reply.says("Stream-Closed"),
            duplicate=reply.status == 200,
        )
        self.succeeded(pending)
        return True


class Reader(Client):
    """Reads from its last offset, the start, or the tail; linearizably, which is the default."""

    only_reads = True
    patience_s = _READ_PATIENCE_S

    def __init__(self, shared: SharedByClients, label: str, node_id: int, pinned: bool) -> None:
        super().__init__(shared, label, node_id, pinned)
        self._offsets: dict[str, str] = {}

    def step(self) -> None:
        stream = self.random.choice(self.shared.streams)
        dice = self.random.random()
        if dice < 0.3:
            self._read("head", stream, "")
        elif dice < 0.4:
            self._read("read", stream, "now")
        else:
            self._read("read", stream, "-1" if dice < 0.42 else self._offsets.get(stream, "-1"))

    def _read(self, kind: history.Kind, stream: str, offset: str) -> None:
        pending = self.invoke(kind, stream, offset=offset)
        query = f"?offset={offset}" if offset else ""
        method = "HEAD" if kind == "head" else "GET"
        try:
            reply = self.ask(method, path_of(stream) + query, {})
        except (NotSent, NoAnswer) as error:
            self.shared.counts["reads unanswered"] += 1
            pending.fail(repr(error))
            self.move_on()
            return
        if reply.status == 200:
            self._offsets[stream] = reply.next_offset
            pending.ok(
                data=reply.body,
                next_offset=reply.next_offset,
                up_to_date=reply.says("Stream-Up-To-Date"),
                closed=reply.says("Stream-Closed"),
            )
            self.succeeded(pending)
        elif reply.status == 503:
            self.shared.counts["reads unanswered"] += 1
            pending.fail(reply.code)
            self.move_on()
        else:
            self.unexpected(pending, reply)


class Follower(Client):
    """Follows a stream by server-sent events; after each break from the last offset, elsewhere."""

    only_reads = True

    def __init__(self, shared: SharedByClients, label: str, node_id: int, stream: str) -> None:
        super().__init__(shared, label, node_id, pinned=False)
        self.stream = stream
        self.offset = "-1"
        # The node whose events come in at the moment, or 0.
        self.connected_to = 0
        self._wanted_node = 0

    def follow_at(self, node_id: int) -> None:
        """End the present event stream, and continue at this node."""
        self._wanted_node = node_id

    def step(self) -> None:
        if self._wanted_node:
            self.node_id, self._wanted_node = self._wanted_node, 0
        port = self.shared.ports[self.node_id]
        connection = Connection(port, _SSE_PATIENCE_S)
        pending = self.invoke("deliver", self.stream, offset=self.offset)
        try:
            path = f"{path_of(self.stream)}?offset={self.offset}&live=sse"
            response = connection.open("GET", path, {})
            if response.status == 200:
                self.shared.counts["event streams"] += 1
                self.connected_to = self.node_id
                for data, control in _events(response, self._is_over):
                    self._delivered(pending, data, control)
                    pending = self.invoke("deliver", self.stream, offset=self.offset)
            elif response.status != 503:
                self.shared.problems.append(f"{self.client}: {response.status} {response.read()!r}")
            pending.fail(f"{response.status}")
        except (NotSent, NoAnswer, OSError, http.client.HTTPException) as error:
            pending.fail(repr(error))
        finally:
            self.connected_to = 0
            connection.close()
        self.move_on()

    def _is_over(self) -> bool:
        return self.stopping.is_set() or self._wanted_node != 0

    def _delivered(self, pending: Pending, data: bytes, control: dict[str, object]) -> None:
        self.offset = str(control["streamNextOffset"])
        # "Up to date" is this node's knowledge; only other reads promise more.
        pending.ok(data=data, next_offset=self.offset)
        self.succeeded(pending)


def _events(
    response: http.client.HTTPResponse, is_over: Callable[[], bool]
) -> Iterator[tuple[bytes, dict[str, object]]]:
    """Data, with the control event that follows it. Raises OSError, HTTPException."""
    data, event = b"", b""
    while not is_over():
        line = response.readline()
        if not line:
            return
        field, _, value = line.rstrip(b"\r\n").partition(b":")
        if field == b"event":
            event = value.strip()
        elif field == b"data" and event == b"data":
            data += value
        elif field == b"data":
            yield data, json.loads(value)
            data = b""


def now_ns() -> int:
    """The clock of histories."""
    return time.monotonic_ns()
