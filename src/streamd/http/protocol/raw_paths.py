"""Raw paths, percent-encoded as they were sent: decoded strictly, or refused."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

from streamd.http.protocol.messages import Response
from streamd.http.protocol.refusals import error_response
from streamd.protocol.problems import Problem

_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_ESCAPED_SLASH = re.compile(rb"%2F", re.IGNORECASE)
_CONTROL = re.compile(rb"[\x00-\x1f\x7f\\]")


class BadPath(NamedTuple):
    """A path that names nothing, and the problem that says why."""

    problem: Problem
    detail: str = ""

    def response(self) -> Response:
        return error_response(*self)


NO_SUCH_ROUTE = BadPath(Problem.NOT_FOUND)
# A proxy with rules for paths would take the decoded path for another one.
ESCAPED_SLASH = BadPath(Problem.INVALID_PATH, "the path has an escaped slash")


def has_escaped_slash(raw: bytes) -> bool:
    """Whether a slash would appear where the raw path has none."""
    return _ESCAPED_SLASH.search(raw) is not None


def decode(raw: bytes) -> bytes | BadPath:
    """Undo percent-encoding, refusing ambiguous and malformed paths."""
    if b"%" in raw:
        if _BAD_ESCAPE.search(raw):
            return BadPath(Problem.INVALID_PATH, "the path has an invalid percent escape")
        raw = unquote_to_bytes(raw)
    if _CONTROL.search(raw):
        return BadPath(Problem.INVALID_PATH, "the path has a control character or a backslash")
    if not raw.isascii():
        try:
            raw.decode()
        except UnicodeDecodeError:
            return BadPath(Problem.INVALID_PATH, "the path is not UTF-8")
    if b".." in raw and b".." in raw.split(b"/"):
        return BadPath(Problem.INVALID_PATH, "the path has a .. segment")
    return raw
