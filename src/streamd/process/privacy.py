"""Files of a node are readable by its own user only."""

from __future__ import annotations

import ctypes
import os
import stat
from collections.abc import Collection
from pathlib import Path

_OTHERS = 0o077


def keep_private() -> None:
    """Deny other users access to all files that this process creates from now on.

    This sets the process's umask, because LevelDB has no setting for the mode of its files.
    """
    os.umask(_OTHERS)


def forget_in_environment(secrets: Collection[str | None]) -> None:
    """Remove the variables with these values from this process's environment.

    Its children do not inherit them, and they are overwritten where they came in, so that
    ``/proc/PID/environ`` does not show them either. The process still has the values in its memory.
    """
    getenv = ctypes.CDLL(None).getenv
    getenv.restype = ctypes.c_void_p
    for name, value in tuple(os.environ.items()):
        if value and value in secrets:
            if (place := getenv(os.fsencode(name))) is not None:
                ctypes.memset(place, ord("*"), len(os.fsencode(value)))
            del os.environ[name]


def is_open_to_others(path: Path) -> bool:
    """Whether the group or others have any permission. Raises `OSError`."""
    return bool(path.stat().st_mode & _OTHERS)


def close_to_others(directory: Path) -> bool:
    """Withdraw the permissions of the group and others. Returns whether there were any.

    A directory such as ``/tmp``, where anyone may make files, keeps its mode: it is not a node's
    own. Raises `OSError`.
    """
    mode = stat.S_IMODE(directory.stat().st_mode)
    if not mode & _OTHERS or mode & stat.S_ISVTX:
        return False
    directory.chmod(mode & ~_OTHERS)
    return True
