"""``streamd backup`` and ``streamd restore``: what the cold store can restore, and the restore.

Both use the store alone; no node needs to run, or to exist.
"""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import click
import msgspec
import trio
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars

from streamd.backup.base import Choice, RestoreRefused, check_not_seconds, format_time
from streamd.backup.clusters import choose_cluster, known_clusters
from streamd.backup.inventory import ClusterStatus, Verified, look, verify
from streamd.backup.restore import Restored, restore
from streamd.backup.saving import UNFINISHED
from streamd.config.loading import load
from streamd.config.settings import Config, ConfigError
from streamd.objectstore.errors import ColdError, ColdRefused, ObjectCorrupt, ObjectMissing
from streamd.objectstore.names import cluster_folder
from streamd.process.exits import EXIT_REFUSED, EXIT_UNREACHABLE, EXIT_USAGE, Failure, exit_on
from streamd.process.logs import set_up_logging
from streamd.process.privacy import keep_private
from streamd.process.redaction import shown
from streamd.process.threads import in_thread, share_one_heap
from streamd.storage.errors import StorageError, in_words
from streamd.tiering.async_store import AsyncObjectStore
from streamd.tiering.fence import fences_of, remove_fence

# The last millisecond that log time can be.
_MAX_MS = 2**63 - 1
_S3 = re.compile(r"s3://(?P<bucket>[^/]+)(/(?P<prefix>.*))?")

_ELSEWHERE = {"forget": "streamd.commands.forgetting", "save": "streamd.commands.saving"}

T = TypeVar("T")


class Bar:
    """A progress bar on standard error, a line of its own for each stage."""

    def __init__(self) -> None:
        self._bars = Bars(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=not sys.stderr.isatty(),
        )
        self._task: Any = None

    def stage(self, name: str, total: int) -> None:
        self._task = self._bars.add_task(name, total=total)

    def advance(self, amount: int) -> None:
        self._bars.advance(self._task, amount)

    def __enter__(self) -> Bar:
        self._bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bars.stop()


def _place(given: str | None) -> dict[str, object]:
    """The keys of `[cold]` that ``--from`` sets."""
    if given is None:
        return {}
    if given.startswith("fs:") and given != "fs:":
        return {"backend": "fs", "fs_path": given.removeprefix("fs:")}
    match = _S3.fullmatch(given)
    if match is None:
        raise ConfigError(f"--from {shown(given)!r} must be s3://bucket/prefix or fs:path")
    return {"backend": "s3", "s3_bucket": match["bucket"], "s3_prefix": match["prefix"] or ""}


def configured(file: Path | None, given: str | None, server: dict[str, object]) -> Config:
    """The configuration for a place in a store. Raises `ConfigError`,
    and `RestoreRefused` for a directory that holds no whole backup."""
    config = load(file, os.environ, {"cold": _place(given), "server": server})
    # Standard output has the answer; of the log only warnings and errors are shown.
    set_up_logging(config.log.format, "warning")
    if config.cold.backend == "none":
        raise ConfigError("name the store: --from, or [cold] in the configuration")
    if config.cold.fs_path is not None and (Path(config.cold.fs_path) / UNFINISHED).exists():
        raise RestoreRefused(
            f"{config.cold.fs_path} is what an interrupted `streamd backup save` has left: it is "
            "no backup. Save again, into the same directory or another"
        )
    return config


def use_store(config: Config, work: Callable[[AsyncObjectStore], Awaitable[T]]) -> T:
    """Run `work` on the configured store."""
    share_one_heap()

    async def run() -> T:
        data_dir = Path(config.server.data_dir)
        cold = AsyncObjectStore.open(config.cold, data_dir, in_thread, Random())
        try:
            return await work(cold)
        finally:
            cold.close()

    return trio.run(run)


def failure_of(error: BaseException) -> Failure | None:
    """What to tell of an error of the store, the archive or the configuration."""
    match error:
        case ConfigError() | ColdRefused():
            return Failure(EXIT_USAGE, str(error))
        case StorageError():
            return Failure(EXIT_REFUSED, in_words(error, is_member=False))
        case RestoreRefused() | ObjectMissing() | ObjectCorrupt():
            return Failure(EXIT_REFUSED, str(error))
        case ColdError():
            return Failure(EXIT_UNREACHABLE, str(error))
    return None


from_option = click.option(
    "--from", "place", metavar="PLACE", help="s3://bucket/prefix or fs:path, in place of [cold]."
)
config_option = click.option(
    "--config", "file", type=click.Path(path_type=Path), help="The configuration file (TOML)."
)


def _store_options(command: Callable[..., None]) -> Callable[..., None]:
    """The options that name the store, and the cluster in it."""
    for option in (
        click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs."),
        click.option("--cluster", "cluster_id", metavar="ID", help="Show only this cluster."),
        config_option,
        from_option,
    ):
        command = option(command)
    return command


