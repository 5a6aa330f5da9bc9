"""Sends signed heads of the log to where the cluster's operators cannot take them back.

The leader does, a task for each target: one that fails is tried again, and holds up nothing else.
"""

from __future__ import annotations

import math
import os
import ssl
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

import msgspec
import trio

from streamd.backup.log_heads import LogHeads
from streamd.config.heads import HeadsConfig, bucket_of, is_web
from streamd.config.settings import ColdConfig, ConfigError
from streamd.objectstore.errors import ColdError, ColdRefused, ColdUnavailable
from streamd.process.cures import with_cure
from streamd.process.threads import RunBlocking
from streamd.proofs.published import PublishedHead
from streamd.tiering.tier import LeaderTerm

if TYPE_CHECKING:
    from streamd.objectstore.s3 import S3Store

_TIMEOUT_S = 15.0
# How often to look for the first head.
_EARLY_S = 1.0
_MAX_TOKEN_BYTES = 4096


class HeadTarget(Protocol):
    """A place for heads. `name` is for logs and metrics, and has no credentials."""

    name: str

    async def send(self, name: str, content: bytes) -> None:
        """Deliver a head in JSON; `name` distinguishes it from all others. May be repeated. Raises
        `ColdError`."""


class Publisher:
    """Sends heads to one target, and has its `name`."""

    def __init__(self, heads: LogHeads, target: HeadTarget, every_s: float) -> None:
        self._heads = heads
        self._target = target
        self._every_s = every_s
        self._sent_index = 0
        # When this node last published, in seconds since the epoch.
        self.sent_at_s = math.nan

    @property
    def name(self) -> str:
        return self._target.name

    async def make_round(self, lead: LeaderTerm) -> float:
        """Send the newest head if there is another one. Raises `ColdError`."""
        index = self._heads.archived_index
        if index and index == self._sent_index:
            return self._every_s
        head = self._heads.newest()
        if head is None:
            return _EARLY_S
        await self._target.send(*_named(self._heads.cluster_id, index, head))
        self._sent_index, self.sent_at_s = index, self._heads.now_ms() / 1000
        return self._every_s


def _named(cluster_id: str, index: int, head: PublishedHead) -> tuple[str, bytes]:
    content = msgspec.json.encode(head)
    return f"{cluster_id}/{index:016x}-{sha256(content).hexdigest()}.head", content


def open_targets(
    config: HeadsConfig, cold: ColdConfig, run_blocking: RunBlocking
) -> Sequence[HeadTarget]:
    """The targets of the configuration. Nothing is asked yet. Raises `ConfigError`."""
    found: list[HeadTarget] = []
    for target in config.publish:
        bucket = bucket_of(target)
        if bucket is not None:
            found.append(_Bucket(target, _store(*bucket, config, cold), run_blocking))
        elif is_web(target):
            found.append(_Web(target, config, run_blocking))
        else:
            found.append(_File(Path(target.removeprefix("file:")), run_blocking))
    return found


class _File:
    """Appends a line for each head."""

    def __init__(self, path: Path, run_blocking: RunBlocking) -> None:
        self.name = f"file:{path}"
        self._path = path
        self._run_blocking = run_blocking

    async def send(self, name: str, content: bytes) -> None:
        await self._run_blocking(self._append, content)

    def _append(self, content: bytes) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        try:
            descriptor = os.open(self._path, flags, 0o644)
            try:
                size = os.fstat(descriptor).st_size
                # A line that a full disk cut off must not take this one with it.
                is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
                os.write(descriptor, (b"\n" if is_torn else b"") + content + b"\n")
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError as error:
            raise ColdUnavailable(f"{self._path}: {with_cure(error)}") from error


class _Web:
    """Posts each head in JSON: to a webhook, or as a message to a stream."""

    def __init__(self, url: str, config: HeadsConfig, run_blocking: RunBlocking) -> None:
        """Raises `ConfigError` for files that cannot be read."""
        parts = urlsplit(url)
        # A webhook's path may be all that it takes to post there.
        self.name = f"{parts.scheme}://{parts.netloc}"
        self._url = url
        self._token_file = None if config.token_file is None else Path(config.token_file)
        self._run_blocking = run_blocking
        self._tls = _tls(config.ca) if parts.scheme == "https" else None
        self._token()

    async def send(self, name: str, content: bytes) -> None:
        """Post the head. Any answer but a success is a failure."""
        # Imported here: it would double the time of a start without it.
        import httpx

        headers = {"Content-Type": "application/json"}
        try:
            token = await self._run_blocking(self._token)
        except ConfigError as error:
            raise ColdRefused(str(error)) from error
        if token:
            headers["Authorization"] = f"Bearer {token}"
        try:
            with trio.fail_after(_TIMEOUT_S):
                async with httpx.AsyncClient(verify=self._tls or False) as client:
                    answer = await client.post(self._url, content=content, headers=headers)
        except (httpx.HTTPError, httpx.InvalidURL, OSError, trio.TooSlowError) as error:
            raise ColdUnavailable(f"{self.name}: {type(error).__name__}: {error}") from error
        if not answer.is_success:
            raise ColdUnavailable(f"{self.name}: HTTP status {answer.status_code}")

    def _token(self) -> str:
        """Read each time, so that it can be replaced. Raises `ConfigError`."""
        if self._token_file is None:
            return ""
        try:
            token = self._token_file.read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"heads.token_file: {error}") from None
        if not (0 < len(token) <= _MAX_TOKEN_BYTES and token.isascii() and token.isprintable()):
            raise ConfigError(f"heads.token_file: {self._token_file} holds no token")
        return token


def _tls(authorities: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=authorities)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"heads.ca: {error}") from None


class _Bucket:
    """Puts each head into an object of its own, which is locked if that is configured."""

    def __init__(self, target: str, store: S3Store, run_blocking: RunBlocking) -> None:
        self.name = target
        self._store = store
        self._run_blocking = run_blocking

    async def send(self, name: str, content: bytes) -> None:
        await self._run_blocking(self._store.put, name, content)


def _store(bucket: str, prefix: str, config: HeadsConfig, cold: ColdConfig) -> S3Store:
    """Raises `ConfigError`."""
    # The client's library is a fifth of what a start loads.
    from streamd.objectstore.s3 import S3Store

    has_own_key = config.s3_access_key_id is not None
    try:
        return S3Store(
            bucket=bucket,
            region=config.s3_region or cold.s3_region,
            endpoint=config.s3_endpoint or cold.s3_endpoint,
            access_key_id=config.s3_access_key_id or cold.s3_access_key_id,
            secret_access_key=config.s3_secret_access_key or cold.s3_secret_access_key,
            session_token=None if has_own_key else cold.s3_session_token,
            ca_file=config.ca or cold.s3_ca,
            prefix=f"{prefix}/" if prefix else "",
            timeout_s=_TIMEOUT_S,
            connections=1,
            lock_days=config.lock_days,
        )
    except ColdError as error:
        raise ConfigError(f"heads.publish: {error}") from error
