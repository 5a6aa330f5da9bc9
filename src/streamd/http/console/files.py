"""The console's files, and the policy that a browser keeps for them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

STATIC = Path(__file__).parent / "static"
INDEX = "index.html"
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'; connect-src 'self'"
)


class File(NamedTuple):
    """A file, and the headers that it is sent with. `etag` is that of its content."""

    content: bytes
    content_type: str
    etag: str


@cache
def files() -> Mapping[str, File]:
    """All files by their names. Blocks, the first time."""
    return {path.name: _file(path) for path in sorted(STATIC.iterdir()) if path.suffix in _TYPES}


def policy(streams_origin: str | None) -> str:
    """The Content-Security-Policy of the console, which also reads streams at another origin if
    they are served there."""
    return _POLICY if streams_origin is None else f"{_POLICY} {streams_origin}"


def _file(path: Path) -> File:
    content = path.read_bytes()
    return File(content, _TYPES[path.suffix], blake2b(content, digest_size=12).hexdigest())
