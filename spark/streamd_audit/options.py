"""The options that all jobs take on their command lines, and how they end.

Nothing here needs Spark: `start` reports in one line what is missing before anything imports it.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path

CLEAN, FINDINGS, NOT_RUN = 0, 1, 2
# ``--since last``: after what the previous audit with the same ``--out`` has judged.
LAST = "last"
# What the data sources need to open a store.
OF_SOURCES = (
    "store",
    "cluster",
    "endpoint",
    "access_key",
    "secret_key",
    "session_token",
    "region",
    "ca_file",
)


class NotRun(Exception):
    """The audit could not be run, or not to its end; the message is one line that says why."""


@dataclass(frozen=True)
class Options:
    """The options of every job. `since` is a log index, `LAST`, or None for everything.

    A store option that is None is taken from the environment: ``AWS_ENDPOINT_URL``,
    ``AWS_ACCESS_KEY_ID``, ``AWS_SECRET_ACCESS_KEY``, ``AWS_SESSION_TOKEN``, ``AWS_REGION``. The
    `token` for the cluster comes from ``STREAMD_TOKEN``, or from the file that
    ``STREAMD_TOKEN_FILE`` names: other users can see a command line.
    """

    store: str
    out: Path | None = None
    cluster: str | None = None
    url: str | None = None
    since: int | str | None = None
    expect: list[Path] = field(default_factory=list)
    key: str | None = None
    endpoint: str | None = None
    access_key: str | None = None
    secret_key: str | None = None
    session_token: str | None = None
    region: str | None = None
    ca_file: str | None = None
    master: str | None = None
    token: str | None = field(default=None, repr=False)

    def of_sources(self) -> dict[str, str]:
        """The options for the data sources, for ``spark.read.format(…).options(**…)``."""
        given = {name: getattr(self, name) for name in OF_SOURCES}
        return {name: value for name, value in given.items() if value is not None}


def parser(description: str, *, needs_out: bool = False) -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(
        description=description,
        epilog="exit status: 0 clean, 1 findings, 2 could not be run",
    )
    add = found.add_argument
    add("--store", required=True, metavar="DIR|s3://BUCKET/PREFIX", help="the cold store")
    add("--cluster", metavar="ID", help="whose objects (default: the only cluster there)")
    add("--url", help="a node of the live cluster, to be compared with the archive")
    add("--since", type=_since, metavar="INDEX|last", help="judge what came after this log entry")
    add(
        "--expect", type=Path, nargs="+", default=[], metavar="FILE",
        help="signed heads of the log that were kept elsewhere (streamd log-head)",
    )  # fmt: skip
    add("--key", help="the cluster's first key (default: that of the first head in --expect)")
    add("--out", type=Path, required=needs_out, metavar="DIR", help="where findings are written")
    add("--endpoint", help="of the S3 service, as a URL (default: AWS_ENDPOINT_URL)")
    add("--region", help="default: AWS_REGION")
    add("--access-key", help="default: AWS_ACCESS_KEY_ID")
    add("--secret-key", help="default: AWS_SECRET_ACCESS_KEY, which other users cannot see")
    add("--session-token", help="of temporary credentials (default: AWS_SESSION_TOKEN)")
    add("--ca-file", metavar="FILE", help="the CAs (PEM) to trust for S3, not the system's")
    add("--master", help="of Spark (default: what spark-submit names, or all cores here)")
    return found


def parse(found: argparse.ArgumentParser, arguments: Sequence[str] | None = None) -> Options:
    """The options on a command line; exits with 2 when they are wrong."""
    given = vars(found.parse_args(arguments))
    return Options(**given, token=None if given["url"] is None else _token())


def _token() -> str | None:
    """The token for the cluster, if one is given. Raises `NotRun`."""
    file = os.environ.get("STREAMD_TOKEN_FILE")
    if not file:
        return os.environ.get("STREAMD_TOKEN") or None
    try:
        return Path(file).read_text().strip()
    except OSError as error:
        raise NotRun(f"STREAMD_TOKEN_FILE: {file}: {error.strerror}") from None


def start(job: str, arguments: Sequence[str] | None = None) -> int:
    """Run ``main(arguments)`` of a module of this package, and return its exit status.

    A missing package, or an error in the command line or the store, is one line on standard error.
    """
    try:
        status = import_module(f"streamd_audit.{job}").main(arguments)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == "streamd_audit":
            raise
        where = "pip install '.[spark]' in streamd's checkout"
        return _not_run(f"{package} is not installed: {where}")
    except NotRun as error:
        return _not_run(str(error))
    except Exception as error:
        # Python would exit with 1, which means findings.
        traceback.print_exc()
        return _not_run(f"{type(error).__name__}: {error}".partition("\n")[0])
    return int(status)


def _not_run(reason: str) -> int:
    print(f"could not be run: {reason}", file=sys.stderr)
    return NOT_RUN


def _since(text: str) -> int | str:
    if text == LAST:
        return text
    index = int(text)
    if index < 0:
        raise ValueError
    return index
