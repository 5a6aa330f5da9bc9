"""Why a job could not be run, in one line, wherever it failed: on the driver or in a worker."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.errors import PySparkException

from streamd_audit import sources
from streamd_audit.errors import StoreFailed
from streamd_audit.options import NotRun
from streamd_audit.session import SparkMissing

# How a worker's exception ends in the text of the driver's.
_WORKERS_FAILURE = re.compile(r"(?:^|\s)(?:\S+\.)?(StoreFailed|BadOption): (.+)$", re.MULTILINE)


@contextmanager
def told_in_a_line() -> Iterator[None]:
    """Raise `NotRun` for problems of the store, the options or Spark that prevent a job."""
    try:
        yield
    except (SparkMissing, StoreFailed, sources.BadOption, OSError) as error:
        raise NotRun(str(error)) from error
    except PySparkException as error:
        found = _WORKERS_FAILURE.search(str(error))
        if found is None:
            traceback.print_exc()
            raise NotRun(_first_line(error)) from error
        raise NotRun(found[2]) from error


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
