"""Verify that a record is in the log of a cluster, and that a log has only grown.

The log is a list of entries, an entry a list of commands, and a command appends records to one
stream. A proof leads from a record to a key that its reader trusts, and shows nothing else:

1. The record is a part of a command.
2. The command is a leaf of the tree over its entry's commands; a path leads to that tree's root.
3. The entry, with that root in place of its commands, is a leaf of the tree over the log.
4. The root of the log's tree is in the head, a text that a node's key has signed.
5. Of the keys in the head, each has signed the next one; the trusted key is among them.

Trees are those of RFC 9162 section 2.1, with SHA-256; a head is a signed note of C2SP.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from datetime import UTC, datetime
from hashlib import sha256
from struct import pack
from typing import Any, NamedTuple

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

_COMMANDS = 1  # the kind of an entry that holds commands
_BASE64, _NUMBER = "([0-9A-Za-z+/]+=*)", "(0|[1-9][0-9]{0,13})"
_CLUSTER = "(streamd/[0-9A-Za-z-]{1,64})"
_KEY = re.compile(rf"{_CLUSTER}\+([0-9a-f]{{8}})\+(A[Q-Za-f][0-9A-Za-z+/]{{42}})")  # 1, 32 bytes
_HEAD = re.compile(rf"{_CLUSTER}/{_NUMBER}/{_NUMBER}\n{_NUMBER}\n{_BASE64}\ntime {_NUMBER}\n")


class NotProved(ValueError):
    """What was to be proved is not; the message says why."""


class Head(NamedTuple):
    """At its time `time_ms`, the log of a group had `size` entries from `first_index` on."""

    cluster: str
    group: int
    first_index: int
    size: int
    root: bytes
    time_ms: int

    def __str__(self) -> str:
        entries = f"entries {self.first_index} to {self.first_index + self.size - 1}"
        time = datetime.fromtimestamp(self.time_ms / 1000, UTC).isoformat(" ", "milliseconds")
        return f"the log of {self.cluster}, group {self.group}, {entries}, at {time}"


class Proved(NamedTuple):
    """What a proof has shown. The offset is only claimed: it is what the server has said."""

    stream: str
    record: bytes
    content_type: str | None
    entry: int
    head: Head
    claimed_offset: str

    def __str__(self) -> str:
        record = repr(self.record.decode(errors="backslashreplace"))[1:-1]
        to = f"to {self.stream!r}, with the content type {self.content_type!r}"
        return f"entry {self.entry} appends this record {to}:\n{record}"


def verify_record(content: bytes, trusted: str) -> Proved:
    """What the proof in a file shows to anyone who trusts the key. Raises `NotProved`."""
    match decoded(content, msgspec.json.decode):
        case {
            "format": "streamd-proof-1",
            "claim": {"stream": str(stream), "offset": str(offset), "record": record},
            "entry": {"index": index, "term": term, "prefix": prefix, "count": n, "suffix": suffix},
            "command": {"number": number, "bytes": command, "path": command_path},
            "path": path,
            "head": signed,
        }:
            head = verified_head(signed, trusted)
        case _:
            raise NotProved("this is not a proof of streamd")
    leaf, before = binary(command), binary(prefix)
    index, count = integer(index), integer(n, 32)
    root = root_above(hashed(b"\0", leaf), integer(number), count, hashes(command_path))
    start = pack(">QQBI", index, integer(term), _COMMANDS, len(before))
    entry = hashed(b"\0", start, before, pack(">I", count), root, binary(suffix))
    if root_above(entry, index - head.first_index, head.size, hashes(path)) != head.root:
        raise NotProved("the entry is not in the log that the head is of")
    return Proved(stream, *record_of(leaf, stream, integer(record)), index, head, offset)


def record_of(command: bytes, stream: str, number: int) -> tuple[bytes, str | None]:
    """One of the records that a command appends to the stream, and their content type."""
    match decoded(command, msgspec.msgpack.decode):
        case ["append", bytes(key), kind, bytes(data), list(told), *_]:
            pass
        case ["create", bytes(key), [kind, *_], _, bytes(data), list(told), *more]:
            if kind is None and len(more) > 3:
                kind = more[3]  # A fork may name none, but its records have one.
        case _:
            raise NotProved("the command appends no records")
    if key != stream.replace("/", "\0", 1).encode() or "\0" in stream:
        raise NotProved("the command is for another stream")
    lengths = [integer(one) for one in told]
    if sum(lengths) != len(data) or number >= len(lengths):
        raise NotProved("the command has no record of that number")
    begin = sum(lengths[:number])
    record, kind = data[begin : begin + lengths[number]], kind if isinstance(kind, str) else None
    if (kind or "").partition(";")[0].strip(" \t").lower() == "application/json":
        record = record.removesuffix(b",")  # A message is stored with a comma after it.
    return record, kind


def verify_heads(old: bytes, new: bytes, trusted: str) -> tuple[Head, Head]:
    """The heads in two files, if the second's `consistency` proves that its log begins with all
    that is in the first's. Raises `NotProved`."""
    earlier, later = (decoded(content, msgspec.json.decode) for content in (old, new))
    was, now = verified_head(earlier, trusted), verified_head(later, trusted)
    if was[:3] != now[:3]:
        raise NotProved("the heads are of two logs, or the log began again between them")
    if not 0 < was.size <= now.size:
        raise NotProved("the second head's log is shorter than the first head's")
    path = hashes(later.get("consistency", []))
    if roots_above(was.root, was.size, now.size, path) != (was.root, now.root):
        raise NotProved("the second head's log does not begin with the first head's")
    return was, now


