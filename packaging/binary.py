"""Makes one file of a tree (`tree.py`): a script that unpacks the tree after it when it starts.

docs/decisions/042-a-script-that-unpacks-itself.md says why. Equal trees give equal bytes.

    python packaging/binary.py TREE FILE
"""

from __future__ import annotations

import gzip
import platform
import sys
import tarfile
from hashlib import sha256
from io import BytesIO
from pathlib import Path

from packages import version_of

_HEADER = Path(__file__).with_name("header.sh")
_KEY_CHARACTERS = 16


def make_binary(tree: Path, file: Path) -> None:
    """Write the file. Raises `OSError`."""
    content = packed(tree)
    version = version_of(tree)
    header = _HEADER.read_text()
    values = {
        "VERSION": version,
        "MACHINE": platform.machine(),
        "KEY": f"{version}-{sha256(content).hexdigest()[:_KEY_CHARACTERS]}",
        "LINES": str(header.count("\n") + 1),
    }
    for name, value in values.items():
        header = header.replace(f"@{name}@", value)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(header.encode() + content)
    file.chmod(0o755)


def packed(tree: Path) -> bytes:
    """The tree as a compressed archive, with no times and no owners."""

    def nameless(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.mtime = entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644
        return entry

    buffer = BytesIO()
    with (
        gzip.GzipFile("", "wb", compresslevel=6, fileobj=buffer, mtime=0) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        # In the order of their names, which `add` gives.
        archive.add(tree, arcname=".", filter=nameless)
    return buffer.getvalue()


if __name__ == "__main__":
    make_binary(Path(sys.argv[1]), Path(sys.argv[2]))
