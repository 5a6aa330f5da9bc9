"""Every way in which the bytes of a small object can be damaged."""

from __future__ import annotations

from collections.abc import Iterator


def flipped(content: bytes) -> Iterator[bytes]:
    """The content with one bit flipped, for every bit of it."""
    for position in range(len(content)):
        for bit in range(8):
            damaged = bytearray(content)
            damaged[position] ^= 1 << bit
            yield bytes(damaged)


def cut(content: bytes) -> Iterator[bytes]:
    """The content cut short at every place, and with a byte too many."""
    for length in range(len(content)):
        yield content[:length]
    yield content + b"\0"
