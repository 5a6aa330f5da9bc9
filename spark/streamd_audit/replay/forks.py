"""Where forks leave their sources (docs/streams.md)."""

from __future__ import annotations

from collections.abc import Mapping

from streamd_audit import commands
from streamd_audit.commands import Create, Verified
from streamd_audit.replay.ids import Ids
from streamd_audit.replay.model import Stream, is_json, media_type
from streamd_audit.replay.results import (
    CONTENT_TYPE_DIFFERS,
    FORK_OFFSET_INVALID,
    FORK_SUB_OFFSET_INVALID,
    INVALID,
    OFFSET_GONE,
    SOURCE_GONE,
    SOURCE_NOT_FOUND,
    STALE,
)

_MAX_BYTE = 2**63 - 1


class Refused(Exception):
    """A fork cannot be made; the argument says why."""


def anchor(
    command: Create, streams: Mapping[bytes, Stream], ids: Ids, now_ms: int
) -> tuple[Stream, tuple[int, int]]:
    """Where a fork leaves its source. Raises `Refused`."""
    request = command.settings.fork
    assert request is not None
    source = streams.get(request.source)
    if source is None:
        raise Refused(SOURCE_NOT_FOUND)
    if source.deleted:
        raise Refused(SOURCE_GONE)
    if source.is_over(now_ms):
        raise Refused(SOURCE_NOT_FOUND)
    asked = command.settings.content_type or source.content_type
    if media_type(asked) != media_type(source.content_type):
        raise Refused(CONTENT_TYPE_DIFFERS)
    if command.cut_as is not None and is_json(command.cut_as) != is_json(source.content_type):
        raise Refused(STALE)
    tail = source.records, source.size
    at = tail if request.offset is None else request.offset
    if at[0] < source.earliest[0]:
        raise Refused(OFFSET_GONE)
    if at[0] > tail[0] or at[1] > tail[1]:
        raise Refused(FORK_OFFSET_INVALID)
    if at != tail:
        return source, _found(source, at, request.sub_offset, command.verified, ids)
    if request.sub_offset:
        raise Refused(FORK_SUB_OFFSET_INVALID)
    return source, at


def _found(
    source: Stream, at: tuple[int, int], sub_offset: int, found: Verified | None, ids: Ids
) -> tuple[int, int]:
    if found is None or found.record > source.records or found.verdict == commands.NOTHING:
        raise Refused(STALE)
    if not ids.match(source, found.stream_id):
        raise Refused(STALE)
    if found.verdict == commands.NO_BOUNDARY:
        raise Refused(FORK_OFFSET_INVALID)
    if found.verdict == commands.BEYOND_APPEND:
        raise Refused(FORK_SUB_OFFSET_INVALID)
    if found.record < 0 or not 0 <= found.byte <= _MAX_BYTE:
        raise Refused(INVALID)
    return found.record, found.byte
