"""A recording of everything that a process does to its disk, and what a loss of power leaves of it.

The model of the disk: what was synced is there. Of what was written to a file and not synced, each
page of 4 KiB may be there or not; where the file has grown it may hold zeros instead, or what the
disk had there before, and where it was overwritten what it held. Changes to directories reach the
disk in order, and a sync of any file takes those before it along, as with ext4, XFS and Btrfs.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.sim.torn_pages import Tear, pages, torn

_CALLS = "openat,write,pwrite64,fdatasync,fsync,rename,unlink,unlinkat,rmdir,ftruncate,mkdir"
_MOST_BYTES = 1 << 24
_BEGUN = re.compile(r"(\d+) +(\w+)\((.*) <unfinished \.\.\.>$")
_RESUMED = re.compile(r"(\d+) +<\.\.\. \w+ resumed>(.*)$")
_WHOLE = re.compile(r"(\d+) +(\w+)\((.*)\) += (\d+)(?:<.*>)?$")
_PATH = re.compile(r'(?:<|")((?:\\x[0-9a-f]{2})+)(?:>|")')


@dataclass
class File:
    synced: bytes = b""
    written: bytearray = field(default_factory=bytearray)


@dataclass
class Call:
    """A system call that succeeded, on a path: relative to the data directory, or the acks'."""

    name: str
    path: str
    target: str = ""
    data: bytes = b""
    size: int = 0
    at: int = 0
    truncates: bool = False


def record(command: Sequence[str], trace: Path) -> None:
    """Run a Python script under strace, with all that it does to files written to `trace`."""
    tracing = ["strace", "-f", "--seccomp-bpf", "-qq", "-y", "-xx"]
    tracing += ["-s", str(_MOST_BYTES), "-o", str(trace)]
    subprocess.run(
        [*tracing, "-e", f"trace={_CALLS}", sys.executable, *command],
        check=True,
        cwd=Path(__file__).parents[2],
    )


def calls(trace: Path, root: Path) -> Iterator[Call]:
    """What was done below `root`, in the order in which it ended."""
    begun: dict[str, str] = {}
    with trace.open(encoding="ascii") as lines:
        for line in lines:
            if match := _BEGUN.match(line):
                begun[match[1]] = f"{match[2]}({match[3]}"
                continue
            if match := _RESUMED.match(line):
                line = f"{match[1]} {begun.pop(match[1])}{match[2]}"
            if (match := _WHOLE.match(line)) and (call := _call(match[2], match[3], root)):
                yield call


def _call(name: str, arguments: str, root: Path) -> Call | None:
    # Paths of `openat` begin with the directory that the process is in.
    texts = [_unescaped(text) for text in _PATH.findall(arguments)][name == "openat" :]
    if not texts or (not texts[0].startswith(f"{root}/".encode()) and texts[0] != bytes(root)):
        return None
    path = texts[0][len(str(root)) + 1 :].decode()
    if name == "openat":
        if "O_CREAT" not in arguments and "O_TRUNC" not in arguments:
            return None
        return Call(name, path, truncates="O_TRUNC" in arguments)
    if name == "rename":
        return Call(name, path, target=texts[1][len(str(root)) + 1 :].decode())
    if name == "ftruncate":
        return Call(name, path, size=int(arguments.rpartition(",")[2]))
    if name == "pwrite64":
        return Call(name, path, data=texts[1], at=int(arguments.rpartition(",")[2]))
    return Call(name, path, data=texts[1] if name == "write" and len(texts) > 1 else b"")


def _unescaped(text: str) -> bytes:
    return bytes.fromhex(text.replace("\\x", ""))


class Disk:
    """Files as a process sees them, and as they are on the disk."""

    def __init__(self) -> None:
        self.names: dict[str, File | None] = {}  # None: a directory
        self._synced_names: dict[str, File | None] = {}
        # What the names were after each change to a directory that is not synced.
        self._pending: list[dict[str, File | None]] = []
        # Blocks of removed files: their bytes may come back.
        self._old_blocks: list[bytes] = []

    def do(self, call: Call) -> None:
        name, path = call.name, call.path
        if name == "openat":
            self._open(path, truncates=call.truncates)
        elif name == "write":
            self._file(path).written += call.data
        elif name == "pwrite64":
            self._file(path).written[call.at : call.at + len(call.data)] = call.data
        elif name == "ftruncate":
            del self._file(path).written[call.size :]
        elif name in ("fdatasync", "fsync"):
            self._sync(path)
        else:
            self._change_names(call)

    @property
    def unsynced(self) -> list[str]:
        """The files that a loss of power would change now."""
        return [
            path
            for path, file in self.names.items()
            if file is not None and file.written != file.synced and not _is_nothing(path)
        ]

    def image(self, to: Path, random: Random, tear: Tear) -> None:
        """Make a directory what a loss of power at this moment could leave."""
        names = random.choice([self._synced_names, *self._pending])
        to.mkdir(parents=True)
        for path in sorted(names):
            file = names[path]
            if file is None:
                (to / path).mkdir(exist_ok=True)
            elif not _is_nothing(path):
                (to / path).write_bytes(
                    torn(file.synced, bytes(file.written), random, self._old_blocks, tear)
                )

    def _file(self, path: str) -> File:
        file = self.names[path]
        assert file is not None, path
        return file

    def _open(self, path: str, *, truncates: bool) -> None:
        file = self.names.get(path)
        if file is None:
            self.names[path] = File()
            self._changed_names()
        elif truncates:
            file.written.clear()

    def _sync(self, path: str) -> None:
        file = self.names.get(path)
        if file is not None:
            file.synced = bytes(file.written)
        self._synced_names = dict(self.names)
        self._pending.clear()

    def _change_names(self, call: Call) -> None:
        if call.name == "mkdir":
            self.names[call.path] = None
        elif call.name == "rename":
            for path in [*self.names]:
                if path == call.path or path.startswith(call.path + "/"):
                    self.names[call.target + path[len(call.path) :]] = self.names.pop(path)
        else:
            gone = self.names.pop(call.path, None)
            if gone is not None:
                # A log's first block looks like that of the next one, until the chain is checked.
                self._old_blocks += pages(bytes(gone.written))[1:]
        self._changed_names()

    def _changed_names(self) -> None:
        self._pending.append(dict(self.names))


def _is_nothing(path: str) -> bool:
    """Whether the content of a file does not matter."""
    return path.endswith(("LOCK", "LOG", "LOG.old"))
