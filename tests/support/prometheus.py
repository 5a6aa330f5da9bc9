"""Prometheus and promtool for tests: found on the PATH, or taken once a machine from Debian's
package, which is unpacked and not installed, so that no service starts.

Run as a program it prepares them ahead of the tests.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support import tether
from tests.support.ports import unused_port
from tests.support.processes import RunningProcess
from tests.support.tools import PROMETHEUS, cache_directory, skip_without

_TOOLS = ("prometheus", "promtool")
_FETCH_TIMEOUT_S = 300


class NoPrometheus(Exception):
    """There is no Prometheus on this machine and none could be fetched; the message says why."""


def find_prometheus(*, fetch: bool = True) -> Path:
    """The directory that has both programs, fetched if need be. Raises `NoPrometheus`."""
    on_path = [shutil.which(tool) for tool in _TOOLS]
    if on_path[0] is not None and all(on_path):
        return Path(on_path[0]).parent
    kept = cache_directory() / "prometheus"
    found = kept / "package" / "usr" / "bin"
    if found.exists():
        return found
    if not fetch:
        raise NoPrometheus("prometheus and promtool are neither on the PATH nor fetched")
    kept.mkdir(parents=True, exist_ok=True)
    with open(kept / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one fetches; the others wait for it
        if not found.exists():
            _fetch(kept)
    return found


def _fetch(kept: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise NoPrometheus("prometheus is not on the PATH, and without apt-get cannot be fetched")
    with tempfile.TemporaryDirectory(dir=kept) as directory:
        room = Path(directory)
        # Lists of its own: those of a new machine are empty, and only root may renew them.
        (room / "lists" / "partial").mkdir(parents=True)
        options = ["-q", "-o", f"Dir::State::lists={room}/lists", "-o", f"Dir::Cache={room}"]
        try:
            _run(room, "apt-get", *options, "update")
            _run(room, "apt-get", *options, "download", "prometheus")
            package = next(room.glob("prometheus_*.deb"))
            _run(room, "dpkg", "-x", str(package), "package")
        except subprocess.CalledProcessError as error:
            last_lines = "\n".join(error.stderr.strip().splitlines()[-5:])
            raise NoPrometheus(f"prometheus could not be fetched:\n{last_lines}") from error
        except (OSError, StopIteration, subprocess.TimeoutExpired) as error:
            raise NoPrometheus(f"prometheus could not be fetched: {error!r}") from error
        (room / "package").rename(kept / "package")


def _run(directory: Path, *command: str) -> None:
    subprocess.run(
        command,
        cwd=directory,
        check=True,
        capture_output=True,
        text=True,
        timeout=_FETCH_TIMEOUT_S,
    )


def prometheus_or_skip() -> Path:
    """The directory of the programs; without them the test is skipped."""
    try:
        return find_prometheus()
    except NoPrometheus as reason:
        skip_without(PROMETHEUS, str(reason))


class PrometheusServer(RunningProcess):
    """A Prometheus with a configuration in a directory, in which it keeps its data, too."""

    def __init__(self, programs: Path, configuration: Path) -> None:
        super().__init__()
        self._program = programs / "prometheus"
        self._configuration = configuration
        self._log = configuration.parent / "prometheus.log"
        self.port = unused_port()

    def start(self) -> None:
        """Start it; it may not serve yet."""
        with self._log.open("ab") as log:
            self.process = tether.start(
                [
                    str(self._program),
                    f"--config.file={self._configuration}",
                    f"--storage.tsdb.path={self._configuration.parent / 'tsdb'}",
                    f"--web.listen-address=127.0.0.1:{self.port}",
                ],
                stdout=log,
                stderr=log,
            )

    @property
    def output(self) -> str:
        return self._log.read_text()


def main() -> None:
    """Prepare Prometheus, or say why there is none."""
    try:
        find_prometheus()
    except NoPrometheus as reason:
        print(f"THE TESTS OF THE ALERTS WILL BE SKIPPED: {reason}", file=sys.stderr)


if __name__ == "__main__":
    main()