def verified_head(signed: object, trusted: str) -> Head:
    """The head in a note that the last of its keys has signed. The first key vouches for itself,
    each for the next, and the trusted key is one of them."""
    match signed:
        case {"note": str(note), "keys": list(keys)} if 0 < len(keys) <= 256:
            pass
        case _:
            raise NotProved("this is not a signed head of streamd")
    chain: list[str] = []
    for one in keys:
        match one:
            case {"key": str(key), "signed_by": by, "signature": signature}:
                text = f"{key.partition('+')[0]}/key\n{key}\n"
                check_signature(chain[-1] if chain else key, text, binary(signature))
            case _:
                raise NotProved("this is not a signed head of streamd")
        if by != (chain[-1] if chain else None):
            raise NotProved("the keys do not vouch for each other")
        chain.append(key)
    if trusted.strip() not in chain:
        raise NotProved("the keys do not lead from the trusted one to the one that signed")
    text, _, lines = note.rpartition("\n\n")
    cluster, key_id, _ = key.split("+", 2)
    signatures = re.findall(rf"^\u2014 {cluster} {_BASE64}$", lines, re.MULTILINE)
    ours = [one[4:] for one in map(binary, signatures) if one[:4].hex() == key_id]
    check_signature(key, text + "\n", (ours or [b""])[0])
    told = _HEAD.fullmatch(text + "\n")
    if told is None or told[1] != cluster:
        raise NotProved("the key has not signed a head of its cluster's log")
    group, first_index, size, time_ms = map(int, told.group(2, 3, 4, 6))
    return Head(cluster, group, first_index, size, binary(told[5]), time_ms)


def check_signature(key: str, text: str, signature: bytes) -> None:
    """Raises `NotProved` unless the key has signed the text. A key is NAME+ID+KEY: ID is from a
    hash of the other two, KEY is the byte 1, for Ed25519, and its 32 bytes."""
    told = _KEY.fullmatch(key)
    encoded = binary(told[3]) if told else b""
    if not told or hashed(f"{told[1]}\n".encode(), encoded)[:4].hex() != told[2]:
        raise NotProved("a key has the form NAME+ID+KEY, with an id that follows from the others")
    try:
        Ed25519PublicKey.from_public_bytes(encoded[1:]).verify(signature, text.encode())
    except (InvalidSignature, ValueError) as error:
        raise NotProved(f"key {told[2]} has not signed this") from error


def root_above(leaf: bytes, number: int, size: int, path: list[bytes]) -> bytes:
    """The root of a tree of `size` leaves, from leaf `number` and its path (section 2.1.3.1)."""
    if not 0 <= number < size or bool(path) != (size > 1):
        raise NotProved("a path does not lead from its leaf to the root")
    if size == 1:
        return leaf
    left, [*rest, other] = 1 << (size - 1).bit_length() - 1, path
    if number < left:
        return hashed(b"\1", root_above(leaf, number, left, rest), other)
    return hashed(b"\1", other, root_above(leaf, number - left, size - left, rest))


def roots_above(whole: bytes, old: int, size: int, path: list[bytes]) -> tuple[bytes, bytes]:
    """The roots of the first `old` leaves, and of all (section 2.1.4.1). `whole` is the first
    while it may be a subtree of the second; else it is empty, and the path has the subtree."""
    if old == size and len(path) == (not whole):
        return (whole or path[0],) * 2
    if old == size or not path:
        raise NotProved("a path does not lead from the one root to the other")
    left, [*rest, other] = 1 << (size - 1).bit_length() - 1, path
    if old <= left:
        first, second = roots_above(whole, old, left, rest)
        return first, hashed(b"\1", second, other)
    first, second = roots_above(b"", old - left, size - left, rest)
    return hashed(b"\1", other, first), hashed(b"\1", other, second)


def hashed(*parts: bytes) -> bytes:
    """SHA-256. The first part is 0 for a leaf, 1 for a node with two children."""
    return sha256(b"".join(parts)).digest()


def decoded(content: bytes, decode: Callable[[bytes], Any]) -> Any:
    """What a file of JSON or a value of MessagePack says."""
    try:
        return decode(content)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
        raise NotProved(f"this cannot be read: {error}") from error


def integer(value: object, bits: int = 53) -> int:
    """A whole number that is not negative and has so many bits at most; 2.0 is one, as in JSON."""
    value = int(value) if isinstance(value, float) and value.is_integer() else value
    if type(value) is not int or not 0 <= value < 1 << bits:
        raise NotProved("a number is out of its range")
    return value


def binary(text: object, size: int | None = None) -> bytes:
    """The bytes that a text in base64 stands for."""
    try:
        found = b64decode(str(text), validate=True)
    except ValueError:
        found = b""
    if b64encode(found).decode() != text or size not in (None, len(found)):
        raise NotProved("a text is not in base64, or does not have the right size")
    return found


def hashes(path: object) -> list[bytes]:
    """The hashes of a path, from the leaf's neighbour on."""
    return [binary(one, 32) for one in path] if isinstance(path, list) else [binary(path, 32)]
