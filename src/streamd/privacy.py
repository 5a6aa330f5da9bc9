"""Files of a node are readable by its own user only."""

from __future__ import annotations

import os
import stat
from pathlib import Path

_OTHERS = 0o077


def keep_private() -> None:
    """Deny other users access to all files that this process creates from now on.

    This sets the process's umask, because LevelDB has no setting for the mode of its files.
    """
    os.umask(_OTHERS)


def is_open_to_others(path: Path) -> bool:
    """Whether the group or others have any permission. Raises `OSError`."""
    return bool(path.stat().st_mode & _OTHERS)


def close_to_others(directory: Path) -> bool:
    """Withdraw the permissions of the group and others. Returns whether there were any.

    A directory such as ``/tmp``, where anyone may make files, stays as it is: it is not a node's
    own. Raises `OSError`.
    """
    mode = stat.S_IMODE(directory.stat().st_mode)
    if not mode & _OTHERS or mode & stat.S_ISVTX:
        return False
    directory.chmod(mode & ~_OTHERS)
    return True
