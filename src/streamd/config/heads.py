"""The `[heads]` section of the configuration."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import urlsplit

import msgspec

from streamd.process.addresses import is_loopback
from streamd.process.redaction import shown

MAX_TARGETS = 16
_WEB = re.compile(r"https?://[^/?#@\s]+(/[^#\s]*)?")
_AUTHORITY = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:]+)(?::[0-9]+)?")
_FILE = re.compile(r"file:/.+", re.DOTALL)
_BUCKET = re.compile(
    r"s3://([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])((?:/[A-Za-z0-9_-][A-Za-z0-9._-]*)*)/?"
)

Positive = Annotated[int, msgspec.Meta(ge=1)]


class HeadsConfig(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The `[heads]` section: where the leader sends signed heads of the archived log.

    `publish` lists ``file:/PATH``, ``https://…``, ``http://…`` and ``s3://BUCKET/PREFIX``; each
    gets the newest head every `publish_every_s`, if there is another one. `token_file` holds a
    token for those on the web, `ca` the certificates (PEM) to trust there. Objects in a bucket are
    locked for `lock_days`. What is not set for S3 is as in the section ``[cold]``.
    """

    publish: list[str] = []
    publish_every_s: Positive = 60
    token_file: str | None = None
    ca: str | None = None
    lock_days: Positive | None = None
    s3_region: str | None = None
    s3_endpoint: str | None = None
    s3_access_key_id: str | None = None
    s3_secret_access_key: str | None = None


def bucket_of(target: str) -> tuple[str, str] | None:
    """Bucket and prefix of a target in S3; None for any other target."""
    match = _BUCKET.fullmatch(target)
    return None if match is None else (match[1], match[2].strip("/"))


def is_web(target: str) -> bool:
    """Whether a target is a URL of the web."""
    return _WEB.fullmatch(target) is not None


def heads_fault(config: HeadsConfig, *, has_cold_store: bool) -> str | None:
    """What is wrong with the section; None if nothing is."""
    if len(config.publish) > MAX_TARGETS or len(set(config.publish)) < len(config.publish):
        return f"publish can have at most {MAX_TARGETS} targets, each once"
    for target in config.publish:
        if not (is_web(target) or _FILE.fullmatch(target) or bucket_of(target)):
            return f"publish: {shown(target)!r} is not file:/PATH, https://… or s3://BUCKET/PREFIX"
    if config.publish and not has_cold_store:
        return "publish needs a cold store: heads are those of the archived log"
    if config.token_file is not None:
        for target in filter(is_web, config.publish):
            if not (target.startswith("https:") or _is_of_this_machine(target)):
                return f"token_file: {shown(target)} would get the token without TLS"
    if config.lock_days is not None and not any(map(bucket_of, config.publish)):
        return "lock_days needs an s3:// target in publish"
    if (config.s3_access_key_id is None) != (config.s3_secret_access_key is None):
        return "s3_access_key_id and s3_secret_access_key must be set together"
    return None


def _is_of_this_machine(target: str) -> bool:
    """Whether only this machine gets what is sent to a target on the web."""
    match = _AUTHORITY.fullmatch(urlsplit(target).netloc)
    return match is not None and is_loopback(match[1].strip("[]"))
