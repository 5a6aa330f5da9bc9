"""The paths by which subscriptions name streams, and the keys of these streams.

Bodies name a stream relative to the root of the base protocol's surface (protocol section 6), in
plain text: `x` is the stream `x` of the bucket `_default`, `a/b/c` the stream `b/c` of the bucket
`a`. A stream has one such path, though its URL may have others.
"""

from __future__ import annotations

_DEFAULT = b"_default"


def normalised(path: str) -> str:
    """The path without slashes at its ends."""
    return path.strip("/")


def key_of(path: str) -> bytes:
    """The stream key that a path stands for; it is not checked whether a stream can have it.

    Raises `UnicodeEncodeError` for lone surrogates.
    """
    bucket, slash, name = normalised(path).encode().partition(b"/")
    return bucket + b"\0" + name if slash else _DEFAULT + b"\0" + bucket


def path_of(key: bytes) -> str:
    """The path of a stream, by its key."""
    bucket, _, name = key.partition(b"\0")
    if bucket == _DEFAULT and b"/" not in name:
        return name.decode(errors="replace")
    return (bucket + b"/" + name).decode(errors="replace")
