"""What a node stores is for its own user alone."""

from __future__ import annotations

import os
from pathlib import Path

_OTHERS = 0o077


def keep_private() -> None:
    """Keep other users of the machine away from all files that this process makes from now on.

    It is the process's umask, because LevelDB has no setting of its own for that.
    """
    os.umask(_OTHERS)


def is_open_to_others(path: Path) -> bool:
    """Whether its permissions give the group or others anything. Raises `OSError`."""
    return bool(path.stat().st_mode & _OTHERS)
