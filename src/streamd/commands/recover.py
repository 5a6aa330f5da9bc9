"""``streamd recover``: turns one node's data into a new cluster when the majority is lost."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import click

from streamd.backup.takeover import fence_off, missing_packs
from streamd.cluster.recovery import Recovered, recover_alone
from streamd.commands.backup import failure_of, use_store
from streamd.config.loading import load
from streamd.config.settings import Config
from streamd.group.stores import Stores
from streamd.objectstore.errors import ColdError
from streamd.process.exits import errors_in, exit_on
from streamd.process.privacy import keep_private
from streamd.streams.cold.packs import living_packs
from streamd.tiering.async_store import AsyncObjectStore
from streamd.tiering.fence import FenceNote

# Missing objects are listed by name up to this number, and counted beyond.
_MAX_NAMED = 10


@click.command()
@click.option("--offline", is_flag=True, required=True, help="Confirm that the node is stopped.")
@click.option(
    "--accept-data-loss",
    is_flag=True,
    required=True,
    help="Confirm that writes stored only on the other nodes are lost.",
)
@click.option("--config", "file", type=click.Path(path_type=Path), help="The node's TOML file.")
@click.option("--node-id", type=int, help="The node's id.")
@click.option("--data-dir", help="The node's data directory.")
def recover(file: Path | None, offline: bool, accept_data_loss: bool, **flags: object) -> None:
    """Start a new cluster from this node's data when the majority is lost for good.

    The node becomes the only voter of a NEW cluster. It refuses nodes of the old one, and fences
    them off in the cold store, if there is one. Choose the survivor with the longest log, recover
    only that node, then add fresh nodes.
    """
    keep_private()
    given = {key: value for key, value in flags.items() if value is not None}
    with exit_on(failure_of):
        config = load(file, os.environ, {"server": given})
        report = recover_alone(config, lambda report, stores: _take_over(config, report, stores))
        _tell_recovered(report)


def _take_over(config: Config, report: Recovered, stores: Stores) -> None:
    """Fence the former cluster off in the store, and warn of missing objects.

    A store that does not answer must not keep the cluster down: the node fences before it first
    uses the store.
    """
    wanted = [pack.name for pack in living_packs(stores.state)]
    if config.cold.backend == "none":
        if wanted:
            _warn(
                'the data refers to a cold store, but cold.backend is "none": keep the old nodes '
                "stopped until this node has started with [cold] and fenced them off"
            )
        return

    async def work(cold: AsyncObjectStore) -> list[str]:
        note = FenceNote(report.cluster_id, time.time_ns() // 1_000_000)
        await fence_off(cold, report.former_cluster_id, note)
        return await missing_packs(cold, wanted)

    missing: list[str] = []
    try:
        missing = use_store(config, work)
    except* ColdError as errors:
        _warn(
            f"the old cluster cannot be fenced off in the cold store now ({errors_in(errors)[0]}): "
            "keep the old nodes stopped until this node has started and fenced them off"
        )
    if missing:
        named = ", ".join(missing[:_MAX_NAMED])
        _warn(f"{len(missing)} packs are missing in the cold store: {named}")


def _warn(message: str) -> None:
    print(f"WARNING: {message}", file=sys.stderr)


def _tell_recovered(report: Recovered) -> None:
    print(f"cluster {report.former_cluster_id} of voters {report.former_voters} is abandoned;")
    print(f"cluster {report.cluster_id} starts with this node as its only voter.")
    print(f"Its log ends at entry {report.last_index} (term {report.last_term}); of these,")
    print(f"{report.last_index - report.applied_index} were not known to be committed.")
    if report.lost_below_index is not None:
        print(f"WARNING: this disk had lost entries up to {report.lost_below_index}.")
    print("Acknowledged writes beyond that entry are lost. Delete the other nodes' data, and add")
    print("them as new nodes with ids never used before.")
