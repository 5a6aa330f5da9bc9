"""A wrong wall clock for a process that is started with it.

A library put before the system's moves CLOCK_REALTIME; the monotonic clock, by which processes
wait, stays as it is.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.support.tools import COMPILER, needs

needs_compiler = needs(COMPILER, shutil.which("cc") is not None)

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *now)
{
    static int (*real)(clockid_t, struct timespec *);
    if (real == NULL)
        real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(clock, now);
    const char *ahead_s = getenv("SKEWED_CLOCK_AHEAD_S");
    if (status == 0 && ahead_s != NULL && clock == CLOCK_REALTIME)
        now->tv_sec += atol(ahead_s);
    return status;
}
"""


class SkewedClock:
    """The library, compiled into a directory. Raises `CalledProcessError` when it does not."""

    def __init__(self, directory: Path) -> None:
        source, self._library = directory / "skewed_clock.c", directory / "skewed_clock.so"
        source.write_text(_SOURCE)
        command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(self._library), str(source), "-ldl"]
        subprocess.run(command, check=True, capture_output=True)

    def ahead(self, seconds: int) -> dict[str, str]:
        """The environment of a process whose wall clock is ahead by `seconds`, or late."""
        return {"LD_PRELOAD": str(self._library), "SKEWED_CLOCK_AHEAD_S": str(seconds)}
