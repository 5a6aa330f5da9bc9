"""Signed heads of the log: those that somebody has kept, and those in the store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from streamd_audit.errors import CONTRADICTION, Damaged
from streamd_audit.framing import Buffer
from streamd_audit.names import HeadName
from streamd_audit.options import NotRun
from streamd_audit.proof import Head, NotProved, verified_head


def kept_heads(files: list[Path], key: str | None) -> tuple[list[Head], str | None]:
    """The heads in files that ``streamd log-head`` or a copy of its output made, one to a line or
    one to a file; and the key that they are trusted by.

    That is `key`, or the first one of the cluster as the first head names it: who has kept a head
    trusts it. Raises `NotRun` for a file without heads, and a head that the key has not signed.
    """
    heads = []
    for path in files:
        for signed in _read(path):
            key = key or _first_key(signed)
            try:
                heads.append(verified_head(signed, key or ""))
            except NotProved as error:
                raise NotRun(f"--expect {path}: {error}") from error
    return heads, key


def stored_head(content: Buffer, name: HeadName, cluster: str, key: str | None) -> Head:
    """The head in an object, signed by a key that `key` vouches for, or without one by any that
    it names itself. Raises `Damaged`."""
    try:
        signed = msgspec.json.decode(content)
        head = verified_head(signed, key or _first_key(signed) or "")
    except (msgspec.MsgspecError, NotProved, UnicodeDecodeError) as error:
        raise Damaged(CONTRADICTION, str(error)) from error
    found = head.cluster, head.group, head.first_index + head.size - 1
    if found != (f"streamd/{cluster}", name.group, name.index):
        raise Damaged(CONTRADICTION, f"the head is of {head}")
    return head


def _read(path: Path) -> list[Any]:
    """A file with one object of JSON, or one in each line."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise NotRun(f"--expect {path}: {error}") from error
    try:
        return [json.loads(text)]
    except ValueError:
        pass
    try:
        found = [json.loads(line) for line in text.splitlines() if line.strip()]
    except ValueError as error:
        raise NotRun(f"--expect {path}: {error}") from error
    if not found:
        raise NotRun(f"--expect {path}: there is no head in it")
    return found


def _first_key(signed: Any) -> str | None:
    match signed:
        case {"keys": [{"key": str(key)}, *_]}:
            return key
    return None
