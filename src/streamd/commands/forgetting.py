"""``streamd backup forget``: removal of a cluster's folder from the store."""

from __future__ import annotations

import json
from pathlib import Path

import click
import msgspec

from streamd.backup.forgetting import Folder, inspect, remove
from streamd.commands.backup import config_option, configured, failure_of, from_option, use_store
from streamd.process.exits import exit_on
from streamd.tiering.async_store import AsyncObjectStore


@click.command()
@from_option
@config_option
@click.option("--cluster", "cluster_id", metavar="ID", required=True, help="The cluster.")
@click.option(
    "--yes", is_flag=True, help="Delete the objects. Without it, only show what would be deleted."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def forget(place: str | None, file: Path | None, cluster_id: str, yes: bool, as_json: bool) -> None:
    """Delete all that a cluster has in the store: the folder that a drill has left.

    Refuses for a cluster that may still run, from which another was restored, or that is the only
    one in the store. What is deleted cannot be restored.
    """

    async def work(cold: AsyncObjectStore) -> Folder:
        folder, names = await inspect(cold, cluster_id)
        if yes:
            await remove(cold, names)
        return folder

    with exit_on(failure_of):
        folder = use_store(configured(file, place, {}), work)
    if as_json:
        print(json.dumps({**msgspec.to_builtins(folder), "deleted": yes}, indent=2))
        return
    print(f"cluster {folder.cluster_id}" + (", deleted:" if yes else " would lose:"))
    for kind, count in sorted(folder.objects.items()):
        print(f"  {kind}: {count} objects, {folder.bytes[kind]} bytes")
    if not yes:
        print("Nothing was deleted; --yes deletes it.")
