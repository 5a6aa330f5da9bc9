"""Which of the processes that share a run takes which tests: files whole, and Spark's together.

Spark takes ten seconds of a processor to start and a gigabyte to stay, so all its tests have one
session, in one process. The files of `APART` hold little but long tests that share nothing.

What takes long goes first: a long file begun last keeps one process busy while the others are
done. The files of `LONG_FIRST` are begun in that order, then those with most tests.
"""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

# One unit of work each, instead of one for each file.
TOGETHER = ("tests/spark/",)

# One unit of work for each test of these.
APART = (
    "tests/sim/",
    "tests/raft/test_planted_bugs.py",
    "tests/raft/test_simulation.py",
    "tests/crash/test_tears.py",
    "tests/conformance/",
)

# Minutes for few tests: these run servers and break them, or thousands of schedules.
LONG_FIRST = (
    "tests/spark/",
    "tests/conformance/",
    "tests/workers/",
    "tests/jepsen_like/",
    "tests/crash/",
    "tests/sim/",
    "tests/cluster/",
    "tests/objectstore/nodes/",
    "tests/hostile/",
    "tests/releases/",
    "tests/client/",
    "tests/objectstore/",
    "tests/state_db/",
    "tests/streams/test_model",
    "tests/raft/",
)


class Scheduling(LoadFileScheduling):
    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        self.workqueue.move_to_end(longest(list(self.workqueue)), last=False)
        super()._assign_work_unit(node)


def scope_of(test: str) -> str:
    """The unit that a test belongs to, by its id."""
    if test.startswith(APART):
        return test
    return next((folder for folder in TOGETHER if test.startswith(folder)), test.partition("::")[0])


def longest(scopes: list[str]) -> str:
    """The unit to begin next; the first of several alike."""
    return min(scopes, key=_place)


def _place(scope: str) -> int:
    places = (place for place, start in enumerate(LONG_FIRST) if scope.startswith(start))
    return next(places, len(LONG_FIRST))
