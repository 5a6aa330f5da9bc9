"""The limits of this process, and settings of the kernel that matter to a node."""

from __future__ import annotations

import os
import re
import resource
from pathlib import Path

from streamd.hosts.inspection.facts import LimitFacts

_PROC = Path("/proc")
_SWAPPED = re.compile(r"^VmSwap:\s+(\d+) kB$", re.MULTILINE)


def limits(proc: Path = _PROC) -> LimitFacts:
    """The limits of this process. Reads `proc`; what is missing there is None or 0."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    swapped = _SWAPPED.search(_text(proc / "self" / "status"))
    return LimitFacts(
        open_files=len(os.listdir(proc / "self" / "fd")),
        max_open_files=None if hard == resource.RLIM_INFINITY else hard,
        max_maps=_number(proc / "sys" / "vm" / "max_map_count"),
        overcommit=_number(proc / "sys" / "vm" / "overcommit_memory"),
        swapped_bytes=int(swapped[1]) * 1024 if swapped else 0,
    )


def _number(file: Path) -> int | None:
    text = _text(file).strip()
    return int(text) if text.isdigit() else None


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
