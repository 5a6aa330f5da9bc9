"""Entity tags: the state of a stream that a client has seen.

``"{incarnation}:{start}:{end}"``, followed by ``:c`` when the stream is closed and the answer
says so. The tag of an append's answer, and of HEAD, is that of a read of everything.

The incarnation is the stream's id plus `Header.incarnation_base`. Each group has a base of its own,
since stream ids are unique only within a group. A restore changes the base: a tag from before the
restore matches nothing, although stream ids and offsets are the same.
"""

from __future__ import annotations

import re
from hashlib import sha256

from streamd.streams.model import Version
from streamd.streams.offsets import START, Position

_TAG = re.compile(rb'"(\d{1,19}):\d{16}_\d{16}:(\d{16})_(\d{16})(:c)?"')
# The tag of a stream as a whole, from its incarnation, tail, and `CLOSED` or nothing.
STATE_TAG = b'"%%d:%b:%%b%%b"' % START.token()
CLOSED = b":c"


# Bases lie so far apart, and above the ids of a group without one, that the incarnations of two
# histories or groups never meet; the largest still has 19 digits.
_LEAST_BASE = 1 << 62


def incarnation_base(group_id: int, cluster_id: str = "") -> int:
    """What a group adds to its stream ids in tags; with an id, in a cluster restored or recovered
    under that id.

    Group 0 of another cluster adds nothing: tags of the first release stay valid.
    """
    if not (group_id or cluster_id):
        return 0
    named = f"{cluster_id}/{group_id}" if group_id else cluster_id
    digest = sha256(named.encode()).digest()
    return _LEAST_BASE + int.from_bytes(digest[:8]) % _LEAST_BASE


def range_tag(incarnation: int, start: Position, end: Position, closed: bool) -> bytes:
    """The tag of the bytes from `start` to `end`."""
    return b'"%d:%b:%b%b"' % (incarnation, start.token(), end.token(), CLOSED if closed else b"")


def state_tag(incarnation: int, tail: bytes, closed: bool) -> bytes:
    """The tag of a stream as a whole; `tail` is an offset token."""
    return STATE_TAG % (incarnation, tail, CLOSED if closed else b"")


def parse_tag(tag: bytes) -> Version | None:
    """The state of the stream that a tag stands for, or None if streamd did not make the tag.

    The beginning of the range does not matter: a reader that reached the tail has seen the state.
    """
    match = _TAG.fullmatch(tag)
    if match is None:
        return None
    return Version(int(match[1]), int(match[2]), int(match[3]), match[4] is not None)
