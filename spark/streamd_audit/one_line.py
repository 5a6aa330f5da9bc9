"""Errors of data sources as Spark's users see them: one line, without the worker's traceback.

Spark sends the text of an exception from a Python worker to the driver, by default with the
traceback before it. An exception of ours says what is wrong, where, and what to do; the frames
between only hide that. A traceback of any other exception stays: it is needed to find the bug.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar

# What Spark calls of a data source, its readers and its writers.
_CALLED = frozenset(
    (
        "schema", "reader", "writer", "streamReader", "streamWriter", "pushFilters", "partitions",
        "read", "initialOffset", "latestOffset", "reportLatestOffset",
        "prepareForTriggerAvailableNow", "write", "commit", "abort",
    )
)  # fmt: skip
_OURS = ("streamd", "streamd_audit")

# A worker process ends with its error, so it hides no traceback but that of this one.
_HIDE = "SPARK_HIDE_TRACEBACK"
_RUNTIME, _WORKER = "SPARK_PYTHON_RUNTIME", "PYTHON_WORKER"

C = TypeVar("C", bound=type)


def one_line(cls: C) -> C:
    """Decorate a class so that Spark shows the errors of ours that its methods raise in a line."""
    for name in _CALLED.intersection(vars(cls)):
        setattr(cls, name, _in_one_line(vars(cls)[name]))
    return cls


def _in_one_line(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def called(*args: Any, **named: Any) -> Any:
        with _hidden():
            found = method(*args, **named)
        return _rest(found) if isinstance(found, Iterator) else found

    return called


def _rest(found: Iterator[Any]) -> Iterator[Any]:
    with _hidden():
        yield from found


@contextmanager
def _hidden() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        ours = type(error).__module__.partition(".")[0] in _OURS
        if ours and os.environ.get(_RUNTIME) == _WORKER:
            os.environ[_HIDE] = "1"
        raise
