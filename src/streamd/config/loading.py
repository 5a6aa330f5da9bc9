"""Loads the configuration: defaults, overridden by a TOML file, the environment, then flags.

Each source is decoded into typed structs by itself, so that an error names the source of an unknown
key or a wrong type. Keys that depend on each other are checked last, on the merged configuration.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_origin

import msgspec

from streamd.config.auth import JwtConfig
from streamd.config.checks import check
from streamd.config.heads import HeadsConfig
from streamd.config.names import PREFIX, fields_of, readable, unknown_variable, with_values
from streamd.config.settings import (
    AdminConfig,
    AuthConfig,
    ClusterConfig,
    ColdConfig,
    Config,
    ConfigError,
    LogConfig,
    ServerConfig,
    StorageConfig,
)
from streamd.config.subscriptions import SubscriptionsConfig
from streamd.config.supervisor import SupervisorConfig
from streamd.process.cures import cure

_REFERENCE = re.compile(r"\$[A-Za-z_][A-Za-z0-9_]*")

_SECTIONS: dict[str, type[msgspec.Struct]] = {
    "server": ServerConfig,
    "cluster": ClusterConfig,
    "cold": ColdConfig,
    "log": LogConfig,
    "auth": AuthConfig,
    "admin": AdminConfig,
    "storage": StorageConfig,
    "heads": HeadsConfig,
    "subscriptions": SubscriptionsConfig,
    "supervisor": SupervisorConfig,
}
# A name of its own, because operators pass it to the command line as well.
_ROOT_TOKEN = "STREAMD_ROOT_TOKEN"  # noqa: S105 - the name of a variable


def load(
    file: Path | None,
    environment: Mapping[str, str],
    flags: Mapping[str, Mapping[str, Any]],
) -> Config:
    """Merge all sources; `flags` holds values by section and key.

    Raises `ConfigError`.
    """
    merged: dict[str, Any] = {section: {} for section in _SECTIONS}
    layers: dict[str, Mapping[str, Any]] = {} if file is None else {str(file): _read_toml(file)}
    layers |= {"the environment": _from_environment(environment), "the command line": flags}
    if (fault := unknown_variable(environment, layers, Config)) is not None:
        raise ConfigError(f"the environment: {fault}")
    for source, layer in layers.items():
        _merge(merged, layer, environment, source)
    config = _convert(merged, "the configuration")
    check(config)
    return config


def _merge(
    merged: dict[str, Any],
    layer: Mapping[str, Any],
    environment: Mapping[str, str],
    source: str,
) -> None:
    """Check one source by itself, and merge it over those before it."""
    resolved = {key: _resolve(value, key, environment) for key, value in layer.items()}
    _convert(resolved, source)
    _merge_tables(merged, resolved)


def _merge_tables(merged: dict[str, Any], layer: Mapping[str, Any]) -> None:
    for key, value in layer.items():
        if isinstance(value, Mapping):
            _merge_tables(merged.setdefault(key, {}), value)
        else:
            merged[key] = value


def _convert(values: Mapping[str, Any], source: str) -> Config:
    try:
        return msgspec.convert(values, Config)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{source}: {readable(str(error), Config)}") from None


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text())
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}. {cure(error.errno)}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: not TOML: {error}") from None


def _from_environment(environment: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """``STREAMD_SERVER_NODE_ID`` is ``server.node_id``. `STREAMD_URL` belongs to the client."""
    layer: dict[str, dict[str, Any]] = {}
    if _ROOT_TOKEN in environment:
        layer["auth"] = {"root_token": environment[_ROOT_TOKEN]}
    for name, text in environment.items():
        section, _, key = name.removeprefix(PREFIX).lower().partition("_")
        if not name.startswith(PREFIX) or section not in _SECTIONS:
            continue
        keys = layer.setdefault(section, {})
        fields = fields_of(_SECTIONS[section])
        if section == "auth" and key.startswith("jwt_"):
            keys = keys.setdefault("jwt", {})
            key, fields = key.removeprefix("jwt_"), fields_of(JwtConfig)
        if key not in fields:
            continue
        try:
            value: Any = text.split(",") if get_origin(fields[key]) is list else text
            keys[key] = msgspec.convert(value, fields[key], strict=False)
        except msgspec.ValidationError as error:
            text = with_values(str(error), fields[key])
            raise ConfigError(f"the environment: {name}: {text}") from None
    return layer


def _resolve(value: Any, key: str, environment: Mapping[str, str]) -> Any:
    """Replace ``$NAME`` by the environment variable, which keeps secrets out of files."""
    if isinstance(value, Mapping):
        return {
            name: _resolve(inner, f"{key}.{name}", environment) for name, inner in value.items()
        }
    if not isinstance(value, str) or _REFERENCE.fullmatch(value) is None:
        return value
    try:
        return environment[value[1:]]
    except KeyError:
        raise ConfigError(f"{key}: the environment variable {value[1:]} is not set") from None
