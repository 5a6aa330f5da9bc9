"""`python -m bench`: measure streamd beside its peers and print the tables."""

from __future__ import annotations

import os
import platform
import signal
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import click

from bench import measurements, report, servers, wrk
from bench.bars import OURS
from bench.errors import BenchError
from bench.machine import Cores, allow_many_files, cpu_model, disk_note
from bench.runner import Plan, run

_DATA_DIR = Path(__file__).parents[1] / "build" / "bench"
_FULL = {
    "rounds": 3,
    "duration_s": 5.0,
    "idle_streams": 100_000,
    "live_streams": 100_000,
    "readers": 5_000,
}
_QUICK = {
    "rounds": 1,
    "duration_s": 2.0,
    "idle_streams": 2_000,
    "live_streams": 2_000,
    "readers": 100,
}
# What a process holds open besides a connection of each reader: clients, wrk's connections, files.
_OTHER_FILES = 500
_Named = TypeVar("_Named", measurements.Measurement, servers.Server)


def pick(option: str, known: Sequence[_Named], wanted: Sequence[str]) -> list[_Named]:
    """Those with a wanted name, in their own order; all if none is. Names may be comma-separated.

    Raises `click.BadParameter`.
    """
    names = [name.strip() for text in wanted for name in text.split(",") if name.strip()]
    by_name = {each.name: each for each in known}
    for name in names:
        if name not in by_name:
            raise click.BadParameter(
                f"{name!r} is not one of {', '.join(by_name)}", param_hint=option
            )
    return [each for each in known if not names or each.name in names]


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--rounds", type=click.IntRange(1), help="Rounds of all. [default: 3; quick: 1]")
@click.option(
    "--duration-s",
    type=click.FloatRange(1, 600),
    help="Seconds of load per run; wrk takes whole ones. [default: 5; quick: 2]",
)
@click.option(
    "--idle-streams",
    type=click.IntRange(1),
    help="How many idle streams to start with. [default: 100000; quick: 2000]",
)
@click.option(
    "--live-streams",
    type=click.IntRange(1),
    help="How many streams a loaded node has. [default: 100000; quick: 2000]",
)
@click.option(
    "--readers",
    type=click.IntRange(1),
    help="How many SSE readers wait on a loaded node. [default: 5000; quick: 100]",
)
@click.option(
    "--only",
    multiple=True,
    metavar="NAME",
    help=f"Only this measurement: {', '.join(each.name for each in measurements.ALL)}.",
)
@click.option(
    "--servers",
    "server_names",
    multiple=True,
    metavar="A,B",
    help=f"Only these servers: {', '.join(servers.known())}.",
)
@click.option("--quick", is_flag=True, help="To see that it works; the figures mean little.")
@click.option(
    "--data-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=_DATA_DIR,
    help="Where the servers write. [default: build/bench of the checkout]",
)
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write JSON too."
)
@click.option(
    "--markdown",
    "markdown_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Write the tables to a file too; between its bench:start and bench:end marks, if any.",
)
def main(
    rounds: int | None,
    duration_s: float | None,
    idle_streams: int | None,
    live_streams: int | None,
    readers: int | None,
    only: tuple[str, ...],
    server_names: tuple[str, ...],
    quick: bool,
    data_dir: Path,
    json_file: Path | None,
    markdown_file: Path | None,
) -> None:
    """Measure streamd and its peers in turn, on this machine."""
    defaults = _QUICK if quick else _FULL
    plan = Plan(
        measurements=pick("--only", measurements.ALL, only),
        servers=pick("--servers", list(servers.known().values()), server_names),
        rounds=rounds or int(defaults["rounds"]),
        duration_s=duration_s or defaults["duration_s"],
        idle_streams=idle_streams or int(defaults["idle_streams"]),
        live_streams=live_streams or int(defaults["live_streams"]),
        readers=readers or int(defaults["readers"]),
        data_dir=data_dir,
        cores=Cores.choose(),
    )
    # Without this a SIGTERM would leave servers running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    _measure(plan, json_file, markdown_file)


def _measure(plan: Plan, json_file: Path | None, markdown_file: Path | None) -> None:
    wrk.require()
    for server in plan.servers:
        server.set_up()
    has_readers = any(each.has_readers for each in plan.measurements)
    allow_many_files(plan.readers + _OTHER_FILES if has_readers else 0)
    setting = _setting(plan)
    results = run(plan, lambda line: click.echo(line, err=True))
    text = report.markdown(results, setting)
    click.echo(text, nl=False)
    if markdown_file is not None:
        report.write_markdown(markdown_file, text)
    if json_file is not None:
        json_file.write_text(report.to_json(results, setting))
    # A peer's failure is a finding, ours is an error.
    if any(server == OURS for _, server in results.failed):
        raise BenchError(f"a run on {OURS} failed; see the end of the report")


def _setting(plan: Plan) -> report.Setting:
    plan.data_dir.mkdir(parents=True, exist_ok=True)
    return report.Setting(
        date=datetime.now(UTC).strftime("%Y-%m-%d"),
        cpu=cpu_model(),
        system=f"{platform.system()} {platform.release()}",
        pinning=plan.cores.describe(),
        load_average=os.getloadavg()[0],
        disk=disk_note(plan.data_dir),
        rounds=plan.rounds,
        duration_s=plan.duration_s,
        tools=wrk.version(),
        versions={server.name: server.version() for server in plan.servers},
        acknowledged={server.name: server.acknowledged for server in plan.servers},
    )


if __name__ == "__main__":
    main()
