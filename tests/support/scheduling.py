"""Which of the processes that share a run takes which tests: files whole, and Spark's together.

Spark takes ten seconds of a processor to start and a gigabyte to stay, so all its tests have one
session, in one process.
"""

from __future__ import annotations

from typing import cast

from xdist.scheduler import LoadFileScheduling

# One unit of work each, instead of one for each file.
TOGETHER = ("tests/spark/",)


class Scheduling(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return scope_of(cast("str", super()._split_scope(nodeid)))


def scope_of(file: str) -> str:
    """What the tests of a file are kept together with."""
    return next((folder for folder in TOGETHER if file.startswith(folder)), file)
