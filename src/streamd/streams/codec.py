"""The payload of a log entry: a batch of commands under one time stamp.

One entry carries everything that was waiting when the leader could last write, so the log's
checksum, its disk write and the bookkeeping of replication are paid once per batch.
"""

from __future__ import annotations

import msgspec

from streamd.streams.commands import Command
from streamd.streams.sessions import PackageStamp


class Batch(msgspec.Struct, frozen=True, array_like=True):
    """Commands in the order in which they take effect, and the leader's clock when it took them.

    `now_ms` (milliseconds since the epoch) is the only time that the machine knows; the leader
    never lets it go back. The last commands are the `packages`, end to end; a release before log
    format 1 does not see these, and would apply a repeated one twice.
    """

    now_ms: int
    commands: list[Command]
    packages: list[PackageStamp] = []


class _Stamp(msgspec.Struct, frozen=True, array_like=True):
    """The beginning of a `Batch`; the commands after it are skipped unread."""

    now_ms: int


_ENCODER = msgspec.msgpack.Encoder()
_DECODER = msgspec.msgpack.Decoder(Batch)
_STAMP_DECODER = msgspec.msgpack.Decoder(_Stamp)


def encode_batch(batch: Batch) -> bytes:
    """The payload of a `COMMANDS` entry."""
    return _ENCODER.encode(batch)


def decode_batch(payload: bytes) -> Batch:
    """Raises one of `UNDECODABLE` for a payload that this version did not write."""
    return _DECODER.decode(payload)


def time_of_batch(payload: bytes) -> int:
    """Only `Batch.now_ms`, at little cost. Raises one of `UNDECODABLE`."""
    return _STAMP_DECODER.decode(payload).now_ms
