"""Directories in which LevelDB may remove files in its own thread while a test reads them."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path


def sizes(directory: Path, pattern: str = "**/*") -> dict[Path, int]:
    """The files below a directory and their bytes, at one moment at which none of them vanished."""
    while True:
        with suppress(FileNotFoundError):
            files = [file for file in directory.glob(pattern) if file.is_file()]
            return {file: file.stat().st_size for file in files}


def copy_in_use(directory: Path, to: Path) -> Path:
    """A copy of what the disk holds of an open node or store: nothing is flushed or closed for it.

    A copy during which files appeared or disappeared shows no single moment, and is repeated. Locks
    belong to the running process and are not copied.
    """
    left_out = shutil.ignore_patterns("LOCK")
    while True:
        before = sizes(directory)
        try:
            shutil.copytree(directory, to, ignore=left_out, copy_function=_copy_if_there)
        except (shutil.Error, FileNotFoundError):
            if sizes(directory) == before:
                raise
        if sizes(directory) == before:
            return to
        shutil.rmtree(to)


def _copy_if_there(source: str, target: str) -> None:
    with suppress(FileNotFoundError):
        shutil.copy2(source, target)
