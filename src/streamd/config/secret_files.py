"""Files with secrets that all nodes of a cluster share."""

from __future__ import annotations

from pathlib import Path

from streamd.config.settings import ConfigError
from streamd.process.cures import with_cure


def read_secret(key: str, file: str, min_bytes: int) -> bytes:
    """The secret in the file that the configuration names under `key`, without the white space
    around it. Blocks. Raises `ConfigError` if the file cannot be read, or holds fewer bytes."""
    try:
        secret = Path(file).read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"{key}: {with_cure(error)}") from None
    if len(secret) < min_bytes:
        raise ConfigError(
            f"{key}: {file} has {len(secret)} bytes, and a secret needs at least {min_bytes}: "
            "make one with: openssl rand -hex 32"
        )
    return secret
