"""Calls on many sockets at once, in plain Python: what `_batch_io.c` does without the
interpreter's lock between the calls. This one says what both promise, and serves where no compiler
was at hand."""

from __future__ import annotations

import os
import select
from typing import TypeVar

T = TypeVar("T")

# Raised with each change of what a function takes or returns, together with that of the extension.
INTERFACE = 2
RECEIVE_BYTES = 64 * 1024
MOST_EVENTS = 256


def receive_ready(
    epoll: select.epoll, watched: dict[int, T], paused: set[T], most: int
) -> list[tuple[T, int, bytes | None]]:
    """Receive once from each socket of which `epoll` has something to tell now, `most` of them.

    Returns whose each socket is by `watched`, what epoll tells of it, and the bytes: up to
    `RECEIVE_BYTES`, empty at the end and for a broken connection. None if nothing was received,
    because the owner is `paused`, because it had nothing, or because there was no room left for
    it: with very much to receive, a call leaves the rest to others. All are looked up before
    anyone acts on the first, so that a descriptor that is closed and used again cannot lead to
    another's bytes. Raises `OSError` if the epoll is unusable.
    """
    if not 1 <= most <= MOST_EVENTS:
        raise ValueError(f"at most {MOST_EVENTS} sockets at once")
    return [
        (owner, events, None if owner in paused else _receive(descriptor))
        for descriptor, events in epoll.poll(0, most)
        if (owner := watched.get(descriptor)) is not None
    ]


def _receive(descriptor: int) -> bytes | None:
    try:
        return os.read(descriptor, RECEIVE_BYTES)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def send_each(descriptors: list[int], pieces: list[bytes]) -> list[tuple[int, int]]:
    """Send each piece to the socket at its place, as far as that takes it now.

    Returns where this was not the whole piece: the place, and how many bytes the socket took,
    0 also if it is broken. The sockets must not block.
    """
    if len(descriptors) != len(pieces):
        raise ValueError("a piece for each descriptor")
    return [
        (place, taken)
        for place, (descriptor, piece) in enumerate(zip(descriptors, pieces, strict=True))
        if (taken := _send(descriptor, piece)) < len(piece)
    ]


def _send(descriptor: int, piece: bytes) -> int:
    try:
        # Not `write`: tests let that fail, which goes to a disk.
        return os.writev(descriptor, (piece,))
    except OSError:
        return 0
