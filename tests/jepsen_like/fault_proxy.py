"""TCP between the nodes of a cluster, through which every link can be made to fail.

A proxy stands before each node's peer address, and the node advertises the proxy's. The first
frame on a connection says who dialled, so a *link* is known by both ends and its direction: from
1 to 2 go the bytes that node 1 sends to node 2, on the connection of either.

A cut link holds back what is sent, as a network does that loses packets: it arrives late, when
the link is healed, if anybody still wants it. The end of a connection is held back likewise.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import msgspec

_CHUNK_BYTES = 64 * 1024
_FRAME_HEAD = struct.Struct(">IIB")
_NODE_ID = 3  # its place in the introduction
_CONNECT_TIMEOUT_S = 3.0


@dataclass
class _Link:
    is_cut: bool = False
    delay_s: float = 0.0
    jitter_s: float = 0.0
    # The probability, for each chunk, that the connection breaks instead.
    break_probability: float = 0.0
    # The connection breaks each time after so many bytes.
    break_every_bytes: int = 0
    carried_bytes: int = 0

    def carry(self, size: int) -> bool:
        """Whether the link breaks over these bytes."""
        self.carried_bytes += size
        if not self.break_every_bytes or self.carried_bytes < self.break_every_bytes:
            return False
        self.carried_bytes = 0
        return True


class Links:
    """The state of all links of a cluster, by (from, to). Safe to use from any thread."""

    def __init__(self) -> None:
        self._links: dict[tuple[int, int], _Link] = {}
        self._changed = threading.Condition()
        self._random = random.Random(1)
        self.counts: Counter[str] = Counter()

    def cut(self, sender: int, receiver: int) -> None:
        """From now on, nothing that `sender` sends reaches `receiver`."""
        with self._changed:
            self._link(sender, receiver).is_cut = True

    def cut_both_ways(self, one: int, other: int) -> None:
        self.cut(one, other)
        self.cut(other, one)

    def isolate(self, node_id: int, others: Iterable[int]) -> None:
        """Cut a node off from all others, both ways."""
        for other in others:
            if other != node_id:
                self.cut_both_ways(node_id, other)

    def worsen(
        self, ids: Iterable[int], *, delay_s: float, jitter_s: float, break_probability: float
    ) -> None:
        """Make all links between nodes slow and unreliable."""
        ids = list(ids)
        with self._changed:
            for sender in ids:
                for receiver in ids:
                    link = self._link(sender, receiver)
                    link.delay_s, link.jitter_s = delay_s, jitter_s
                    link.break_probability = break_probability

    def break_every(self, sender: int, receiver: int, size: int) -> None:
        """Let a link break each time it has carried so many bytes."""
        with self._changed:
            link = self._link(sender, receiver)
            link.break_every_bytes, link.carried_bytes = size, 0

    def heal(self) -> None:
        """All links work again; bytes held back are delivered."""
        with self._changed:
            self._links.clear()
            self._changed.notify_all()

    def pass_through(self, sender: int, receiver: int, size: int = 0) -> bool:
        """Wait for as long as a chunk of `size` bytes takes; False when the connection is to
        break instead."""
        with self._changed:
            link = self._link(sender, receiver)
            if link.is_cut:
                self.counts["held back"] += 1
            while self._link(sender, receiver).is_cut:
                self._changed.wait()
            link = self._link(sender, receiver)
            delay_s = link.delay_s + self._random.random() * link.jitter_s
            breaks = self._random.random() < link.break_probability or link.carry(size)
        if delay_s:
            self.counts["delayed"] += 1
            time.sleep(delay_s)
        if breaks:
            self.counts["broken"] += 1
        return not breaks

    def _link(self, sender: int, receiver: int) -> _Link:
        return self._links.setdefault((sender, receiver), _Link())


class FaultProxy:
    """Listens in place of one node and carries bytes both ways as the links allow."""

    def __init__(self, node_id: int, target_port: int, links: Links) -> None:
        self._node_id = node_id
        self._target = ("127.0.0.1", target_port)
        self._links = links
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        _start(self._accept)

    def close(self) -> None:
        """Stop accepting; connections end with the nodes they belong to. May be repeated."""
        # Closing alone does not wake a thread that is in accept().
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                dialler, _ = self._listener.accept()
            except OSError:
                return
            _start(partial(self._serve, dialler))

    def _serve(self, dialler: socket.socket) -> None:
        try:
            hello, dialler_id = _read_hello(dialler)
            # A dialler over a cut link hears nothing at all, instead of a refusal.
            if not self._links.pass_through(dialler_id, self._node_id):
                raise ConnectionResetError
            acceptor = socket.create_connection(self._target, timeout=_CONNECT_TIMEOUT_S)
            acceptor.settimeout(None)
            acceptor.sendall(hello)
        except (OSError, msgspec.DecodeError):
            _break_off(dialler)
            return
        for one in (dialler, acceptor):
            one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        _start(lambda: self._pump(acceptor, dialler, self._node_id, dialler_id))
        self._pump(dialler, acceptor, dialler_id, self._node_id)

    def _pump(self, source: socket.socket, sink: socket.socket, sender: int, receiver: int) -> None:
        try:
            while chunk := source.recv(_CHUNK_BYTES):
                if not self._links.pass_through(sender, receiver, len(chunk)):
                    raise ConnectionResetError
                sink.sendall(chunk)
            self._links.pass_through(sender, receiver)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            _break_off(source)
            _break_off(sink)


def _read_hello(connection: socket.socket) -> tuple[bytes, int]:
    """The first frame, and the node id in it. Raises OSError, msgspec.DecodeError."""
    head = _read_exactly(connection, _FRAME_HEAD.size)
    length, _, _ = _FRAME_HEAD.unpack(head)
    payload = _read_exactly(connection, length)
    return head + payload, int(msgspec.msgpack.decode(payload)[_NODE_ID])


def _read_exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            raise ConnectionResetError
        data += chunk
    return data


def _break_off(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def _start(work: Callable[[], None]) -> None:
    threading.Thread(target=work, daemon=True).start()
