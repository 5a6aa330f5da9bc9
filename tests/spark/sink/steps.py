"""The steps of a micro-batch, as the servers see them: a task looks for other journals, asks for
the metadata of its streams, proposes a plan, and appends rows."""

from __future__ import annotations

from typing import NamedTuple

from tests.support.s3_proxy import Moment


class Step(NamedTuple):
    """A moment of one request, after `passed_over` others like it."""

    moment: Moment
    method: str
    about: str
    passed_over: int


# Of two tasks with two streams each.
EVERY_STEP = [
    Step(moment, method, about, passed_over)
    for method, about, count in (
        ("GET", "/spark-sink/streams", 1),
        ("HEAD", "/v1/stream/", 2),
        ("POST", "/append-batch", 2),
        ("POST", "/v1/stream/", 4),
    )
    for passed_over in range(count)
    for moment in (Moment.BEFORE, Moment.BEHIND)
]
