"""What was not tested, and why: each run of pytest records it, and `make test` and `make test-all`
print it at their end.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.support.tools import NEEDS

# Names the file that the runs of one `make test-all` add to.
FILE = "STREAMD_TEST_SKIPPED"


def record(reports: Iterable[pytest.TestReport | pytest.CollectReport]) -> None:
    """Add a line for each skipped test, with its reason, to the file if there is one."""
    file = os.environ.get(FILE)
    if file is None:
        return
    with Path(file).open("a") as lines:
        for report in reports:
            assert isinstance(report.longrepr, tuple)
            reason = report.longrepr[2].removeprefix("Skipped: ")
            lines.write(json.dumps([report.nodeid, reason]) + "\n")


def summary(lines: Iterable[str]) -> list[str]:
    """What to print about recorded tests: first those that lack a tool, then those left out by
    choice; a test that several runs skipped counts once."""
    tests: defaultdict[str, set[str]] = defaultdict(set)
    for line in lines:
        test, reason = json.loads(line)
        tests[reason].add(test)
    lacking = sorted(reason for reason in tests if reason.startswith(NEEDS))
    chosen = sorted(tests.keys() - set(lacking))
    printed = ["-- not tested, for want of a tool:" if lacking else "-- no tool was missing"]
    printed += _described(lacking, tests)
    if chosen:
        printed += ["-- not tested, by choice:", *_described(chosen, tests)]
    return printed


def _described(reasons: Iterable[str], tests: dict[str, set[str]]) -> Iterable[str]:
    for reason in reasons:
        yield f"{len(tests[reason]):5} tests: {reason}"
        for file in sorted({test.partition("::")[0] for test in tests[reason]}):
            yield f"             {file}"


def main() -> None:
    """Print the summary of the file that the environment names."""
    with open(os.environ[FILE]) as lines:
        print("\n".join(summary(lines)))


if __name__ == "__main__":
    main()