class _Backup(click.Group):
    """Commands in modules of their own, which use this one."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted([*super().list_commands(ctx), *_ELSEWHERE])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _ELSEWHERE:
            return super().get_command(ctx, cmd_name)
        command = getattr(import_module(_ELSEWHERE[cmd_name]), cmd_name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=_Backup)
def backup() -> None:
    """Show and verify what a cold store can restore, or save a backup without one."""


@backup.command()
@_store_options
def status(file: Path | None, place: str | None, cluster_id: str | None, as_json: bool) -> None:
    """List the clusters, and the times to which each can be restored.

    Exits with 1 when there is nothing to restore, damage, or a gap.
    """

    failed: list[str] = []

    async def work(cold: AsyncObjectStore) -> list[ClusterStatus]:
        found: list[ClusterStatus] = []
        for one in await known_clusters(cold, cluster_id):
            try:
                found.append(await look(cold, one, in_thread))
            except (ObjectMissing, ObjectCorrupt) as error:
                failed.append(f"cluster {one}: {error}")
        return found

    with exit_on(failure_of):
        found = use_store(configured(file, place, {}), work)
    for failure in failed:
        print(f"streamd: {failure}", file=sys.stderr)
    if as_json:
        print(json.dumps(msgspec.to_builtins(found), indent=2))
    else:
        for status in found:
            _tell_status(status)
    if failed or any(one.gaps or one.damaged or not one.ranges for one in found):
        sys.exit(EXIT_REFUSED)


@backup.command("verify")
@_store_options
def verify_command(
    file: Path | None, place: str | None, cluster_id: str | None, as_json: bool
) -> None:
    """Read everything that a restore would need, and prove that it is whole.

    Exits with 1 when an object is damaged or missing.
    """

    async def work(cold: AsyncObjectStore) -> list[Verified]:
        with Bar() as bar:
            return [
                await verify(cold, one, in_thread, bar)
                for one in await known_clusters(cold, cluster_id)
            ]

    with exit_on(failure_of):
        found = use_store(configured(file, place, {}), work)
    if as_json:
        print(json.dumps(msgspec.to_builtins(found), indent=2))
    else:
        for verified in found:
            _tell_verified(verified)
    if any(verified.problems for verified in found):
        sys.exit(EXIT_REFUSED)


@click.command("restore")
@from_option
@click.option("--cluster", "cluster_id", metavar="ID", help="The cluster, if there are several.")
@click.option(
    "--at",
    "at",
    metavar="TIME",
    help="Restore to this log time: 2026-01-31T12:00:00Z, or ms since the epoch.",
)
@click.option("--index", type=int, metavar="N", help="Restore the state as of log entry N.")
@click.option("--data-dir", required=True, help="A directory that does not exist yet.")
@click.option("--config", "file", type=click.Path(path_type=Path), help="The new node's TOML file.")
@click.option("--node-id", type=int, help="The new node's id.")
@click.option("--fence", metavar="ID", help="Confirm the id of the cluster to fence off.")
@click.option("--no-fence", is_flag=True, help="Do not fence off the old cluster (for a drill).")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")
def restore_command(
    place: str | None,
    cluster_id: str | None,
    at: str | None,
    index: int | None,
    data_dir: str,
    file: Path | None,
    node_id: int | None,
    fence: str | None,
    no_fence: bool,
    as_json: bool,
) -> None:
    """Build a new cluster of one node from the cold store alone.

    By default as of the last archived entry. At the end it fences off the old cluster, which then
    stops writing to the store. Confirm that with the old cluster's id, by --fence or when asked.
    After an interruption, the same command continues.
    """
    if at is not None and index is not None:
        raise click.UsageError("--at and --index cannot be combined")
    if fence is not None and no_fence:
        raise click.UsageError("--fence and --no-fence cannot be combined")
    keep_private()
    choice = Choice(cluster_id, index, None if at is None else _milliseconds(at))
    server: dict[str, object] = {"data_dir": data_dir}
    if node_id is not None:
        server["node_id"] = node_id

    async def work(cold: AsyncObjectStore) -> Restored:
        if not no_fence:
            _confirm_fence(await choose_cluster(cold, choice), fence)
        with Bar() as bar:
            return await restore(
                cold,
                config,
                choice,
                run_blocking=in_thread,
                clock_ms=lambda: time.time_ns() // 1_000_000,
                progress=bar,
                fencing=not no_fence,
            )

    with exit_on(failure_of):
        config = configured(file, place, server)
        done = use_store(config, work)
    if as_json:
        print(json.dumps(msgspec.to_builtins(done), indent=2))
    else:
        _print_restored(done, data_dir, fenced=not no_fence)


def _confirm_fence(cluster_id: str, given: str | None) -> None:
    """Let the operator confirm the id of the cluster to fence off. Raises `ConfigError`."""
    if given is None and sys.stdin.isatty():
        print(
            f"Once the new cluster is proved, cluster {cluster_id} is fenced off: if it still "
            "runs, it stops flushing, archiving and deleting.",
            file=sys.stderr,
        )
        given = click.prompt("Type its id to confirm", err=True)
    if given is None:
        raise ConfigError(
            f"a restore fences cluster {cluster_id} off: confirm that with --fence {cluster_id}, "
            "or leave it alone with --no-fence, for a drill"
        )
    if given != cluster_id:
        raise ConfigError(f"{shown(given)!r} is not the cluster to be restored: {cluster_id}")


@backup.command()
@from_option
@config_option
@click.option("--cluster", "cluster_id", metavar="ID", required=True, help="The fenced cluster.")
@click.option(
    "--restored", metavar="ID", required=True, help="The cluster restored from it, to be abandoned."
)
def unfence(place: str | None, file: Path | None, cluster_id: str, restored: str) -> None:
    """Remove the fence of a restore or recovery that was a mistake.

    The fenced cluster resumes flushing, archiving and deleting within some seconds. It then deletes
    objects that the restored cluster refers to, so that one must never run again.
    """

    async def work(cold: AsyncObjectStore) -> bool:
        await known_clusters(cold, cluster_id)
        if restored not in await fences_of(cold, cluster_id):
            raise RestoreRefused(f"cluster {cluster_id} is not fenced off for {shown(restored)!r}")
        await remove_fence(cold, cluster_id, restored)
        return bool(await cold.page(cluster_folder(restored), limit=1))

    with exit_on(failure_of):
        has_folder = use_store(configured(file, place, {}), work)
    print(f"Cluster {cluster_id} is no longer fenced off.")
    if has_folder:
        print(
            f"Cluster {restored} has objects here. Make sure that it never runs again, then "
            "delete them."
        )


def _milliseconds(text: str) -> int:
    """A time as milliseconds since the epoch; without a zone it is UTC."""
    if text.isascii() and text.isdigit() and int(text) <= _MAX_MS:
        try:
            check_not_seconds(int(text))
        except RestoreRefused as error:
            raise click.BadParameter(str(error), param_hint="--at") from None
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is not a time", param_hint="--at") from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)


def _tell_status(status: ClusterStatus) -> None:
    print(f"cluster {status.cluster_id}")
    for point in status.restore_points:
        print(
            f"  checkpoint as of entry {point.index}, {format_time(point.time_ms)}: "
            f"{point.pieces} pieces, {point.size} bytes"
        )
    print(f"  log: {status.segments} segments, {status.segment_bytes} bytes")
    for found in status.ranges:
        print(
            f"  can be restored to entries {max(found.first_index, 1)} to {found.last_index}, "
            f"{_told(found.first_time_ms)} to {_told(found.last_time_ms)}"
        )
    if not status.ranges:
        print("  CANNOT BE RESTORED: there is no checkpoint, nor the log from its beginning")
    for gap in status.gaps:
        print(f"  GAP: entries {gap.first_index} to {gap.last_index} are missing")
    for what in status.damaged:
        print(f"  DAMAGE: {what}")
    for cluster_id in status.fenced_by:
        print(f"  FENCED: cluster {cluster_id} was restored from it")


def _told(time_ms: int | None) -> str:
    return "an unknown time" if time_ms is None else format_time(time_ms)


def _tell_verified(verified: Verified) -> None:
    print(
        f"cluster {verified.cluster_id}: {verified.entries} entries in {verified.segments} "
        f"segments, {verified.snapshots} checkpoints, {verified.packs} packs, "
        f"{verified.size} bytes read"
    )
    for problem in verified.problems:
        print(f"  DAMAGE: {problem}")
    if not verified.has_end and not verified.problems:
        print(
            "  it has no end pointer (an older release wrote it), so a missing end "
            "would go unnoticed"
        )
    if not verified.problems:
        print("  no damage found")


def _print_restored(done: Restored, data_dir: str, *, fenced: bool) -> None:
    print(f"cluster {done.cluster_id} is restored in {data_dir}, from {done.former_cluster_id}")
    print(f"as of entry {done.last_index} (term {done.last_term}), {format_time(done.time_ms)};")
    for name, why in done.given_up.items():
        print(f"WARNING: {name} is damaged ({why}); an older checkpoint and the log replace it.")
    if not done.streams and done.streams is not None:
        print("WARNING: it is EMPTY: there were no streams at that time.")
    if done.is_end_proved is False:
        print("The archive names no end, so nothing proves that it is complete.")
    print(f"{done.packs} packs of the old cluster are in use; all were read and verified.")
    print("Start the node with this directory and the same [cold] store, then add others under new")
    print("ids.")
    if fenced:
        print("The old cluster is fenced: stop its nodes. Keep its folder in the store.")
    else:
        print("The old cluster is NOT fenced and may delete what this one needs: only for a drill.")
