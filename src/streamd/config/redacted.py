"""A configuration without its secrets, for people and for bundles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from streamd.config.heads import is_web
from streamd.config.settings import Config
from streamd.process.redaction import shown

_SECRETS = {"root_token", "s3_access_key_id", "s3_secret_access_key", "s3_session_token"}
_HIDDEN = "***"


def without_secrets(config: Config) -> dict[str, Any]:
    """The values by section and key. Of URLs to which heads are sent only scheme and host are left:
    many services ask for nothing but the right path."""
    return {key: _hidden(key, value) for key, value in msgspec.to_builtins(config).items()}


def holds_secrets(values: Mapping[str, Any]) -> bool:
    """Whether a configuration file with these values has secrets in it, and not only the names of
    variables that have them."""
    return any(
        holds_secrets(value)
        if isinstance(value, Mapping)
        else key in _SECRETS and isinstance(value, str) and not value.startswith("$")
        for key, value in values.items()
    )


def _hidden(key: str, value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _hidden(name, inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_hidden(key, inner) for inner in value]
    if not isinstance(value, str):
        return value
    if key in _SECRETS:
        return _HIDDEN
    if key == "publish" and is_web(value):
        parts = urlsplit(value)
        return f"{parts.scheme}://{parts.netloc}/{_HIDDEN}"
    return shown(value)
