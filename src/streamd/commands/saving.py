"""``streamd backup save``: a backup of a running node that has no cold store, in a directory."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click
import msgspec

from streamd.backup.base import RestoreRefused, format_time
from streamd.backup.inventory import Verified, verify
from streamd.backup.saving import UNFINISHED, Begun, SavedObject
from streamd.client import Client
from streamd.client.errors import StreamdError
from streamd.commands.backup import Bar, failure_of, use_store
from streamd.commands.options import json_option, talks_to_server
from streamd.config.settings import ColdConfig, Config, ConfigError
from streamd.objectstore.fs import FsStore
from streamd.objectstore.names import cluster_folder
from streamd.process.exits import exit_on
from streamd.process.privacy import keep_private
from streamd.process.threads import in_thread
from streamd.protocol.headers import CONTENT_TYPE
from streamd.storage.files import remove_durably, write_durably
from streamd.streams.content import UNDECODABLE
from streamd.tiering.async_store import AsyncObjectStore

_MARK = b"streamd backup save has not finished here\n"


@click.command()
@click.argument("directory", type=click.Path(path_type=Path))
@json_option
@talks_to_server
def save(client: Client, directory: Path, as_json: bool) -> None:
    """Save a backup of a running node into DIRECTORY, which must be new or empty.

    It has everything that was acknowledged before. The node goes on serving. It must have no cold
    store: that is the backup of a node that has one. A directory that an interrupted save has left
    cannot be restored; the next save into it begins again.
    """
    keep_private()
    with exit_on(failure_of):
        _prepare(directory)
        with _begun(client) as begun:
            size = _fetch(client, begun, directory)
        verified = _verified(begun, directory)
        try:
            remove_durably(directory / UNFINISHED)
        except OSError as error:
            raise RestoreRefused(f"{directory} cannot be written: {error}") from error
    if as_json:
        told: dict[str, Any] = {**msgspec.to_builtins(begun), "size": size}
        del told["backup"]
        print(json.dumps(told, indent=2))
        return
    print(f"cluster {begun.cluster_id} as of entry {begun.index}, {format_time(begun.time_ms)}:")
    print(f"{verified.size} bytes in {directory}, all read again and whole.")
    print(f"Restore it with: streamd restore --from fs:{directory} --no-fence --data-dir NEW")


def _prepare(directory: Path) -> None:
    """Make the directory, marked as unfinished. Raises `ConfigError` if it holds anything else."""
    try:
        found = {one.name for one in directory.iterdir()} if directory.exists() else set()
        if found and UNFINISHED not in found:
            raise ConfigError(f"{directory} is not empty: name a directory that is, or a new one")
        for name in found - {UNFINISHED}:
            shutil.rmtree(directory / name)
        directory.mkdir(parents=True, exist_ok=True)
        write_durably(directory / UNFINISHED, _MARK)
    except OSError as error:
        raise ConfigError(f"{directory} cannot be used: {error}") from error


@contextmanager
def _begun(client: Client) -> Iterator[Begun]:
    """A backup that ends with the block. Raises `StreamdError`."""
    answer = client.request(
        "POST",
        "/cluster/backup",
        headers={CONTENT_TYPE: "application/json"},
        body=b"{}",
        repeatable=False,
    )
    begun = _decoded(answer.body, Begun, msgspec.json.decode)
    try:
        yield begun
    finally:
        with suppress(StreamdError):  # The node ends it by itself in a minute.
            client.request("DELETE", f"/cluster/backup/{begun.backup}", repeatable=False)


def _fetch(client: Client, begun: Begun, directory: Path) -> int:
    """Fetch all objects; returns their bytes. The manifest, without which nothing can be restored,
    comes after all pieces. Raises `StreamdError`, `ColdError`."""
    store = FsStore(directory)
    number = size = 0
    while True:
        answer = client.request("GET", f"/cluster/backup/{begun.backup}/{number}")
        saved = _decoded(answer.body, SavedObject, msgspec.msgpack.decode)
        store.put(cluster_folder(begun.cluster_id) + saved.name, saved.content)
        size += len(saved.content)
        number += 1
        if saved.is_last:
            store.close()
            return size


def _decoded(body: bytes, kind: Any, decode: Any) -> Any:
    try:
        return decode(body, type=kind)
    except UNDECODABLE as error:
        raise RestoreRefused(f"the node's answer is not a backup: {error}") from error


def _verified(begun: Begun, directory: Path) -> Verified:
    """Read all of it again. Raises `RestoreRefused` for damage, `ColdError`."""

    async def work(cold: AsyncObjectStore) -> Verified:
        with Bar() as bar:
            return await verify(cold, begun.cluster_id, in_thread, bar)

    config = Config(cold=ColdConfig(backend="fs", fs_path=str(directory)))
    found = use_store(config, work)
    if found.problems or not found.snapshots:
        raise RestoreRefused(f"{directory} does not hold what was saved: {found.problems}")
    return found
