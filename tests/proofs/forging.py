"""Changes to a proof or a head, each of which a verifier must find."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterator
from typing import Any

# Fields that nobody vouches for: a reader is told the offset as a claim, and the node not at all.
UNPROVED = (("claim", "offset"), ("keys", "node"))
# Another number names another record of the same command, which is then what is proved.
OTHER_RECORD = ("claim", "record")

Path = tuple[str | int, ...]


def fields(document: Any, path: Path = ()) -> Iterator[Path]:
    """The paths to all values in a document that are neither object nor list."""
    items: Any = document.items() if isinstance(document, dict) else enumerate(document)
    for name, value in items:
        if isinstance(value, dict | list):
            yield from fields(value, (*path, name))
        else:
            yield (*path, name)


def lists(document: Any, path: Path = ()) -> Iterator[Path]:
    """The paths to all lists."""
    items: Any = document.items() if isinstance(document, dict) else enumerate(document)
    for name, value in items:
        if isinstance(value, list):
            yield (*path, name)
        if isinstance(value, dict | list):
            yield from lists(value, (*path, name))


def value_at(document: Any, path: Path) -> Any:
    for name in path:
        document = document[name]
    return document


def put(document: Any, path: Path, value: Any) -> Any:
    """The document with another value there."""
    copied = json.loads(json.dumps(document))
    value_at(copied, path[:-1])[path[-1]] = value
    return copied


def is_unproved(path: Path) -> bool:
    names = tuple(name for name in path if isinstance(name, str))
    return names[-2:] in UNPROVED


def bits(value: Any) -> int:
    """How many bits a field has; of base64, those that it encodes."""
    return 0 if value is None else 53 if isinstance(value, int) else len(_bytes(value)[0]) * 8


def flipped(value: Any, bit: int) -> Any:
    """A field with another bit. Raises `UnicodeDecodeError` if it would not be text."""
    if isinstance(value, int):
        return value ^ 1 << bit
    content, is_base64 = _bytes(value)
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return b64encode(changed).decode() if is_base64 else changed.decode()


def _bytes(value: str) -> tuple[bytes, bool]:
    if "/run" not in value:
        try:
            return b64decode(value, validate=True), True
        except ValueError:
            pass
    return value.encode(), False
