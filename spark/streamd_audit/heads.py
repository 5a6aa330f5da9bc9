"""Signed heads of the log: those that somebody has kept, and those in the store."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec

from streamd_audit.errors import CONTRADICTION, Damaged
from streamd_audit.framing import Buffer
from streamd_audit.names import HeadName
from streamd_audit.options import NotRun
from streamd_audit.proof import Head, NotProved, binary, decoded, verified_head

_OF_KEY = frozenset(("key", "node", "signed_by", "signature"))


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


def stored_head(
    content: Buffer, name: HeadName, cluster: str, key: str | None, known: Mapping[bytes, int]
) -> Head:
    """The head in an object, signed by a key that `key` vouches for; without one by any for which
    one of the `known` public keys vouches, which nodes have; and if there are none by any at all.
    Raises `Damaged`, also for a head that says more."""
    try:
        signed = decoded(bytes(content), msgspec.json.decode)
        head = verified_head(signed, key or _known_key(signed, known) or "")
        _check_known(signed, known)
    except NotProved as error:
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


def _check_known(signed: dict[str, Any], known: Mapping[bytes, int]) -> None:
    """Raises `NotProved` for what no signature is about, if no node writes it."""
    lines = signed["note"].rpartition("\n\n")[2]
    is_known = signed.keys() == {"note", "keys"} and lines.endswith("\n") and lines.count("\n") == 1
    for one in signed["keys"]:
        node = known.get(_public(one["key"]), one.get("node"))
        is_known = is_known and one.keys() == _OF_KEY and type(node) is int and node == one["node"]
    if not is_known:
        raise NotProved("the head has something that no node writes")


def _known_key(signed: Any, known: Collection[bytes]) -> str | None:
    """The first key in a head that is known, or the first one if none is."""
    if not known:
        return _first_key(signed)
    match signed:
        case {"keys": [*keys]}:
            told = (one.get("key") for one in keys if isinstance(one, dict))
            return next((one for one in told if isinstance(one, str) and _public(one) in known), "")
    return None


def _public(key: str) -> bytes:
    """The 32 bytes of a key in the form NAME+ID+KEY."""
    return binary(key.split("+", 2)[-1])[1:]


def _first_key(signed: Any) -> str | None:
    match signed:
        case {"keys": [{"key": str(key)}, *_]}:
            return key
    return None
