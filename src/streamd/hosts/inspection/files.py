"""Files and directories that only the node's user should read."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from streamd.config.settings import Config
from streamd.hosts.inspection.facts import PrivateFileFacts
from streamd.process.privacy import is_open_to_others


def secret_files(config: Config) -> Mapping[str, Path]:
    """The files with secrets that the configuration names, by its keys."""
    named = {
        "server.tls_key": config.server.tls_key,
        "cluster.tls_key": config.cluster.tls_key,
        "cluster.secret_file": config.cluster.secret_file,
        "heads.token_file": config.heads.token_file,
        "subscriptions.secret_file": config.subscriptions.secret_file,
    }
    return {key: Path(file) for key, file in named.items() if file is not None}


def private_files(config: Config) -> list[PrivateFileFacts]:
    """The modes of files with secrets and of directories with data, so far as these exist."""
    cold = config.cold
    directories = {"server.data_dir": Path(config.server.data_dir)}
    if cold.backend == "fs" and cold.fs_path is not None:
        directories["cold.fs_path"] = Path(cold.fs_path)
    made = {key: path for key, path in directories.items() if path.exists()}
    return [_look(key, path) for key, path in {**secret_files(config), **made}.items()]


def _look(key: str, path: Path) -> PrivateFileFacts:
    try:
        return PrivateFileFacts(key, str(path), is_open_to_others(path))
    except OSError as error:
        return PrivateFileFacts(key, str(path), error=str(error))
