"""Calls on many sockets at once: the C extension and its twin keep the same promises."""

from __future__ import annotations

import errno
import gc
import os
import resource
import runpy
import select
import signal
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from random import Random
from types import ModuleType
from typing import Any

import pytest

import streamd.http.sockets
from streamd.http.sockets import batch_io
from streamd.http.sockets.batch_io_twin import INTERFACE, MOST_EVENTS, RECEIVE_BYTES
from tests.support.tools import COMPILER, NEEDS

_IMPLEMENTATIONS = {
    "C": "streamd.http.sockets._batch_io",
    "Python": "streamd.http.sockets.batch_io_twin",
}
EDGE = select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLET
# More than the sockets of a pair take.
TOO_MUCH = b"x" * (8 * 1024 * 1024)


@pytest.fixture(params=_IMPLEMENTATIONS)
def io(request: pytest.FixtureRequest) -> ModuleType:
    module: ModuleType = pytest.importorskip(
        _IMPLEMENTATIONS[request.param], reason=NEEDS + COMPILER
    )
    return module


def test_both_have_the_same_interface(io: ModuleType) -> None:
    assert io.INTERFACE == INTERFACE


@pytest.mark.parametrize("built", [{}, {"INTERFACE": INTERFACE - 1}, {"INTERFACE": INTERFACE + 1}])
def test_an_extension_built_from_another_source_is_not_used(
    built: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    extension = ModuleType("streamd.http.sockets._batch_io")
    vars(extension).update(built, receive_ready=print, send_each=print)
    monkeypatch.setattr(streamd.http.sockets, "_batch_io", extension, raising=False)
    monkeypatch.delenv("STREAMD_PURE_PYTHON", raising=False)
    loaded = runpy.run_path(batch_io.__file__)
    assert loaded["LANGUAGE"] == "Python"
    assert loaded["send_each"] is not print


class Sockets:
    """Pairs of sockets: `ours` are watched, by the number of the pair; `theirs` are the clients."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.epoll = stack.enter_context(select.epoll())
        self.watched: dict[int, int] = {}
        self.paused: set[int] = set()
        self.ours: list[socket.socket] = []
        self.theirs: list[socket.socket] = []

    def add(self, pair: tuple[socket.socket, socket.socket] | None = None) -> int:
        """Watch another pair; returns its number."""
        ours, theirs = pair or socket.socketpair()
        number = len(self.ours)
        self.ours.append(self._stack.enter_context(ours))
        self.theirs.append(self._stack.enter_context(theirs))
        ours.setblocking(False)
        self.watched[ours.fileno()] = number
        self.epoll.register(ours.fileno(), EDGE)
        return number

    def add_tcp(self) -> int:
        """Watch a connection over TCP, which can be reset."""
        with socket.create_server(("127.0.0.1", 0)) as listener:
            theirs = socket.create_connection(listener.getsockname())
            return self.add((listener.accept()[0], theirs))


@pytest.fixture
def sockets() -> Iterator[Sockets]:
    with ExitStack() as stack:
        yield Sockets(stack)


def received(io: ModuleType, sockets: Sockets, most: int = MOST_EVENTS) -> dict[int, bytes | None]:
    arrivals = io.receive_ready(sockets.epoll, sockets.watched, sockets.paused, most)
    return {owner: data for owner, _, data in arrivals}


def reset(client: socket.socket) -> None:
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


# -- receiving ----------------------------------------------------------------------------------


def test_what_came_is_received_with_its_owner(io: ModuleType, sockets: Sockets) -> None:
    for text in (b"one", b"", b"three"):
        sockets.theirs[sockets.add()].sendall(text)
    arrivals = io.receive_ready(sockets.epoll, sockets.watched, sockets.paused, MOST_EVENTS)
    assert sorted(arrivals) == [(0, select.EPOLLIN, b"one"), (2, select.EPOLLIN, b"three")]
    assert received(io, sockets) == {}, "all was told once"


def test_the_end_of_the_input_is_reported_with_the_bytes(io: ModuleType, sockets: Sockets) -> None:
    sockets.theirs[sockets.add()].sendall(b"last")
    sockets.theirs[0].shutdown(socket.SHUT_WR)
    [(owner, events, data)] = io.receive_ready(sockets.epoll, sockets.watched, set(), 1)
    assert (owner, data) == (0, b"last")
    assert events & select.EPOLLRDHUP


def test_the_end_and_a_reset_are_empty(io: ModuleType, sockets: Sockets) -> None:
    ended, broken = sockets.add_tcp(), sockets.add_tcp()
    sockets.theirs[ended].close()
    reset(sockets.theirs[broken])
    got = io.receive_ready(sockets.epoll, sockets.watched, set(), MOST_EVENTS)
    assert {owner: data for owner, _, data in got} == {ended: b"", broken: b""}
    assert all(events != select.EPOLLIN for _, events, _ in got)


def test_a_paused_socket_is_reported_but_keeps_its_bytes(io: ModuleType, sockets: Sockets) -> None:
    for number in (sockets.add(), sockets.add()):
        sockets.theirs[number].sendall(b"bytes")
    sockets.paused.add(0)
    assert received(io, sockets) == {0: None, 1: b"bytes"}
    assert sockets.ours[0].recv(100) == b"bytes"


def test_a_socket_that_has_nothing_after_all_is_reported(io: ModuleType, sockets: Sockets) -> None:
    sockets.theirs[sockets.add()].sendall(b"bytes")
    assert sockets.ours[0].recv(100) == b"bytes"
    sockets.epoll.modify(sockets.ours[0].fileno(), select.EPOLLOUT | select.EPOLLET)
    assert received(io, sockets) == {0: None}


def test_a_socket_that_is_nobodys_keeps_its_bytes(io: ModuleType, sockets: Sockets) -> None:
    sockets.theirs[sockets.add()].sendall(b"bytes")
    sockets.watched.clear()
    assert received(io, sockets) == {}
    assert sockets.ours[0].recv(100) == b"bytes"


def test_no_more_sockets_than_asked_for_are_served(io: ModuleType, sockets: Sockets) -> None:
    for _ in range(10):
        sockets.theirs[sockets.add()].sendall(b"bytes")
    counts = [len(received(io, sockets, 4)) for _ in range(4)]
    assert counts == [4, 4, 2, 0]


@pytest.mark.parametrize("most", [0, -1, MOST_EVENTS + 1])
def test_a_batch_beyond_the_limit_is_refused(io: ModuleType, sockets: Sockets, most: int) -> None:
    with pytest.raises(ValueError, match=f"at most {MOST_EVENTS} sockets"):
        received(io, sockets, most)


def test_a_turn_receives_no_more_than_its_share_from_each_socket(
    io: ModuleType, sockets: Sockets
) -> None:
    """Nor is anything lost: what a turn leaves is there for the next."""
    total = 3 * RECEIVE_BYTES
    contents = [Random(number).randbytes(total) for number in range(8)]
    for content in contents:
        number = sockets.add()
        sockets.ours[number].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 * total)
        sockets.theirs[number].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * total)
        sockets.theirs[number].setblocking(False)
        assert sockets.theirs[number].send(content) == total
    turn = received(io, sockets)
    assert len(turn) == 8, "all are told of"
    for number, content in enumerate(contents):
        first = turn[number] or b""
        assert len(first) <= RECEIVE_BYTES
        assert first + sockets.ours[number].recv(total) == content
    assert any(turn.values())


def test_a_descriptor_used_again_in_the_same_turn_never_gets_anothers_bytes(
    io: ModuleType, sockets: Sockets
) -> None:
    old, other = sockets.add(), sockets.add()
    for number in (old, other):
        sockets.theirs[number].sendall(b"for %d" % number)
    arrivals = io.receive_ready(sockets.epoll, sockets.watched, sockets.paused, MOST_EVENTS)
    # What the first arrival causes: the other connection ends, and a new one gets its number.
    descriptor = sockets.ours[other].fileno()
    del sockets.watched[descriptor]
    sockets.ours[other].close()
    while descriptor not in sockets.watched:
        new = sockets.add()
    assert sorted((owner, data) for owner, _, data in arrivals) == [(0, b"for 0"), (1, b"for 1")]
    sockets.theirs[new].sendall(b"for the new one")
    assert received(io, sockets) == {new: b"for the new one"}


def test_a_closed_epoll_is_an_error(io: ModuleType, sockets: Sockets) -> None:
    sockets.epoll.close()
    with pytest.raises((OSError, ValueError)):
        received(io, sockets)


# -- sending ------------------------------------------------------------------------------------


def test_each_socket_gets_its_piece(io: ModuleType, sockets: Sockets) -> None:
    pieces = [b"piece %d" % sockets.add() for _ in range(5)]
    assert io.send_each([sock.fileno() for sock in sockets.ours], pieces) == []
    assert [sock.recv(100) for sock in sockets.theirs] == pieces


def test_nothing_is_sent_for_empty_lists(io: ModuleType) -> None:
    assert io.send_each([], []) == []


def test_each_shortfall_is_that_of_its_socket(io: ModuleType, sockets: Sockets) -> None:
    whole, partial, full, gone, broken, last = [
        sockets.add_tcp() if number in (3, 4) else sockets.add() for number in range(6)
    ]
    while True:
        try:
            sockets.ours[full].send(TOO_MUCH)
        except BlockingIOError:
            break
    sockets.ours[gone].shutdown(socket.SHUT_WR)  # EPIPE
    reset(sockets.theirs[broken])  # ECONNRESET
    pieces = [b"x" * 10, TOO_MUCH, b"x" * 10, b"x" * 10, b"x" * 10, b"x" * 10]
    shortfalls = dict(io.send_each([sock.fileno() for sock in sockets.ours], pieces))
    taken = shortfalls.pop(partial)
    assert 0 < taken < len(TOO_MUCH)
    assert shortfalls == {full: 0, gone: 0, broken: 0}
    assert sockets.theirs[whole].recv(100) == sockets.theirs[last].recv(100) == b"x" * 10
    sockets.ours[partial].close()
    assert sum(map(len, iter(lambda: sockets.theirs[partial].recv(1 << 20), b""))) == taken


def test_a_closed_descriptor_takes_nothing(io: ModuleType, sockets: Sockets) -> None:
    descriptor = sockets.ours[sockets.add()].fileno()
    sockets.ours[0].close()
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        os.fstat(descriptor)
    assert io.send_each([descriptor], [b"x"]) == [(0, 0)]


@pytest.mark.parametrize(
    ("descriptors", "pieces", "error"),
    [
        ([1], [], ValueError),
        ([1], [None], TypeError),
        (["1"], [b"x"], TypeError),
        ([1 << 40], [b"x"], OverflowError),
        ([-5], [b"x"], None),
    ],
)
def test_what_is_not_a_piece_for_a_descriptor_is_refused(
    io: ModuleType,
    descriptors: list[Any],
    pieces: list[Any],
    error: type[Exception] | None,
) -> None:
    if error is None:
        assert io.send_each(descriptors, pieces) == [(0, 0)]
        return
    for _ in range(1000):  # Under a sanitizer each leak would count.
        with pytest.raises(error):
            io.send_each(descriptors, pieces)


# -- the process around it ----------------------------------------------------------------------


def test_a_signal_in_a_call_costs_no_bytes(io: ModuleType, sockets: Sockets) -> None:
    """The handlers run between the calls, and what was received is returned."""
    signals = 0

    def count(*_: object) -> None:
        nonlocal signals
        signals += 1

    for _ in range(20):
        sockets.add()
    before = signal.signal(signal.SIGALRM, count)
    signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
    try:
        got: dict[int, bytes] = dict.fromkeys(range(20), b"")
        rounds = 0
        while signals < 50:
            rounds += 1
            descriptors = [sock.fileno() for sock in sockets.theirs]
            assert io.send_each(descriptors, [b"%09d" % rounds] * 20) == []
            for owner, data in received(io, sockets).items():
                got[owner] += data or b""
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    expected = b"".join(b"%09d" % number for number in range(1, rounds + 1))
    assert all(data == expected for data in got.values())


def test_other_threads_run_beside_it(io: ModuleType, sockets: Sockets) -> None:
    """Several threads that each have an epoll of their own do not meet."""
    failures: list[BaseException] = []

    def work(seed: int) -> None:
        try:
            with ExitStack() as stack:
                own = Sockets(stack)
                for _ in range(8):
                    own.add()
                for number in range(300):
                    content = b"%d of %d" % (number, seed)
                    assert io.send_each([one.fileno() for one in own.theirs], [content] * 8) == []
                    assert received(io, own) == dict.fromkeys(range(8), content)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_memory_does_not_grow(io: ModuleType, sockets: Sockets) -> None:
    owner, other, data = object(), object(), b"x" * 1000
    watched: dict[int, object] = {}
    for _ in range(50):
        number = sockets.add()
        watched[sockets.ours[number].fileno()] = owner
    watched[sockets.ours[0].fileno()] = other
    paused = {other}
    nobodys = sockets.add()
    descriptors = [sock.fileno() for sock in sockets.theirs]
    full = sockets.ours[sockets.add()].fileno()
    io.send_each([full], [TOO_MUCH])

    def rounds(count: int) -> int:
        for _ in range(count):
            assert io.send_each([*descriptors, full], [data] * 52) == [(51, 0)]
            assert len(io.receive_ready(sockets.epoll, watched, paused, MOST_EVENTS)) == 50
            sockets.ours[0].recv(5000)
            sockets.ours[nobodys].recv(5000)
        gc.collect()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    counted = (owner, data, bytes, tuple, list)
    rounds(20)
    references = [sys.getrefcount(one) for one in counted]
    before_kib = rounds(20)
    after_kib = rounds(2000)
    assert after_kib - before_kib < 2048
    for one, earlier in zip(counted, references, strict=True):
        assert sys.getrefcount(one) - earlier < 100
