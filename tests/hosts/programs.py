"""Small programs that stand in PATH as `systemctl`, `journalctl`, `ssh`, `sudo` and `kubectl`.

Each writes its arguments to a file, one line of JSON for each call, and behaves as a script says.
"""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

_PROGRAM = """#!{python} -S
import json, os, subprocess, sys
with open({record!r}, "a") as record:
    record.write(json.dumps([{name!r}, *sys.argv[1:]]) + "\\n")
{behaviour}
"""
# What follows the host is a text for a shell at the other end.
SSH = """
words = sys.argv[sys.argv.index("--") + 2:]
sys.exit(subprocess.call(" ".join(words), shell=True))
"""
# Without a prompt for a password, or not at all.
SUDO = """
assert sys.argv[1] == "-n"
sys.exit(subprocess.call(sys.argv[2:]))
"""


class Programs:
    """A directory for PATH, and what its programs were called with."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._record = directory / "calls"
        self._record.touch()

    def add(self, name: str, behaviour: str = "") -> None:
        """A program of this name; without a behaviour it succeeds silently."""
        program = self.directory / name
        record = str(self._record)
        program.write_text(
            _PROGRAM.format(python=sys.executable, record=record, name=name, behaviour=behaviour)
        )
        program.chmod(program.stat().st_mode | stat.S_IXUSR)

    @property
    def calls(self) -> list[list[str]]:
        """Name and arguments of each call so far."""
        return [json.loads(line) for line in self._record.read_text().splitlines()]
