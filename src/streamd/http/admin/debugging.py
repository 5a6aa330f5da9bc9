"""What a node's process does and holds, for operators who look for a fault.

With workers this is the process that has the group. Nothing here shows values of streams, requests
or credentials (`diagnostics`).
"""

from __future__ import annotations

from quart import Response, jsonify, request

from streamd.http.admin.operator import Answer, Operator
from streamd.http.protocol.fields import parse_query, whole_number
from streamd.process.diagnostics import MAX_PROFILE_S, task_tree
from streamd.protocol.problems import Problem

_TEXT = "text/plain; charset=utf-8"


async def tasks(operator: Operator) -> Answer:
    """The tasks of the process, and where each waits."""
    return Response(task_tree(), content_type=_TEXT), 200


async def memory(operator: Operator) -> Answer:
    """The memory of the process, and how full its queues and caches are."""
    return jsonify(operator.reports.memory()), 200


async def profile(operator: Operator) -> Answer:
    """Where the threads of the process are, sampled for some seconds."""
    given = parse_query(request.query_string)
    seconds = whole_number(given.get(b"seconds", b""), "seconds", MAX_PROFILE_S)
    if not seconds:
        raise Problem.INVALID_REQUEST.error("seconds must be at least 1")
    return Response(await operator.reports.profiler.profile(seconds), content_type=_TEXT), 200
