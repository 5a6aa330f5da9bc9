"""TLS that follows its files: a renewed certificate takes effect without a restart.

New contexts replace those in use, and only new handshakes see them. A context that takes a second
certificate would have no way back if the key does not belong to it.
"""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

import structlog
import trio

from streamd.config.settings import ConfigError
from streamd.process.metrics import Metrics

POLL_INTERVAL_S = 3.0

T = TypeVar("T")
# Identifies a file's content: device, inode, size in bytes, time of the last change in ns.
Stamp = tuple[int, int, int, int]

log = structlog.get_logger("streamd.tls")


class TlsFiles(Generic[T]):
    """Holds the result of `load()` for `files`, of which the first is the certificate; loads them
    again when they change. Call it for the present contexts. `on_load` is called after each load,
    with what prevented it, if anything did."""

    def __init__(self, files: Sequence[str], load: Callable[[], T]) -> None:
        """Raises what `load` raises, and `OSError` naming a file that cannot be read."""
        self._files = files
        self._load = load
        self._seen = self._stamps()
        self._contexts = self._loaded()
        # Unix time in seconds at which the certificate in use expires; NaN if it cannot be read.
        self.expires_s = _expiry_s(files[0])
        self.on_load: Callable[[Sequence[str], str | None], None] = lambda *_: None

    def __call__(self) -> T:
        return self._contexts

    def reload(self) -> None:
        """Load the files. If a context cannot be made, the ones in use stay."""
        # Noted before the files are read, so that the next look notices a change in between.
        self._seen = self._stamps()
        try:
            self._contexts = self._loaded()
        except (OSError, ConfigError) as error:
            log.error(
                "TLS files cannot be used, and the ones loaded before stay in use",
                files=list(self._files),
                error=str(error),
            )
            self.on_load(self._files, str(error))
        else:
            self.expires_s = _expiry_s(self._files[0])
            log.info("TLS files loaded", files=list(self._files))
            self.on_load(self._files, None)

    def look(self) -> None:
        """Load the files if they have changed since they were last read."""
        if self._stamps() != self._seen:
            self.reload()

    async def follow(self) -> NoReturn:
        """Look at the files every `POLL_INTERVAL_S`."""
        while True:
            await trio.sleep(POLL_INTERVAL_S)
            self.look()

    def _loaded(self) -> T:
        for file in self._files:
            with open(file, "rb"):
                pass  # The errors of `ssl` name no file.
        return self._load()

    def _stamps(self) -> list[Stamp | None]:
        return [stamp_of(file) for file in self._files]


def export_expiry(metrics: Metrics, tls: Mapping[str, TlsFiles[Any] | None]) -> None:
    """Register the expiry of certificates, by the section of the configuration that names each."""
    used = {section: files for section, files in tls.items() if files is not None}
    metrics.gauge_by(
        "section",
        "tls_certificate_expiry_time_seconds",
        "Unix time at which the TLS certificate in use expires, by section of the configuration.",
        lambda: {section: files.expires_s for section, files in used.items()},
    )


def _expiry_s(file: str) -> float:
    # Only here: a node without TLS need not import cryptography, which takes long.
    from cryptography import x509

    try:
        certificate = x509.load_pem_x509_certificate(Path(file).read_bytes())
    except (OSError, ValueError):
        return math.nan  # OpenSSL takes it; a wrong alarm must not end the node.
    return certificate.not_valid_after_utc.timestamp()


async def reload_on_hangup(reloads: Sequence[Callable[[], None]]) -> None:
    """Call all of `reloads` at each SIGHUP."""
    with trio.open_signal_receiver(signal.SIGHUP) as hangups:
        async for _ in hangups:
            for reload in reloads:
                reload()


def stamp_of(file: str) -> Stamp | None:
    """Differs once the file was written or replaced, or a link on its path leads elsewhere."""
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns
