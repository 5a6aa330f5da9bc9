"""Which tests are long: `make test-all` runs all tests, `make test` all but these.

A test says so itself with `@pytest.mark.long`, a module with `pytestmark = pytest.mark.long`, or
with a list that begins with it. Where the long ones are not wanted, such a module is not even
imported: that takes time in each process, and needs packages that only `make test-all` installs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

# The expression for pytest's -m that leaves the long tests out.
ALL_BUT_LONG = "not long"
_WHOLE_MODULE = re.compile(r"^pytestmark = \[?\s*pytest\.mark\.long\b", re.MULTILINE)


def first_quick(values: Iterable[Any], quick: int = 1) -> list[Any]:
    """These values for `parametrize` or a fixture: all but the first `quick` are long."""
    return [
        value if place < quick else pytest.param(value, marks=pytest.mark.long)
        for place, value in enumerate(values)
    ]


def is_long_as_a_whole(path: Path) -> bool:
    """Whether all tests of this file are long; of a directory never."""
    return path.suffix == ".py" and _WHOLE_MODULE.search(path.read_text()) is not None
